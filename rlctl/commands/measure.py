"""`rlctl measure`: what management of many applications is worth on this host, measured as BarbequeRTRM's papers do."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

from rlctl.commands import declare

EXAMPLES = """examples:
  rlctl measure mix --report out/mix                       # mixes L1, M1, H1, H2: 30 runs each, managed and unmanaged
  rlctl measure mix --mix L1 --runs 10 --platform cores
  rlctl measure mix --instances 4 -- gzip -9c /usr/share/dict/words
  rlctl measure burst --report out/burst                      # 1 to 12 instances of 1 and of 8 threads
  rlctl measure cyclictest --help                           # wake-up latency under isolation
"""

KINDS = {
    "mix": "mixes of applications, managed and unmanaged: metrics, speed-ups, benefit and loss",
    "burst": "1 to 12 instances at once, of 1 and of 8 threads, managed and unmanaged",
    "cyclictest": "wake-up latency of a real-time task: conditions by loads",
}
"""What can be measured, with its line of help; each lives in rlctl.commands.measure_NAME."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, summary in KINDS.items():
        declare(kinds, kind, summary, _module(kind))


def run(args: argparse.Namespace) -> int:
    """Run the command of the kind that was named."""
    return int(_module(args.kind).run(args))


def _module(kind: str) -> ModuleType:
    return importlib.import_module(f"rlctl.commands.measure_{kind}")
