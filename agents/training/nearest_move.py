"""The move that comes nearest to an allocation: for those who ask for allocations where moves are learned from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits

SAME_CPUS = 1e-4
"""Quotas that differ by less are one: the kernel counts in microseconds of a period."""


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
