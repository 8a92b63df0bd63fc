"""A testbed without a host: what a live one starts, as a diary."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.rollouts.live_testbed import LiveTestbed, LiveWorker
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.observation import LAGS
from rlctl.envs.plant import Plant
from rlctl.safety.profile import Profile, load_profile


class Bed:
    """A testbed on a plant of one's own; as a context it closes the plant."""

    def __init__(self, plant: Plant) -> None:
        self.plant, self.diary = plant, list[str]()

    def __call__(self, *_: object) -> Self:
        """As the class of a testbed is called: with its specification."""
        return self

    def __enter__(self) -> Self:
        self.diary.append("up")
        return self

    def __exit__(self, *_: object) -> None:
        self.plant.close()
        self.diary.append("gone")

    def settle(self, trace: Any) -> None:
        """Note that the first load was held."""
        self.diary.append("settle")

    def start_be(self) -> None:
        """Note that BE was started."""
        self.diary.append("start BE")

    def stop_be(self) -> None:
        """Note that BE was ended."""
        self.diary.append("stop BE")

    def reins(self, memory: Any) -> AbstractContextManager[None]:
        """Note that link and disk may move BE; it has the CPUs alone."""
        self.diary.append("reins")
        return nullcontext()

    def follow(self, trace: Any, again_seconds: float = 0.0) -> None:
        """Let the load begin."""
        self.diary.append("load")


def running_on(
    bed: Bed,
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    lags: tuple[int, ...] = LAGS,
    safety: Profile | None = None,
) -> LiveWorker:
    """The testbed of live-nginx at work on a bed."""
    one = load_scenario("live-nginx")
    plan = LiveTestbed(one, safety or load_profile("responsive"), bounds, lags, seed=0)
    return LiveWorker(plan, bed)
