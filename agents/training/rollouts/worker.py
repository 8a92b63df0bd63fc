"""Who acts for a learner on a testbed: simulated or live hosts, their shield, and the policy as a bundle has it.

    worker = Worker(partial(SimRunning, groups, lags, first_seed), seed=3)
    print(worker.begin())
    segment = worker.segment(Orders(version=7, steps=16), weights)
    worker.close()

It runs where the testbed is, as a Ray actor or not. It needs neither torch nor Stable-Baselines3, and unpickles no
model: the network that it gets is a `weights.npz`, checked as that of a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.many.learned import Logits
from rlctl.agents.served.network import Network, NetworkError, read_network
from rlctl.agents.training.host_groups import Happened, HostGroups, Stepped
from rlctl.agents.training.host_kinds import Group
from rlctl.agents.training.rollouts.segments import Orders, Segment, choose
from rlctl.envs.errors import BundleError, PolicyError


class Running(Protocol):
    """Hosts that have been started; a control period takes `tick_seconds` of real time, 0 where it is simulated."""

    count: int
    tick_seconds: float

    def go_on(self, orders: Orders, logits: Logits) -> NDArray[np.float32]:
        """Begin a segment; returns what the policy sees, shape (count, size)."""

    def epsilon(self) -> float | None:
        """Share of random moves among the allowed ones, see `Orders`."""

    def allowed(self) -> NDArray[np.bool_] | None:
        """Moves that are allowed now, shape (count, moves); None allows all."""

    def step(self, moves: NDArray[np.int64]) -> tuple[Stepped, NDArray[np.int64]]:
        """One control period; what came of it, and the moves to learn from: what the shield did where it stepped in."""

    def stand_still(self) -> None:
        """End a segment; nobody may come back for a while."""

    def happened(self) -> tuple[Mapping[str, Happened], Sequence[float], Sequence[float]]:
        """Since the last call: sums by kind of host, and returns and lengths of the episodes that ended."""

    def close(self) -> None:
        """Put back whatever was changed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a worker says once its hosts are there; `tick_seconds` as of `Running`."""

    count: int
    tick_seconds: float


class SimRunning:
    """Simulated hosts of several kinds at work, each with the next seed from `first_seed` on.

    Between two segments their clock stands still.
    """

    tick_seconds = 0.0

    def __init__(self, groups: Sequence[Group], lags: Sequence[int], first_seed: int) -> None:
        self._names = [one.kind.name for one in groups]
        self._hosts = HostGroups(*(one.simulated(lags) for one in groups))
        self.count = self._hosts.count
        self._seen = self._hosts.reset(range(first_seed, first_seed + self.count))
        self._orders = Orders(0, 1)

    def go_on(self, orders: Orders, logits: Logits) -> NDArray[np.float32]:  # noqa: ARG002 - live hosts need it
        """From where they stand."""
        self._orders = orders
        return self._seen

    def epsilon(self) -> float | None:
        """What the learner ordered with the segment."""
        return self._orders.epsilon

    def allowed(self) -> NDArray[np.bool_] | None:
        """What the shield lets through, if that is asked for."""
        return self._hosts.action_masks() if self._orders.masked else None

    def step(self, moves: NDArray[np.int64]) -> tuple[Stepped, NDArray[np.int64]]:
        """What was asked for is learned from, as it is without Ray."""
        stepped = self._hosts.step(moves)
        self._seen = stepped.observations
        return stepped, moves

    def stand_still(self) -> None:
        """They do by themselves."""

    def happened(self) -> tuple[Mapping[str, Happened], Sequence[float], Sequence[float]]:
        """Sums since, by kind of host."""
        happened, rewards, steps = self._hosts.take_counts()
        return dict(zip(self._names, happened, strict=True)), rewards, steps

    def close(self) -> None:
        """End the simulation of all hosts."""
        self._hosts.close()


class Worker:
    """Acts on hosts, segment by segment; `start`, which starts them, is pickled where they are on another machine."""

    def __init__(self, start: Callable[[], Running], seed: int) -> None:
        self._start, self._dice = start, np.random.default_rng(seed)
        self._running: Running | None = None

    def begin(self) -> Ready:
        """Start the hosts, and say how many; RlctlError where they cannot be started."""
        self._running = self._start()
        return Ready(self._running.count, self._running.tick_seconds)

    def segment(self, orders: Orders, weights: bytes) -> Segment:
        """Act for some control periods; PolicyError where the network is none or not finite; or a live host's error."""
        assert self._running is not None, "begin() comes first"
        network = self._network_of(weights)
        try:
            return self._acted(self._running, orders, network)
        finally:
            self._running.stand_still()

    def _acted(self, running: Running, orders: Orders, network: Network) -> Segment:
        seen, rows, masks = [running.go_on(orders, lambda shown: _finite(network, shown))], [], []
        for _ in range(orders.steps):
            allowed = running.allowed()
            moves, log_probs = choose(_finite(network, seen[-1]), self._dice, allowed, running.epsilon())
            stepped, actions = running.step(moves)
            seen.append(stepped.observations)
            rows.append((actions, log_probs, stepped.rewards, stepped.done, stepped.finals))
            masks.append(allowed)
        executed, probabilities, rewards, dones, finals = zip(*rows, strict=True)
        happened, episode_rewards, episode_steps = running.happened()
        return Segment(
            version=orders.version,
            observations=np.stack(seen),
            actions=np.stack(executed),
            log_probs=np.stack(probabilities),
            rewards=np.stack(rewards),
            dones=np.stack(dones),
            finals=np.concatenate(finals),
            masks=np.stack([one for one in masks if one is not None]) if orders.masked else None,
            happened=happened,
            episode_rewards=episode_rewards,
            episode_steps=episode_steps,
        )

    def close(self) -> None:
        """Put back whatever was changed. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _network_of(self, weights: bytes) -> Network:
        try:
            return read_network(weights)
        except NetworkError as error:
            raise BundleError(f"the learner's network {error}") from error


def _finite(network: Network, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    logits = network.logits(observations)
    if not np.isfinite(logits).all():
        raise PolicyError("the network's answers are not finite: its training diverged")
    return logits
