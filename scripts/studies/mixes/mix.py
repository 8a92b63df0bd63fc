"""`scripts/measure mix`: mixes of applications, managed and unmanaged."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rlctl.commands.arguments import named, positive_int
from rlctl.envs.errors import CheckFailed, ConfigError, TestbedError
from scripts.studies.mixes.command import add_options, measure
from scripts.studies.mixes.config import MeasureConfig, command_config, load_measure
from scripts.studies.mixes.plan import Cell
from scripts.studies.mixes.plots import benefit_png
from scripts.studies.mixes.table import CellMetrics

EXAMPLES = """examples:
  scripts/measure mix --report out/mix
  scripts/measure mix --mix H1,H2 --runs 10 --leftover idle --json result.json
  scripts/measure mix --mix mine.yaml                       # as scripts/studies/mixes/mixes.yaml
  scripts/measure mix --instances 4 --runs 5 -- gzip -9c /usr/share/dict/words

Every run starts all instances of a mix at one moment and ends with the last one. Unmanaged, they have the managed CPUs
to themselves with all their threads; managed, the allocator gives each a working mode, a cluster and a quota. Both run
in control groups that are made for it and removed. What runs, and for how long, is in scripts/studies/mixes/mixes.yaml.
"""

RUNS = 30
"""As in the paper."""

PLATFORM = "published"
"""Where the allocator's choices are the paper's."""

DEFAULT_INSTANCES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--mix", metavar="L1,M1,...|FILE", help="which mixes (default: all of scripts/studies/mixes/mixes.yaml)"
    )
    add_options(parser, RUNS, PLATFORM)
    parser.add_argument("--instances", type=positive_int, metavar="N", help="of COMMAND (default: 4)")
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command of yours instead, after --")


def run(args: argparse.Namespace) -> int:
    """Run the command; TestbedError for an instance of a benchmark that failed, CheckFailed for the command given."""

    def draw(cells: Mapping[str, CellMetrics]) -> None:
        if cells:
            (args.report / "benefit.png").write_bytes(benefit_png(cells))

    config, names = _mixes(args)
    try:
        return measure(args, "mix", config, tuple(Cell(name, config.mixes[name]) for name in names), draw)
    except TestbedError as error:
        if args.words:  # not the host's doing, and trying again later helps nobody
            raise CheckFailed(str(error)) from error
        raise


def _mixes(args: argparse.Namespace) -> tuple[MeasureConfig, list[str]]:
    if args.words:
        if args.mix:
            raise ConfigError("--mix and a command are two measurements: leave one out")
        config = command_config(tuple(args.words), args.instances or DEFAULT_INSTANCES)
        return config, list(config.mixes)
    if args.instances:
        raise ConfigError("--instances goes with a command: scripts/measure mix --instances 4 -- COMMAND")
    if args.mix and args.mix.endswith((".yaml", ".yml")):
        config = load_measure(args.mix)
        if not config.mixes:
            raise ConfigError("names no mixes", args.mix)
        return config, list(config.mixes)
    config = load_measure("mixes")
    names = list(named("--mix", args.mix)) if args.mix else list(config.mixes)
    for name in names:
        if name not in config.mixes:
            raise ConfigError(f"no mix {name!r}; there are {', '.join(config.mixes)}, or give a .yaml file")
    return config, names
