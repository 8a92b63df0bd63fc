"""The reward as named terms, dominated by the SLO.

A tick that misses the target is worth at most -1 whatever BE got; a tick that holds it is worth between -COSTS and
1. So no BE gain outweighs a violation, which a reward such as "ways granted, or -2n" does not ensure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Missing, Telemetry, Value

__all__ = ["RECONFIGURATION_COST", "RewardTerms", "reward"]

RECONFIGURATION_COST = 0.02
"""Cost of changing any knob; small against one tick of BE work, large enough to stop idle flapping."""


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """The parts of one tick's reward; `total` is their sum.

    Attributes:
        qos: 0 when the target was held, else in [-2, -1] by how far it was missed; -2 when nobody knows.
        be_work: Share of what BE running alone would have done, in [0, 1]; 0 in a tick that missed the target.
        reconfiguration: 0 or -RECONFIGURATION_COST.
    """

    qos: float
    be_work: float
    reconfiguration: float

    @property
    def total(self) -> float:
        """The scalar that a learner gets."""
        return self.qos + self.be_work + self.reconfiguration

    def as_info(self) -> dict[str, float]:
        """The terms by name, for `info["reward"]`."""
        return {"qos": self.qos, "be_work": self.be_work, "reconfiguration": self.reconfiguration}


def reward(telemetry: Telemetry, before: Allocation, after: Allocation) -> RewardTerms:
    """The reward of a tick.

    Args:
        telemetry: Readings of the period that the allocation `after` was in force.
        before: The allocation in force until then.
        after: The allocation as read back.
    """
    qos = _qos(telemetry)
    work = telemetry.be_work_rate
    be_work = min(max(work.value, 0.0), 1.0) if isinstance(work, Value) and qos == 0.0 else 0.0
    return RewardTerms(qos, be_work, 0.0 if before == after else -RECONFIGURATION_COST)


def _qos(telemetry: Telemetry) -> float:
    latency = telemetry.latency_seconds
    if isinstance(latency, Missing) or not math.isfinite(latency.value):
        return -2.0
    over = latency.value / telemetry.target_seconds - 1.0
    return 0.0 if over <= 0.0 else -1.0 - min(over, 1.0)
