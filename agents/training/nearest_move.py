"""The move that comes nearest to the allocation that a manager asks for.

The nearest move is the allowed one whose allocation gives BE as much CPU as the wanted one, or nearest to it: the
smaller of quota and cpuset, nothing when frozen. Of moves that are as near the one with the nearer quota and cpuset
counts, then the first in the table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits

__all__ = ["nearest_move"]

COUNTS = 0.01
"""Weight of quota and cpuset by themselves, beside what BE gets of both."""


def nearest_move(wanted: Allocation, current: Allocation, limits: Limits, allowed: NDArray[np.bool_] | None) -> int:
    """The move that comes nearest to what a manager asks for.

    Args:
        wanted: What it asks for.
        current: What is in force.
        limits: The host's range.
        allowed: Moves to choose among, bool, shape (len(MOVES),); None for all.
    """
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
