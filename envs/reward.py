"""The reward as named terms, dominated by the SLO.

A tick that misses the target is worth -1 or less whatever BE got; a tick that holds it is worth WORK at most. So one
violation outweighs `1 / WORK` ticks of a BE that has the host to itself, which a reward such as "ways granted, or -2n"
does not ensure. Every term stays within [-1, 1].
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from rlctl.envs.allocation import Allocation
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Missing, Telemetry, Value

Number = TypeVar("Number", float, Array)

WORK = 0.12
"""Worth of a tick in which BE does what it would do alone, where a violation costs 1. At the margin a policy accepts a
violation for as much BE work as that buys, so it sets how near to the knee policies go. Training has one for each kind
of host, `work` in `configs/training/hosts.yaml`."""

NEAR, NEAR_COST = 0.5, 0.04
"""Beyond this share of the target latency costs, by the square, up to NEAR_COST at the target: near the knee the next
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


def reward(
    telemetry: Telemetry, before: Allocation, after: Allocation, *, overridden: bool = False
) -> RewardTerms[float]:
    """The reward of a tick.

    Args:
        telemetry: Readings of the period that the allocation `after` was in force.
        before: The allocation in force until then.
    """
    qos, severity = _qos(telemetry)
    work = telemetry.be_work_rate
    held = qos > -1.0
    return RewardTerms(
        qos=qos,
        severity=severity,
        be_work=WORK * min(max(0.0, work.value), 1.0) if isinstance(work, Value) and held else 0.0,
        reconfiguration=0.0 if before == after else -RECONFIGURATION_COST,
        override=-OVERRIDE_COST if overridden else 0.0,
    )


def _qos(telemetry: Telemetry) -> tuple[float, float]:
    latency = telemetry.latency_seconds
    if isinstance(latency, Missing) or not math.isfinite(latency.value) or not telemetry.target_seconds > 0.0:
        return -1.0, -1.0
    over = latency.value / telemetry.target_seconds - 1.0
    if over > 0.0:
        return -1.0, -min(over, 1.0)
    near = max(1.0 + over - NEAR, 0.0) / (1.0 - NEAR)
    return -NEAR_COST * near * near, 0.0


def rewards(
    readings: Readings, changed: Flags, overridden: Flags, *, from_truth: bool = False, work: float | Array = WORK
) -> RewardTerms[Array]:
    """The rewards of a tick on many hosts: the twin of `reward`, to the bit (`tests/envs/test_array_twins.py`).

    Args:
        readings: Of the period in which the new allocations were in force.
        changed: Where the allocation is another than before, shape (n,).
        overridden: Where the shield changed what was asked for, shape (n,).
        from_truth: Judge by what happened rather than by what the sensors say of it, late or never: for training,
            where a lost window is no fault of the policy's and a late one only blurs which action it was.
        work: Worth of BE's work on these hosts, or on each, in place of WORK; a violation costs 1.
    """
    latency = readings.true_latency_seconds if from_truth else readings.latency_seconds
    over = latency / readings.target_seconds - 1.0
    unknown = (readings.lost & (not from_truth)) | ~np.isfinite(latency)
    missed = unknown | (over > 0.0)
    near = np.maximum(1.0 + over - NEAR, 0.0) / (1.0 - NEAR)
    be_work = work * np.minimum(np.fmax(readings.be_work_rate, 0.0), 1.0)
    return RewardTerms(
        qos=np.where(missed, -1.0, -NEAR_COST * near * near),
        severity=np.where(unknown, -1.0, -np.minimum(np.maximum(over, 0.0), 1.0)),
        be_work=np.where(missed, 0.0, be_work),
        reconfiguration=np.where(changed, -RECONFIGURATION_COST, 0.0),
        override=np.where(overridden, -OVERRIDE_COST, 0.0),
    )
