"""`rlctl bench` in the simulator: the plans that the arguments ask for, run and shown."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.scenarios.sim import SimScenario
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.bench.sim import Runner, SimOutcome, SimPlan

__all__ = ["plan_of", "run_plans", "simulated", "warn_of_misfits", "workforce"]

SEEDS = 30
"""Seeds when none are asked for: as many as the acceptance tables have."""


def run_plans(args: argparse.Namespace, plans: Sequence[SimPlan]) -> int:
    """Run the plans one after the other and show each; tables go to stdout, all else to stderr.

    Raises:
        ConfigError: Something that is asked for cannot be, told before anything is started.
    """
    from rlctl.bench.results import results_as_json, write_json
    from rlctl.report.html import write_suite_report
    from rlctl.report.table import LEGEND, render, score_rows, suite_rows

    for plan in plans:
        say(_effective(plan))
        warn_of_misfits(plan)
    if args.dry_run:
        return 0
    outcomes: list[SimOutcome] = []
    with workforce(args) as (jobs, run):
        for plan in plans:
            outcomes.append(simulated(plan, jobs, run))
            if args.json != "-":
                print(
                    render(score_rows(outcomes[-1].scores)), "", outcomes[-1].caption, LEGEND, "", sep="\n", flush=True
                )
            if args.json not in (None, "-"):
                write_json(outcomes, Path(args.json))
    if len(outcomes) > 1 and args.json != "-":
        rows = suite_rows({outcome.plan.scenario.name: outcome.scores for outcome in outcomes})
        print(
            render(rows), "\nQoS % of windows / BE % of running alone, with its 95 % half-width", sep="\n", flush=True
        )
    _remarks(outcomes)
    if args.json == "-":
        print(json.dumps(results_as_json(outcomes)))
    if args.report:
        write_suite_report([outcome.suite() for outcome in outcomes], args.report, _command(args, plans))
        say(f"report: {args.report / 'index.html'}")
    return 0


@contextlib.contextmanager
def workforce(args: argparse.Namespace) -> Iterator[tuple[int, Runner]]:
    """How many pieces of work are done at a time, and what runs them: processes here, or a Ray cluster.

    Args:
        args: Arguments of `rlctl bench`: `jobs`, `ray` and `verbose`.

    Raises:
        ConfigError: Ray is not installed, the address is none, or a node has another rlctl.
        HostError: Nobody answers there.
    """
    if args.ray:
        from rlctl.bench.ray import on_ray

        with on_ray(args.ray, args.jobs, say, logs=args.verbose > 0) as found:
            yield found
    else:
        from rlctl.bench.sim import run_tasks, usable_cpus

        yield args.jobs or usable_cpus(), run_tasks


def simulated(plan: SimPlan, jobs: int, run: Runner) -> SimOutcome:
    """Run one plan with a progress bar."""
    from rlctl.bench.sim import run_sim, seeds_at_once
    from rlctl.work.progress import progress

    chunk = seeds_at_once(plan, jobs)
    with progress(len(list(plan.tasks(chunk))), "runs") as done:
        return run_sim(plan, done, jobs=jobs, chunk=chunk, run=run)


def plan_of(args: argparse.Namespace, scenario: SimScenario, managers: tuple[str, ...], source: str) -> SimPlan:
    """The plan that the arguments ask for, all names checked before anything is started.

    Args:
        args: Arguments of `rlctl bench`.
        scenario: The scenario, with duration and time scale as they are to be.
        managers: Their names.
        source: Name or file that it was loaded from.

    Raises:
        ConfigError: An unknown manager, host profile, shield or file of constants, or a manager that may not be
            simulated.
    """
    from rlctl.bench.sim import SimPlan
    from rlctl.bench.tuned import load_tuned
    from rlctl.safety.profile import load_profile

    plan = SimPlan(
        scenario=scenario,
        host=scenario.host(),
        managers=managers,
        seeds=args.seeds or SEEDS,
        profile=load_profile(args.shield).scaled(scenario.time_scale),
        scenario_source=source,
        shield_source=args.shield,
        tuned=load_tuned(args.tuned) if args.tuned else None,
        tuned_source=args.tuned or "",
    )
    for name in (*plan.managers, *scenario.managers):
        plan.shielded(name)
    return plan


def warn_of_misfits(plan: SimPlan) -> None:
    """Say where the load leaves what the host was fitted to, and tuned constants what they were found on."""
    from rlctl.envs.sim.region import outside

    loads = plan.loads()
    for beyond in outside(plan.host, float(loads.min()), float(loads.max())):
        say(f"warning: {plan.scenario.name}: {beyond}; there its figures are a guess")
    if plan.tuned:
        for misfit in plan.tuned.misfits(plan.scenario, plan.host, plan.profile):
            say(f"warning: {misfit}")


def _command(args: argparse.Namespace, plans: Sequence[SimPlan]) -> str:
    """The command line that does the same again."""
    one = plans[0]
    scenario = "all" if len(plans) > 1 else one.scenario_source
    words = ["rlctl", "bench", "--plant", "sim", "--scenario", scenario, "--managers", ",".join(one.managers)]
    words += ["--seeds", str(one.seeds), "--shield", one.shield_source]
    words += ["--tuned", one.tuned_source] if one.tuned else []
    words += ["--duration", f"{args.duration:g}"] if args.duration else []
    words += ["--time-scale", f"{args.time_scale:g}"] if args.time_scale else []
    return shlex.join(words)


def _effective(plan: SimPlan) -> str:
    s = plan.scenario
    return (
        f"{s.name}: {s.description}\n"
        f"simulated host {plan.host.name} ({plan.host.digest}); managers {', '.join(plan.managers)}; "
        f"{plan.seeds} evaluation seeds x {plan.ticks} windows of {s.tick_seconds:g} s\n"
        f"p{100 * plan.host.lc.quantile_ratio:g} <= {1e3 * plan.host.lc.target_seconds:g} ms; "
        f"BE weight {s.be.weight}{_others(plan)}; shield {plan.profile.name} ({plan.profile.digest}); "
        f"published periods / {s.time_scale:g}; a published core is {s.core_cpus:g} CPU"
        + (f"; constants {plan.tuned_source} ({plan.tuned.digest})" if plan.tuned else "")
    )


def _others(plan: SimPlan) -> str:
    """The weights of those whose weight is their point, as they are run."""
    told = [f"{name}: {plan.weight(name)}" for name in ("none", "weights") if name in plan.managers]
    return f" ({', '.join(told)})" if told else ""


def _remarks(outcomes: Sequence[SimOutcome]) -> None:
    """Each manager's remarks once, though it ran on many scenarios."""
    lines = [f"{name}: {remark}" for one in outcomes for name, said in one.remarks.items() for remark in said]
    for line in dict.fromkeys(lines):
        say(line)
