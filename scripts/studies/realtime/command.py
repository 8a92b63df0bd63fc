"""`scripts/measure cyclictest`: wake-up latency of a real-time task, by how it is set apart and what runs beside it."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.bench.participants import refuse_models
from rlctl.bench.workforce import kept_at_signals
from rlctl.commands.arguments import positive
from rlctl.commands.options import positive_int, split_names
from rlctl.commands.outputs import add_json, check_outputs, files_first, raise_early_end, write_json
from rlctl.envs import whole_file
from rlctl.envs.errors import ConfigError
from rlctl.log.progress import progress, say
from rlctl.safety.profile import DEFAULT, load_profile
from scripts.studies.realtime.isolation import LEGEND, ControlPlan, Outcome, Plan
from scripts.studies.realtime.plots import plot_histograms, plot_maxima
from scripts.studies.realtime.rtgroups import Condition
from scripts.studies.realtime.rtload import Load
from scripts.studies.realtime.run import measure

EXAMPLES = """examples:
  scripts/measure cyclictest --json isolation.json --report out/
  scripts/measure cyclictest --wakeups 20000 --rounds 1 --conditions none,cpuset,rlctl --loads io
  scripts/measure cyclictest --conditions none,rlctl --policy prm-hybrid-tuned --target-us 50
"""

CONDITIONS, LOADS = tuple(map(str, Condition)), tuple(map(str, Load))
SCHED_THREADS, IO_THREADS = 270, 50  # as in the study of 2011 that is repeated
FASTEST_US = 50
MOST_WAKE_UPS = 10_000_000
"""Of one run: its lines are kept in memory, 27 bytes for each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--wakeups", type=positive_int, default=100_000, metavar="N", help="of each cell (100000)")
    parser.add_argument("--interval-us", type=positive_int, default=200, metavar="N", help="between them (200)")
    parser.add_argument("--rounds", type=positive_int, default=4, metavar="N", help="runs of each cell, mixed (4)")
    parser.add_argument("--conditions", default="all", metavar="A,B,...", help=f"of {', '.join(CONDITIONS)} (all)")
    parser.add_argument("--loads", default="all", metavar="A,B,...", help=f"of {', '.join(LOADS)} (all)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the I/O load writes (the temporary folder)")
    parser.add_argument("--policy", default="greedy-shield", metavar="NAME", help="of rlctl (greedy-shield)")
    parser.add_argument("--shield", default=DEFAULT, metavar="NAME|FILE", help="of rlctl (%(default)s)")
    parser.add_argument(
        "--target-us", type=positive, metavar="X", help="tail that rlctl keeps (twice that of the task alone)"
    )
    parser.add_argument("--quantile-percent", type=positive, default=99.0, metavar="X", help="which tail (99)")
    parser.add_argument("--tick", type=positive, default=0.5, metavar="SECONDS", help="of rlctl's loop (0.5)")
    parser.add_argument(
        "--warm-up", type=positive, default=10.0, metavar="SECONDS", help="of rlctl before a run is measured (10)"
    )
    parser.add_argument("--time-scale", type=positive, default=15.0, metavar="X", help="divide published periods (15)")
    add_json(parser, "the result")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write table, JSON and plots here")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and touch nothing")


def run(args: argparse.Namespace) -> int:
    """Run the command; HostError means that it ended early, and that what was measured before has been written."""
    plan = plan_of(args)
    check_outputs(args)
    say(_effective(plan))
    if args.dry_run:
        write_json(args.json, plan.as_json())
        return 0
    with kept_at_signals():
        with progress(len(plan.cells) * plan.rounds, "runs") as advance:
            outcome = measure(plan, lambda cell, number: advance(f"{cell} #{number + 1}"))
        _report(args, outcome)
        raise_early_end(outcome.interrupted)
    return 0


def plan_of(args: argparse.Namespace) -> Plan:
    """What the arguments ask for, names and numbers checked."""
    if args.interval_us < FASTEST_US:
        raise ConfigError(f"--interval-us {args.interval_us}: a wake-up takes longer; {FASTEST_US} or more")
    if not 50.0 <= args.quantile_percent < 100.0:
        raise ConfigError(f"--quantile-percent {args.quantile_percent:g}: from 50 to below 100")
    catalogue.build(args.policy, time_scale=args.time_scale)
    refuse_models((args.policy,))
    folder = args.folder or Path(tempfile.gettempdir())
    if not folder.is_dir():
        raise ConfigError("is no folder; name another --folder for the I/O load", folder)
    profile = load_profile(args.shield).scale_time(args.time_scale)
    quantile_ratio = args.quantile_percent / 100.0
    plan = Plan(
        conditions=tuple(map(Condition, _names(args.conditions, CONDITIONS, "--conditions"))),
        loads=tuple(map(Load, _names(args.loads, LOADS, "--loads"))),
        wake_ups=args.wakeups,
        rounds=args.rounds,
        interval_us=args.interval_us,
        threads={Load.CPU: os.cpu_count() or 1, Load.SCHED: SCHED_THREADS, Load.IO: IO_THREADS},
        folder=folder,
        control=ControlPlan(
            args.policy, profile, args.target_us, quantile_ratio, args.tick, args.warm_up, args.time_scale
        ),
    )
    if plan.run_wake_ups > MOST_WAKE_UPS:
        raise ConfigError(f"--wakeups: one run has {plan.run_wake_ups}, more than {MOST_WAKE_UPS}: raise --rounds")
    return plan


def _names(given: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    if given == "all":
        return tuple(known)
    names = tuple(dict.fromkeys(split_names(given)))
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{option}: no {unknown[0]!r}; there are {', '.join(known)}")
    if not names:
        raise ConfigError(f"{option} names none of {', '.join(known)}")
    return names


def _effective(plan: Plan) -> str:
    minutes = max(1, round(plan.seconds / 60.0))
    return (
        f"cyclictest: {len(plan.conditions)} conditions x {len(plan.loads)} loads, {plan.wake_ups} wake-ups each at "
        f"{plan.interval_us} us in {plan.rounds} rounds, about {minutes} min; the I/O load writes to {plan.folder}"
    )


def _report(args: argparse.Namespace, outcome: Outcome) -> None:
    table = "\n".join((outcome.table(), "", LEGEND, *outcome.notes()))
    with files_first(lambda: args.json == "-" or print(table, flush=True)):
        write_json(args.json, outcome.as_json())
        if args.report:
            whole_file.write_json(args.report / "result.json", outcome.as_json())
            whole_file.write_whole(args.report / "table.md", table + "\n")
            plot_histograms(outcome, args.report / "histograms.png")
            plot_maxima(outcome, args.report / "maxima.png")
            say(f"report: {args.report / 'table.md'}")
