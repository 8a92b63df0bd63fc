"""Allocations of many hosts in arrays, and the decoding of many actions at once: twins of `allocation` and `actions`.

The table of moves is `MOVES` for both. What a move does is written twice, in `Move.of` and in `chosen`;
`tests/envs/test_array_twins.py` holds the two together to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES, RISE_RATIO
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import PolicyError


class Allocations(NamedTuple):
    """What BE may use on each of n hosts, arrays of shape (n,) that never change; a lifted quota is infinite."""

    quota_cpus: NDArray[np.float64]
    cpuset_cpus: NDArray[np.int64]
    frozen: Flags

    @classmethod
    def of(cls, each: Sequence[Allocation]) -> Allocations:
        """Allocations of hosts one by one, in arrays."""
        return cls(
            np.array([host.quota_cpus for host in each], np.float64),
            np.array([host.cpuset_cpus for host in each], np.int64),
            np.array([host.frozen for host in each], np.bool_),
        )

    @classmethod
    def same(cls, one: Allocation, count: int) -> Allocations:
        """The same allocation on `count` hosts."""
        return cls.of([one] * count)

    def host(self, index: int) -> Allocation:
        """The allocation of one host."""
        return Allocation(float(self.quota_cpus[index]), int(self.cpuset_cpus[index]), bool(self.frozen[index]))

    def take(self, places: NDArray[np.int64]) -> Allocations:
        """Those of some hosts, in that order."""
        return Allocations(self.quota_cpus[places], self.cpuset_cpus[places], self.frozen[places])

    def where(self, which: Flags, other: Allocations) -> Allocations:
        """These on the hosts in `which`, the other ones elsewhere."""
        return Allocations(*(np.where(which, mine, theirs) for mine, theirs in zip(self, other, strict=True)))

    def differ(self, other: Allocations) -> Flags:
        """Where any knob is another, shape (n,)."""
        quota, cpuset, frozen = (mine != theirs for mine, theirs in zip(self, other, strict=True))
        differ: Flags = quota | cpuset | frozen
        return differ

    def at_most(self, other: Allocations | Allocation) -> Flags:
        """Where nothing is freer than in the other ones, or in one for all; shapes broadcast."""
        quota, cpuset = self.quota_cpus <= other.quota_cpus, self.cpuset_cpus <= other.cpuset_cpus
        at_most: Flags = quota & cpuset & (self.frozen >= other.frozen)
        return at_most

    def clip_to(self, limits: Limits | VectorLimits) -> Allocations:
        """As `Limits.clip`, host by host."""
        quota = np.clip(self.quota_cpus, limits.min_quota_cpus, limits.cpus)
        return Allocations(
            np.where(self.quota_cpus == UNLIMITED, UNLIMITED, quota),
            np.minimum(self.cpuset_cpus, limits.cpus).astype(np.int64),
            self.frozen,
        )


class VectorLimits:
    """The ranges of allocations on n hosts of different sizes: `Limits` in arrays of shape (n,), by the same names."""

    def __init__(self, each: Sequence[Limits]) -> None:
        self.each = tuple(each)
        self.cpus = np.array([host.cpus for host in each], np.float64)
        self.lc_cpus = np.array([host.lc_cpus for host in each], np.float64)
        self.exclusive_cpus = np.array([host.exclusive_cpus for host in each], np.float64)
        self.least_weight = np.array([host.least_weight for host in each], np.bool_)
        self.min_quota_cpus = np.array([host.min_quota_cpus for host in each], np.float64)
        self.full = Allocations.of([host.full for host in each])
        self.safe = Allocations.of([host.safe for host in each])
        self.minimum = Allocations.of([host.minimum for host in each])


def decode_batch(actions: NDArray[np.integer] | Allocations, current: Allocations, limits: Limits) -> Allocations:
    """What the actions of n hosts ask for, each as `rlctl.envs.actions.decode` would.

    Args:
        actions: Indices into MOVES, shape (n,), or Allocations.

    Raises:
        PolicyError: An index out of range, or a shape or type that is no action.
    """
    if isinstance(actions, Allocations):
        return actions.clip_to(limits)
    moves, count = np.asarray(actions), len(current.quota_cpus)
    if moves.shape != (count,) or moves.dtype.kind not in "iu":
        raise PolicyError(
            f"actions of type {moves.dtype} and shape {moves.shape} do not fit {count} hosts: "
            f"give integers of shape ({count},) or Allocations"
        )
    outside = (moves < 0) | (moves >= len(MOVES))
    if outside.any():
        host = int(np.flatnonzero(outside)[0])
        raise PolicyError(f"host {host}: action {moves[host]} is outside the table of {len(MOVES)} moves")
    return chosen(moves, current, limits)


def apply_moves(current: Allocations, limits: Limits | VectorLimits) -> Allocations:
    """What each of MOVES asks for on each host, shape (len(MOVES), n)."""
    return _ask_moves(_EACH, current, limits)


@lru_cache(maxsize=8)  # the shield's mask and a policy ask in the same tick, and what is in force seldom changes
def moved_one(current: Allocation, limits: Limits) -> Allocations:
    """The same of one host, shape (len(MOVES), 1)."""
    return apply_moves(Allocations.same(current, 1), limits)


def useful_moves(current: Allocations, limits: Limits | VectorLimits) -> Flags:
    """Moves that change something, and `keep`: shape (n, len(MOVES))."""
    changes = apply_moves(current, limits).differ(current)
    changes[_KEEP] = True
    return changes.T


def chosen(moves: NDArray[np.integer], current: Allocations, limits: Limits | VectorLimits) -> Allocations:
    """What the move of each index asks for; the indices broadcast with the hosts."""
    return _ask_moves(_MOVES.at(moves), current, limits)


class _Moves(NamedTuple):
    """Moves in arrays of one shape; names and units as in `Move`."""

    aims: Flags
    quota_ratio: NDArray[np.float64]
    cpuset_cpus: NDArray[np.int64]
    rise_ratio: NDArray[np.float64]
    leaps: Flags
    leaves_freezer: Flags
    frozen: Flags

    def at(self, places: Any) -> _Moves:
        """Those at some places of the arrays."""
        return _Moves(*(column[places] for column in self))


def _ask_moves(moves: _Moves, current: Allocations, limits: Limits | VectorLimits) -> Allocations:
    """As `Move.of` in arrays: the moves broadcast with the hosts, and the order of operations is the same."""
    cpus = np.asarray(limits.cpus, np.float64)
    highest = _whole_nano(np.minimum(current.quota_cpus, cpus) + moves.rise_ratio * cpus)
    target = np.minimum(np.maximum(_whole_nano(moves.quota_ratio * cpus), limits.min_quota_cpus), highest)
    quota_cpus = np.where(moves.aims, target, current.quota_cpus)
    cpuset_cpus = current.cpuset_cpus + moves.cpuset_cpus
    opens = np.where(moves.leaps, np.maximum(np.floor(moves.rise_ratio * cpus), 1.0), 1.0)
    opened = np.minimum(cpuset_cpus + opens, np.ceil(quota_cpus))
    cpuset_cpus = np.where(moves.aims & (cpuset_cpus > 0) & (cpuset_cpus < quota_cpus), opened, cpuset_cpus)
    cpuset_cpus = np.minimum(np.maximum(cpuset_cpus, 1), limits.cpus).astype(np.int64)
    return Allocations(quota_cpus, cpuset_cpus, np.where(moves.leaves_freezer, current.frozen, moves.frozen))


def _whole_nano(cpus: NDArray[np.float64]) -> NDArray[np.float64]:
    whole: NDArray[np.float64] = np.rint(cpus * 1e9) / 1e9
    return whole


_KEEP = [move.name for move in MOVES].index("keep")
_MOVES = _Moves(
    np.array([move.quota_ratio is not None for move in MOVES]),
    np.array([move.quota_ratio or 0.0 for move in MOVES]),
    np.array([move.cpuset_cpus for move in MOVES], np.int64),
    np.array([move.rise_ratio for move in MOVES]),
    np.array([move.rise_ratio > RISE_RATIO for move in MOVES]),
    np.array([move.frozen is None for move in MOVES]),
    np.array([bool(move.frozen) for move in MOVES]),
)
_EACH = _MOVES.at(np.s_[:, None])
