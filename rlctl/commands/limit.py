"""`rlctl limit`: BE at most so many CPUs until somebody says otherwise."""

from __future__ import annotations

import argparse

from rlctl.commands.arguments import number
from rlctl.commands.asking import add_hold, hold

DESCRIPTION = (
    """Have a running service give BE at most so many CPUs, whatever its policy says. It stays so over a restart."""
)

EXAMPLES = """examples:
  rlctl limit 1.5 --until 18:00 --why "month's end"
  rlctl limit 0.5 --for 30m
"""


CPUS = number(
    float,
    lambda value: 0.0 < value < 1e9,
    "is no number of CPUs above 0, such as 0.5; to take all, `rlctl pause`",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("cpus", type=CPUS, metavar="CPUS", help="the largest quota")
    add_hold(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; it ends when the limit is in force, HostError: no service is there."""
    return hold(args, "limit", quota_cpus=args.cpus)
