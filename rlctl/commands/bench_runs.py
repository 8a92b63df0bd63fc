"""`rlctl bench`: the plans that the arguments ask for, in the simulator and on the live host, run and shown."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from rlctl.agents.catalogue import label
from rlctl.bench.live_repeats import LiveOutcome, live_hosts, results_as_json
from rlctl.bench.participants import NEEDS_MODEL
from rlctl.bench.rounds import read_rounds
from rlctl.bench.score import SimOutcome
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.bench.sim_scenario import SimScenario
from rlctl.bench.sweep import bench_sweep, needs_sweep
from rlctl.bench.testbed import FRESH_SECONDS, LivePlan
from rlctl.bench.workforce import Workforce, kept_at_signals, workforce
from rlctl.commands.options import command_line
from rlctl.commands.outputs import files_first, raise_early_end, write_json
from rlctl.envs.sim.surface import outside
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import SOLO_SECONDS
from rlctl.log.progress import progress, say
from rlctl.report.bench_report import PAIRED_NOTE, round_tables, tables, write_report, write_suite_report
from rlctl.report.page import render
from rlctl.report.table import LEGEND, paired_rows, score_rows, suite_rows
from rlctl.safety.profile import load_shield

SEEDS = 30
"""Seeds when none are asked for: as many as the acceptance tables have."""

REPEATS, ADAPT_SECONDS = 8, 300.0
"""Runs of each manager on the live host, and how long it has watched before, when no numbers are asked for."""

SETTLE_SECONDS = 4.0
"""About what goes by around each run: the LC's backlog drains, BE starts, fills its arrays and is stopped."""


def run_simulated(args: argparse.Namespace, plans: Sequence[SimPlan]) -> int:
    """Run the plans one after the other and show each; tables go to stdout, all else to stderr."""
    for plan in plans:
        say(f"{plan.scenario.name}: {plan.scenario.description}\nmanagers {', '.join(plan.managers)}\n{plan.caption}")
        warn_of_misfits(plan)
    if args.dry_run:
        return 0
    outcomes: list[SimOutcome] = []
    with contextlib.ExitStack() as ending:
        ending.callback(_end, args, plans, outcomes)  # at an early end of what was done
        ending.enter_context(kept_at_signals())
        workers = ending.enter_context(workforce(args.jobs, args.ray, logs=args.verbose > 0))
        for plan in plans:
            outcome = run_plan(plan, workers)
            outcomes.append(outcome)
            if args.json != "-":
                with files_first(partial(_show_simulated, outcome, args.against)):
                    write_json(args.json, results_as_json(outcomes))
    return 0


def _show_simulated(outcome: SimOutcome, against: str | None) -> None:
    print(render(score_rows(outcome.scores)), "", outcome.caption, LEGEND, "", sep="\n", flush=True)
    if against:
        print(render(paired_rows(outcome, label(against))), "", PAIRED_NOTE, "", sep="\n", flush=True)


def _end(args: argparse.Namespace, plans: Sequence[SimPlan], outcomes: Sequence[SimOutcome]) -> None:
    """Show and write what is about all scenarios together."""
    if not outcomes:
        return
    with files_first(partial(_show_together, args, outcomes)):
        if args.report:
            write_suite_report(outcomes, args.report, _command(args, plans), label(args.against or ""))
            say(f"report: {args.report / 'index.html'}")


def _show_together(args: argparse.Namespace, outcomes: Sequence[SimOutcome]) -> None:
    if len(outcomes) > 1 and args.json != "-":
        rows = suite_rows({outcome.scenario: outcome.scores for outcome in outcomes})
        print(
            render(rows), "\nQoS % of windows / BE % of running alone, with its 95 % half-width", sep="\n", flush=True
        )
    lines = [
        f"{outcome.names[label]}: {remark}"
        for outcome in outcomes
        for label, remarks in outcome.remarks.items()
        for remark in remarks
    ]
    for line in dict.fromkeys(lines):  # a manager's remark once, though it ran on many scenarios
        say(line)
    if args.json == "-":
        write_json(args.json, results_as_json(outcomes))


def run_plan(plan: SimPlan, workers: Workforce) -> SimOutcome:
    """Run one plan with a progress bar."""
    with progress(len(plan.tasks(workers.count)), "runs") as done:
        return run_sim(plan, workers, done)


def sim_plan(args: argparse.Namespace, scenario: SimScenario, managers: tuple[str, ...], source: str) -> SimPlan:
    """The plan that the arguments of `rlctl bench` ask for, all names checked before anything is started."""
    plan = SimPlan.of(scenario, managers, args.seeds or SEEDS, args.shield, source, args.tuned or "")
    return replace(plan, adapt_seconds=args.adapt or 0.0, unopened=bool(args.unopened))


def warn_of_misfits(plan: SimPlan) -> None:
    """Say where the load leaves what the host was fitted to, and tuned constants what they were found on."""
    loads = plan.loads()
    for beyond in outside(plan.host, float(loads.min()), float(loads.max())):
        say(f"warning: {plan.scenario.name}: {beyond}; there its figures are a guess")
    if plan.tuned:
        for misfit in plan.tuned.misfits(plan.scenario, plan.host, plan.profile):
            say(f"warning: {misfit}")


def _command(args: argparse.Namespace, plans: Sequence[SimPlan]) -> str:
    """The command line that does the same again."""
    plan = plans[0]
    options = {
        "plant": "sim",
        "scenario": ",".join(one.scenario_source for one in plans),
        "managers": ",".join(plan.managers),
        "seeds": plan.seeds,
        "shield": plan.shield_source,
        "tuned": plan.tuned_source or None,
        "be_weight": args.be_weight,
        "against": args.against,
        "adapt": args.adapt and f"{args.adapt:g}",
        "duration": args.duration and f"{args.duration:g}",
        "time_scale": args.time_scale and f"{args.time_scale:g}",
    }
    return command_line("bench", options)


def run_live(args: argparse.Namespace, plans: Sequence[LivePlan]) -> int:
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
            with files_first(partial(_show_live, outcome, table=args.json != "-")):
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


def _show_live(outcome: LiveOutcome, *, table: bool) -> None:
    if table:
        print(tables(outcome), "", outcome.caption, LEGEND, "", sep="\n", flush=True)
        if outcome.plan.repeats > 1:
            print("\n\n".join(round_tables([outcome.by_round])), "", sep="\n", flush=True)
    for name, remarks in outcome.remarks.items():
        for remark in remarks:
            say(f"{name}: {remark}")


def live_plan(args: argparse.Namespace, scenario: LiveScenario, managers: tuple[str, ...], _source: str) -> LivePlan:
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
