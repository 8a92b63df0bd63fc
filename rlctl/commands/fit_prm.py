"""`rlctl fit-prm`: PRM's thresholds from records of the LC running alone."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.envs.errors import ConfigError, RlctlError

if TYPE_CHECKING:
    from rlctl.agents.prm_model import PrmModel

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl fit-prm /var/log/rlctl/ticks.jsonl --out nginx.prm.json
  rlctl fit-prm monday.jsonl tuesday.jsonl --out nginx.prm.json --overwrite

Record with `rlctl serve --policy frozen`: the LC alone, over its whole range of load. The file is what
`policy: {threshold_model: FILE}` takes.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "fit-prm",
        help="fit PRM's thresholds to records of the LC running alone",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORDS", help="tick logs")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the model goes")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> int:
    """Run the command; FILE is written whole or not at all.

    Raises:
        ConfigError: FILE exists, or the records cannot be used.
        RlctlError: scikit-learn is not installed.
    """
    if args.out.exists() and not args.overwrite:
        raise ConfigError("exists; give --overwrite to replace it", args.out)
    for path in args.records:
        if not path.is_file():
            raise ConfigError("cannot be read: no such file", path)
    model = _fitted(args.records)
    partial = args.out.with_name(args.out.name + ".part")
    model.save(partial)
    os.replace(partial, args.out)
    print(f"{args.out}: {model}")
    return 0


def _fitted(records: list[Path]) -> PrmModel:
    try:
        from rlctl.agents.training.fit_prm import fit_prm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise RlctlError("fitting needs scikit-learn: pip install 'rlctl[baselines]'") from error
    return fit_prm(records)
