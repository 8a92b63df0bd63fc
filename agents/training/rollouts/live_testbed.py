"""A live testbed that acts for a learner, behind its shield and within the bounds of exploration (`live.bounded`).

A learner that is busy asks for nothing for a while. BE must not go on unattended then, under what was right when the
last sample ended: after two control periods it is suspended, and the next sample begins anew.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_learned import Logits
from rlctl.agents.training.host_groups import Counts, Happened, Stepped
from rlctl.agents.training.live.bounded import BoundedHost, Bounds, Step
from rlctl.agents.training.rollouts.worker import Orders, Worker
from rlctl.envs.errors import HostError
from rlctl.envs.host_env import HostEnv
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import Testbed
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.safety.wrapper import ShieldedEnv

log = logging.getLogger(__name__)

UNATTENDED_TICKS = 2
"""Control periods after which BE is suspended when nobody asks for a sample."""


@dataclass(frozen=True, slots=True)
class LiveTestbed:
    """What to start, and how to act on it; it can be sent to another machine."""

    scenario: LiveScenario
    safety: Profile
    bounds: Bounds
    lags: tuple[int, ...]
    seed: int


class LiveWorker(Worker):
    """Acts on a testbed, its host within the bounds of exploration; `note` is called with each step that is taken.

    To start services, load and BE takes about a minute; where that fails, HostError, and nothing of it stays.
    """

    count = 1

    def __init__(
        self, plan: LiveTestbed, testbed: Callable[[LiveScenario], AbstractContextManager[Testbed]] = Testbed
    ) -> None:
        super().__init__(plan.seed)
        scenario = plan.scenario
        self._name, self._trace, self.tick_seconds = scenario.name, scenario.trace, scenario.tick_seconds
        self.note: Callable[[Step], None] = lambda _: None
        self._seen: NDArray[np.float32] | None = None
        self._steps: list[Step] = []
        with contextlib.ExitStack() as stack:
            self._bed = bed = stack.enter_context(testbed(scenario))
            bed.plant.set_weight(scenario.be.weight)
            bed.settle(self._trace)
            stack.enter_context(bed.reins({}))  # it learns on what will hold BE when it serves
            bed.start_be()
            stack.callback(self._stop_be)
            shielded = ShieldedEnv(HostEnv(bed.plant, plan.lags), Shield(plan.safety, bed.plant.limits))
            self.host = BoundedHost(shielded, _nobody, plan.bounds, plan.seed, self._noted)
            self.host.exploring = True
            bed.follow(self._trace)
            self._attended = _Attended(UNATTENDED_TICKS * bed.plant.tick_seconds, self._suspend)
            stack.callback(self._attended.close)
            self._attended.leave()
            self._stack = stack.pop_all()

    def restart(self) -> None:
        """Let the load begin anew; the next sample begins with BE at the safe allocation."""
        self._bed.follow(self._trace)
        self._seen = None

    def close(self) -> None:
        """End BE, services and load, and remove their groups. Idempotent."""
        self._stack.close()

    def _go_on(self, logits: Logits) -> NDArray[np.float32]:
        """From where it stands, or anew where nobody looked after it meanwhile."""
        self.host.logits = logits
        if self._attended.take() or self._seen is None:
            self._seen, _ = self.host.reset()
        return self._seen[np.newaxis]

    def _epsilon(self, orders: Orders) -> float | None:
        """Off-policy any of the allowed moves, of which there is mostly one; else by the policy's distribution."""
        return None if orders.epsilon is None else 1.0

    def _mask(self, orders: Orders) -> NDArray[np.bool_] | None:  # noqa: ARG002 - the bounds always hold
        return self.host.action_masks()[np.newaxis]

    def _step(self, moves: NDArray[np.int64], orders: Orders) -> tuple[Stepped, NDArray[np.int64]]:
        """Off-policy the executed move is learned from, without what it cost to ask for another."""
        self._seen, reward, _, _, info = self.host.step(int(moves[0]))
        actions = moves
        if orders.epsilon is not None:
            actions = np.array([info["executed_move"]], np.int64)
            reward -= info["reward"]["override"]
        nothing = np.zeros((0, len(self._seen)), np.float32)
        stepped = Stepped(self._seen[np.newaxis], np.array([reward], np.float32), np.zeros(1, np.bool_), nothing)
        return stepped, actions

    def _stand_still(self) -> None:
        self._attended.leave()

    def _take_counts(self) -> Counts:
        """A live host has no episodes."""
        steps, self._steps[:] = tuple(self._steps), ()
        counts = Happened(
            ticks=float(len(steps)),
            missed=float(sum(not one.held for one in steps)),
            be_work=sum(one.be_work_ratio for one in steps if one.held),
            overridden=float(sum(one.overridden for one in steps)),
        )
        return Counts({self._name: counts})

    def _noted(self, step: Step) -> None:
        self._steps.append(step)
        self.note(step)

    def _suspend(self) -> None:
        plant = self._bed.plant
        try:
            plant.apply(plant.limits.safe)
        except HostError as error:  # the next sample finds it and tells the learner
            log.warning("BE could not be suspended: %s", error)

    def _stop_be(self) -> None:
        with contextlib.suppress(HostError):
            self._bed.stop_be()


class _Attended:
    """Whether somebody looks after BE; after so many seconds without anybody something is done."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self._seconds, self._then = seconds, then
        self._lock, self._acted = threading.Lock(), False
        self._timer: threading.Timer | None = None

    def leave(self) -> None:
        """Nobody does from now on."""
        timer = self._timer = threading.Timer(self._seconds, self._act)
        timer.daemon = True
        timer.start()

    def take(self) -> bool:
        """Somebody does; True when something was done meanwhile."""
        self.close()
        with self._lock:
            acted, self._acted = self._acted, False
            return acted

    def close(self) -> None:
        """Nothing will be done any more."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()

    def _act(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():  # nobody came in between
                self._then()
                self._acted = True


def _nobody(_: NDArray[np.float32]) -> NDArray[np.floating]:
    raise AssertionError("no policy was given yet")
