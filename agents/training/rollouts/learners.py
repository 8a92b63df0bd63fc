"""The learners of Stable-Baselines3 on hosts that answer in samples instead of being stepped.

PPO (Schulman et al., 2017) fills Stable-Baselines3's own rollout buffer with a sample of all hosts, rated by the policy
that they acted by, and has it compute the advantages. DQN (Mnih et al., 2015) keeps each sample in a replay buffer of
one column, since there may be fewer hosts or more at any time. It makes as many updates for it as its recipe says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import RolloutReturn
from stable_baselines3.common.vec_env import VecEnv

from rlctl.agents.training.export import weights_of
from rlctl.agents.training.rollouts.worker import Orders, RolloutSample, Worker
from rlctl.envs.actions import discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import Observer

OFF_POLICY_STEPS = 8
"""Control periods that a learner asks for at a time which takes them of any policy."""


class SampledHosts(VecEnv):
    """Has the spaces that Stable-Baselines3 asks a vector environment for, and cannot be stepped."""

    def __init__(self, num_envs: int, lags: Sequence[int]) -> None:
        super().__init__(num_envs, Observer(Limits(1), 1.0, lags).space, discrete_space())

    @abstractmethod
    def sample(
        self, policy: bytes, orders: Orders, wanted: int = 0, going_on: Callable[[], bool] = lambda: True
    ) -> RolloutSample | None:
        """Have all hosts act.

        Args:
            policy: The network that acts, a weights.npz.
            orders: Its steps are taken on each host, or more where there are too few hosts for `wanted` transitions.
            going_on: Asked now and then; None is returned once it is False.
        """

    def reset(self) -> NDArray[np.float32]:
        """Zeros: hosts go on from where they stand, and a sample brings its own first observation."""
        return np.zeros((self.num_envs, *(self.observation_space.shape or ())), np.float32)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002 - all alike
        """An attribute of this environment, once for each host."""
        return [getattr(self, attr_name, None)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002 - none is
        """False for each host, whatever the wrapper."""
        return [False] * self.num_envs

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("these hosts answer in samples: call sample()")

    step_async = step_wait = set_attr = env_method = _refuse


class OneHost(SampledHosts):
    """A worker in this process, which does not act while the learner computes.

    Attributes:
        budget: Control periods that it may still take; a sample is cut to what is left.
    """

    def __init__(self, worker: Worker, lags: Sequence[int]) -> None:
        self._worker, self.budget = worker, 0
        super().__init__(1, lags)

    def sample(
        self,
        policy: bytes,
        orders: Orders,
        wanted: int = 0,  # noqa: ARG002 - there is one host
        going_on: Callable[[], bool] = lambda: True,  # noqa: ARG002 - a sample is short
    ) -> RolloutSample | None:
        """So many control periods, fewer at the end of the budget."""
        steps = min(orders.steps, self.budget)
        self.budget -= steps
        return self._worker.sample(Orders(steps, orders.epsilon, orders.masked), policy)

    def close(self) -> None:
        """Put back what was changed on the host."""
        self._worker.close()


class _OnPolicy:
    """PPO's part."""

    masked = False

    def _setup_model(self: Any) -> None:
        super()._setup_model()  # type: ignore[misc]
        self._wanted_batch = self.batch_size

    def collect_rollouts(
        self: Any, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int, *_: Any
    ) -> bool:
        """A sample of all hosts."""
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        orders = Orders(n_rollout_steps, masked=self.masked)
        sample = env.sample(weights_of(self), orders, n_rollout_steps * env.num_envs, callback.on_step)
        if sample is None:
            return False
        self.num_timesteps += sample.size
        if not callback.on_step():
            return False
        self._fill(rollout_buffer, sample)
        callback.on_rollout_end()
        return True

    def _fill(self: Any, buffer: Any, sample: RolloutSample) -> None:
        """The buffer takes the shape of the sample; an episode that was cut off would have gone on."""
        steps, hosts = sample.actions.shape
        buffer.buffer_size, buffer.n_envs = steps, hosts
        buffer.reset()
        starts = np.vstack([np.zeros((1, hosts), np.bool_), sample.dones])
        with torch.no_grad():
            for step in range(steps):
                seen, moves, rewards = sample.observations[step], sample.actions[step], sample.rewards[step]
                if (done := sample.dones[step]).any():
                    rewards = rewards + self.gamma * done * self._value(sample.next_observations[step])
                masks = {} if sample.masks is None else {"action_masks": sample.masks[step]}
                rated = self.policy.evaluate_actions(torch.tensor(seen), torch.tensor(moves), **masks)
                buffer.add(seen, moves, rewards, starts[step], *rated[:2], **masks)
            last = self.policy.predict_values(torch.tensor(sample.next_observations[-1]))
        buffer.compute_returns_and_advantage(last, starts[-1])
        batches = max(round(sample.size / self._wanted_batch), 1)  # of one size, for one of a single row has no spread
        self.batch_size = -(-sample.size // batches)

    def _value(self: Any, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(self.policy.predict_values(torch.tensor(observations)).numpy()[:, 0])


class _OffPolicy:
    """DQN's part: updates by what came."""

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
        """A sample of all hosts, at random until learning starts."""
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        learning_starts = given.get("learning_starts", 0)
        epsilon = 1.0 if self.num_timesteps < learning_starts else self.exploration_rate
        sample = env.sample(weights_of(self), Orders(OFF_POLICY_STEPS, epsilon), going_on=callback.on_step)
        if sample is None:
            return RolloutReturn(0, n_episodes=0, continue_training=False)
        extend(replay_buffer, sample)
        self.num_timesteps += sample.size
        self._pass(sample.size / env.num_envs)
        goes_on = callback.on_step()
        if self.num_timesteps > learning_starts:  # else those before it would all be made at once
            self._updates_due += sample.size / (train_freq.frequency * env.num_envs)
        if goes_on:
            callback.on_rollout_end()
        return RolloutReturn(sample.size, n_episodes=0, continue_training=goes_on)

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


def extend(buffer: Any, sample: RolloutSample) -> None:
    """Put a sample into a replay buffer of one column, over the oldest where it is full; all ends are cut-offs."""
    count = min(sample.size, buffer.buffer_size)
    rows = (buffer.pos + np.arange(count)) % buffer.buffer_size
    for name in ("observations", "next_observations", "actions", "rewards", "dones"):
        column = getattr(buffer, name)
        column[rows] = getattr(sample, name).reshape(sample.size, *column.shape[1:])[-count:]
    buffer.timeouts[rows] = buffer.dones[rows]
    buffer.full = buffer.full or buffer.pos + count >= buffer.buffer_size
    buffer.pos = int(buffer.pos + count) % buffer.buffer_size


class RolloutPpo(_OnPolicy, PPO):
    """PPO that learns from samples."""


class RolloutMaskablePpo(_OnPolicy, MaskablePPO):
    """MaskablePPO on samples: moves are drawn among those that the shield or the bounds allow."""

    masked = True


class RolloutDqn(_OffPolicy, DQN):
    """DQN that learns from samples."""


class RolloutQrDqn(_OffPolicy, QRDQN):
    """QR-DQN that learns from samples."""


ROLLOUT_CLASSES: Mapping[str, type[BaseAlgorithm]] = MappingProxyType(
    {"ppo": RolloutPpo, "dqn": RolloutDqn, "maskable-ppo": RolloutMaskablePpo, "qrdqn": RolloutQrDqn}
)
"""The learners, whose policies are sent as bundles have them."""
