"""`rlctl bench` on the live host: the plans that the arguments ask for, run and shown."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rlctl.bench.live_repeats import LiveOutcome, live_hosts, results_as_json
from rlctl.bench.participants import NEEDS_MODEL
from rlctl.bench.quota_levels import bench_sweep, needs_sweep
from rlctl.bench.rounds import read_rounds
from rlctl.bench.testbed import FRESH_SECONDS, LivePlan
from rlctl.commands.outputs import files_first, raise_early_end, write_json
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import SOLO_SECONDS
from rlctl.log.progress import progress, say
from rlctl.report.bench_table import round_tables, tables, write_report
from rlctl.report.table import LEGEND
from rlctl.safety.profile import load_shield

REPEATS, ADAPT_SECONDS = 8, 300.0
"""Runs of each manager on the live host, and how long it has watched before, when no numbers are asked for."""

SETTLE_SECONDS = 4.0
"""About what goes by around each run: the LC's backlog drains, BE starts, fills its arrays and is stopped."""


def run_plans(args: argparse.Namespace, plans: Sequence[LivePlan]) -> int:
    """Run the plans one after the other and show each; HostError at an early end, with all before it written."""
    for plan in plans:
        caption = plan.described("maximum load: searched before each repeat")
        what = f"{plan.scenario.name}: {plan.scenario.description}"
        say(f"{what}\nmanagers {', '.join(plan.managers)}, about {_minutes(plan)} min\n{caption}")
    if args.dry_run:
        return 0
    outcomes: list[LiveOutcome] = []
    with contextlib.ExitStack() as ending, live_hosts(args.ray, logs=args.verbose > 0) as measure:
        if args.json == "-":  # stdout takes one document, of all that was measured
            ending.callback(lambda: write_json("-" if outcomes else None, outcomes and results_as_json(outcomes)))
        for plan in plans:
            with _progress(plan) as done:
                outcome = measure(plan, done)
            outcomes.append(outcome)
            with files_first(partial(_show, outcome, table=args.json != "-")):
                if args.json != "-":
                    write_json(args.json, results_as_json(outcomes))
                if args.report:
                    folder = args.report if len(plans) == 1 else args.report / plan.scenario.name
                    write_report(outcome, folder)
                    say(f"report: {folder / 'table.md'}")
            raise_early_end(outcome.interrupted)
    return 0


def print_rounds(args: argparse.Namespace) -> int:
    """`rlctl bench table`: managers of a result file, round by round, and the lowest QoS of each on any host."""
    print("\n\n".join(round_tables(read_rounds(args.file), args.against or "")))
    return 0


def _show(outcome: LiveOutcome, *, table: bool) -> None:
    if table:
        print(tables(outcome), "", outcome.caption, LEGEND, "", sep="\n", flush=True)
        if outcome.plan.repeats > 1:
            print("\n\n".join(round_tables([outcome.by_round])), "", sep="\n", flush=True)
    for name, remarks in outcome.remarks.items():
        for remark in remarks:
            say(f"{name}: {remark}")


def plan_of(args: argparse.Namespace, scenario: LiveScenario, managers: tuple[str, ...], _source: str) -> LivePlan:
    """The live plan that the arguments ask for, all names checked before anything is started."""
    if args.ray is None:
        scenario.require_online()
    shield = load_shield(args.shield).scale_time(scenario.time_scale)
    watched_seconds = ADAPT_SECONDS if args.adapt is None else args.adapt
    plan = LivePlan(scenario, managers, args.repeats or REPEATS, shield, adapt_seconds=watched_seconds)
    for name in (*plan.managers, *scenario.managers):
        plan.policy(name)
    return plan


def _minutes(plan: LivePlan) -> int:
    """About how long a plan takes, all told, at least 1."""
    run_seconds = plan.scenario.duration_seconds + SETTLE_SECONDS
    recordings = 1 if NEEDS_MODEL & set(plan.managers) else 0
    before_seconds = recordings * run_seconds
    if needs_sweep(plan.managers, plan.scenario):
        before_seconds += bench_sweep(plan.scenario).measuring_seconds
    adapting = sum(map(plan.adapts, plan.managers))
    searches = adapting + plan.repeats + (before_seconds > FRESH_SECONDS)
    seconds = before_seconds + plan.repeats * (SOLO_SECONDS + SETTLE_SECONDS)
    seconds += searches * plan.scenario.start_seconds
    seconds += adapting * (plan.adapt_seconds + SETTLE_SECONDS) + plan.repeats * len(plan.managers) * run_seconds
    return max(1, round(seconds / 60.0))


@contextlib.contextmanager
def _progress(plan: LivePlan) -> Iterator[Callable[[str, int], None]]:
    with progress(len(plan.managers) * plan.repeats, "runs") as advance:
        yield lambda name, repeat: advance(f"{name} #{repeat + 1}")
