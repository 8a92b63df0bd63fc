"""Allocations of many hosts in arrays, and the decoding of many actions at once.

What a move does is read off `MOVES` itself, so there is one table of moves and not two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import PolicyError

__all__ = ["Allocations", "Decoder"]

Flags = NDArray[np.bool_]

_KEEP = [move.name for move in MOVES].index("keep")


class Allocations(NamedTuple):
    """What BE may use on each of n hosts; nothing in it is ever changed in place.

    Attributes:
        quota_cpus: float64, shape (n,); infinite where the quota is lifted.
        cpuset_cpus: int64, shape (n,).
        frozen: bool, shape (n,).
    """

    quota_cpus: NDArray[np.float64]
    cpuset_cpus: NDArray[np.int64]
    frozen: Flags

    @classmethod
    def of(cls, each: Sequence[Allocation]) -> Allocations:
        """The same in arrays."""
        return cls(
            np.array([one.quota_cpus for one in each], np.float64),
            np.array([one.cpuset_cpus for one in each], np.int64),
            np.array([one.frozen for one in each], np.bool_),
        )

    @classmethod
    def same(cls, one: Allocation, count: int) -> Allocations:
        """The same allocation on `count` hosts."""
        return cls.of([one] * count)

    def host(self, index: int) -> Allocation:
        """One host's."""
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

    def clipped(self, limits: Limits) -> Allocations:
        """As `Limits.clip`, host by host."""
        quota = np.clip(self.quota_cpus, limits.min_quota_cpus, float(limits.cpus))
        return Allocations(
            np.where(self.quota_cpus == UNLIMITED, UNLIMITED, quota),
            np.minimum(self.cpuset_cpus, limits.cpus),
            self.frozen,
        )


class Decoder:
    """Turns the actions of n hosts into allocations, each as `rlctl.envs.actions.decode` would.

    Args:
        limits: Range of allocations, the same on all hosts.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._level_quota = np.array([limits.quota_at(level) for level in range(limits.levels + 1)])
        self._quota, self._cpuset, self._frozen = _tables(limits)

    def level_of(self, quota_cpus: NDArray[np.float64]) -> NDArray[np.int64]:
        """As `Limits.level_of`, shape (n,)."""
        cpus, levels = self.limits.cpus, self.limits.levels
        return (np.minimum(quota_cpus, cpus) / cpus * levels + 1e-9).astype(np.int64)

    def decode(self, actions: NDArray[np.integer] | Allocations, current: Allocations) -> Allocations:
        """What the actions ask for.

        Args:
            actions: Indices into MOVES, shape (n,); triples (level, cpuset - 1, frozen), shape (n, 3); or Allocations.
            current: The allocations in force.

        Raises:
            PolicyError: An index or a component out of range, or a shape or type that is no action.
        """
        if isinstance(actions, Allocations):
            return actions.clipped(self.limits)
        array, count = np.asarray(actions), len(current.quota_cpus)
        if np.issubdtype(array.dtype, np.integer):
            if array.shape == (count,):
                return self._moved(array, current)
            if array.shape == (count, 3):
                return self._named(array)
        raise PolicyError(
            f"actions of type {array.dtype} and shape {array.shape} do not fit {count} hosts: "
            f"give integers of shape ({count},) or ({count}, 3), or Allocations"
        )

    def useful(self, current: Allocations) -> Flags:
        """Moves that change something, and `keep`: shape (n, len(MOVES))."""
        quota, cpuset, frozen = self._quota, self._cpuset, self._frozen
        other_quota = quota[:, self.level_of(current.quota_cpus)]
        changes: Flags = ~np.isnan(other_quota) & (other_quota != current.quota_cpus)
        changes |= cpuset[:, current.cpuset_cpus] != current.cpuset_cpus
        changes |= frozen[:, current.frozen.astype(np.int64)] != current.frozen
        changes[_KEEP] = True
        return changes.T

    def _moved(self, moves: NDArray[np.integer], current: Allocations) -> Allocations:
        if moves.size and not (moves.min() >= 0 and moves.max() < len(MOVES)):
            host = int(np.flatnonzero((moves < 0) | (moves >= len(MOVES)))[0])
            raise PolicyError(f"host {host}: action {moves[host]} is outside the table of {len(MOVES)} moves")
        quota = self._quota[moves, self.level_of(current.quota_cpus)]
        return Allocations(
            np.where(np.isnan(quota), current.quota_cpus, quota),
            self._cpuset[moves, current.cpuset_cpus],
            self._frozen[moves, current.frozen.astype(np.int64)],
        )

    def _named(self, triples: NDArray[np.integer]) -> Allocations:
        most = np.array([self.limits.levels, self.limits.cpus - 1, 1])
        outside = ((triples < 0) | (triples > most)).any(axis=1)
        if outside.any():
            host = int(np.flatnonzero(outside)[0])
            raise PolicyError(
                f"host {host}: action {tuple(triples[host].tolist())} is outside "
                f"{self.limits.levels} levels, {self.limits.cpus} CPUs"
            )
        level, cpus, frozen = triples.T
        return Allocations(self._level_quota[level], cpus.astype(np.int64) + 1, frozen == 1)


def _tables(limits: Limits) -> tuple[NDArray[np.float64], NDArray[np.int64], Flags]:
    """What each move makes of each quota level (NaN: leaves it), cpuset size and frozen flag, by trying it out.

    The quota tried lies between two levels, where no move can end, so that one which comes back was left alone.
    """
    grid = limits.cpus / limits.levels
    quotas = [*(grid * (level + 0.37) for level in range(limits.levels)), UNLIMITED]
    quota = np.full((len(MOVES), limits.levels + 1), np.nan)
    cpuset = np.zeros((len(MOVES), limits.cpus + 1), np.int64)
    frozen = np.zeros((len(MOVES), 2), np.bool_)
    for row, move in enumerate(MOVES):
        for level, tried in enumerate(quotas):
            came = move.of(Allocation(tried, 1), limits).quota_cpus
            quota[row, level] = np.nan if came == tried else came
        for cpus in range(1, limits.cpus + 1):
            cpuset[row, cpus] = move.of(Allocation(UNLIMITED, cpus), limits).cpuset_cpus
        for flag in (False, True):
            frozen[row, int(flag)] = move.of(Allocation(UNLIMITED, 1, flag), limits).frozen
    return quota, cpuset, frozen
