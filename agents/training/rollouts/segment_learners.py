"""The learners of Stable-Baselines3 on segments of experience that hosts send, first come, first served.

PPO (Schulman et al., 2017) learns from what its policy did, or the one before it: values and advantages are computed
here, segment by segment, and its ratio is to the probabilities that the acting policy had. DQN (Mnih et al., 2015)
learns off-policy: it keeps all in its replay buffer, and makes as many updates for a transition as its recipe says,
however many come at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import RolloutReturn

from rlctl.agents.training.export import weights_of
from rlctl.agents.training.rollouts.segments import Segment, Transitions, advantages, transitions
from rlctl.envs.errors import ConfigError

OFF_POLICY_STEPS = 8
"""Control periods of a segment for a learner that takes them of any version."""


class _OnPolicy:
    """PPO's part: a rollout is a heap of segments of any length."""

    masked = False

    def _setup_model(self: Any) -> None:
        super()._setup_model()  # type: ignore[misc]
        self._wanted_batch = self.batch_size

    def collect_rollouts(
        self: Any, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int, *_: Any
    ) -> bool:
        """One rollout, whoever it comes from."""
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        env.publish(weights_of(self))
        segments: list[Segment] = []
        for segment in env.rollout(n_rollout_steps * env.num_envs, n_rollout_steps, masked=self.masked):
            if segment is not None:
                segments.append(segment)
                self.num_timesteps += segment.size
            if not callback.on_step():
                return False
        self._fill(rollout_buffer, segments)
        callback.on_rollout_end()
        return True

    def _fill(self: Any, buffer: Any, segments: Sequence[Segment]) -> None:
        """All transitions in one column: the order of what is learned from is random anyway."""
        count = sum(one.size for one in segments)
        buffer.buffer_size, buffer.n_envs = count, 1
        buffer.reset()
        columns = [self._columns(one) for one in segments]
        for name in columns[0]:
            stacked = np.concatenate([one[name] for one in columns])
            getattr(buffer, name)[:] = stacked.reshape(getattr(buffer, name).shape)
        buffer.pos, buffer.full = count, True
        batches = max(round(count / self._wanted_batch), 1)  # of one size, for one of a single transition has no spread
        self.batch_size = -(-count // batches)

    def _columns(self: Any, segment: Segment) -> dict[str, NDArray[Any]]:
        values, final_values = self._values(segment.observations), self._values(segment.finals)
        found = advantages(segment.rewards, values, segment.dones, final_values, self.gamma, self.gae_lambda)
        size = segment.observations.shape[-1]
        columns: dict[str, NDArray[Any]] = {
            "observations": segment.observations[:-1].reshape(-1, size),
            "actions": segment.actions.reshape(-1),
            "rewards": segment.rewards.reshape(-1),
            "log_probs": segment.log_probs.reshape(-1),
            "values": values[:-1].reshape(-1),
            "advantages": found.reshape(-1),
            "returns": (found + values[:-1]).reshape(-1),
        }
        if segment.masks is not None:
            columns["action_masks"] = segment.masks.reshape(-1, segment.masks.shape[-1])
        return columns

    def _values(self: Any, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            seen = torch.tensor(observations.reshape(-1, observations.shape[-1]))  # copies what Ray lets only be read
            found = self.policy.predict_values(seen)
        return np.asarray(found.numpy()).reshape(observations.shape[:-1])


class _OffPolicy:
    """DQN's part: a replay buffer in one column, and updates by what came."""

    replay_buffer: Any

    def _setup_model(self: Any) -> None:
        if self.n_steps > 1:
            raise ConfigError("n_steps above 1 needs hosts in lockstep; leave it at 1 with --ray")
        super()._setup_model()  # type: ignore[misc]
        self.replay_buffer = ReplayBuffer(self.buffer_size, self.observation_space, self.action_space, device="cpu")
        self._rounds, self._updates_due = 0.0, 0.0

    def collect_rollouts(
        self: Any, env: Any, callback: Any, train_freq: Any, replay_buffer: Any, *_: Any, **given: Any
    ) -> RolloutReturn:
        """As many transitions as the recipe wants between two rounds of updates, or as come at once."""
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        env.publish(weights_of(self))
        got, learning_starts = 0, given.get("learning_starts", 0)
        wanted = train_freq.frequency * env.num_envs
        epsilon = 1.0 if self.num_timesteps < learning_starts else self.exploration_rate
        for segment in env.stream(wanted, OFF_POLICY_STEPS, epsilon):
            if segment is not None:
                extend(replay_buffer, transitions(segment))
                got += segment.size
                self.num_timesteps += segment.size
                self._pass(segment.size / env.num_envs)
            if not callback.on_step():
                return RolloutReturn(got, n_episodes=0, continue_training=False)
        if self.num_timesteps > learning_starts:  # else those before it would all be made at once
            self._updates_due += got / wanted
        callback.on_rollout_end()
        return RolloutReturn(got, n_episodes=0, continue_training=True)

    def train(self: Any, gradient_steps: int, batch_size: int = 100) -> None:
        """The updates that are due."""
        due = int(gradient_steps * self._updates_due)
        self._updates_due -= due / gradient_steps
        if due:
            super().train(due, batch_size)  # type: ignore[misc]

    def _pass(self: Any, rounds: float) -> None:
        """Exploration and target network go by steps of all hosts together."""
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        self._rounds += rounds
        while self._rounds >= 1.0:
            self._rounds -= 1.0
            self._on_step()


def extend(buffer: Any, new: Transitions) -> None:
    """Put transitions into a replay buffer of one column, over the oldest where it is full; all ends are cut-offs."""
    count = min(len(new.actions), buffer.buffer_size)
    rows = (buffer.pos + np.arange(count)) % buffer.buffer_size
    for name in ("observations", "next_observations", "rewards", "dones"):
        getattr(buffer, name)[rows, 0] = getattr(new, name)[-count:]
    buffer.actions[rows, 0, 0] = new.actions[-count:]
    buffer.timeouts[rows, 0] = new.dones[-count:]
    buffer.full = buffer.full or buffer.pos + count >= buffer.buffer_size
    buffer.pos = int(buffer.pos + count) % buffer.buffer_size


class RolloutPpo(_OnPolicy, PPO):
    """PPO that learns from segments."""


class RolloutMaskablePpo(_OnPolicy, MaskablePPO):
    """MaskablePPO on segments: moves are drawn among those that the shield or the bounds allow."""

    masked = True


class RolloutDqn(_OffPolicy, DQN):
    """DQN that learns from segments."""


class RolloutQrDqn(_OffPolicy, QRDQN):
    """QR-DQN that learns from segments."""


ROLLOUT_CLASSES: Mapping[str, type[BaseAlgorithm]] = MappingProxyType(
    {"ppo": RolloutPpo, "dqn": RolloutDqn, "maskable-ppo": RolloutMaskablePpo, "qrdqn": RolloutQrDqn}
)
"""The learners whose policies a bundle can hold, so that they can be sent; RecurrentPPO's memory cannot."""
