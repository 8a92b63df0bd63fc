"""The learners of Stable-Baselines3 on a host whose moves are bounded (`bounded`).

DQN and QR-DQN learn off-policy: they take a random one of the moves that the bounds allow, and store the move that was
executed, with the reward that it would have had by itself (what leaning on the shield costs is left out). PPO needs the
probabilities of its own distribution: it goes on as MaskablePPO, whose distribution is the policy's, restricted to the
same moves. Where they are one, there is nothing to choose and nothing to learn but the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

__all__ = ["LiveDqn", "LiveQrDqn", "learner"]

BATCH, TARGET_TICKS = 64, 100
"""Of DQN: samples of an update, also those that it begins to learn with; and ticks between two target networks."""

CLIP_RANGE = 0.1
"""Of PPO: half of what it is where hosts are cheap."""


class _Executed:
    """What makes a DQN of Stable-Baselines3 one that stays within bounds and learns from what was executed."""

    def _sample_action(self, *_: Any, **__: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One of the allowed moves, also before learning starts."""
        allowed = np.flatnonzero(self.env.env_method("action_masks")[0])  # type: ignore[attr-defined]
        move = np.array([np.random.choice(allowed)])
        return move, move

    def _store_transition(
        self, buffer: Any, _: Any, new_obs: Any, reward: Any, dones: Any, infos: list[dict[str, Any]]
    ) -> None:
        """The executed move, without what it cost to ask for another one."""
        executed = np.array([info["executed_move"] for info in infos])
        own = reward - np.array([info["reward"]["override"] for info in infos], np.float32)
        super()._store_transition(buffer, executed, new_obs, own, dones, infos)  # type: ignore[misc]


class LiveDqn(_Executed, DQN):
    """DQN within bounds."""


class LiveQrDqn(_Executed, QRDQN):
    """QR-DQN within bounds."""


def learner(initial: Any, env: VecEnv, timesteps: int, rollout: int, rate_ratio: float, seed: int) -> Any:
    """A learner with the weights of a model, its network and its discount, that learns slowly.

    Args:
        initial: The model.
        env: One `BoundedHost`.
        timesteps: Control periods that it learns from.
        rollout: Of them, between two updates of PPO.
        rate_ratio: The learning rate, as a share of the one that the model began with.
        seed: Of draws and batches.
    """
    rate = initial.learning_rate
    shared = {
        "learning_rate": rate_ratio * float(rate(1.0) if callable(rate) else rate),
        "gamma": initial.gamma,
        "policy_kwargs": initial.policy_kwargs,
        "seed": seed,
        "device": "cpu",
    }
    made: Any
    if isinstance(initial, OffPolicyAlgorithm):
        kind: Any = LiveQrDqn if isinstance(initial, QRDQN) else LiveDqn
        made = kind("MlpPolicy", env, **_off_policy(timesteps), **shared)
    else:
        made = MaskablePPO("MlpPolicy", env, **_on_policy(initial, rollout), **shared)
    made.policy.load_state_dict(initial.policy.state_dict())
    return made


def _off_policy(timesteps: int) -> dict[str, Any]:
    return {
        "buffer_size": timesteps,
        "learning_starts": min(BATCH, timesteps // 2),
        "batch_size": BATCH,
        "train_freq": 1,
        "gradient_steps": 1,
        "target_update_interval": TARGET_TICKS,
    }


def _on_policy(initial: Any, rollout: int) -> dict[str, Any]:
    kept = ("n_epochs", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
    own = {"n_steps": rollout, "batch_size": rollout, "clip_range": CLIP_RANGE}
    return own | {name: getattr(initial, name) for name in kept}
