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

__all__ = ["Happened", "Orders", "Segment", "Transitions", "advantages", "choose", "steps_for", "transitions"]

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

LEAST_STEPS = 4
"""Of a segment: advantages look some ticks ahead."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host is asked for.

    Attributes:
        version: Of the policy that it acts by.
        steps: Control periods on each of its simulated or live hosts.
        epsilon: Share of random moves beside the best one; None draws from the policy's distribution.
        masked: Among the moves that the shield lets through only.
    """

    version: int
    steps: int
    epsilon: float | None = None
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """What a segment says of the hosts of one kind, for the curves.

    Attributes:
        ticks, missed, overridden: Control periods; those that missed the target, and in which the shield stepped in.
        be_work: Sum over those that held it of BE's work, as a share of BE running alone.
    """

    ticks: float = 0.0
    missed: float = 0.0
    be_work: float = 0.0
    overridden: float = 0.0


@dataclass(frozen=True, slots=True)
class Segment:
    """What came of it.

    Attributes:
        version: Of the policy that acted.
        observations: What it saw, and at the end what it would have seen next; float32, (steps + 1, hosts, size).
        actions: Moves to learn from, int64, (steps, hosts).
        log_probs: Of these under the policy that acted, float32, (steps, hosts); 0 where none was drawn from one.
        rewards: float32, (steps, hosts).
        dones: Where an episode was cut off, (steps, hosts).
        finals: Last observations of those episodes, float32, (dones.sum(), size), by step and then by host.
        masks: Moves that were allowed, (steps, hosts, moves); None where all were.
        happened: By kind of host.
        episode_rewards, episode_steps: Of the episodes that ended.
        seconds: What it took, by the host's own monotonic clock.
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
    seconds: float = 0.0

    @property
    def size(self) -> int:
        """Transitions in it."""
        return self.actions.size


class Transitions(NamedTuple):
    """A segment's transitions one by one, as a replay buffer has them; n of them.

    Attributes:
        observations, next_observations: float32, shape (n, size).
        actions: int64, shape (n,).
        rewards: float32, shape (n,).
        dones: Where the episode was cut off, shape (n,).
    """

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
        dice: Random numbers.
        allowed: Moves, one for each host at least, of the same shape; None allows all.
        epsilon: As in `Orders`.

    Returns:
        Moves, shape (hosts,), and their logarithmic probabilities where they were drawn from the policy, else 0.
    """
    asked = np.asarray(logits, np.float64)
    if allowed is not None:
        asked = np.where(allowed, asked, -np.inf)
    if epsilon is not None:
        any_move = np.where(np.isfinite(asked), dice.random(asked.shape), -1.0).argmax(axis=1)
        random = dice.random(len(asked)) < epsilon
        return np.where(random, any_move, asked.argmax(axis=1)), np.zeros(len(asked), np.float32)
    moves = (asked + dice.gumbel(size=asked.shape)).argmax(axis=1)
    top = asked.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(asked - top).sum(axis=1))
    return moves, (asked[np.arange(len(moves)), moves] - total).astype(np.float32)


def advantages(
    rewards: Floats, values: Floats, dones: Flags, final_values: Floats, gamma: float, gae_lambda: float
) -> Floats:
    """How much better than expected each transition of a segment was: generalised advantages, as PPO takes them.

    Args:
        rewards: As in a segment, (steps, hosts).
        values: Of its observations, (steps + 1, hosts).
        dones: As in a segment, (steps, hosts).
        final_values: Of its last observations of episodes: those were cut off, and would have gone on.
        gamma: Discount of a tick.
        gae_lambda: PPO's.

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
    """One by one, in the order of time."""
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
