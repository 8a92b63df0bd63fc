"""`rlctl train --plant host`: a trained policy is fine-tuned on the live testbed, behind the shield."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.envs.errors import ConfigError, HostError
from rlctl.training.live import TIMESTEPS, LivePlan, Signalled, next_folder, run_live
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.agents.training.live.run import Outcome, Task

__all__ = ["run"]

SIMULATOR_ONLY = (
    "algo",
    "config",
    "hosts",
    "profile",
    "seeds",
    "max_seconds",
    "n_envs",
    "threads",
    "resume",
    "ray",
    "ray_wait",
    "live",
)
"""Arguments that mean nothing on a live host."""


def run(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, all else to stderr.

    Returns:
        0, or 128 + n when signal n ended it early.

    Raises:
        ConfigError: Something that is asked for cannot be, told before anything is started.
        HostError: The testbed could not be run, or not to the end; what is there by then has been written.
    """
    from rlctl.training.plan import require_libraries
    from rlctl.work.progress import progress

    _check(args)
    require_libraries(export=not args.no_export)
    plan = _plan(args)
    say(_effective(plan))
    if args.dry_run:
        return 0
    try:
        with progress(_ticks(plan), "ticks") as watch:
            outcome = run_live(plan, say, watch)
    except Signalled as signalled:  # before anything was measured
        return 128 + signalled.number
    _finish(args, outcome)
    return _code(outcome)


def _check(args: argparse.Namespace) -> None:
    if given := [name for name in SIMULATOR_ONLY if getattr(args, name) is not None]:
        raise ConfigError(f"--{given[0].replace('_', '-')} is the simulator's; leave it out with --plant host")
    if not args.init:
        raise ConfigError("--plant host fine-tunes a policy: give --init MODEL.zip, the best_model.zip of a run")
    if not Path(args.init).is_file():
        raise ConfigError("is no file; --init takes a model that `rlctl train` wrote", args.init)


def _plan(args: argparse.Namespace) -> LivePlan:
    from rlctl.safety.profile import load_profile
    from rlctl.scenarios.shipped import live_scenario

    name = args.scenario or "live-nginx"
    scenario = live_scenario(name)
    safety = load_profile(args.shield or "responsive").scaled(scenario.time_scale)
    return LivePlan(scenario, _task(args, scenario.duration_seconds / scenario.tick_seconds), safety)


def _task(args: argparse.Namespace, evaluation_ticks: float) -> Task:
    from rlctl.agents.training.live.bounded import Bounds
    from rlctl.agents.training.live.run import Task
    from rlctl.training.plan import EXPLORE, EXPLORE_SLACK

    given = {
        "scenario": args.scenario or "live-nginx",
        "init": str(args.init),
        "shield": args.shield or "responsive",
        "total_timesteps": TIMESTEPS if args.total_timesteps is None else args.total_timesteps,
        "explore": EXPLORE if args.explore is None else args.explore,
        "explore_slack": EXPLORE_SLACK if args.explore_slack is None else args.explore_slack,
        "seed": args.seed or 0,
    }
    folder = args.out or next_folder()
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return Task(
        init=Path(args.init),
        folder=folder,
        timesteps=int(given["total_timesteps"]),
        evaluation_ticks=max(round(evaluation_ticks), 1),
        bounds=Bounds(float(given["explore"]), float(given["explore_slack"])),
        seed=int(given["seed"]),
        arguments=given,
        command=shlex.join(["rlctl", "train", "--plant", "host", *words, "--out", str(folder)]),
    )


def _ticks(plan: LivePlan) -> int:
    from rlctl.agents.training.live.run import rounds_of

    rounds, each, _ = rounds_of(plan.task.timesteps)
    return rounds * each + (rounds + 1) * plan.task.evaluation_ticks


def _effective(plan: LivePlan) -> str:
    s, task = plan.scenario, plan.task
    return (
        f"{s.name}: {s.description}\n"
        f"fine-tuning {task.init}: {task.timesteps} ticks of {s.tick_seconds:g} s in rounds, measured for "
        f"{task.evaluation_ticks} ticks before and after each, about {max(round(plan.seconds / 60), 1)} min\n"
        f"exploring in {task.bounds.probability:.0%} of the ticks, from a slack of {task.bounds.least_slack_ratio:g} "
        f"on; {task.rate_ratio:g} of its learning rate; shield {plan.safety.name} ({plan.safety.digest})\n"
        f"folder: {task.folder}"
    )


def _finish(args: argparse.Namespace, outcome: Outcome) -> None:
    """Tell what came of it, and export; the testbed is gone by now."""
    from rlctl.agents.training.live.run import export

    said = outcome.as_json() | {"bundle": None if args.no_export else str(export(outcome, "live"))}
    if args.json and args.json != "-":
        Path(args.json).write_text(json.dumps(said, indent=1) + "\n")
    print(json.dumps(said) if args.json == "-" else _table(outcome))
    kept = f"kept the policy measured {outcome.best.name!r}" if outcome.improved else "kept the initial policy"
    say(f"{kept}; every tick is in {outcome.task.folder}/transitions.jsonl")


def _table(outcome: Outcome) -> str:
    from rlctl.report.table import render

    head = ("phase", "ticks", "QoS %", "BE %", "violations", "overrides", "explored", "missed deadlines")
    rows = [
        (
            one.name,
            str(one.ticks),
            f"{one.rank[0]:.2f}",
            f"{one.rank[1]:.1f}",
            str(one.violations),
            str(one.overrides),
            str(one.explored),
            str(one.missed_deadlines),
        )
        for one in outcome.phases
    ]
    return render([head, *rows])


def _code(outcome: Outcome) -> int:
    import signal

    if not outcome.interrupted:
        return 0
    ended_by = {one.name: one.value for one in (signal.SIGINT, signal.SIGTERM)}
    if outcome.interrupted in ended_by:
        return 128 + ended_by[outcome.interrupted]
    raise HostError(f"ended early: {outcome.interrupted}")
