"""The shield around a Gymnasium environment, so that training and serving meet the same guards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action, decode
from rlctl.envs.host_env import HostEnv
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict

__all__ = ["ShieldedEnv"]


class ShieldedEnv(gym.Wrapper[NDArray[np.float32], Any, NDArray[np.float32], Any]):
    """Every action passes the shield before the host sees it.

    `info["proposed"]`, `info["executed"]` and `info["overridden"]` tell what became of it, so that an off-policy
    learner can store the executed action.

    Args:
        env: A HostEnv, wrapped or not.
        shield: The shield; it is reset with each episode.
    """

    def __init__(self, env: gym.Env[NDArray[np.float32], Any], shield: Shield) -> None:
        super().__init__(env)
        self.shield = shield
        self.verdict: Verdict | None = None

    @property
    def host(self) -> HostEnv:
        """The environment beneath all wrappers."""
        env = self.unwrapped
        assert isinstance(env, HostEnv)
        return env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """As the environment's, with the guards' memory cleared."""
        self.shield.reset()
        return super().reset(seed=seed, options=options)

    def step(self, action: Action) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """Rule on the action, then step with what may be executed."""
        host = self.host
        assert host.telemetry is not None
        proposed = decode(action, host.current, host.plant.limits)
        self.verdict = self.shield.rule(host.telemetry, host.current, proposed)
        observation, reward, terminated, truncated, info = self.env.step(self.verdict.allocation)
        info |= {
            "proposed": proposed,
            "executed": self.verdict.allocation,
            "overridden": self.verdict.overridden,
            "verdict": self.verdict,
        }
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Moves that the shield would let through unchanged, shape (len(MOVES),)."""
        host = self.host
        assert host.telemetry is not None
        return self.shield.mask(host.telemetry, host.current)
