"""The vector environment as Stable-Baselines3 wants it: its own VecEnv, four returns, one info dict per host.

Stable-Baselines3 takes no Gymnasium VectorEnv (its issues 1568 and 2106), so this stands between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlctl.envs.sim.vector_env import SimHostVectorEnv

__all__ = ["SimVecEnv"]

Indices = None | int | Iterable[int]


class SimVecEnv(VecEnv):
    """Simulated hosts for PPO, DQN and the other learners of Stable-Baselines3 and its contrib package.

    `infos[i]` has `TimeLimit.truncated`, and at the end of an episode `terminal_observation`. MaskablePPO is served by
    `env_method("action_masks")`.

    Args:
        hosts: The vector environment; it is closed with this one.
    """

    def __init__(self, hosts: SimHostVectorEnv) -> None:
        self.hosts = hosts
        self._actions: NDArray[np.integer] | None = None
        super().__init__(hosts.num_envs, hosts.single_observation_space, hosts.single_action_space)

    def reset(self) -> NDArray[np.float32]:
        """Begin on all hosts, with the seeds that `seed` gave; later resets go on to the next episodes."""
        observation, _ = self.hosts.reset(seed=list(self._seeds))
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[np.integer]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards, ends of episodes, and infos."""
        assert self._actions is not None
        observation, reward, terminated, truncated, info = self.hosts.step(self._actions)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": bool(one)} for one in truncated & ~terminated]
        done = terminated | truncated
        for host in np.flatnonzero(done):
            infos[host]["terminal_observation"] = info["final_obs"][host]
        return observation, reward.astype(np.float32), done, infos

    def close(self) -> None:
        """Close the hosts."""
        self.hosts.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the vector environment, which all hosts share."""
        return [getattr(self.hosts, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set it, for all hosts at once.

        Raises:
            ValueError: For some hosts only.
        """
        if len(self._chosen(indices)) != self.num_envs:
            raise ValueError(f"{attr_name} is shared by all hosts and cannot be set for some")
        setattr(self.hosts, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method whose answer has a row per host, such as `action_masks`; returns the rows."""
        rows = getattr(self.hosts, method_name)(*method_args, **method_kwargs)
        return [rows[host] for host in self._chosen(indices)]

    def env_is_wrapped(
        self,
        wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]],  # noqa: ARG002 - never, whichever it is
        indices: Indices = None,
    ) -> list[bool]:
        """There is no wrapper around a single host."""
        return [False] * len(self._chosen(indices))

    def _chosen(self, indices: Indices) -> Sequence[int]:
        if indices is None:
            return range(self.num_envs)
        return [indices] if isinstance(indices, int) else list(indices)
