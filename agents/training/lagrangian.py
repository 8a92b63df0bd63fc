"""PPO-Lagrangian's multiplier: the price of a missed window that training itself finds, for a limit of misses.

multiplier = Multiplier(limit=0.01, gain=0.02)
rewards = multiplier.rewards(worth, costs)        # of every step
multiplier.update()                               # after every rollout: up above the limit, down below it
"""

from __future__ import annotations

import numpy as np

from rlctl.envs.arrays import Array

MOST_STEP = 1.0
"""A rollout far above the limit moves the multiplier no further than one at twice the limit."""


class Multiplier:
    """A Lagrange multiplier by gradient ascent on its logarithm, with the error as a share of the limit.

    The learner gets (worth - multiplier x cost) / (1 + multiplier), so that returns keep their size (Stooke et al.
    2020, Ray et al. 2019). They climb the multiplier itself or a softplus of it. On the logarithm a limit of 0.001 is
    approached as fast from below as one of 0.1, and the multiplier stays positive without clipping.

    Args:
        limit: Mean cost of a window that is allowed, above 0: the share of windows that may miss their target.
        gain: Change of the logarithm after a rollout at twice the limit.
        value: To begin with; 1 prices a miss as rlctl's own reward does.
    """

    def __init__(self, limit: float, gain: float, value: float = 1.0) -> None:
        self.limit, self.gain, self.value = limit, gain, value
        self._cost, self._windows = 0.0, 0

    def rewards(self, worth: Array, costs: Array) -> Array:
        """What the learner gets for a step of hosts, shape (n,); the costs count for the next update."""
        self._cost += float(costs.sum())
        self._windows += len(costs)
        return (worth - self.value * costs) / (1.0 + self.value)

    def update(self) -> None:
        """Move by the mean cost since the last update; stays where there was no window."""
        if self._windows:
            excess = self._cost / self._windows / self.limit - 1.0
            self.value *= float(np.exp(self.gain * np.clip(excess, -MOST_STEP, MOST_STEP)))
        self._cost, self._windows = 0.0, 0
