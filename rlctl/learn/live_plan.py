"""A policy fine-tuned on the live testbed: what is started for it, and that nothing of it stays, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.rollouts.live_testbed import LiveTestbed, LiveWorker
from rlctl.bench.scenarios import live_scenario
from rlctl.envs.observation import LAGS
from rlctl.envs.testbed.session import Testbed, TestbedSpec
from rlctl.safety.profile import load_profile

if TYPE_CHECKING:
    from rlctl.agents.training.rollouts.fine_tuning import FineTuningTask, Outcome
    from rlctl.learn.plan import TrainingOptions

TIMESTEPS = 600
"""Ten minutes, where no number is given."""


def live_testbed(asked: TrainingOptions, lags: tuple[int, ...] = LAGS) -> LiveTestbed | None:
    """The live testbed that a learner is to act on, if any is asked for; ConfigError for what is not there."""
    if asked.live is None:
        return None
    scenario = live_scenario(asked.live)
    return LiveTestbed(
        name=scenario.name,
        spec=scenario.testbed(),
        trace=scenario.trace,
        weight=scenario.be.weight,
        safety=load_profile(asked.shield).scale_time(scenario.time_scale),
        bounds=Bounds(asked.explore, asked.explore_slack),
        lags=lags,
        seed=asked.seed,
    )


def fine_tune(
    task: FineTuningTask,
    testbed_plan: LiveTestbed,
    say: Callable[[str], None],
    watch: Callable[[str], None] = lambda _: None,
    testbed: Callable[[TestbedSpec, Callable[[str], None]], AbstractContextManager[Testbed]] = Testbed,
    *,
    export: bool = True,
) -> tuple[Outcome, str | None]:
    """Start the testbed, learn, take the testbed down again, whatever happened, and export.

    Returns:
        What came of it, and the bundle's folder.

    Raises:
        ConfigError: The model or the folder does not fit.
        HostError: The testbed could not be run, or failed before anything was measured.
    """
    from rlctl.agents.training.rollouts.fine_tuning import FineTuning

    tuning = FineTuning(task)  # loading takes seconds, in which nobody would look after the LC
    planned = replace(testbed_plan, lags=tuning.lags)
    outcome: Outcome | None = None
    try:
        with contextlib.closing(LiveWorker(planned, lambda spec: testbed(spec, say))) as running:
            outcome = tuning.run(running, watch)
    except KeyboardInterrupt:
        if outcome is None:
            raise
        outcome = replace(outcome, interrupted="Ctrl-C")  # while the testbed was taken down: nothing is lost
    return outcome, str(tuning.export(outcome, "live")) if export else None
