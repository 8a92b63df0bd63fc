"""What the commands share that put a request to a running service: where it is, how long, why, and its answer."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from rlctl.commands.arguments import add_state, state_of
from rlctl.commands.outputs import print_json
from rlctl.log.lookup import UNITS
from rlctl.serve.control_socket import ask

UNTIL = "18:00, tomorrow's where today's is past, or 2026-11-24T06:00; default: until ended"

WHY_NOTHING_WAITS = {True: "who decides was approved", False: "approve: false, so that a reload waits for nobody"}
"""By whether the service asks for a word."""

_SPAN = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[smhd])")


def span(text: str) -> float:
    """`30s`, `15m`, `2h` or `1d` in seconds, for argparse."""
    if not (found := _SPAN.fullmatch(text)) or not (seconds := float(found["number"]) * UNITS[found["unit"]]):
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time, such as 90s, 15m, 2h or 1d")
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
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 18:00 or 2026-11-24T06:00") from None


def add_service(parser: argparse.ArgumentParser) -> None:
    """Declare which service is asked, and `--json`."""
    add_state(parser)
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def add_hold(parser: argparse.ArgumentParser) -> None:
    """Declare until when and why BE is held."""
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--until", type=moment, metavar="TIME", help=UNTIL)
    ends.add_argument("--for", type=span, metavar="TIME", dest="span", help="90s, 15m, 2h or 1d")
    parser.add_argument("--why", default="", metavar="TEXT", help="for logs and for whoever wonders")
    add_service(parser)


def hold(args: argparse.Namespace, what: str, **more: object) -> int:
    """Have BE held as the arguments say."""
    until = args.until if args.span is None else time.time() + args.span
    return asked(args, {"do": what, "why": args.why, "until": until, **more})


def asked(args: argparse.Namespace, request: Mapping[str, Any]) -> int:
    """Put a request and print what came of it."""
    behind = os.environ.get("SUDO_USER")
    answer = ask(state_of(args), {**request, "behind": behind} if behind else request)
    print_answer(answer, as_json=args.json)
    return 0


def print_answer(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """What was done, and what holds BE now."""
    if as_json:
        print_json(answer)
        return
    if answer["said"]:
        print(answer["said"])
    else:
        print("\n".join(f"BE is {one['text']}" for one in answer["holds"]) or "no pause and no limit holds BE")
    if answer["waiting"]:
        print(f"waits for `rlctl approve`: {answer['waiting']}")
    elif not answer["said"] and "approve" in answer:  # a service from before an upgrade does not say it
        print(f"nothing waits for `rlctl approve`: {WHY_NOTHING_WAITS[answer['approve']]}")
