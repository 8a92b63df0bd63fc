"""What hosts were seen to bear: windows that held and that missed, by the load of the LC and by what BE had.

It is what is remembered of a host across minutes and restarts. It has no model of the host, and is told neither its
capacity nor what LC and BE share. Written in arrays of n hosts, of which a live host is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array, Flags

BINS, LEAST_LOAD, BIN_RATIO = 34, 0.04, 1.125
"""Bins of load, each an eighth wider than the one before: from LEAST_LOAD to twice the maximum load."""

_LADDER_PERCENTS = (0, 1, 2, 3, 4.5, 6.5, 9, 12, 16, *range(20, 101, 5))
LADDER = np.array(_LADDER_PERCENTS) / 100.0
"""Levels of BE's allocation, as shares of its CPUs; the lowest is the smallest quota, the highest is everything."""

_REACHED = LADDER - 1e-9
TOP = len(LADDER) - 1
HALF = int(np.searchsorted(LADDER, 0.5))

DISCOUNT = 0.5
"""What a miss leaves of the evidence for and against what was missed. A few misses then reveal a host that has changed,
however long the old one was known. Chance misses of one window in a hundred change nothing."""

MOST_COUNT = 100.0
"""Windows that a cell counts at most: more of the same say nothing new, and would have to be outweighed."""

MISSED_HALF_LIFE_SECONDS, BADLY_HALF_LIFE_SECONDS, HELD_HALF_LIFE_SECONDS = 600.0, 3600.0, 86400.0
"""After so long a window counts half. What was missed is tried again, for hosts change. Where requests queue that costs
some windows in a row, which a budget of one window in a thousand pays once an hour. What held is given up when it is
missed, not because the load was another one for some hours."""

AGED_SECONDS = 10.0
"""Evidence is aged in steps of so long: all of it is touched for that."""

FORGIVEN = 0.5
"""Misses that count for nothing: so a single one bars a level for about a half-life."""

ENOUGH = 1.5
"""Windows that held, from which on a level is known: two recent ones."""

BUDGET_RATIO = 0.03
"""Share of missed windows up to which a level still counts as one that holds."""

FREE_BUDGET_RATIO, FREE_FORGIVEN = 0.06, 1.0
"""By how much the share of missed windows beside a BE of the least weight without a quota may exceed that under one, or
beside a frozen BE. The second number is the misses at one load that are tolerated."""

FEW = 10.0
"""Windows of that kind that count as held before any was seen: a few misses are no share."""

LEAST_COUNT = 0.01
"""Smaller counts are not worth keeping."""

OF_EACH_HOST = "held", "missed", "badly", "_held_above", "_missed_below", "_badly_below", "alone", "_unaged_seconds"
"""Of an Evidence: arrays whose first axis are the hosts."""

SCHEMA = 3
MOST_KEPT_LOAD = 1e3
"""A kept load beyond it is a mistake."""

_BINS = np.arange(BINS)
_EDGES = LEAST_LOAD * BIN_RATIO ** _BINS[1:]

Counts = NDArray[np.float32]
Places = NDArray[np.intp]


class Known(NamedTuple):
    """What is known of loads, arrays of one shape.

    Attributes:
        level: The highest level that held lately; -1 for none.
        bearable: The highest level that nothing speaks against; no lower than `level`.
    """

    level: Places
    bearable: Places


class LevelCounts:
    """Counts of windows by host, bin of load and level of BE's allocation; old ones count less.

    What was missed at less load with less for BE would be missed here too, and what held at more load with more for BE
    would hold: so evidence is pooled, and one window says something of many cells.

    Args:
        hosts: How many there are.
        least: The level of the minimum, of each host or of all. What is missed there is the LC's own.
    """

    def __init__(self, hosts: int = 1, least: Places | int = 0) -> None:
        self.least: Places = np.broadcast_to(np.asarray(least), hosts)
        self.held: Counts = np.zeros((hosts, BINS, TOP + 1), np.float32)
        self.missed: Counts = np.zeros_like(self.held)
        # Those of the latter that were missed by far, which are tried again later; none at the minimum.
        self.badly: Counts = np.zeros_like(self.held)
        # Sums over the bins of no less load, and of no more: kept along, since everybody asks in every tick.
        self._held_above, self._missed_below = np.zeros_like(self.held), np.zeros_like(self.held)
        self._badly_below = np.zeros_like(self.held)
        # Windows that held and that missed while BE was frozen, at any load; shape (hosts, 2).
        self.alone = np.zeros((hosts, 2), np.float32)
        self._unaged_seconds = np.zeros(hosts)
        # Loads that were asked about last, and what was said of them. The version tells that the counts have changed,
        # also where a policy in a thread of its own is late.
        self._version = 0
        self._last: tuple[object, tuple[Flags, Counts]] | None = None

    def forget(self, which: NDArray[np.bool_]) -> None:
        """All about some hosts, shape (n,)."""
        for name in OF_EACH_HOST:
            getattr(self, name)[which] = 0.0
        self._version += 1

    def copy_hosts(self, other: LevelCounts, mine: Flags | int, theirs: Flags | int) -> None:
        """Put what another one has of some hosts in the place of one's own of these or of others."""
        for name in OF_EACH_HOST:
            getattr(self, name)[mine] = getattr(other, name)[theirs]
        self._version += 1

    def age(self, passed_seconds: Array) -> None:
        """Let time pass on each host, shape (n,); a clock that was set back lets none."""
        self._unaged_seconds += np.maximum(passed_seconds, 0.0)
        due = (self._unaged_seconds >= AGED_SECONDS).nonzero()[0]
        if len(due):
            passed = self._unaged_seconds[due, None, None].astype(np.float32)
            half_lives = HELD_HALF_LIFE_SECONDS, MISSED_HALF_LIFE_SECONDS, BADLY_HALF_LIFE_SECONDS
            held, missed, badly = (0.5 ** (passed / seconds) for seconds in half_lives)
            for counts, left in (
                (self.held, held), (self._held_above, held), (self.missed, missed), (self._missed_below, missed),
                (self.badly, badly), (self._badly_below, badly),
            ):  # fmt: skip
                counts[due] *= left
            self.alone[due] *= np.concatenate([held, missed], axis=2)[:, 0]
            self._unaged_seconds[due] = 0.0
            self._version += 1

    def add_held(self, hosts: Places, load: Array, level: Places) -> None:
        """A window held on each of these hosts, no host twice, at this load while BE had this level."""
        place = bins_of(load)
        before = self.held[hosts, place, level]
        after = np.minimum(before + 1.0, MOST_COUNT)
        self.held[hosts, place, level] = after
        self._held_above[hosts, :, level] += (place[:, None] >= _BINS) * (after - before)[:, None]
        self._version += 1

    def add_missed(
        self, hosts: Places, load: Array, level: Places, badly: Flags | bool = False, apart: Flags | bool = False
    ) -> None:
        """A window missed on each of these hosts.

        Args:
            badly: By so much that it would have been missed with everything, too.
            apart: BE has the least weight: what it missed under a quota says nothing of none, nor the other way round.
        """
        flags = (np.broadcast_to(flag, len(hosts)).tolist() for flag in (badly, apart))
        for host, place, reached, least, also_free, own in zip(
            hosts.tolist(), bins_of(load).tolist(), level.tolist(), self.least[hosts].tolist(), *flags, strict=True
        ):
            beyond = TOP if own and reached < TOP and not also_free else TOP + 1
            self.held[host, place:, reached:beyond] *= DISCOUNT
            for counts in (self.missed, self.badly) if also_free and reached > least else (self.missed,):
                counts[host, : place + 1, TOP if own and reached == TOP else 0 : reached + 1] *= DISCOUNT
                counts[host, place, reached] += 1.0
            if also_free and reached < TOP:
                self.missed[host, : place + 1, TOP] *= DISCOUNT
                self.missed[host, place, TOP] += 1.0
            self._sum_up(host)

    def add_alone(self, held: Flags, missed: Flags) -> None:
        """Windows while BE was frozen on the hosts in these, each of shape (n,).

        What an LC misses there is its own, or the freeze's doing: a CPU that idles wakes up slowly.
        """
        self.alone[missed] *= DISCOUNT
        self.alone[:, 1] += missed
        self.alone[:, 0] = np.minimum(self.alone[:, 0] + held, MOST_COUNT)
        self._version += 1

    def look_up(self, load: Array, enough: Array | float = ENOUGH) -> Known:
        """What is known of k loads on each host, shape (n, k), from all windows that say something of them.

        Args:
            enough: Windows that held, from which on a level counts as known; one for all, or of each load.
        """
        question = self._version, load.shape, load.tobytes()
        if (last := self._last) is None or last[0] != question:  # a tick asks twice
            place, hosts = bins_of(load), np.arange(len(load))[:, None]
            held = self._held_above[hosts, place][..., ::-1].cumsum(axis=-1)[..., ::-1]
            missed = np.maximum(self._missed_below[hosts, place], self._badly_below[hosts, place]).cumsum(axis=-1)
            budget_ratio = BUDGET_RATIO + self._own_ratio()[:, None, None]
            self._last = last = question, (_is_borne(missed, held, budget_ratio), held)
        # Both `bearable` and `held` only fall as the level rises.
        bearable, held = last[1]
        return Known((bearable & (held >= np.asarray(enough)[..., None])).sum(axis=-1) - 1, bearable.sum(axis=-1) - 1)

    def _own_ratio(self) -> Array:
        """Share of windows that are missed while BE is frozen or at the minimum, shape (n,): the LC's own misses.

        Of all loads: else a load with such misses would be known to bear more than a smaller one without.
        """
        hosts = np.arange(len(self.least))
        missed = self._missed_below[hosts, -1, self.least] + self.alone[:, 1]
        held = self._held_above[hosts, 0, self.least] + self.alone[:, 0]
        own: Array = missed / (missed + held + FEW)
        return own

    def free_holds(self, load: Array) -> Flags:
        """Whether a BE that has everything may be what holds, shape (n,), at a load of each host.

        Against that counts what was missed while it had everything, or badly, on the host, and what speaks against it
        at this load: by more than is missed under a quota or beside a frozen BE, there as here, for that part is the
        LC's own, or the quota's doing.
        """
        hosts, place = np.arange(len(load)), bins_of(load)
        missed, held = self._missed_below[:, -1], self._held_above[:, 0]  # of all loads
        # With less than half of its CPUs for BE a bad miss is the LC's own, as likely as not.
        badly = self._badly_below[:, -1, HALF:].max(axis=1)
        on_host = self._free_is_borne(np.maximum(missed[:, TOP], badly), missed, held)
        missed, held = self._missed_below[hosts, place], self._held_above[hosts, place]
        return on_host & self._free_is_borne(missed[:, TOP] - FREE_FORGIVEN, missed, held)

    def _free_is_borne(self, free_missed: Counts, missed: Counts, held: Counts) -> Flags:
        """Whether misses beside a BE that has everything are no more than those otherwise; counts by level."""
        otherwise = missed[:, :TOP].sum(axis=1) + self.alone[:, 1]
        windows = otherwise + held[:, :TOP].sum(axis=1) + self.alone[:, 0]
        return _is_borne(free_missed, held[:, TOP], FREE_BUDGET_RATIO + otherwise / (windows + FEW))

    def shift(self, host: int, bins: int) -> None:
        """Move all that is known of a host by so many bins of load, since loads are shares of another maximum now.

        What comes beyond the highest bin counts in it. The least one also has what was at next to no load: upwards it
        stays, for it says nothing of more, and what is missed there or comes below it counts in it.
        """
        for counts, below in ((self.held, 0.0), (self.missed, 1.0), (self.badly, 1.0)):
            known, least = counts[host].copy(), counts[host, 0].copy()
            known[0] = 0.0
            moved = shift_bins(known, bins, 0.0)
            if bins > 0:
                moved[-1] += known[max(BINS - bins, 0) :].sum(axis=0)
                moved[0] = least
            else:
                moved[0] += below * (known[: min(-bins, BINS)].sum(axis=0) + least)
            counts[host] = np.minimum(moved, MOST_COUNT)
        self._sum_up(host)

    def plain(self, host: int = 0) -> dict[str, Any]:
        """A host's counts above 0 as plain data: [load, share of BE's CPUs, windows that held, that missed, and badly].

        And windows that held and that missed while BE was frozen.
        """
        counts = np.stack([self.held[host], self.missed[host], self.badly[host]], axis=-1).astype(np.float64).round(2)
        places, levels = np.nonzero((counts >= LEAST_COUNT).any(axis=-1))
        cells = [
            [round(load_of(place), 4), float(LADDER[level]), *counts[place, level].tolist()]
            for place, level in zip(places.tolist(), levels.tolist(), strict=True)
        ]
        return {"schema": SCHEMA, "cells": cells, "alone": self.alone[host].astype(np.float64).round(2).tolist()}

    def restore_state(self, plain: Mapping[str, Any], host: int = 0) -> None:
        """Take over counts that `plain` gave.

        Raises:
            ValueError: They are none of this kind; nothing is taken over.
        """
        held, missed, badly = (np.zeros_like(self.held[host]) for _ in range(3))
        if plain.get("schema") != SCHEMA:
            raise ValueError(f"schema {plain.get('schema')!r}, not {SCHEMA}")
        cells = plain.get("cells")
        if not isinstance(cells, list) or len(cells) > held.size:
            raise ValueError("no list of cells")
        for load, share, *counts in map(_check_cell, cells):
            cell = int(bins_of(load)), int(levels_of(share))
            held[cell], missed[cell], badly[cell] = counts
        alone = plain.get("alone")
        if not (isinstance(alone, list) and len(alone) == 2 and all(map(_is_count, alone))):
            raise ValueError("no two counts of windows with BE frozen")
        self.held[host], self.missed[host], self.badly[host], self.alone[host] = held, missed, badly, alone
        self._sum_up(host)

    def _sum_up(self, host: int) -> None:
        self._held_above[host] = self.held[host, ::-1].cumsum(axis=0)[::-1]
        self._missed_below[host] = self.missed[host].cumsum(axis=0)
        self._badly_below[host] = self.badly[host].cumsum(axis=0)
        self._version += 1


def shift_bins(rows: NDArray[Any], by: int, empty: float) -> NDArray[Any]:
    """An array whose first axis are the bins, moved up by so many of them."""
    moved = np.full_like(rows, empty)
    low, high = max(by, 0), min(BINS + by, BINS)
    if low < high:
        moved[low:high] = rows[low - by : high - by]
    return moved


def bins_of(load: Array | float) -> Places:
    """The bins of loads; those beyond either end are in the last one there."""
    place: Places = _EDGES.searchsorted(load, side="right")
    return place


def load_of(place: int) -> float:
    """The load in the middle of a bin."""
    return float(LEAST_LOAD * BIN_RATIO ** (place + 0.5))


def levels_of(share: Array | float) -> Places:
    """The highest levels that shares of BE's CPUs have reached."""
    above: Places = _REACHED.searchsorted(share, side="right")
    return above - 1


def _is_borne(missed: Array | Counts, held: Array | Counts, budget_ratio: Array | Counts) -> Flags:
    """Whether misses are within a budget of the windows that there were, FORGIVEN left out."""
    borne: Flags = missed - FORGIVEN <= budget_ratio * (missed + held)
    return borne


def _check_cell(cell: object) -> list[float]:
    """Load, share, windows that held, that missed, and badly."""
    if not (isinstance(cell, list) and len(cell) == 5 and all(type(one) in (int, float) for one in cell)):
        raise ValueError(f"{cell!r} is no cell: load, share, held, missed, badly")
    load, share, *counts = map(float, cell)
    if not (0.0 <= load <= MOST_KEPT_LOAD and 0.0 <= share <= 1.0 and all(map(_is_count, counts))):
        raise ValueError(f"{cell!r} is beyond what a cell can be")
    return [load, share, *counts]


def _is_count(number: object) -> bool:
    return type(number) in (int, float) and 0.0 <= number <= MOST_COUNT  # type: ignore[operator]
