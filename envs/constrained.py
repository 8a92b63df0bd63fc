"""The same environment as a constrained problem: reward and cost apart, as Safety-Gymnasium returns them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

REWARDED = ("be_work", "reconfiguration", "override")
"""Terms of the reward that are no cost; the others tell of missed windows and of being near them."""


class ConstrainedEnv(gym.Wrapper[NDArray[np.float32], Any, NDArray[np.float32], Any]):
    """Any environment of rlctl, whose step has six values: observation, reward, cost, terminated, truncated, info.

    The reward is what BE got, less what changes and overrides cost. The cost is 1.0 for a window that missed its
    target and 0.0 otherwise. So an SLO of 99 % of the windows is a mean cost of at most 0.01. The order of the values
    is that of Safety-Gymnasium (Ji et al. 2023, NeurIPS Datasets and Benchmarks).
    """

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """As the environment's, with the cost as third value."""
        observation, _, terminated, truncated, info = self.env.step(action)
        terms = info["reward"]
        reward = float(sum(terms[name] for name in REWARDED))
        return observation, reward, float(info["cost"]), terminated, truncated, info
