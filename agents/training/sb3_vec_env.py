"""The vector environment as Stable-Baselines3 wants it: its own VecEnv, four returns, one info dict per host.

Stable-Baselines3 takes no Gymnasium VectorEnv (its issues 1568 and 2106), so this stands between the two. One learner
may have several vector environments at once, groups of hosts that differ in size, weight, shield and sensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.seeds import Kind, kind_of
from rlctl.envs.sim.vector_env import SimHostVectorEnv

__all__ = ["Counts", "SimVecEnv"]

Array = NDArray[np.float64]
Indices = None | int | Iterable[int]


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


class SimVecEnv(VecEnv):
    """Simulated hosts for PPO, DQN and the other learners of Stable-Baselines3 and its contrib package.

    The hosts of all groups stand one after the other. `infos[i]` has `TimeLimit.truncated`, and at the end of an
    episode `terminal_observation`; between ends of episodes it is one and the same list. MaskablePPO is served by
    `env_method("action_masks")`.

    Args:
        *groups: The vector environments, with the same spaces; they are closed with this one.

    Attributes:
        groups: The same.

    Raises:
        ConfigError: There is no group, or they differ in what a policy sees or may do.
    """

    def __init__(self, *groups: SimHostVectorEnv) -> None:
        if not groups:
            raise ConfigError("no hosts to learn on: give one group at least")
        first = groups[0]
        spaces = (first.single_observation_space, first.single_action_space)
        if any((one.single_observation_space, one.single_action_space) != spaces for one in groups):
            raise ConfigError("groups of hosts differ in observations or actions: give all the same lags and actions")
        self.groups = groups
        self._cuts = np.cumsum([0, *(one.num_envs for one in groups)]).tolist()
        self._actions: NDArray[np.integer] | None = None
        count = self._cuts[-1]
        self._uneventful: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(count)]
        self._rewards, self._steps = np.zeros(count), np.zeros(count)
        self._clear()
        super().__init__(count, *spaces)

    @property
    def hosts(self) -> SimHostVectorEnv:
        """The first group."""
        return self.groups[0]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the next reset: host i of all gets seed + i, so that no two groups meet.

        Raises:
            ConfigError: An evaluation seed: what learns on it could not be judged on it.
        """
        if seed is not None and kind_of(seed) is not Kind.TRAINING:
            raise ConfigError(f"{seed} is an evaluation seed; policies learn on training seeds only")
        seeds: Sequence[int | None] = super().seed(seed)
        return seeds

    def reset(self) -> NDArray[np.float32]:
        """Begin on all hosts, with the seeds that `seed` gave; later resets go on to the next episodes."""
        seen = [group.reset(seed=self._seeds[start:end])[0] for group, start, end in self._parts()]
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        self._rewards[:], self._steps[:] = 0.0, 0.0
        return np.concatenate(seen)

    def step_async(self, actions: NDArray[np.integer]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards, ends of episodes, and infos."""
        assert self._actions is not None
        stepped = [group.step(self._actions[start:end]) for group, start, end in self._parts()]
        observations, rewards, terminated, truncated, each_info = zip(*stepped, strict=True)
        for place, info in enumerate(each_info):
            self._count(place, info["reward"])
        reward, done = np.concatenate(rewards), np.concatenate(truncated) | np.concatenate(terminated)
        self._rewards += reward
        self._steps += 1.0
        infos = self._uneventful
        if done.any():
            self._note_episodes(done)
            infos = self._eventful(truncated, each_info)
        return np.concatenate(observations), reward.astype(np.float32), done, infos

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

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the hosts' vector environment, host by host."""
        each = [getattr(group, attr_name) for group in self.groups for _ in range(group.num_envs)]
        return [each[host] for host in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set it, for all hosts at once.

        Raises:
            ValueError: For some hosts only.
        """
        if len(self._chosen(indices)) != self.num_envs:
            raise ValueError(f"{attr_name} is shared by all hosts and cannot be set for some")
        for group in self.groups:
            setattr(group, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method whose answer has a row per host, such as `action_masks`; returns the rows."""
        calls: list[Callable[..., Any]] = [getattr(group, method_name) for group in self.groups]
        rows = [row for call in calls for row in call(*method_args, **method_kwargs)]
        return rows if indices is None else [rows[host] for host in self._chosen(indices)]

    def env_is_wrapped(
        self,
        wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]],  # noqa: ARG002 - never, whichever it is
        indices: Indices = None,
    ) -> list[bool]:
        """There is no wrapper around a single host."""
        return [False] * len(self._chosen(indices))

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

    def _eventful(
        self, truncated: Sequence[NDArray[np.bool_]], each_info: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        infos = list(self._uneventful)
        for start, ended, info in zip(self._cuts, truncated, each_info, strict=False):
            for host in np.flatnonzero(ended):
                infos[start + host] = {"TimeLimit.truncated": True, "terminal_observation": info["final_obs"][host]}
        return infos

    def _clear(self) -> None:
        self._counts = np.zeros((len(self.groups), 4))
        self._ended_rewards: list[Array] = []
        self._ended_steps: list[Array] = []

    def _chosen(self, indices: Indices) -> Sequence[int]:
        if indices is None:
            return range(self.num_envs)
        return [indices] if isinstance(indices, int) else list(indices)
