"""`scripts/measure burst`: more and more instances at once, managed and unmanaged."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.cpulist import parse_cpus
from scripts.studies.mixes.command import add_options, measure
from scripts.studies.mixes.config import load_measure
from scripts.studies.mixes.plan import Cell
from scripts.studies.mixes.plots import burst_png
from scripts.studies.mixes.table import CellMetrics, csv_lines

EXAMPLES = """examples:
  scripts/measure burst --report out/burst
  scripts/measure burst --instances 1,4,12 --threads 8 --runs 10

Figures in the manner of BarbequeRTRM's burst analysis: completion time, processor speed, context switches, migrations
and power over the number of instances, one PNG for each number of threads, and burst.csv with all means and intervals.
What runs, and for how long, is in scripts/studies/mixes/burst.yaml.
"""

RUNS = 5

PLATFORM = "whole"
"""An instance of one thread can fill a CPU, which is more than a third of two: no cluster stands in its way."""

MOST_INSTANCES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--instances",
        type=_numbers,
        default=tuple(range(1, 13)),
        metavar="1-12",
        help="numbers of them (default: 1-12)",
    )
    parser.add_argument("--threads", type=_numbers, default=(1, 8), metavar="1,8", help="series (default: 1,8)")
    add_options(parser, RUNS, PLATFORM)


def run(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, all else to stderr."""
    config = load_measure("burst")
    series = dict(_series(args, config.applications))
    cells = tuple(cell for by_number in series.values() for cell in by_number.values())
    return measure(args, "burst", config, cells, lambda sides: _draw(args, sides, series), tables=False)


def _series(args: argparse.Namespace, applications: Mapping[str, object]) -> Iterator[tuple[int, dict[int, Cell]]]:
    """Threads of an instance, and the cells by their number of instances."""
    for threads in args.threads:
        name = f"threads-{threads}"
        if name not in applications:
            known = ", ".join(known.removeprefix("threads-") for known in applications)
            raise ConfigError(f"no series of {threads} threads in scripts/studies/mixes/burst.yaml; there are {known}")
        yield threads, {number: Cell(f"{number} x {threads} threads", {name: number}) for number in args.instances}


def _draw(args: argparse.Namespace, sides: Mapping[str, CellMetrics], series: Mapping[int, Mapping[int, Cell]]) -> None:
    for threads, cells in series.items():
        measured = {number: sides[cell.name] for number, cell in cells.items() if cell.name in sides}
        if measured:
            plural = "s" if threads > 1 else ""
            title = f"{threads} thread{plural} an instance, unmanaged against managed, 95 % intervals"
            (args.report / f"burst-{threads}.png").write_bytes(burst_png(measured, title))
    (args.report / "burst.csv").write_text("\n".join(csv_lines(sides)) + "\n")


def _numbers(text: str) -> tuple[int, ...]:
    """`1-12`, `1,4,8` or both, for argparse."""
    try:
        numbers = tuple(sorted(parse_cpus(text)))
    except Exception as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1-4,8") from error
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_INSTANCES:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 to {MOST_INSTANCES}")
    return numbers
