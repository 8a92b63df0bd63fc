"""Allocations of many hosts in arrays, and what moves ask for on each: loops over `rlctl.envs.actions.apply_move`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import KEEP, MOVES, apply_move
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import PolicyError
from rlctl.envs.law import compiled, law
from rlctl.envs.rows import ALLOCATION, Rows


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
    def of_rows(cls, rows: Rows) -> Allocations:
        """The columns of rows of ALLOCATION, without a copy."""
        return cls(rows["quota_cpus"], rows["cpuset_cpus"], rows["frozen"])

    @property
    def rows(self) -> Rows:
        """The same as rows of ALLOCATION."""
        rows = np.empty(len(self.frozen), ALLOCATION)
        rows["quota_cpus"], rows["cpuset_cpus"], rows["frozen"] = self
        return rows

    @classmethod
    def same(cls, one: Allocation, count: int) -> Allocations:
        """The same allocation on `count` hosts."""
        return cls.of([one] * count)

    def host(self, index: int) -> Allocation:
        """The allocation of one host."""
        return Allocation(float(self.quota_cpus[index]), int(self.cpuset_cpus[index]), bool(self.frozen[index]))

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
        self.levels = np.array([host.levels for host in each], np.int64)
        self.least_weight = np.array([host.least_weight for host in each], np.bool_)
        self.min_quota_cpus = np.array([host.min_quota_cpus for host in each], np.float64)
        self.full = Allocations.of([host.full for host in each])
        self.safe = Allocations.of([host.safe for host in each])
        self.minimum = Allocations.of([host.minimum for host in each])


def checked_moves(actions: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """Indices into MOVES, one for each of so many hosts.

    Raises:
        PolicyError: An index out of range, or a shape or type that is no action.
    """
    moves = np.asarray(actions)
    if moves.shape != (count,) or moves.dtype.kind not in "iu":
        raise PolicyError(
            f"actions of type {moves.dtype} and shape {moves.shape} do not fit {count} hosts: "
            f"give integers of shape ({count},) or Allocations"
        )
    moves = np.ascontiguousarray(moves, np.int64)
    if (host := compiled(find_outside)(moves, len(MOVES))) >= 0:
        raise PolicyError(f"host {host}: action {moves[host]} is outside the table of {len(MOVES)} moves")
    return moves


@law
def find_outside(moves: Any, count: int) -> int:
    """The first place of a number that is not one below `count`; -1 for none."""
    for place in range(len(moves)):
        if not 0 <= moves[place] < count:
            return place
    return -1


def apply_moves(current: Allocations, limits: Limits | VectorLimits) -> Allocations:
    """What each of MOVES asks for on each host, shape (len(MOVES), n)."""
    return _ask(np.tile(np.arange(len(MOVES))[:, None], len(current.frozen)), current, limits)


def useful_moves(current: Allocations, limits: Limits | VectorLimits) -> Flags:
    """Moves that change something, and `keep`: shape (n, len(MOVES))."""
    changes = apply_moves(current, limits).differ(current)
    changes[KEEP] = True
    return changes.T


def chosen(moves: NDArray[np.integer], current: Allocations, limits: Limits | VectorLimits) -> Allocations:
    """What the move of each host's index asks for; shape (n,)."""
    return Allocations(*(column[0] for column in _ask(np.asarray(moves, np.int64)[None], current, limits)))


def _ask(moves: NDArray[np.int64], current: Allocations, limits: Limits | VectorLimits) -> Allocations:
    """What moves ask for; the last axis of their shape are the hosts."""
    cpus, least = np.empty(moves.shape[1], np.int64), np.empty(moves.shape[1])
    cpus[:], least[:] = limits.cpus, limits.min_quota_cpus
    asked = np.empty(moves.shape), np.empty(moves.shape, np.int64), np.empty(moves.shape, np.bool_)
    compiled(_apply_each)(moves, *current, cpus, least, *asked)
    return Allocations(*asked)


@law
def _apply_each(
    moves: Any, quota: Any, cpuset: Any, frozen: Any, cpus: Any, least: Any, a: Any, b: Any, c: Any
) -> None:
    for row in range(len(moves)):
        for host in range(len(quota)):
            a[row, host], b[row, host], c[row, host] = apply_move(
                moves[row, host], quota[host], cpuset[host], frozen[host], cpus[host], least[host]
            )
