"""What crosses the network between a learner and the hosts that act for it: orders there, samples back.

All here is plain data and numpy, without Ray and without a learner's library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.host_groups import Happened
from rlctl.envs.arrays import Flags

Floats = NDArray[np.float32]

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones")
"""What every sample has of each control period and host."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What hosts are asked for.

    Attributes:
        steps: Control periods on each of them.
        epsilon: Share of random moves beside the best one; None draws from the policy's distribution.
    """

    steps: int
    epsilon: float | None = None
    masked: bool = False


@dataclass(frozen=True, slots=True)
class RolloutSample:
    """Consecutive control periods of some hosts under one policy; arrays have the shape (steps, hosts, ...).

    Attributes:
        next_observations: What each move led to; where an episode was cut off, its last observation.
        actions: Moves to learn from, int64.
        dones: Where an episode was cut off.
        masks: Moves that were allowed, (steps, hosts, moves); None where all were.
    """

    observations: Floats
    next_observations: Floats
    actions: NDArray[np.int64]
    rewards: Floats
    dones: Flags
    masks: Flags | None = None
    happened: Mapping[str, Happened] = field(default_factory=dict)
    episode_rewards: Sequence[float] = ()
    episode_steps: Sequence[float] = ()

    @property
    def size(self) -> int:
        """Number of transitions in it."""
        return self.actions.size


def join_samples(parts: Sequence[RolloutSample]) -> RolloutSample:
    """The hosts of all parts, which have equally many steps, one part after the other."""
    arrays: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts], axis=1) for name in ARRAYS}
    masks = [one.masks for one in parts if one.masks is not None]
    kinds = dict.fromkeys(name for one in parts for name in one.happened)
    return RolloutSample(
        **arrays,
        masks=np.concatenate(masks, axis=1) if masks else None,
        happened={name: sum((one.happened.get(name, Happened()) for one in parts), Happened()) for name in kinds},
        episode_rewards=[reward for one in parts for reward in one.episode_rewards],
        episode_steps=[steps for one in parts for steps in one.episode_steps],
    )


def choose(
    logits: NDArray[np.floating], dice: np.random.Generator, allowed: Flags | None = None, epsilon: float | None = None
) -> NDArray[np.int64]:
    """A move for each host, shape (hosts,).

    Args:
        logits: What the policy prefers, finite, shape (hosts, moves).
        allowed: Allowed moves, one for each host at least, of the same shape; None allows all.
        epsilon: As of `Orders`.
    """
    scores = np.asarray(logits, np.float64)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    if epsilon is None:
        # The Gumbel-max trick: the largest of logits with Gumbel noise is a draw from their softmax.
        return np.asarray((scores + dice.gumbel(size=scores.shape)).argmax(axis=1))
    any_move = np.where(np.isfinite(scores), dice.random(scores.shape), -1.0).argmax(axis=1)
    return np.asarray(np.where(dice.random(len(scores)) < epsilon, any_move, scores.argmax(axis=1)))
