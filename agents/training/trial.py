"""How good a policy is on many simulated hosts at once, by the metrics of `rlctl bench`, without a loop over hosts.

    trial = score(course, logits, seeds, lags=(8, 2, 1, 0), masked=True)
    trial.qos_percent.mean(), trial.be_percent.mean(), trial.override_percent.mean()

`logits` maps observations (n, size) to logits (n, len(MOVES)); the largest that is allowed is the move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_learned import BatchLearned, Logits
from rlctl.agents.batch_runner import BatchPolicy, BatchPolicyRunner
from rlctl.envs.actions import MOVES
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.arrays import Array
from rlctl.envs.reward import rewards
from rlctl.envs.run_metrics import Windows, per_run
from rlctl.envs.sim.plant import LoadModel, SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.workload import Weight
from rlctl.safety.profile import Profile


@dataclass(frozen=True, slots=True)
class Course:
    """One kind of run that policies are scored on.

    Attributes:
        host: Profile of all hosts.
        safety: The shield's constants, on the scenario's time scale; None runs bare.
        vary: Each seed is another host, drawn from the profile's ranges; else they differ by noise and load alone.
    """

    name: str
    host: HostProfile
    load: LoadModel
    weight: Weight
    ticks: int
    tick_seconds: float = 1.0
    safety: Profile | None = None
    vary: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A policy's metrics on a course, seed by seed; arrays of shape (seeds,).

    Attributes:
        qos_percent: Share of windows that held the target.
        be_percent: BE work as a share of BE running alone.
        override_percent: Share of ticks in which the shield changed the proposal.
        returns: Sum of the rewards as a learner gets them.
    """

    qos_percent: Array
    be_percent: Array
    override_percent: Array
    returns: Array


def always_frozen(observations: NDArray[np.float32]) -> NDArray[np.floating]:
    """The logits of a policy that keeps BE as it begins, suspended: no policy can hold more QoS."""
    logits = np.zeros((len(observations), len(MOVES)))
    logits[:, [move.name for move in MOVES].index("freeze")] = 1.0
    return logits


def frozen(course: Course, seeds: Sequence[int]) -> Trial:
    """What no policy can hold more QoS than: BE suspended throughout, whatever the host has taught."""
    return score(course, always_frozen, seeds, (0,), masked=False)


def score(
    course: Course,
    logits: Logits,
    seeds: Sequence[int],
    lags: Sequence[int],
    *,
    masked: bool = True,
    absent: Collection[str] = (),
) -> Trial:
    """Run a policy on a course, one host for each seed.

    Args:
        absent: What it does not see, as in `VectorObserver`.
        masked: It chooses among the moves that the shield lets through, as a bundle does; without a shield among all.
    """
    limits = VectorLimits([course.host.limits(course.weight)] * len(seeds))
    policy = BatchLearned(logits, lags, limits, course.tick_seconds, masked=masked, absent=absent)
    return score_policy(course, policy, seeds)


def score_policy(course: Course, policy: BatchPolicy, seeds: Sequence[int]) -> Trial:
    """Run a policy of as many hosts as there are seeds on a course."""
    limits, count = VectorLimits([course.host.limits(course.weight)] * len(seeds)), len(seeds)
    hosts = SimBatch(
        course.host, seeds, course.load, course.ticks, course.tick_seconds, vary=course.vary, weight=course.weight
    )
    runner = BatchPolicyRunner(policy, course.safety, limits)
    windows = Windows.none(course.ticks, count)
    returns, current = np.zeros(count), runner.begin()
    changed = overridden = np.zeros(count, np.bool_)
    for tick in range(course.ticks):
        hosts.step(current)
        readings = hosts.read()
        windows.see(tick, hosts.truth())
        # A learner's reward of a window takes in what the decision before it cost.
        returns += rewards(readings, changed, overridden, from_truth=True).total
        decided = runner.decide(readings, current, hosts.telemetry)
        changed, overridden = decided.allocations.differ(current), decided.overridden
        windows.overridden[tick] = overridden
        current = decided.allocations
    values = per_run(windows, course.tick_seconds)
    return Trial(
        qos_percent=values["qos_guarantee_percent"],
        be_percent=values["be_throughput_percent"],
        override_percent=values["shield_override_percent"],
        returns=returns,
    )
