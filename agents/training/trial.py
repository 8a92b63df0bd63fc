"""How good a policy is, on the truth, on many hosts at once: what `rlctl.bench.sim_run` says, with no loop over hosts.

    trial = score(course, logits, seeds, lags=(8, 2, 1, 0), masked=True)
    trial.qos_percent.mean(), trial.be_percent.mean(), trial.override_percent.mean()

`logits` maps observations (n, size) to logits (n, len(MOVES)); the largest that is allowed is the move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES
from rlctl.envs.allocations import Allocations, Decoder
from rlctl.envs.observations import VectorObserver
from rlctl.envs.readings import Readings
from rlctl.envs.rewards import rewards
from rlctl.envs.sim.plant import LoadModel, SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.workload import Weight
from rlctl.safety.batch import BatchShield
from rlctl.safety.profile import Profile

__all__ = ["Course", "Logits", "Trial", "always_frozen", "score"]

Array = NDArray[np.float64]
Logits = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Observations, shape (n, size), to logits or values of the moves, shape (n, len(MOVES))."""


@dataclass(frozen=True, slots=True)
class Course:
    """One kind of run that policies are scored on.

    Attributes:
        name: Of the scenario.
        host: Its host; hosts do not vary but for noise and load.
        load: The load over time.
        weight: BE's CPU weight.
        ticks: Windows of a run.
        tick_seconds: Length of a window.
        safety: The shield's profile, on the scenario's time scale; None runs bare.
    """

    name: str
    host: HostProfile
    load: LoadModel
    weight: Weight
    ticks: int
    tick_seconds: float = 1.0
    safety: Profile | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it, seed by seed.

    Attributes:
        qos_percent: Windows that held the target, shape (seeds,).
        be_percent: BE work, by BE running alone, shape (seeds,).
        override_percent: Ticks in which the shield changed what was asked for, shape (seeds,).
        changes: Reconfigurations, shape (seeds,).
        returns: Sums of rewards as a learner gets them, shape (seeds,).
    """

    qos_percent: Array
    be_percent: Array
    override_percent: Array
    changes: Array
    returns: Array


def always_frozen(observations: NDArray[np.float32]) -> NDArray[np.floating]:
    """The logits of a policy that keeps BE as it begins, suspended: no policy can hold more QoS."""
    logits = np.zeros((len(observations), len(MOVES)))
    logits[:, [move.name for move in MOVES].index("freeze")] = 1.0
    return logits


def score(course: Course, logits: Logits, seeds: Sequence[int], lags: Sequence[int], *, masked: bool = True) -> Trial:
    """Run a policy on a course, one host for each seed.

    Args:
        course: The course.
        logits: The policy.
        seeds: One per host.
        lags: Ticks back that the policy sees.
        masked: It chooses among the moves that the shield lets through, as a bundle does; without a shield among all.
    """
    driver = _Driver(course, logits, seeds, lags, masked)
    shape = (course.ticks, len(seeds))
    held, overridden, be_work = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape)
    changes, returns = np.zeros(len(seeds)), np.zeros(len(seeds))
    for tick in range(course.ticks):
        readings, before = driver.pass_time(), driver.current
        # As a product, not a quotient, or a window in 10**16 would be judged otherwise than by `rlctl bench`.
        held[tick] = readings.true_latency_seconds * driver.per_target <= 1.0
        be_work[tick] = readings.be_work_rate
        returns += driver.reward(readings)
        overridden[tick] = driver.decide(readings)
        changes += driver.current.differ(before)
    return Trial(
        qos_percent=100.0 * (held.sum(axis=0) / course.ticks),
        be_percent=100.0 * np.array([column.mean() for column in np.ascontiguousarray(be_work.T)]),
        override_percent=100.0 * (overridden.sum(axis=0) / course.ticks),
        changes=changes,
        returns=returns,
    )


class _Driver:
    """The tick's sentence on all hosts of a course."""

    def __init__(self, course: Course, logits: Logits, seeds: Sequence[int], lags: Sequence[int], masked: bool) -> None:
        limits, count = course.host.limits(), len(seeds)
        self._batch = SimBatch(course.host, seeds, course.load, course.ticks, course.tick_seconds, weight=course.weight)
        self._observer, self._begun = VectorObserver(limits, course.tick_seconds, lags), False
        self._shield = BatchShield(course.safety, limits, count) if course.safety else None
        self._limits, self._decoder, self._logits, self._masked = limits, Decoder(limits), logits, masked
        self.current = Allocations.same(limits.safe, count)
        self.per_target = 1.0 / self._batch.constants.target_seconds
        self._changed = self._overridden = np.zeros(count, bool)

    def pass_time(self) -> Readings:
        """One window."""
        self._batch.step(self.current)
        return self._batch.read()

    def reward(self, readings: Readings) -> Array:
        """What a learner gets for the window and the decision before it."""
        return rewards(readings, self._changed, self._overridden, truly=True).total

    def decide(self, readings: Readings) -> NDArray[np.bool_]:
        """Decide on all hosts; returns where the shield did not let it through."""
        before = self.current
        proposed = self._decoder.decode(self._chosen(readings), before)
        if self._shield is None:
            self.current, self._overridden = proposed, np.zeros(len(before.frozen), bool)
        else:
            verdict = self._shield.rule(readings, before, proposed)
            allowed = Allocations(verdict.quota_cpus, verdict.cpuset_cpus.astype(np.int64), verdict.frozen)
            self.current, self._overridden = allowed.clipped(self._limits), verdict.overridden
        self._changed = self.current.differ(before)
        return self._overridden

    def _chosen(self, readings: Readings) -> NDArray[np.intp]:
        logits = self._logits(self._observed(readings))
        if self._masked and self._shield is not None:
            logits = np.where(self._shield.mask(readings, self.current), logits, -np.inf)
        return np.asarray(np.argmax(logits, axis=1))

    def _observed(self, readings: Readings) -> NDArray[np.float32]:
        see = self._observer.observe if self._begun else self._observer.begin
        self._begun = True
        return see(readings, self.current)
