"""What crosses the network between a learner and the hosts that act for it: orders there, segments back.

A segment is a stretch of consecutive control periods of one or several hosts, all under one version of the policy, with
what comes after it: each is learned from by itself, whatever became of the host before and after. All here is plain
data and numpy, without Ray and without a learner's library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.host_groups import Happened
from rlctl.envs.arrays import Flags

Floats = NDArray[np.float32]

LEAST_STEPS = 4
"""Fewest steps of a segment: advantages look some ticks ahead."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host is asked for.

    Attributes:
        steps: Control periods on each of its simulated or live hosts.
        epsilon: Share of random moves beside the best one; None draws from the policy's distribution.
    """

    version: int
    steps: int
    epsilon: float | None = None
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """What a host did, step by step.

    Attributes:
        observations: What it saw, and at the end what it would have seen next; float32, (steps + 1, hosts, size).
        actions: Moves to learn from, int64, (steps, hosts).
        log_probs: Their logarithmic probabilities under the policy that acted, float32, (steps, hosts); 0 where none
            was drawn from one.
        dones: Where an episode was cut off, (steps, hosts).
        finals: Last observations of those episodes, float32, (dones.sum(), size), by step and then by host.
        masks: Moves that were allowed, (steps, hosts, moves); None where all were.
    """

    version: int
    observations: Floats
    actions: NDArray[np.int64]
    log_probs: Floats
    rewards: Floats
    dones: Flags
    finals: Floats
    masks: Flags | None = None
    happened: Mapping[str, Happened] = field(default_factory=dict)
    episode_rewards: Sequence[float] = ()
    episode_steps: Sequence[float] = ()

    @property
    def size(self) -> int:
        """Number of transitions in it."""
        return self.actions.size


class Transitions(NamedTuple):
    """A segment's transitions one by one, in the order of time, as a replay buffer has them: arrays of n rows."""

    observations: Floats
    next_observations: Floats
    actions: NDArray[np.int64]
    rewards: Floats
    dones: Flags


def choose(
    logits: NDArray[np.floating], dice: np.random.Generator, allowed: Flags | None = None, epsilon: float | None = None
) -> tuple[NDArray[np.int64], Floats]:
    """A move for each host.

    Args:
        logits: What the policy prefers, finite, shape (hosts, moves).
        allowed: Allowed moves, one for each host at least, of the same shape; None allows all.

    Returns:
        Moves, shape (hosts,), and their logarithmic probabilities where they were drawn from the policy, else 0.
    """
    scores = np.asarray(logits, np.float64)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    if epsilon is not None:
        any_move = np.where(np.isfinite(scores), dice.random(scores.shape), -1.0).argmax(axis=1)
        random = dice.random(len(scores)) < epsilon
        return np.where(random, any_move, scores.argmax(axis=1)), np.zeros(len(scores), np.float32)
    # The Gumbel-max trick: the largest of logits with Gumbel noise is a draw from their softmax.
    moves = (scores + dice.gumbel(size=scores.shape)).argmax(axis=1)
    top = scores.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(scores - top).sum(axis=1))
    return moves, (scores[np.arange(len(moves)), moves] - total).astype(np.float32)


def advantages(
    rewards: Floats, values: Floats, dones: Flags, final_values: Floats, gamma: float, gae_lambda: float
) -> Floats:
    """How much better than expected each transition of a segment was.

    Generalised advantage estimation (Schulman et al., ICLR 2016, eq. 16): the sum of the one-step errors
    `r + gamma V(next) - V(here)` that follow, each discounted by `gamma * gae_lambda`. An episode that was cut off
    would have gone on, so its last value counts, and no error beyond it does.

    Args:
        values: The critic's values of its observations, (steps + 1, hosts).
        final_values: The critic's values of the last observations of episodes.
        gae_lambda: Weight of later errors, 0 to 1.

    Returns:
        float32, (steps, hosts); the returns are these and the values together.
    """
    following = values[1:].copy()
    following[dones] = final_values
    found, ahead = np.zeros_like(rewards), np.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        ahead = rewards[step] + gamma * following[step] - values[step] + gamma * gae_lambda * ~dones[step] * ahead
        found[step] = ahead
    return found


def transitions(segment: Segment) -> Transitions:
    """Those of a segment, one by one."""
    following = segment.observations[1:].copy()
    following[segment.dones] = segment.finals
    size = segment.observations.shape[-1]
    return Transitions(
        segment.observations[:-1].reshape(-1, size),
        following.reshape(-1, size),
        segment.actions.reshape(-1),
        segment.rewards.reshape(-1),
        segment.dones.reshape(-1),
    )


def steps_for(wanted: int, hosts: int, most: int) -> int:
    """Control periods to ask of each of so many hosts, for about so many transitions in all, and not more than most."""
    return min(max(-(-wanted // max(hosts, 1)), LEAST_STEPS), most)
