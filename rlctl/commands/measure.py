"""`rlctl measure`: what management of many applications is worth on this host, measured as BarbequeRTRM's papers do."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl measure mix --report out/                           # mixes L1, M1, H1, H2: 30 runs each, managed and unmanaged
  rlctl measure mix --mix L1 --runs 10 --platform cores
  rlctl measure mix --instances 4 -- gzip -9c /usr/share/dict/words
  rlctl measure burst --report out/                         # 1 to 12 instances of 1 and of 8 threads
  rlctl measure cyclictest --help                           # wake-up latency under isolation
"""

KINDS = ("mix", "burst", "cyclictest")
"""What can be measured; each lives in rlctl.commands.measure_NAME."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "measure",
        help="mixes of applications managed and unmanaged, bursts, and wake-up latency, as in the papers",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=type(parser))
    for kind in KINDS:
        _module(kind).add_parser(kinds)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return int(_module(args.kind).run(args))


def _module(kind: str) -> ModuleType:
    return importlib.import_module(f"rlctl.commands.measure_{kind}")
