"""`rlctl bench table`: the live managers of a result file, round by round, and the lowest QoS of each on any host."""

from __future__ import annotations

import argparse

from rlctl.bench.rounds import read_rounds
from rlctl.report.bench_table import round_tables


def run(args: argparse.Namespace) -> int:
    """Run the command: the table goes to stdout."""
    print("\n\n".join(round_tables(read_rounds(args.file), args.against or "")))
    return 0
