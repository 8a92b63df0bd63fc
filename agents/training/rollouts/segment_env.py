"""The environment of learners that take whole segments of experience instead of stepping hosts in lockstep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rlctl.agents.training.rollouts.segments import Orders, Segment
from rlctl.agents.training.rollouts.worker import Worker
from rlctl.envs.actions import discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.observation import Observer


class SegmentEnv(VecEnv):
    """Has the spaces that Stable-Baselines3 asks a vector environment for, and cannot be stepped.

    Learners (`segment_learners`) publish their policy, then ask for a `rollout` (on-policy) or a `stream` (off-policy).
    Both yield None when nothing came for a moment, and raise HostError when no host answers any more.

    Attributes:
        version: Number of the published policy; 0 before the first one.
    """

    def __init__(self, num_envs: int, lags: Sequence[int]) -> None:
        self.version = 0
        self._policy: Any = None
        super().__init__(num_envs, Observer(Limits(1), 1.0, lags).space, discrete_space())

    def publish(self, policy: Any) -> None:
        """Let the next version of the policy, a weights.npz, act from now on."""
        self.version, self._policy = self.version + 1, policy

    @abstractmethod
    def rollout(self, wanted: int, most_steps: int, *, masked: bool) -> Iterator[Segment | None]:
        """Segments to learn from on-policy, of `most_steps` at most, until `wanted` transitions have come."""

    @abstractmethod
    def stream(self, wanted: int, steps: int, epsilon: float) -> Iterator[Segment | None]:
        """Segments of any version of the policy, of so many steps each, until `wanted` transitions have come."""

    def reset(self) -> NDArray[np.float32]:
        """Zeros: hosts go on from where they stand, and a segment brings its own first observation."""
        return np.zeros((self.num_envs, *(self.observation_space.shape or ())), np.float32)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002 - all alike
        """An attribute of this environment, once for each host."""
        return [getattr(self, attr_name, None)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002 - none is
        """False for each host, whatever the wrapper."""
        return [False] * self.num_envs

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("hosts answer in segments: ask with rollout() or stream()")

    step_async = step_wait = set_attr = env_method = _refuse


class OneHost(SegmentEnv):
    """A worker in this process, which does not act while the learner computes.

    Attributes:
        budget: Control periods that `stream` may still take; the last segment is cut to what is left.
    """

    def __init__(self, worker: Worker, lags: Sequence[int]) -> None:
        self._worker, self.budget = worker, 0
        super().__init__(1, lags)

    def segment(self, steps: int, epsilon: float | None = None, *, masked: bool = False) -> Segment:
        """So many control periods under the published policy; see `Orders`."""
        return self._worker.segment(Orders(self.version, steps, epsilon, masked), self._policy)

    def rollout(self, wanted: int, most_steps: int, *, masked: bool) -> Iterator[Segment | None]:
        """One segment is the whole rollout."""
        yield self.segment(min(wanted, most_steps), masked=masked)

    def stream(self, wanted: int, steps: int, epsilon: float) -> Iterator[Segment | None]:
        """Segments of so many control periods, fewer at the end of the budget."""
        while wanted > 0:
            taken = min(steps, self.budget)
            self.budget, wanted = self.budget - taken, wanted - taken
            yield self.segment(taken, epsilon)

    def close(self) -> None:
        """Put back what was changed on the host."""
        self._worker.close()
