"""`rlctl fit-prm`: PRM's thresholds from records of the LC running alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from rlctl.agents.managers.prm_model import Method, check_free
from rlctl.commands.outputs import Damages

EXAMPLES = """examples:
  rlctl fit-prm /var/log/rlctl/ticks.jsonl --lc-cpus 1 --out nginx.prm.json
  rlctl fit-prm monday.csv tuesday.csv --lc-cpus 4 --out nginx.prm.json --overwrite

Record with `rlctl serve --policy frozen`: the LC alone, over its whole range of load. The file is what
`policy: {threshold_model: FILE}` takes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "records", type=Path, nargs="+", metavar="RECORDS", help="tick logs (files, or their directories) or CSV files"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the model goes")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument("--lc-cpus", type=float, required=True, metavar="N", help="CPUs that the LC has")
    parser.add_argument("--method", choices=get_args(Method), default="gmm-strict", help="default: gmm-strict")
    parser.add_argument("--span", type=float, default=4.0, metavar="SIGMAS", help="from mean to fence (default: 4)")
    parser.add_argument(
        "--interval", type=float, default=18.5, metavar="SECONDS", help="ticks are averaged over it (default: 18.5)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; FILE is written whole or not at all."""
    from rlctl.agents.training.fit_prm import fit, read_rows

    check_free(args.out, overwrite=args.overwrite)
    with Damages() as damaged:
        rows = [row for path in args.records for row in read_rows(path, damaged)]
    numbers = {"lc_cpus": args.lc_cpus, "span_sigmas": args.span, "interval_seconds": args.interval}
    model = fit(rows, method=args.method, **numbers)
    model.write(args.out, overwrite=args.overwrite)
    print(f"{args.out}: {len(model.bins)} bins, LC maximum {model.lcutilmax_percent:g} %")
    return 0
