"""`rlctl bench` in the simulator: the plans that the arguments ask for, run and shown."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rlctl.agents.catalogue import label
from rlctl.bench.live_repeats import results_as_json
from rlctl.bench.sim_outcome import SimOutcome
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.bench.sim_scenario import SimScenario
from rlctl.bench.workforce import Workforce, kept_at_signals, workforce
from rlctl.commands.arguments import command_line
from rlctl.commands.outputs import files_first, write_json
from rlctl.envs.sim.surface import outside
from rlctl.log.progress import progress, say
from rlctl.report.html import PAIRED_NOTE, write_suite_report
from rlctl.report.page import render
from rlctl.report.table import LEGEND, paired_rows, score_rows, suite_rows

SEEDS = 30
"""Seeds when none are asked for: as many as the acceptance tables have."""


def run_plans(args: argparse.Namespace, plans: Sequence[SimPlan]) -> int:
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
                with files_first(partial(_show, outcome, args.against)):
                    write_json(args.json, results_as_json(outcomes))
    return 0


def _show(outcome: SimOutcome, against: str | None) -> None:
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


def plan_of(args: argparse.Namespace, scenario: SimScenario, managers: tuple[str, ...], source: str) -> SimPlan:
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
