"""What `rlctl measure mix` and `burst` have in common: options, the runs under a progress bar, and their files."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.commands.arguments import positive, positive_int
from rlctl.commands.outputs import check_outputs
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.host.cgroup.quota import MAX_PERIOD_US, PERIOD_US
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.measure.measurement import Measurement
    from rlctl.measure.plan import Log

__all__ = ["add_options", "measured", "write_json"]


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
    parser.add_argument(
        "--quota-period-ms",
        type=_period,
        default=PERIOD_US / 1e3,
        metavar="MS",
        help=f"period of the quotas; the kernel's own is 100 (default: {PERIOD_US / 1e3:g})",
    )
    parser.add_argument(
        "--work", type=positive, default=1.0, metavar="FACTOR", help="times the work of each instance (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of runs (default: 0)")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the result; without FILE to stdout")
    parser.add_argument("--report", type=Path, metavar="DIR", help="figures, CSV, and runs.jsonl with every run")
    parser.add_argument("--resume", action="store_true", help="go on with the runs recorded in --report")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run and touch nothing")


def measured(args: argparse.Namespace, measurement: Measurement, finish: Callable[[Log], None]) -> None:
    """Make all runs and report them; an end before the last one reports those that are finished.

    Args:
        args: Of the command.
        measurement: What is measured.
        finish: Reports what the log has.

    Raises:
        TestbedError: An instance failed; what was finished before is reported all the same.
        ConfigError: The log in --report is of another measurement, or a file cannot be written.
        PermissionMissing: Not root.
    """
    from rlctl.measure.measurement import estimated_seconds, run_all, trials
    from rlctl.measure.plan import Log
    from rlctl.measure.report import scaling
    from rlctl.work.progress import progress

    if args.dry_run:
        print("\n".join(scaling(measurement)))
        return
    _check(args)
    log = Log(args.report, measurement.as_plan(), resume=args.resume)
    tried = trials(measurement)
    total = 2 * measurement.runs * len(measurement.cells)
    seconds = estimated_seconds(measurement, tried)
    left = "" if not log.records else f", {len(log.records)} of them recorded"
    say(f"{total} runs{left}" + ("" if seconds is None else f", about {_minutes(seconds)} if no CPU lies idle"))
    try:
        with progress(total, "runs") as advance:
            run_all(measurement, tried, log, advance)
    except BaseException:
        if log.records:
            say(f"ended early, after {len(log.records)} of {total} runs")
            finish(log)
        if args.report:
            say(f"go on with --resume --report {shlex.quote(str(args.report))} and the same options")
        raise
    finish(log)


def write_json(args: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Where --json says."""
    text = json.dumps(result)
    if args.json == "-":
        print(text)
    elif args.json:
        Path(args.json).write_text(text + "\n")


def _period(text: str) -> float:
    """Milliseconds that the kernel takes as a period, for argparse."""
    value = float(text)
    if not 1.0 <= value <= MAX_PERIOD_US / 1e3:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MAX_PERIOD_US / 1e3:g}")
    return value


def _check(args: argparse.Namespace) -> None:
    if args.resume and args.report is None:
        raise ConfigError("--resume needs the folder of the runs: --report DIR")
    if os.geteuid() != 0:
        raise PermissionMissing("control groups are made for the runs: run as root")
    check_outputs(args)


def _minutes(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"
