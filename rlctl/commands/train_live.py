"""`rlctl train --plant host`: a trained policy is fine-tuned on the live testbed, behind the shield."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.agents.training.rollouts.live_testbed import LiveWorker
from rlctl.bench.scenarios import live_scenario
from rlctl.bench.workforce import kept_at_signals
from rlctl.commands.options import command_line, refuse_given
from rlctl.commands.outputs import check_outputs, raise_early_end, write_json
from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.session import Testbed
from rlctl.learn.plan import TrainingOptions, live_testbed, new_folder, next_folder, require_libraries
from rlctl.log.progress import progress, say

if TYPE_CHECKING:
    from rlctl.agents.training.rollouts.fine_tuning import FineTuningTask, Outcome
    from rlctl.agents.training.rollouts.live_testbed import LiveTestbed
    from rlctl.envs.testbed.scenario import LiveScenario
    from rlctl.safety.profile import Profile

SIMULATOR_ONLY = (
    *("algo", "config", "hosts", "profile", "seeds", "max_seconds", "n_envs", "threads", "resume"),
    *("ray", "ray_wait", "live", "offline"),
)
"""Arguments that mean nothing on a live host."""

SCENARIO, TIMESTEPS = "live-nginx", 600
"""What is done where nothing else is asked for: ten minutes."""


def run(args: argparse.Namespace) -> int:
    """Run the command; 0, or 128 + n when signal n ended it early. HostError says what ended the testbed early."""
    refuse_given(args, SIMULATOR_ONLY, "is the simulator's; leave it out with --plant host")
    if not args.init:
        raise ConfigError("--plant host fine-tunes a policy: give --init MODEL.zip, the best_model.zip of a run")
    if not Path(args.init).is_file():
        raise ConfigError("is not a file; --init takes a model that `rlctl train` wrote", args.init)
    require_libraries()  # on the host it acts by the network of a bundle
    check_outputs(args)
    scenario = live_scenario(args.scenario or SCENARIO)
    task, testbed = _task(args, scenario)
    say(_effective(scenario, task, testbed.safety))
    if args.dry_run:
        return 0
    from rlctl.agents.training.rollouts.fine_tuning import fine_tune

    def begin(lags: tuple[int, ...]) -> LiveWorker:
        return LiveWorker(replace(testbed, lags=lags), lambda spec: Testbed(spec, say))

    with kept_at_signals():
        with progress(task.ticks, "ticks") as watch:
            outcome = fine_tune(task, begin, watch, export=not args.no_export)
        _show(args, outcome)
        raise_early_end(outcome.interrupted)
    return 0


def _task(args: argparse.Namespace, scenario: LiveScenario) -> tuple[FineTuningTask, LiveTestbed]:
    from rlctl.agents.training.rollouts.fine_tuning import FineTuningTask

    named = ("shield", "explore", "explore_slack", "seed")
    own = {name: value for name in named if (value := getattr(args, name)) is not None}
    asked = TrainingOptions(algorithm="", live=args.scenario or SCENARIO, **own)
    testbed = live_testbed(asked)
    assert testbed is not None
    given: dict[str, Any] = {
        "scenario": asked.live,
        "init": args.init,
        "total_timesteps": args.total_timesteps or TIMESTEPS,
        **asked.model_dump(include={*named}),
    }
    folder = args.out or (next_folder if args.dry_run else new_folder)("live")
    task = FineTuningTask(
        init=Path(args.init),
        folder=folder,
        timesteps=given["total_timesteps"],
        evaluation_ticks=max(round(scenario.duration_seconds / scenario.tick_seconds), 1),
        bounds=testbed.bounds,
        seed=given["seed"],
        arguments=given,
        command=command_line("train", {"plant": "host", **given, "out": folder}),
    )
    return task, testbed


def _effective(s: LiveScenario, task: FineTuningTask, safety: Profile) -> str:
    from rlctl.agents.training.rollouts.fine_tuning import RATE_RATIO

    seconds = s.start_seconds + task.ticks * s.tick_seconds
    return (
        f"{s.name}: {s.description}\n"
        f"fine-tuning {task.init}: {task.timesteps} ticks of {s.tick_seconds:g} s in rounds, measured for "
        f"{task.evaluation_ticks} ticks before and after each, about {max(round(seconds / 60), 1)} min\n"
        f"exploring in {task.bounds.probability:.0%} of the ticks, from a slack of {task.bounds.least_slack_ratio:g} "
        f"on; {RATE_RATIO:g} of its learning rate; shield {safety.name} ({safety.digest})\n"
        f"folder: {task.folder}"
    )


def _show(args: argparse.Namespace, outcome: Outcome) -> None:
    write_json(args.json, outcome.as_json() | {"bundle": str(outcome.bundle) if outcome.bundle else None})
    if args.json != "-":
        print(_table(outcome))
    kept = f"kept the policy measured {outcome.best.name!r}" if outcome.improved else "kept the initial policy"
    say(f"{kept}; every tick is in {outcome.task.folder}/transitions.jsonl")


def _table(outcome: Outcome) -> str:
    from rlctl.report.page import render

    head = ("phase", "ticks", "QoS %", "BE %", "violations", "overrides", "explored", "missed deadlines")
    rows = [
        (
            one.name,
            str(one.ticks),
            f"{one.rank[0]:.2f}",
            f"{one.rank[1]:.1f}",
            *map(str, (one.violations, one.overrides, one.explored, one.missed_deadlines)),
        )
        for one in outcome.phases
    ]
    return render([head, *rows])
