"""The move that comes nearest to an allocation: for those who ask for allocations where moves are learned from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.policy import Policy
from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation

SAME_CPUS = 1e-4
"""Quotas that differ by less are one: the kernel counts in microseconds of a period."""


class InMoves(Policy):
    """A policy in a network's place: its answer, `chosen`, is always one of the moves, an index into MOVES."""

    masked, note, remarks = True, "", ()
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


def nearest_move(
    wanted: Allocation,
    before: Allocation,
    limits: Limits,
    allowed: NDArray[np.bool_] | None = None,
    preferred: int = 0,
) -> int:
    """The move, among those `allowed` if that is given, that does what was asked for or done, or comes nearest to it.

    The freezer counts most, then what BE gets of quota and cpuset, then each of these. Of moves that do the same it is
    the preferred one, or else the first of the table.
    """

    def apart(index: int) -> tuple[bool, int, int, int, bool]:
        done = MOVES[index].of(before, limits)
        usable = abs(done.usable_cpus - wanted.usable_cpus)
        quota = abs(min(done.quota_cpus, limits.cpus) - min(wanted.quota_cpus, limits.cpus))
        cpuset, frozen = abs(done.cpuset_cpus - wanted.cpuset_cpus), done.frozen != wanted.frozen
        return frozen, round(usable / SAME_CPUS), round(quota / SAME_CPUS), cpuset, index != preferred

    return min(range(len(MOVES)) if allowed is None else np.flatnonzero(allowed).tolist(), key=apart)
