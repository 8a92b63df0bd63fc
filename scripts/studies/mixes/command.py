"""What `scripts/measure mix` and `burst` have in common: options, the runs under a progress bar, and their files."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from rlctl.commands.arguments import number, positive, positive_int
from rlctl.commands.outputs import add_json, check_outputs, files_first, write_json
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.host.cgroup.quota import MAX_PERIOD_US, PERIOD_US
from rlctl.work.interrupts import kept_at_signals
from rlctl.work.progress import progress, say
from scripts.studies.mixes.config import MeasureConfig
from scripts.studies.mixes.measurement import Measurement, estimated_seconds, run_all, sides_by_cell, trials
from scripts.studies.mixes.plan import Cell, Log
from scripts.studies.mixes.platform import managed_ground
from scripts.studies.mixes.report import as_json, report_lines, scaling
from scripts.studies.mixes.table import CellMetrics


def add_options(parser: argparse.ArgumentParser, runs: int, platform: str) -> None:
    """Declare the options that both have, with their defaults of runs and platform."""
    parser.add_argument(
        "--runs", type=positive_int, default=runs, metavar="N", help=f"of each, managed and unmanaged (default: {runs})"
    )
    parser.add_argument(
        "--platform",
        default=platform,
        metavar="FILE|published|cores|whole",
        help="managed CPUs and clusters: a platform description, or all CPUs in as many clusters as the paper had, in "
        f"one for each core, or in one (default: {platform})",
    )
    parser.add_argument(
        "--leftover",
        choices=("share", "idle"),
        default="share",
        help="CPU time that chosen modes do not ask for: shared among those placed (default), or idle as in the paper",
    )
    most = MAX_PERIOD_US / 1e3
    parser.add_argument(
        "--quota-period-ms",
        type=number(float, lambda value: 1.0 <= value <= most, f"is not from 1 to {most:g}"),
        default=PERIOD_US / 1e3,
        metavar="MS",
        help=f"period of the quotas; the kernel's own is 100 (default: {PERIOD_US / 1e3:g})",
    )
    parser.add_argument(
        "--work", type=positive, default=1.0, metavar="FACTOR", help="times the work of each instance (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of runs (default: 0)")
    add_json(parser, "the result")
    parser.add_argument("--report", type=Path, metavar="DIR", help="figures, CSV, and runs.jsonl with every run")
    parser.add_argument("--resume", action="store_true", help="go on with the runs recorded in --report")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run and touch nothing")


def measure(
    args: argparse.Namespace,
    kind: str,
    config: MeasureConfig,
    cells: tuple[Cell, ...],
    draw: Callable[[Mapping[str, CellMetrics]], None],
    *,
    tables: bool = True,
) -> int:
    """Make all runs and report them; an end before the last one reports those that are finished.

    Args:
        draw: Writes the figures of what was measured, by the cell's name, to the folder of --report.
        tables: Print a table of each cell's metrics, rather than the speed-ups alone.
    """
    ground = managed_ground(args.platform, config.published_clusters)
    period_us = round(1e3 * args.quota_period_ms)
    measurement = Measurement(
        config.with_work(args.work), cells, ground, args.runs, args.leftover, period_us, args.seed
    )
    if not args.dry_run:
        _check(args)
    check_outputs(args)
    if args.dry_run:
        write_json(args.json, measurement.as_plan())
        if args.json != "-":
            print("\n".join(scaling(measurement)))
        return 0
    log = Log(args.report, measurement.as_plan(), resume=args.resume)
    tried = trials(measurement)

    def report() -> None:
        with files_first(lambda: args.json == "-" or print("\n".join(report_lines(measurement, log, tables=tables)))):
            write_json(args.json, as_json(measurement, log, kind))
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
    if args.resume and args.report is None:
        raise ConfigError("--resume needs the folder of the runs: --report DIR")
    if os.geteuid() != 0:
        raise PermissionMissing("control groups are made for the runs: run as root")


def _minutes(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"
