"""`scripts/measure mix` and `burst`: mixes of applications, and more and more instances, managed and unmanaged."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from rlctl.bench.workforce import kept_at_signals
from rlctl.commands import Command
from rlctl.commands.arguments import number
from rlctl.commands.options import positive_int, require_names
from rlctl.commands.outputs import add_json, check_outputs, files_first, write_json
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.host.cgroup.values import MAX_PERIOD_US, PERIOD_US
from rlctl.envs.host.decode import parse_cpus
from rlctl.log.progress import progress, say
from scripts.studies.mixes.config import MeasureConfig, load_measure
from scripts.studies.mixes.measurement import Measurement, estimated_seconds, run_all, sides_by_cell, trials
from scripts.studies.mixes.plan import Cell, Log
from scripts.studies.mixes.platform import managed_ground
from scripts.studies.mixes.plots import benefit_png, burst_png
from scripts.studies.mixes.report import as_json, report_lines, scaling
from scripts.studies.mixes.table import CellMetrics, csv_lines

MIX_EXAMPLES = """examples:
  scripts/measure mix --report out/mix
  scripts/measure mix --mix H1,H2 --runs 10 --leftover idle --json result.json
  scripts/measure mix --mix mine.yaml     # as scripts/studies/mixes/mixes.yaml; `command:` for a program of yours

Every run starts all instances of a mix at one moment and ends with the last one. Unmanaged, they have the managed CPUs
to themselves with all their threads; managed, the allocator gives each a working mode, a cluster and a quota. Both run
in control groups that are made for it and removed. What runs, and for how long, is in scripts/studies/mixes/mixes.yaml.
"""
BURST_EXAMPLES = """examples:
  scripts/measure burst --report out/burst
  scripts/measure burst --instances 1,4,12 --threads 8 --runs 10

Figures in the manner of BarbequeRTRM's burst analysis: completion time, processor speed, context switches, migrations
and power over the number of instances, one PNG for each number of threads, and burst.csv with all means and intervals.
What runs, and for how long, is in scripts/studies/mixes/burst.yaml.
"""
MIX_RUNS, BURST_RUNS = 30, 5
"""30 as in the paper."""
MIX_PLATFORM, BURST_PLATFORM = "published", "whole"
"""Where the allocator's choices are the paper's; and where an instance of one thread can fill a CPU."""
MOST_INSTANCES = 64

Draw = Callable[[Mapping[str, CellMetrics]], None]
"""Writes the figures of what was measured, by the cell's name, to the folder of --report."""


def _add_mix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mix", metavar="L1,M1,...|FILE", help="which mixes (default: all that ship)")
    _add_options(parser, MIX_RUNS, MIX_PLATFORM)


def _add_burst(parser: argparse.ArgumentParser) -> None:
    every = tuple(range(1, 13))
    parser.add_argument("--instances", type=_numbers, default=every, metavar="1-12", help="numbers (default: 1-12)")
    parser.add_argument("--threads", type=_numbers, default=(1, 8), metavar="1,8", help="series (default: 1,8)")
    _add_options(parser, BURST_RUNS, BURST_PLATFORM)


def _add_options(parser: argparse.ArgumentParser, runs: int, platform: str) -> None:
    add = parser.add_argument
    add("--runs", type=positive_int, default=runs, metavar="N", help=f"of each side of each cell (default: {runs})")
    add(
        "--platform",
        default=platform,
        metavar="FILE|published|cores|whole",
        help="managed CPUs and clusters: a platform description, or all CPUs in as many clusters as the paper had, in "
        f"one for each core, or in one (default: {platform})",
    )
    idle = "CPU time that chosen modes do not ask for: shared among those placed (default), or idle as in the paper"
    add("--leftover", choices=("share", "idle"), default="share", help=idle)
    most, own = MAX_PERIOD_US / 1e3, PERIOD_US / 1e3
    period = number(float, lambda value: 1.0 <= value <= most, f"is not from 1 to {most:g}")
    help_period = f"period of the quotas; the kernel's own is 100 (default: {own:g})"
    add("--quota-period-ms", type=period, default=own, metavar="MS", help=help_period)
    add("--seed", type=int, default=0, metavar="N", help="of the order of runs (default: 0)")
    add_json(parser, "the result")
    add("--report", type=Path, metavar="DIR", help="figures, CSV, and runs.jsonl with every run")
    add("--resume", action="store_true", help="go on with the runs recorded in --report")
    add("--dry-run", action="store_true", help="print what would be run and touch nothing")


def _run_mix(args: argparse.Namespace) -> int:
    def draw(cells: Mapping[str, CellMetrics]) -> None:
        if cells:
            (args.report / "benefit.png").write_bytes(benefit_png(cells))

    config, names = _mixes(args)
    return _measure(args, config, tuple(Cell(name, config.mixes[name]) for name in names), draw)


def _mixes(args: argparse.Namespace) -> tuple[MeasureConfig, list[str]]:
    if args.mix and args.mix.endswith((".yaml", ".yml")):
        config = load_measure(args.mix)
        if not config.mixes:
            raise ConfigError("names no mixes", args.mix)
        return config, list(config.mixes)
    config = load_measure("mixes")
    names = list(require_names("--mix", args.mix)) if args.mix else list(config.mixes)
    for name in names:
        if name not in config.mixes:
            raise ConfigError(f"no mix {name!r}; there are {', '.join(config.mixes)}, or give a .yaml file")
    return config, names


def _run_burst(args: argparse.Namespace) -> int:
    config = load_measure("burst")
    series: dict[int, dict[int, Cell]] = {}  # by threads, then by the number of instances
    for threads in args.threads:
        name = f"threads-{threads}"
        if name not in config.applications:
            known = ", ".join(known.removeprefix("threads-") for known in config.applications)
            raise ConfigError(f"no series of {threads} threads in burst.yaml; there are {known}")
        series[threads] = {one: Cell(f"{one} x {threads} threads", {name: one}) for one in args.instances}

    def draw(sides: Mapping[str, CellMetrics]) -> None:
        for threads, cells in series.items():
            measured = {number: sides[cell.name] for number, cell in cells.items() if cell.name in sides}
            if measured:
                plural = "s" if threads > 1 else ""
                title = f"{threads} thread{plural} an instance, unmanaged against managed, 95 % intervals"
                (args.report / f"burst-{threads}.png").write_bytes(burst_png(measured, title))
        (args.report / "burst.csv").write_text("\n".join(csv_lines(sides)) + "\n")

    return _measure(args, config, tuple(cell for by in series.values() for cell in by.values()), draw)


def _measure(args: argparse.Namespace, config: MeasureConfig, cells: tuple[Cell, ...], draw: Draw) -> int:
    """Make all runs and report them; an end before the last one reports those that are finished."""
    ground = managed_ground(args.platform, config.published_clusters)
    period_us = round(1e3 * args.quota_period_ms)
    measurement = Measurement(config, cells, ground, args.runs, args.leftover, period_us, args.seed)
    _check(args)
    if args.dry_run:
        write_json(args.json, measurement.as_plan())
        if args.json != "-":
            print("\n".join(scaling(measurement)))
        return 0
    log = Log(args.report, measurement.as_plan(), resume=args.resume)
    tried = trials(measurement)

    def report() -> None:
        lines = report_lines(measurement, log, tables=args.kind == "mix")
        with files_first(lambda: args.json == "-" or print("\n".join(lines))):
            write_json(args.json, as_json(measurement, log, args.kind))
            if args.report:
                draw(sides_by_cell(measurement, log))

    total = 2 * measurement.runs * len(measurement.cells)
    seconds = estimated_seconds(measurement, tried)
    left = "" if not log.records else f", {len(log.records)} of them recorded"
    say(f"{total} runs{left}" + ("" if seconds is None else f", about {_minutes(seconds)} if no CPU lies idle"))
    try:
        with kept_at_signals(), progress(total, "runs") as advance:
            run_all(measurement, tried, log, advance)
    except BaseException:
        if log.records:
            say(f"ended early, after {len(log.records)} of {total} runs")
            report()
        if args.report:
            say(f"go on with --resume --report {shlex.quote(str(args.report))} and the same options")
        raise
    report()
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.resume and args.report is None and not args.dry_run:
        raise ConfigError("--resume needs the folder of the runs: --report DIR")
    if os.geteuid() != 0 and not args.dry_run:
        raise PermissionMissing("control groups are made for the runs: run as root")
    check_outputs(args)


def _minutes(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"


def _numbers(text: str) -> tuple[int, ...]:
    """`1-12`, `1,4,8` or both, for argparse."""
    try:
        numbers = tuple(sorted(parse_cpus(text)))
    except Exception as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1-4,8") from error
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_INSTANCES:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 to {MOST_INSTANCES}")
    return numbers


FAMILY = {
    "mix": Command(_add_mix, _run_mix, MIX_EXAMPLES),
    "burst": Command(_add_burst, _run_burst, BURST_EXAMPLES),
}
