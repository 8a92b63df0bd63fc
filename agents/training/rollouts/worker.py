"""Who acts for a learner: simulated or live hosts, their shield, and the policy as a bundle has it.

    worker = SimWorker(groups, lags, first_seed, dice_seed=3)
    sample = worker.sample(Orders(steps=16), weights)
    worker.close()

It runs where the hosts are, as a Ray actor or not. It needs neither torch nor Stable-Baselines3, and unpickles no
model: the network that it gets is a `weights.npz`, checked as that of a bundle. Orders there and samples back are plain
data and numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_learned import Logits
from rlctl.agents.served.network import Network, NetworkError, read_network
from rlctl.agents.training.host_groups import Counts, HostGroups, Stepped
from rlctl.agents.training.host_kinds import HostShare
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import BundleError, PolicyError

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
    counts: Counts = field(default_factory=Counts)

    @property
    def size(self) -> int:
        """Number of transitions in it."""
        return self.actions.size


def join_samples(parts: Sequence[RolloutSample]) -> RolloutSample:
    """The hosts of all parts, which have equally many steps, one part after the other."""
    arrays: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts], axis=1) for name in ARRAYS}
    masks = [one.masks for one in parts if one.masks is not None]
    counts = sum((one.counts for one in parts), Counts())
    return RolloutSample(**arrays, masks=np.concatenate(masks, axis=1) if masks else None, counts=counts)


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


class Worker(ABC):
    """Acts on hosts, sample by sample.

    Attributes:
        count: Number of hosts.
        tick_seconds: Real time that a control period takes, 0 where it is simulated.
    """

    count: int
    tick_seconds = 0.0

    def __init__(self, dice_seed: int) -> None:
        self._dice = np.random.default_rng(dice_seed)

    def sample(self, orders: Orders, weights: bytes) -> RolloutSample:
        """Act for some control periods; PolicyError where the network is none or not finite; or a live host's error."""
        try:
            network = read_network(weights)
        except NetworkError as error:
            raise BundleError(f"the learner's network {error}") from error
        try:
            return self._acted(orders, network)
        finally:
            self._stand_still()

    def _acted(self, orders: Orders, network: Network) -> RolloutSample:
        seen, rows, masks = self._go_on(lambda shown: _finite(network, shown)), [], []
        for _ in range(orders.steps):
            allowed = self._mask(orders)
            moves = choose(_finite(network, seen), self._dice, allowed, self._epsilon(orders))
            stepped, actions = self._step(moves, orders)
            following = stepped.observations.copy()
            following[stepped.done] = stepped.finals
            rows.append((seen, following, actions, stepped.rewards, stepped.done))
            masks.append(allowed)
            seen = stepped.observations
        return RolloutSample(
            **{name: np.stack(column) for name, column in zip(ARRAYS, zip(*rows, strict=True), strict=True)},
            masks=np.stack([one for one in masks if one is not None]) if orders.masked else None,
            counts=self._take_counts(),
        )

    @abstractmethod
    def close(self) -> None:
        """Put back whatever was changed."""

    @abstractmethod
    def _go_on(self, logits: Logits) -> NDArray[np.float32]:
        """Begin a sample; returns what the policy sees, shape (count, size)."""

    @abstractmethod
    def _mask(self, orders: Orders) -> NDArray[np.bool_] | None:
        """Moves that are allowed now, shape (count, moves); None allows all."""

    @abstractmethod
    def _step(self, moves: NDArray[np.int64], orders: Orders) -> tuple[Stepped, NDArray[np.int64]]:
        """One control period; what came of it, and the moves to learn from."""

    @abstractmethod
    def _take_counts(self) -> Counts:
        """What happened since the last call, by kind of host."""

    def _epsilon(self, orders: Orders) -> float | None:
        """Share of random moves among the allowed ones."""
        return orders.epsilon

    def _stand_still(self) -> None:  # noqa: B027 - simulated hosts do by themselves
        """A sample has ended, and nobody may come back for a while."""


class SimWorker(Worker):
    """Acts on simulated hosts of several kinds, each with the next seed from `first_seed` on."""

    def __init__(self, groups: Sequence[HostShare], lags: Sequence[int], first_seed: int, dice_seed: int) -> None:
        super().__init__(dice_seed)
        names = [one.kind.name for one in groups]
        self._hosts = HostGroups(*(one.simulated(lags) for one in groups), names=names)
        self.count = self._hosts.count
        self._seen = self._hosts.reset(range(first_seed, first_seed + self.count))

    def close(self) -> None:
        """End the simulation of all hosts."""
        self._hosts.close()

    def _go_on(self, logits: Logits) -> NDArray[np.float32]:  # noqa: ARG002 - live hosts need them
        return self._seen

    def _mask(self, orders: Orders) -> NDArray[np.bool_] | None:
        return self._hosts.action_masks() if orders.masked else None

    def _step(self, moves: NDArray[np.int64], orders: Orders) -> tuple[Stepped, NDArray[np.int64]]:  # noqa: ARG002
        stepped = self._hosts.step(moves)
        self._seen = stepped.observations
        return stepped, moves  # what was asked for is learned from, as it is without Ray

    def _take_counts(self) -> Counts:
        return self._hosts.take_counts()


def _finite(network: Network, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    logits = network.logits(observations)
    if not np.isfinite(logits).all():
        raise PolicyError("the network's answers are not finite: its training diverged")
    return logits
