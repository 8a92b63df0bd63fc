"""The move that comes nearest to the allocation that a manager asks for.

The nearest move is the allowed one whose allocation gives BE as much CPU as the wanted one, or nearest to it: the
smaller of quota and cpuset, nothing when frozen. Of moves that are as near the one with the nearer quota and cpuset
counts, then the first in the table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.policy import Policy
from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation

COUNTS = 0.01
"""Weight of quota and cpuset by themselves, beside what BE gets of both."""


class InMoves(Policy):
    """A policy in a network's place: its answer, `chosen`, is always one of the moves, an index into MOVES."""

    masked = True
    observation: Observation
    chosen: int

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.shielded, self.weight, self.needs = policy.name, policy.shielded, policy.weight, policy.needs

    def start(self, limits: Limits) -> Allocation:
        """As the policy does."""
        self.limits = limits
        return self._policy.start(limits)

    def act(self, observation: Observation) -> int:
        """Its move if that is allowed, or the allowed one nearest to what it asks for; index into MOVES."""
        self.observation, mask = observation, observation.mask
        action = self._policy.act(observation)
        if isinstance(action, (int, np.integer)) and (mask is None or (action >= 0 and mask[action])):
            self.chosen = int(action)
        else:
            wanted = decode(action, observation.current, self.limits)
            self.chosen = nearest_move(wanted, observation.current, self.limits, mask)
        return self.chosen

    @property
    def note(self) -> str:
        """What the policy itself says."""
        return self._policy.note

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the policy itself says."""
        return self._policy.remarks


def nearest_move(wanted: Allocation, current: Allocation, limits: Limits, allowed: NDArray[np.bool_] | None) -> int:
    """The move, among those `allowed` if that is given, that comes nearest to what a manager asks for."""
    distances = [_distance(move.of(current, limits), wanted, limits) for move in MOVES]
    if allowed is not None:
        distances = [far if may else np.inf for far, may in zip(distances, allowed, strict=True)]
    return int(np.argmin(np.round(distances, 9)))


def _distance(got: Allocation, wanted: Allocation, limits: Limits) -> float:
    apart = abs(_power(got, limits) - _power(wanted, limits))
    if wanted.frozen:
        return apart
    quotas = abs(min(got.quota_cpus, limits.cpus) - min(wanted.quota_cpus, limits.cpus)) / limits.cpus
    cpusets = abs(got.cpuset_cpus - wanted.cpuset_cpus) / limits.cpus
    return apart + COUNTS * (quotas + cpusets)


def _power(allocation: Allocation, limits: Limits) -> float:
    """What BE gets of the host's CPUs, a share."""
    return 0.0 if allocation.frozen else min(allocation.quota_cpus, allocation.cpuset_cpus) / limits.cpus
