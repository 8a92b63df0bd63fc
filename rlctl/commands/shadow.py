"""`rlctl shadow watch|report`: policies that look on, what they would have done, and whether one may act."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlctl.commands.arguments import positive, positive_int, split_names
from rlctl.commands.outputs import add_json

EXAMPLES = """examples:
  rlctl shadow watch /var/log/rlctl --policy ppo --policy feedforward
  rlctl shadow report /var/log/rlctl                           # what `watch` wrote beside the log
  rlctl shadow report /var/log/rlctl --policy ppo,feedforward  # or ask about what the log still has
  rlctl shadow report --shadow /var/log/rlctl-shadow/shadow.jsonl --gate

`watch` follows the tick log in a process of its own: nothing that it or its policies do reaches the loop that acts.
`report` compares the shadows with the acting policy; --gate turns it into yes (exit code 0: at least one may be
promoted) or no (1), with every reason. What their moves would do to the LC's latency the log does not say: compare
them on a profile of the host, from `rlctl calibrate`, with `rlctl bench`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="watch|report", required=True)
    _add_watch(actions.add_parser("watch", help="follow a tick log and record what policies would have done"))
    _add_report(actions.add_parser("report", help="compare them with who acted; may one be promoted?"))


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that the gate says no, or that there is nothing to report on."""
    if args.action == "watch":
        from rlctl.commands import shadow_watch  # runs for months beside a service: it loads no simulator

        return shadow_watch.run(args)
    from rlctl.commands import shadow_report

    return shadow_report.run(args)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=Path, metavar="LOG", help="the tick log's newest file, or its directory")
    _add_policy(parser, required=True)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: shadow.jsonl beside the log")
    parser.add_argument(
        "--rotate-bytes", type=positive_int, default=16 << 20, metavar="N", help="of --out; default: 16777216"
    )
    parser.add_argument("--keep", type=positive_int, default=16, metavar="N", help="rotated files; default: 16")
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="stop by itself after this time")
    parser.add_argument("--json", action="store_true", help="a summary a minute as a JSON line on stdout")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", nargs="?", type=Path, metavar="LOG", help="a tick log: a file, or the directory of all its files"
    )
    which = parser.add_mutually_exclusive_group()
    _add_policy(which, required=False)
    which.add_argument("--shadow", type=Path, metavar="FILE", help="what `watch` wrote; default: beside LOG")
    parser.add_argument(
        "--gate", nargs="?", const="-", metavar="FILE", help="yes or no; without FILE by the gate that ships"
    )
    parser.add_argument(
        "--bench", type=Path, metavar="FILE", help="for the gate: `rlctl bench --json` of acting and watching policies"
    )
    add_json(parser, "all of it")


def _add_policy(parser: argparse._ActionsContainer, *, required: bool) -> None:
    parser.add_argument(
        "--policy",
        type=split_names,
        action="extend",
        required=required,
        metavar="NAME|BUNDLE",
        help="who looks on: from `rlctl managers`, or a bundle's folder with a slash in it; may be given again",
    )
