"""The reward of many hosts in arrays: the twin of `rlctl.envs.reward`, the same terms from the same readings.

Each term is written twice, for one host and for arrays; `tests/envs/test_array_twins.py` holds the two together to the
bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.readings import Readings
from rlctl.envs.reward import NEAR, NEAR_COST, OVERRIDE_COST, RECONFIGURATION_COST, WORK

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class VectorRewardTerms(NamedTuple):
    """The parts of one tick's rewards, arrays of shape (n,); meaning and ranges as in `RewardTerms`."""

    qos: Array
    severity: Array
    be_work: Array
    reconfiguration: Array
    override: Array

    @property
    def total(self) -> Array:
        """What a learner gets, shape (n,)."""
        return self.qos + self.severity + self.be_work + self.reconfiguration + self.override


def rewards(
    readings: Readings, changed: Flags, overridden: Flags, *, truly: bool = False, work: float = WORK
) -> VectorRewardTerms:
    """The rewards of a tick.

    Args:
        readings: Of the period in which the new allocations were in force.
        changed: Where the allocation is another than before, shape (n,).
        overridden: Where the shield changed what was asked for, shape (n,).
        truly: Judge by what happened rather than by what the sensors say of it, late or never: for training, where a
            lost window is no fault of the policy's and a late one only blurs which action it was.
        work: Worth of BE's work on these hosts in place of WORK: the price of a violation, upside down.
    """
    latency = readings.true_latency_seconds if truly else readings.latency_seconds
    over = latency / readings.target_seconds - 1.0
    unknown = (readings.lost & (not truly)) | ~np.isfinite(latency)
    missed = unknown | (over > 0.0)
    near = np.maximum(1.0 + over - NEAR, 0.0) / (1.0 - NEAR)
    be_work = work * np.minimum(np.fmax(readings.be_work_rate, 0.0), 1.0)
    return VectorRewardTerms(
        qos=np.where(missed, -1.0, -NEAR_COST * near * near),
        severity=np.where(unknown, -1.0, -np.minimum(np.maximum(over, 0.0), 1.0)),
        be_work=np.where(missed, 0.0, be_work),
        reconfiguration=np.where(changed, -RECONFIGURATION_COST, 0.0),
        override=np.where(overridden, -OVERRIDE_COST, 0.0),
    )
