"""A policy fine-tuned on the live testbed: what is started for it, and that nothing of it stays, however it ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from rlctl.envs.errors import ConfigError
from rlctl.envs.plant import Plant
from rlctl.envs.testbed.session import Testbed, TestbedSpec
from rlctl.measure.calibrate import Bed
from rlctl.safety.profile import Profile, load_profile
from rlctl.scenarios.live import LiveScenario
from rlctl.scenarios.shipped import live_scenario

if TYPE_CHECKING:
    from rlctl.agents.training.live.run import Outcome, Task
    from rlctl.agents.training.rollouts.live import LiveTestbed
    from rlctl.training.plan import Asked

__all__ = ["LivePlan", "Signalled", "live_scenario", "live_testbed", "run_live", "signals_raised"]

LEAST_TIMESTEPS = 2
TIMESTEPS = 600
"""Ten minutes, where no number is given."""

START_SECONDS = 60.0
"""About what the testbed takes to start, to search the LC's maximum load and to be gone."""


class LiveBed(Bed, Protocol):
    """A testbed whose plant a policy can be trained on; `rlctl.envs.testbed.session.Testbed` is one."""

    @property
    def plant(self) -> Plant:
        """The host."""
        ...


class Signalled(KeyboardInterrupt):
    """A signal came.

    Args:
        number: Which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What to do.

    Attributes:
        scenario: The testbed with its load; each measurement takes its duration.
        task: What to learn.
        safety: The shield's constants, on the scenario's time scale.

    Raises:
        ConfigError: Too few timesteps.
    """

    scenario: LiveScenario
    task: Task
    safety: Profile

    def __post_init__(self) -> None:
        if self.task.timesteps < LEAST_TIMESTEPS:
            raise ConfigError(f"{self.task.timesteps} timesteps are none to learn from; give {LEAST_TIMESTEPS} or more")

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        from rlctl.agents.training.live.run import rounds_of

        rounds, each, _ = rounds_of(self.task.timesteps)
        ticks = rounds * (each + 1) + (rounds + 1) * (self.task.evaluation_ticks + 1)
        return START_SECONDS + ticks * self.scenario.tick_seconds


def live_testbed(asked: Asked, lags: tuple[int, ...]) -> LiveTestbed | None:
    """What nodes of a cluster that offer `live` run for a training run, if it wants any.

    Raises:
        ConfigError: There is no such scenario or shield, or the bounds of exploration are none.
    """
    if asked.live is None:
        return None
    from rlctl.agents.training.live.bounded import Bounds
    from rlctl.agents.training.rollouts.live import LiveTestbed

    scenario = live_scenario(asked.live)
    return LiveTestbed(
        name=scenario.name,
        spec=scenario.testbed(),
        trace=scenario.trace,
        weight=scenario.be.weight,
        safety=load_profile(asked.shield).scaled(scenario.time_scale),
        bounds=Bounds(asked.explore, asked.explore_slack),
        lags=lags,
        seed=asked.seed,
    )


def run_live(
    plan: LivePlan,
    say: Callable[[str], None],
    watch: Callable[[str], None] = lambda _: None,
    testbed: Callable[[TestbedSpec, Callable[[str], None]], AbstractContextManager[LiveBed]] = Testbed,
) -> Outcome:
    """Start the testbed, fine-tune, and take the testbed down again, whatever happened.

    Args:
        plan: What to do.
        say: Takes a line on what is being done.
        watch: Called after each control period with the phase it belongs to.
        testbed: What starts it.

    Raises:
        ConfigError: The model or the folder does not fit.
        HostError: The testbed could not be run, or failed before anything was measured.
        Signalled: As the last one.
    """
    from rlctl.agents.training.live.run import begin, fine_tune

    scenario = plan.scenario
    run = begin(plan.task)  # loading takes seconds, in which nobody would look after the LC
    with signals_raised(), testbed(scenario.testbed(), say) as bed:
        bed.plant.set_weight(scenario.be.weight)
        bed.settle(scenario.trace)
        bed.start_be()
        try:
            return fine_tune(run, bed.plant, plan.safety, lambda: bed.follow(scenario.trace), watch)
        finally:
            bed.stop_be()


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """The first SIGINT or SIGTERM is raised as Signalled, so that everything is put back on the way out.

    A second one does what it always does; what is left then is the testbed's keeper's to clear.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _: FrameType | None) -> None:
        for one, handler in before.items():
            signal.signal(one, handler)
        raise Signalled(number)

    before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def next_folder() -> Path:
    """runs/live/<the first number that is free>."""
    from rlctl.training.plan import next_folder as next_of

    return next_of("live")
