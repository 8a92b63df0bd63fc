"""The shield around a Gymnasium environment, so that training and serving meet the same guards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action, decode
from rlctl.envs.host_env import HostEnv
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict


class ShieldedEnv(gym.Wrapper[NDArray[np.float32], Any, NDArray[np.float32], Any]):
    """Every action passes the shield before the host sees it.

    `info["proposed"]`, `info["executed"]` and `info["overridden"]` tell what became of it, so that an off-policy
    learner can store the executed action.

    A live host goes on while a learner computes. When more than a control period passed since the last step, the shield
    rules on the host as it is now. The deadlines that went by count as missed; the action's own period ends at the next
    one. The learner still chose by what it saw.

    Args:
        env: A HostEnv, wrapped or not.
        shield: The shield; it is reset with each episode.
        clock: Real time in seconds.
    """

    def __init__(
        self, env: gym.Env[NDArray[np.float32], Any], shield: Shield, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(env)
        self.shield = shield
        self._clock = clock
        self._read_at = clock()
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
        begun = super().reset(seed=seed, options=options)
        self._read_at = self._clock()
        return begun

    def step(self, action: Action) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """Rule on the action, then step with what may be executed."""
        host, telemetry = self.host, self._telemetry()
        proposed = decode(action, host.current, host.plant.limits)
        self.verdict = self.shield.rule(telemetry, host.current, proposed)
        # What leaning on the shield costs stands with the rest of the reward.
        host.overridden = self.verdict.overridden
        observation, reward, terminated, truncated, info = self.env.step(self.verdict.allocation)
        self._read_at = self._clock()
        info |= {
            "proposed": proposed,
            "executed": self.verdict.allocation,
            "overridden": self.verdict.overridden,
            "verdict": self.verdict,
        }
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Moves that the shield would let through unchanged, as far as the host's experience leaves them."""
        return self.host.filter_moves(self.shield.mask(self._telemetry(), self.host.current))

    def _telemetry(self) -> Telemetry:
        """The last telemetry, read anew when the host went on without us; a simulated host's clock never does."""
        host = self.host
        assert host.telemetry is not None
        if self._clock() - self._read_at > host.plant.tick_seconds:
            self._read_at, fresh = self._clock(), host.plant.read()
            if fresh.time_seconds > host.telemetry.time_seconds:
                host.telemetry = fresh
                # The deadline is past, so this returns at once.
                host.missed_deadlines += host.plant.wait()
        return host.telemetry
