"""Groups of simulated hosts stepped together, with no learner's library: what a rollout needs, wherever it runs.

hosts = HostGroups(group, other)         # groups differ in size, weight, shield and sensors
seen = hosts.reset(range(seed, seed + hosts.count))
seen, rewards, done, finals = hosts.step(moves)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.lagrangian import Multiplier
from rlctl.envs.constrained import REWARDED
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.vector_env import SimHostVectorEnv


@dataclass(frozen=True, slots=True)
class Happened:
    """What happened on the hosts of one kind, for the curves.

    Attributes:
        missed, overridden: Those that missed the target, and those in which the shield changed the move.
        be_work: Sum over those that held it of BE's work, as a share of BE running alone.
    """

    ticks: float = 0.0
    missed: float = 0.0
    be_work: float = 0.0
    overridden: float = 0.0

    def __add__(self, other: Happened) -> Happened:
        return Happened(*(getattr(self, name) + getattr(other, name) for name in Happened.__slots__))


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened since the counts were taken last, by kind of host; and of the episodes that have ended."""

    happened: Mapping[str, Happened] = field(default_factory=dict)
    episode_rewards: Sequence[float] = ()
    episode_steps: Sequence[float] = ()

    def __add__(self, other: Counts) -> Counts:
        made = dict(self.happened)
        for name, one in other.happened.items():
            made[name] = made.get(name, Happened()) + one
        rewards, steps = (*self.episode_rewards, *other.episode_rewards), (*self.episode_steps, *other.episode_steps)
        return Counts(made, rewards, steps)


class Stepped(NamedTuple):
    """What came of a step on all hosts.

    Attributes:
        observations: float32, shape (hosts, size); where an episode has ended, the next one's first.
        rewards: float32, shape (hosts,).
        done: Where an episode has ended, shape (hosts,); hosts have no natural end, so it is cut off there.
        finals: Last observations of the episodes that ended, float32, shape (done.sum(), size), in the hosts' order.
    """

    observations: NDArray[np.float32]
    rewards: NDArray[np.float32]
    done: NDArray[np.bool_]
    finals: NDArray[np.float32]


class HostGroups:
    """Hosts of all groups, one group after the other.

    Args:
        *groups: Vector environments with the same spaces; they are closed with this one.
        names: Of the groups in the counts; their numbers where none are given.
        multiplier: Prices missed windows in place of the environments' own reward; None keeps that.

    Raises:
        ConfigError: There is no group, or they differ in what a policy sees or may do.
    """

    def __init__(
        self, *groups: SimHostVectorEnv, names: Sequence[str] = (), multiplier: Multiplier | None = None
    ) -> None:
        if not groups:
            raise ConfigError("no hosts to learn on: give one group at least")
        self.groups, self._multiplier = groups, multiplier
        self._names = names or [str(number) for number in range(len(groups))]
        spaces = [(one.single_observation_space, one.single_action_space) for one in groups]
        if any(one != spaces[0] for one in spaces):
            raise ConfigError("groups of hosts differ in observations or actions: give all the same lags and actions")
        self._cuts = np.cumsum([0, *(one.num_envs for one in groups)]).tolist()
        self.count: int = self._cuts[-1]
        self._no_finals = np.zeros((0, *(spaces[0][0].shape or ())), np.float32)
        self._rewards, self._steps = np.zeros(self.count), np.zeros(self.count)
        self._clear()

    def reset(self, seeds: Sequence[int | None]) -> NDArray[np.float32]:
        """Begin on all hosts, each with its seed, or with None its next episode; returns what policies see."""
        seen = [group.reset(seed=seeds[start:end])[0] for group, start, end in self._parts()]
        self._rewards[:], self._steps[:] = 0.0, 0.0
        return np.concatenate(seen)

    def step(self, actions: NDArray[np.integer]) -> Stepped:
        """One action on each host, shape (hosts,), and its control period."""
        prices = [group.prices for group in self.groups]  # before the step: an episode that begins has another
        stepped = [group.step(actions[start:end]) for group, start, end in self._parts()]
        observations, rewards, terminated, truncated, infos = zip(*stepped, strict=True)
        for place, info in enumerate(infos):
            self._count(place, info["reward"], prices[place])
        reward, done = np.concatenate(rewards), np.concatenate(truncated) | np.concatenate(terminated)
        if self._multiplier:
            worth = [sum(info["reward"][name] for name in REWARDED) for info in infos]
            costs = np.concatenate([info["cost"] for info in infos])
            reward = self._multiplier.rewards(np.concatenate(worth), costs)
        self._rewards += reward
        self._steps += 1.0
        finals = self._no_finals
        if done.any():
            self._ended_rewards += self._rewards[done].tolist()
            self._ended_steps += self._steps[done].tolist()
            self._rewards[done], self._steps[done] = 0.0, 0.0
            ended = zip(truncated, infos, strict=True)
            finals = np.stack([info["final_obs"][host] for which, info in ended for host in np.flatnonzero(which)])
        return Stepped(np.concatenate(observations), reward.astype(np.float32), done, finals)

    def take_counts(self) -> Counts:
        """What happened since the last call, by group."""
        happened = {name: Happened(*row) for name, row in zip(self._names, self._counts.tolist(), strict=True)}
        counts = Counts(happened, self._ended_rewards, self._ended_steps)
        self._clear()
        return counts

    def action_masks(self) -> NDArray[np.bool_]:
        """Moves that the shields let through, or that change something; shape (hosts, moves)."""
        return np.concatenate([group.action_masks() for group in self.groups])

    def close(self) -> None:
        """Close the hosts of all groups."""
        for group in self.groups:
            group.close()

    def _parts(self) -> Iterable[tuple[SimHostVectorEnv, int, int]]:
        return zip(self.groups, self._cuts[:-1], self._cuts[1:], strict=True)

    def _count(self, place: int, terms: dict[str, Any], prices: NDArray[np.float64]) -> None:
        """Add the reward's terms of a group's hosts: also of those whose episode has ended with this step."""
        qos, be_work, override = terms["qos"], terms["be_work"], terms["override"]
        self._counts[place] += (
            len(qos),
            np.count_nonzero(qos <= -1.0),
            (be_work * prices).sum() / self.groups[place].work,
            np.count_nonzero(override),
        )

    def _clear(self) -> None:
        self._counts = np.zeros((len(self.groups), 4))
        self._ended_rewards: list[float] = []
        self._ended_steps: list[float] = []
