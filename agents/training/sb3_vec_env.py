"""The vector environment as Stable-Baselines3 wants it: its own VecEnv, four returns, one info dict per host.

Stable-Baselines3 takes no Gymnasium VectorEnv (its issues 1568 and 2106), so this stands between the two. One learner
may have several vector environments at once, groups of hosts that differ in size, weight, shield and sensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlctl.agents.training.host_groups import Counts, HostGroups
from rlctl.agents.training.lagrangian import Multiplier
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.seeds import SeedKind, kind_of
from rlctl.envs.sim.vector_env import SimHostVectorEnv

Indices = None | int | Iterable[int]


class SimVecEnv(VecEnv):
    """Simulated hosts for PPO, DQN and the other learners of Stable-Baselines3 and its contrib package.

    The hosts of all groups stand one after the other. `infos[i]` has `TimeLimit.truncated`, and at the end of an
    episode `terminal_observation`; between ends of episodes it is one and the same list. MaskablePPO is served by
    `env_method("action_masks")`.

    Args:
        *groups: Vector environments with the same spaces; they are closed with this one.
        names, multiplier: As of `HostGroups`.

    Raises:
        ConfigError: There is no group, or they differ in what a policy sees or may do.
    """

    def __init__(
        self, *groups: SimHostVectorEnv, names: Sequence[str] = (), multiplier: Multiplier | None = None
    ) -> None:
        self._hosts = HostGroups(*groups, names=names, multiplier=multiplier)
        self.groups, first = groups, groups[0]
        self._actions: NDArray[np.integer] | None = None
        self._uneventful: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self._hosts.count)]
        super().__init__(self._hosts.count, first.single_observation_space, first.single_action_space)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the next reset, seed + i for host i of all; ConfigError for one that policies are judged on."""
        if seed is not None and kind_of(seed) is not SeedKind.TRAINING:
            raise ConfigError(f"{seed} is an evaluation seed; policies learn on training seeds only")
        seeds: Sequence[int | None] = super().seed(seed)
        return seeds

    def reset(self) -> NDArray[np.float32]:
        """Begin on all hosts, with the seeds that `seed` gave; later resets go on to the next episodes."""
        seen = self._hosts.reset(self._seeds)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return seen

    def step_async(self, actions: NDArray[np.integer]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards, ends of episodes, and infos."""
        assert self._actions is not None
        observations, rewards, done, finals = self._hosts.step(self._actions)
        infos = self._uneventful
        if done.any():
            infos = list(infos)
            for host, final in zip(np.flatnonzero(done), finals, strict=True):
                infos[host] = {"TimeLimit.truncated": True, "terminal_observation": final}
        return observations, rewards, done, infos

    def take_counts(self) -> Counts:
        """What happened since the last call, by group."""
        return self._hosts.take_counts()

    def close(self) -> None:
        """Close the hosts of all groups."""
        self._hosts.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the hosts' vector environment, host by host."""
        each = [getattr(group, attr_name) for group in self.groups for _ in range(group.num_envs)]
        return [each[host] for host in self._get_indices(indices)]

    def set_attr(self, *_: Any, **__: Any) -> NoReturn:
        """NotImplementedError: hosts are as they were made."""
        raise NotImplementedError("hosts are as they were made")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method whose answer has a row per host, such as `action_masks`; returns the rows."""
        rows = [row for group in self.groups for row in getattr(group, method_name)(*method_args, **method_kwargs)]
        return [rows[host] for host in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Indices = None) -> list[bool]:  # noqa: ARG002 - none is
        """False for each host: there is no wrapper around a single one."""
        return [False] * len(list(self._get_indices(indices)))
