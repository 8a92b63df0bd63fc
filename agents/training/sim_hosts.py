"""Groups of simulated hosts stepped together, with no learner's library: what a rollout needs, wherever it runs.

hosts = SimHosts(group, other)           # groups differ in size, weight, shield and sensors
seen = hosts.reset(range(seed, seed + hosts.count))
seen, rewards, done, finals = hosts.step(moves)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.vector_env import SimHostVectorEnv

__all__ = ["Counts", "SimHosts", "Stepped"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened since the counts were taken last.

    Attributes:
        ticks: Control periods of all hosts of a group, shape (groups,).
        missed: Those that missed the target, shape (groups,).
        be_work: Sum over those that held it of BE's work, as a share of BE running alone, shape (groups,).
        overridden: Those in which the shield changed what was asked for, shape (groups,).
        episode_rewards: Return of each episode that ended, shape (episodes,).
        episode_steps: Its steps, shape (episodes,).
    """

    ticks: Array
    missed: Array
    be_work: Array
    overridden: Array
    episode_rewards: Array
    episode_steps: Array


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


class SimHosts:
    """Hosts of all groups, one group after the other.

    Args:
        *groups: The vector environments, with the same spaces; they are closed with this one.

    Attributes:
        groups: The same.
        count: Hosts in all.

    Raises:
        ConfigError: There is no group, or they differ in what a policy sees or may do.
    """

    def __init__(self, *groups: SimHostVectorEnv) -> None:
        if not groups:
            raise ConfigError("no hosts to learn on: give one group at least")
        self.groups = groups
        if any(self._spaces(one) != self._spaces(groups[0]) for one in groups):
            raise ConfigError("groups of hosts differ in observations or actions: give all the same lags and actions")
        self._cuts = np.cumsum([0, *(one.num_envs for one in groups)]).tolist()
        self.count: int = self._cuts[-1]
        self._none = np.zeros((0, *self._spaces(groups[0])[0].shape), np.float32)
        self._rewards, self._steps = np.zeros(self.count), np.zeros(self.count)
        self._clear()

    @staticmethod
    def _spaces(group: SimHostVectorEnv) -> tuple[Any, Any]:
        return group.single_observation_space, group.single_action_space

    def reset(self, seeds: Sequence[int | None]) -> NDArray[np.float32]:
        """Begin on all hosts, each with its seed, or with None its next episode; returns what policies see."""
        seen = [group.reset(seed=seeds[start:end])[0] for group, start, end in self._parts()]
        self._rewards[:], self._steps[:] = 0.0, 0.0
        return np.concatenate(seen)

    def step(self, actions: NDArray[np.integer]) -> Stepped:
        """One action on each host, shape (hosts,), and its control period."""
        stepped = [group.step(actions[start:end]) for group, start, end in self._parts()]
        observations, rewards, terminated, truncated, each_info = zip(*stepped, strict=True)
        for place, info in enumerate(each_info):
            self._count(place, info["reward"])
        reward, done = np.concatenate(rewards), np.concatenate(truncated) | np.concatenate(terminated)
        self._rewards += reward
        self._steps += 1.0
        finals = self._none
        if done.any():
            self._note_episodes(done)
            finals = self._finals(truncated, each_info)
        return Stepped(np.concatenate(observations), reward.astype(np.float32), done, finals)

    def take_counts(self) -> Counts:
        """What happened since the last call, by group."""
        ticks, missed, be_work, overridden = self._counts.T
        rewards, steps = (np.concatenate([[], *parts]) for parts in (self._ended_rewards, self._ended_steps))
        self._clear()
        return Counts(ticks, missed, be_work, overridden, rewards, steps)

    def action_masks(self) -> NDArray[np.bool_]:
        """Moves that the shields let through, or that change something; shape (hosts, moves)."""
        return np.concatenate([group.action_masks() for group in self.groups])

    def close(self) -> None:
        """Close the hosts."""
        for group in self.groups:
            group.close()

    def _parts(self) -> Iterable[tuple[SimHostVectorEnv, int, int]]:
        return zip(self.groups, self._cuts[:-1], self._cuts[1:], strict=True)

    def _count(self, place: int, terms: dict[str, Any]) -> None:
        """Terms of all hosts of a group: also of those whose episode has ended with this step."""
        qos, be_work, override = terms["qos"], terms["be_work"], terms["override"]
        self._counts[place] += (
            len(qos),
            np.count_nonzero(qos <= -1.0),
            be_work.sum() / self.groups[place].work,
            np.count_nonzero(override),
        )

    def _note_episodes(self, done: NDArray[np.bool_]) -> None:
        self._ended_rewards.append(self._rewards[done])
        self._ended_steps.append(self._steps[done])
        self._rewards[done], self._steps[done] = 0.0, 0.0

    def _finals(
        self, truncated: Sequence[NDArray[np.bool_]], each_info: Sequence[dict[str, Any]]
    ) -> NDArray[np.float32]:
        ended = zip(truncated, each_info, strict=True)
        return np.stack([info["final_obs"][host] for which, info in ended for host in np.flatnonzero(which)])

    def _clear(self) -> None:
        self._counts = np.zeros((len(self.groups), 4))
        self._ended_rewards: list[Array] = []
        self._ended_steps: list[Array] = []
