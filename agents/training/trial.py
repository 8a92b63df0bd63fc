"""How good a policy is, on the truth, on many hosts at once: what `rlctl.bench.sim_run` says, with no loop over hosts.

    trial = score(course, logits, seeds, lags=(8, 2, 1, 0), masked=True)
    trial.qos_percent.mean(), trial.be_percent.mean(), trial.override_percent.mean()

`logits` maps observations (n, size) to logits (n, len(MOVES)); the largest that is allowed is the move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.many.learned import BatchLearned, Logits
from rlctl.agents.seats import Seats
from rlctl.envs.actions import MOVES
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.rewards import rewards
from rlctl.envs.sim.plant import LoadModel, SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.workload import Weight
from rlctl.safety.profile import Profile

__all__ = ["Course", "Logits", "Trial", "always_frozen", "score"]

Array = NDArray[np.float64]


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
    limits, count = VectorLimits([course.host.limits()] * len(seeds)), len(seeds)
    hosts = SimBatch(course.host, seeds, course.load, course.ticks, course.tick_seconds, weight=course.weight)
    policy = BatchLearned(logits, lags, limits, course.tick_seconds, masked=masked)
    seats = Seats([policy], course.safety, limits)
    per_target = 1.0 / hosts.constants.target_seconds
    held, overridden, be_work = (np.zeros((course.ticks, count)) for _ in range(3))
    changes, returns = np.zeros(count), np.zeros(count)
    current, changed, overruled = seats.begin(), np.zeros(count, bool), np.zeros(count, bool)
    for tick in range(course.ticks):
        hosts.step(current)
        readings = hosts.read()
        # As a product, not a quotient, or a window in 10**16 would be judged otherwise than by `rlctl bench`.
        held[tick] = readings.true_latency_seconds * per_target <= 1.0
        be_work[tick] = readings.be_work_rate
        returns += rewards(readings, changed, overruled, truly=True).total
        decided = seats.decide(readings, current)
        changed, overruled = decided.allocations.differ(current), decided.overridden
        overridden[tick] = overruled
        changes += changed
        current = decided.allocations
    return Trial(
        qos_percent=100.0 * (held.sum(axis=0) / course.ticks),
        be_percent=100.0 * np.array([column.mean() for column in np.ascontiguousarray(be_work.T)]),
        override_percent=100.0 * (overridden.sum(axis=0) / course.ticks),
        changes=changes,
        returns=returns,
    )
