"""`rlctl measure burst`: more and more instances at once, managed and unmanaged."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rlctl.commands.measure_session import add_options, measured, write_json
from rlctl.envs.errors import ConfigError

if TYPE_CHECKING:
    from rlctl.measure.measurement import Measurement
    from rlctl.measure.plan import Cell, Log
    from rlctl.measure.plots import Sided

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """examples:
  rlctl measure burst --report out/
  rlctl measure burst --instances 1,4,12 --threads 8 --runs 10

Figures in the manner of BarbequeRTRM's burst analysis: completion time, processor speed, context switches, migrations
and power over the number of instances, one PNG for each number of threads, and burst.csv with all means and intervals.
What runs, and for how long, is in configs/measure/burst.yaml.
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
    """Run the command; the table goes to stdout, all else to stderr.

    Raises:
        ConfigError: There is no such series or platform.
        PermissionMissing: Not root.
        TestbedError: An instance failed.
    """
    from rlctl.measure.config import load_measure
    from rlctl.measure.measurement import Measurement
    from rlctl.measure.platform import managed_ground

    config = load_measure("burst")
    ground = managed_ground(args.platform, config.published_clusters)
    series = dict(_series(args, config.applications))
    cells = tuple(cell for some in series.values() for cell in some.values())
    period_us = round(1e3 * args.quota_period_ms)
    config = config.with_work(args.work)
    measurement = Measurement(config, cells, ground, args.runs, args.leftover, period_us, args.seed)

    def finish(log: Log) -> None:
        from rlctl.measure.report import as_json, told

        if args.json != "-":
            print("\n".join(told(measurement, log, tables=False)))
        write_json(args, as_json(measurement, log, "burst"))
        if args.report:
            _draw(args, measurement, log, series)

    measured(args, measurement, finish)
    return 0


def _series(args: argparse.Namespace, applications: Mapping[str, object]) -> Iterator[tuple[int, dict[int, Cell]]]:
    from rlctl.measure.plan import Cell

    for threads in args.threads:
        name = f"threads-{threads}"
        if name not in applications:
            there = ", ".join(one.removeprefix("threads-") for one in applications)
            raise ConfigError(f"no series of {threads} threads in configs/measure/burst.yaml; there are {there}")
        yield threads, {number: Cell(f"{number} x {threads} threads", {name: number}) for number in args.instances}


def _draw(
    args: argparse.Namespace, measurement: Measurement, log: Log, series: Mapping[int, Mapping[int, Cell]]
) -> None:
    from rlctl.measure.measurement import sides_by_cell
    from rlctl.measure.plots import burst_png
    from rlctl.measure.table import csv_lines

    sides = sides_by_cell(measurement, log)
    for threads, cells in series.items():
        there: dict[int, Sided] = {number: sides[one.name] for number, one in cells.items() if one.name in sides}
        if there:
            title = (
                f"{threads} thread{'s' if threads > 1 else ''} an instance, unmanaged against managed, 95 % intervals"
            )
            (args.report / f"burst-{threads}.png").write_bytes(burst_png(there, title))
    (args.report / "burst.csv").write_text("\n".join(csv_lines(sides)) + "\n")


def _numbers(text: str) -> tuple[int, ...]:
    """`1-12`, `1,4,8` or both, for argparse."""
    from rlctl.envs.host.cpulist import parse_cpus

    try:
        numbers = tuple(sorted(parse_cpus(text)))
    except Exception as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1-4,8") from error
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_INSTANCES:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 to {MOST_INSTANCES}")
    return numbers
