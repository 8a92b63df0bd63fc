"""The reward of many hosts in arrays: the same terms, from the same readings, as `rlctl.envs.reward`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.reward import RECONFIGURATION_COST
from rlctl.envs.sim.vector_observation import Readings

__all__ = ["VectorRewardTerms", "rewards"]

Array = NDArray[np.float64]


class VectorRewardTerms(NamedTuple):
    """The parts of one tick's rewards, arrays of shape (n,); meaning and ranges as in `RewardTerms`."""

    qos: Array
    be_work: Array
    reconfiguration: Array

    @property
    def total(self) -> Array:
        """What a learner gets, shape (n,)."""
        return self.qos + self.be_work + self.reconfiguration


def rewards(readings: Readings, changed: NDArray[np.bool_]) -> VectorRewardTerms:
    """The rewards of a tick.

    Args:
        readings: Of the period in which the new allocations were in force.
        changed: Where the allocation is another than before, shape (n,).
    """
    latency = readings.latency_seconds
    over = latency / readings.target_seconds - 1.0
    qos = np.where(over <= 0.0, 0.0, -1.0 - np.minimum(over, 1.0))
    qos = np.where(readings.lost | ~np.isfinite(latency), -2.0, qos)
    work = np.minimum(np.maximum(readings.be_work_rate, 0.0), 1.0)
    return VectorRewardTerms(qos, np.where(qos == 0.0, work, 0.0), np.where(changed, -RECONFIGURATION_COST, 0.0))
