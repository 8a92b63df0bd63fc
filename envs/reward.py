"""The reward as named terms, dominated by the SLO.

A tick that misses the target is worth -1 or less whatever BE got; a tick that holds it is worth WORK at most. So one
violation outweighs `1 / WORK` ticks of a BE that has the host to itself, which a reward such as "ways granted, or -2n"
does not ensure. Every term stays within [-1, 1].
"""

from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from rlctl.envs.allocation import Allocation
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.features import latency_of
from rlctl.envs.law import compiled, law
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Missing, Telemetry, number_or_nan

Number = TypeVar("Number", float, Array)

WORK = 0.12
"""Worth of a tick in which BE does what it would do alone, where a violation costs 1. At the margin a policy accepts a
violation for as much BE work as that buys, so it sets how near to the knee policies go. Training has one for each kind
of host, `work` in `configs/training/hosts.yaml`."""

NEAR, NEAR_COST = 0.5, 0.04
"""Beyond this share of the target latency costs, by the square, up to NEAR_COST at the target. Near the knee the next
window's latency is chance, and a slope teaches sooner than a cliff."""

RECONFIGURATION_COST = 0.0002
"""Cost of changing any knob; small against one tick of BE work, large enough to stop idle flapping."""

OVERRIDE_COST = 0.004
"""Cost of asking for what the shield must refuse: a thirtieth of a tick of BE work at WORK."""


class RewardTerms(NamedTuple, Generic[Number]):
    """The parts of one tick's reward, of one host or in arrays of shape (n,); `total` is their sum.

    Attributes:
        qos: -1 when the target was missed or nobody knows; else from -NEAR_COST (at the target) to 0.
        severity: 0, or down to -1 by how far it was missed; -1 when nobody knows.
        be_work: WORK times the share of what BE running alone would have done; 0 in a tick that missed the target.
        reconfiguration: 0 or -RECONFIGURATION_COST.
        override: 0 or -OVERRIDE_COST.
    """

    qos: Number
    severity: Number
    be_work: Number
    reconfiguration: Number
    override: Number

    @property
    def total(self) -> Number:
        """What a learner gets."""
        return self.qos + self.severity + self.be_work + self.reconfiguration + self.override

    @property
    def missed(self) -> bool | Flags:
        """Whether the target was missed, or nobody knows: the cost of a constrained problem."""
        return self.qos <= -1.0


def reward(
    telemetry: Telemetry, before: Allocation, after: Allocation, *, overridden: bool = False, first: bool = False
) -> RewardTerms[float]:
    """The reward of a tick.

    Args:
        telemetry: Readings of the period that the allocation `after` was in force.
        before: The allocation in force until then.
        first: The first step of an episode: a sensor that is a tick late has not spoken yet, which costs nothing.
    """
    latency = telemetry.latency_seconds
    over = judge_latency(number_or_nan(latency), telemetry.target_seconds, isinstance(latency, Missing))
    work = number_or_nan(telemetry.be_work_rate)
    return RewardTerms(*reward_of(over, work, before != after, overridden, WORK, first))


def rewards(
    readings: Readings, changed: Flags, overridden: Flags, *, from_truth: bool = False, work: float = WORK
) -> RewardTerms[Array]:
    """The rewards of a tick on many hosts.

    Args:
        readings: Of the period in which the new allocations were in force.
        changed: Where the allocation is another than before, shape (n,).
        overridden: Where the shield changed what was asked for, shape (n,).
        from_truth, work: As of `pay`.
    """
    terms = np.empty((len(changed), len(RewardTerms._fields)))
    compiled(_pay_each)(readings.rows, changed, overridden, work, from_truth, terms)
    return RewardTerms(*terms.T)


@law
def _pay_each(readings: Any, changed: Any, overridden: Any, work: float, from_truth: bool, terms: Any) -> None:
    for host in range(len(readings)):
        pay(readings[host], changed[host], overridden[host], work, False, from_truth, terms[host])


@law
def pay(reading: Any, changed: bool, overridden: bool, work: float, first: bool, from_truth: bool, terms: Any) -> float:
    """The reward of a tick; its terms are written in the order of `RewardTerms`.

    Args:
        reading: READING; of the period in which the new allocation was in force.
        work: Worth of BE's work, in place of WORK; a violation costs 1.
        first: As of `reward`.
        from_truth: Judge by what happened rather than by what the sensors say of it, late or never: for training,
            where a lost window is no fault of the policy's and a late one only blurs which action it was.
    """
    latency, lost = latency_of(reading), reading["lost"]
    if from_truth:
        latency, lost = reading["true_latency_seconds"], False
    over = judge_latency(latency, reading["target_seconds"], lost)
    found = reward_of(over, reading["be_work_rate"], changed, overridden, work, first)
    for term in range(len(found)):
        terms[term] = found[term]
    return found[0] + found[1] + found[2] + found[3] + found[4]


@law
def judge_latency(latency_seconds: float, target_seconds: float, lost: bool) -> float:
    """By what share of the target a latency is over it; NaN where nobody knows, or the target is not above 0."""
    if lost or not target_seconds > 0.0:
        return math.nan
    return latency_seconds / target_seconds - 1.0


@law
def reward_of(
    over: float, be_work_rate: float, changed: bool, overridden: bool, work: float, first: bool
) -> tuple[float, float, float, float, float]:
    """The terms of a tick in the order of `RewardTerms`.

    Args:
        over: As `judge_latency` has it; it and `be_work_rate` may be unknown.
        work, first: As of `pay`.
    """
    reconfiguration = -RECONFIGURATION_COST if changed else 0.0
    override = -OVERRIDE_COST if overridden else 0.0
    if not math.isfinite(over):
        unknown = 0.0 if first else -1.0
        return unknown, unknown, 0.0, reconfiguration, override
    if over > 0.0:
        return -1.0, -min(over, 1.0), 0.0, reconfiguration, override
    near = max(1.0 + over - NEAR, 0.0) / (1.0 - NEAR)
    done = min(be_work_rate, 1.0) if be_work_rate > 0.0 else 0.0
    return -NEAR_COST * near * near, 0.0, work * done, reconfiguration, override
