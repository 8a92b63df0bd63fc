"""`rlctl pause`, `resume`, `limit` and `release`: an operator's requests to a running service."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.commands import Command
from rlctl.commands.arguments import add_state, number, state_of
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, in_one_line
from rlctl.log.why import UNITS
from rlctl.serve.control_socket import ANSWER_SECONDS, SOCKET, read_line

UNTIL = "18:00, tomorrow's where today's is past, or 2026-11-24T06:00; default: until ended"

PAUSE_EXAMPLES = """examples:
  rlctl pause --why "debugging the database"
  rlctl pause --for 2h --config /etc/rlctl/serve.yaml
  rlctl pause --until 06:00
  rlctl pause --show    # which pause or limit holds BE now
"""

RESUME_EXAMPLES = """examples:
  rlctl resume
  rlctl resume --config /etc/rlctl/serve.yaml
"""

LIMIT_EXAMPLES = """examples:
  rlctl limit 1.5 --until 18:00 --why "month's end"
  rlctl limit 0.5 --for 30m
"""

RELEASE_EXAMPLES = """examples:
  rlctl release
  rlctl release --state /var/lib/rlctl
"""

_SPAN = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[smhd])")

CPUS = number(
    float,
    lambda value: 0.0 < value < 1e9,
    "is not a number of CPUs above 0, such as 0.5; to take all, use `rlctl pause`",
)


def span(text: str) -> float:
    """`30s`, `15m`, `2h` or `1d` in seconds, for argparse."""
    match = _SPAN.fullmatch(text)
    seconds = float(match["number"]) * UNITS[match["unit"]] if match else 0.0
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time, such as 90s, 15m, 2h or 1d")
    return seconds


def moment(text: str) -> float:
    """`18:00` (the next one) or `2026-11-24T06:00` in Unix time, for argparse; both are local times."""
    try:
        if "T" in text or " " in text:
            return datetime.datetime.fromisoformat(text).timestamp()
        now = datetime.datetime.now()
        at = datetime.datetime.combine(now.date(), datetime.time.fromisoformat(text))
        return (at if at > now else at + datetime.timedelta(days=1)).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 18:00 or 2026-11-24T06:00") from None


def add_service(parser: argparse.ArgumentParser) -> None:
    """Declare which service gets the request, and `--json`."""
    add_state(parser)
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def add_hold(parser: argparse.ArgumentParser) -> None:
    """Declare until when and why BE is held."""
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--until", type=moment, metavar="TIME", help=UNTIL)
    ends.add_argument("--for", type=span, metavar="TIME", dest="span", help="90s, 15m, 2h or 1d")
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason, for logs and colleagues")
    add_service(parser)


def add_pause(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `pause`."""
    parser.add_argument("--show", action="store_true", help="only print which pause or limit holds BE")
    add_hold(parser)


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `limit`."""
    parser.add_argument("cpus", type=CPUS, metavar="CPUS", help="the largest quota")
    add_hold(parser)


def request(args: argparse.Namespace) -> int:
    """Send the service what its command asks for, and print the answer; HostError: no service is there.

    A pause ends the command when BE is safe, a limit when it is in force.
    """
    wanted: dict[str, object] = {"do": args.command}
    if args.command == "pause" and args.show:
        wanted["do"] = "status"
    elif args.command in ("pause", "limit"):
        wanted |= {"why": args.why, "until": args.until if args.span is None else time.time() + args.span}
    if args.command == "limit":
        wanted["quota_cpus"] = args.cpus
    if behind := os.environ.get("SUDO_USER"):
        wanted["behind"] = behind
    print_answer(ask(state_of(args), wanted), as_json=args.json)
    return 0


def print_answer(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was done; where nothing was asked for, what holds BE now."""
    if as_json:
        print_json(answer)
    elif answer["said"]:
        print(answer["said"])
    else:
        print("\n".join(f"BE is {one['text']}" for one in answer["holds"]) or "no pause and no limit holds BE")


def ask(state_directory: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put a request to the service with this state directory.

    Raises:
        ConfigError: The service does not know what is asked for.
        HostError: No service is there, or it does not answer.
        PermissionMissing: One may not.
    """
    path = state_directory / SOCKET
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWER_SECONDS)
            asking.connect(str(path))
            asking.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(read_line(asking, ANSWER_SECONDS))
    except PermissionError as error:
        raise PermissionMissing(f"{path}: it takes root, or control.group of the configuration") from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise HostError(
            f"no rlctl serves with {state_directory}: where one runs with another, give its --config or --state"
        ) from error
    except (OSError, ValueError) as error:
        raise HostError(f"{path}: no answer: {in_one_line(error)}") from error
    if answer.get("ok"):
        return dict(answer)
    kind = {78: ConfigError, 77: PermissionMissing}.get(answer.get("exit_code"), HostError)
    raise kind(str(answer.get("said")))


FAMILY = {
    "pause": Command(
        add_pause,
        request,
        PAUSE_EXAMPLES,
        "Have a running service hold BE at the safe allocation. It stays so over a restart of the service; when the\n"
        "service ends, BE gets its originals back as ever.",
    ),
    "resume": Command(add_service, request, RESUME_EXAMPLES, "End a pause; a limit stays."),
    "limit": Command(
        add_limit,
        request,
        LIMIT_EXAMPLES,
        "Have a running service give BE at most so many CPUs, whatever its policy says. It stays so over a restart.",
    ),
    "release": Command(add_service, request, RELEASE_EXAMPLES, "End a limit; a pause stays."),
}
"""The commands of this module."""
