"""`rlctl approve`: a word on who is to decide, where that waits for one."""

from __future__ import annotations

import argparse

from rlctl.commands.asking import add_service, asked

DESCRIPTION = """Say yes to what waits (`approve: true` in the configuration), or no, or only ask what that is: a
reload, or a start with another policy, fallback or shield than was approved last."""

EXAMPLES = """examples:
  rlctl approve --show    # what waits, and which pause or limit holds BE
  rlctl approve
  rlctl approve 0a1b2c3d4e5f    # only to this
  rlctl approve --no
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "digest", nargs="?", metavar="DIGEST", help="of what waits, in brackets behind it: a word on this and no other"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no", action="store_true", help="leave everything as it is")
    which.add_argument("--show", action="store_true", help="only say what waits, and which pause or limit holds BE")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; HostError: no service is there."""
    if args.show:
        return asked(args, {"do": "status"})
    return asked(args, {"do": "approve", "answer": "no" if args.no else "yes", "of": args.digest})
