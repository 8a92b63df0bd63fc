"""Who acts for a learner: simulated or live hosts, their shield, and the policy as a bundle has it.

    worker = SimWorker(groups, lags, first_seed, dice_seed=3)
    sample = worker.sample(Orders(steps=16), weights)
    worker.close()

It runs where the hosts are, as a Ray actor or not. It needs neither torch nor Stable-Baselines3, and unpickles no
model: the network that it gets is a `weights.npz`, checked as that of a bundle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_learned import Logits
from rlctl.agents.served.network import Network, NetworkError, read_network
from rlctl.agents.training.host_groups import Counts, HostGroups, Stepped
from rlctl.agents.training.host_kinds import HostShare
from rlctl.agents.training.rollouts.sample import ARRAYS, Orders, RolloutSample, choose
from rlctl.envs.errors import BundleError, PolicyError


class Worker(ABC):
    """Acts on hosts, sample by sample.

    Attributes:
        count, kinds: Number of hosts, and the names of their kinds.
        tick_seconds: Real time that a control period takes, 0 where it is simulated.
    """

    count: int
    kinds: Sequence[str]
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
        seen, rows, masks = self._go_on(orders, lambda shown: _finite(network, shown)), [], []
        for _ in range(orders.steps):
            allowed = self._mask(orders)
            moves = choose(_finite(network, seen), self._dice, allowed, self._epsilon(orders))
            stepped, actions = self._step(moves, orders)
            following = stepped.observations.copy()
            following[stepped.done] = stepped.finals
            rows.append((seen, following, actions, stepped.rewards, stepped.done))
            masks.append(allowed)
            seen = stepped.observations
        counts = self._take_counts()
        return RolloutSample(
            **{name: np.stack(column) for name, column in zip(ARRAYS, zip(*rows, strict=True), strict=True)},
            masks=np.stack([one for one in masks if one is not None]) if orders.masked else None,
            happened=dict(zip(self.kinds, counts.happened, strict=True)),
            episode_rewards=counts.episode_rewards,
            episode_steps=counts.episode_steps,
        )

    @abstractmethod
    def close(self) -> None:
        """Put back whatever was changed."""

    @abstractmethod
    def _go_on(self, orders: Orders, logits: Logits) -> NDArray[np.float32]:
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
        self._hosts = HostGroups(*(one.simulated(lags) for one in groups))
        self.count, self.kinds = self._hosts.count, [one.kind.name for one in groups]
        self._seen = self._hosts.reset(range(first_seed, first_seed + self.count))

    def close(self) -> None:
        """End the simulation of all hosts."""
        self._hosts.close()

    def _go_on(self, orders: Orders, logits: Logits) -> NDArray[np.float32]:  # noqa: ARG002 - live hosts need them
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
