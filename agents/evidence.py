"""What a host was seen to bear: windows that held and that missed, by the load of the LC and by what BE had.

It is what a policy remembers of a host across minutes and restarts. It has no model of the host, and is told neither
its capacity nor what LC and BE share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlctl.envs.arrays import Array

BINS, LEAST_LOAD, BIN_RATIO = 48, 0.02, 1.1
"""Bins of load, each a tenth wider than the one before: from LEAST_LOAD to twice the maximum load."""

DISCOUNT = 0.5
"""What a miss leaves of the evidence for and against what was missed: so a host that has changed is found out within
a few misses, however long the other one was known, and chance misses of one window in a hundred change nothing."""

MOST_COUNT = 100.0
"""Windows that a cell counts at most: more of the same say nothing new, and would have to be outweighed."""

MISSED_HALF_LIFE_SECONDS, HELD_HALF_LIFE_SECONDS = 600.0, 86400.0
"""After so long a window counts half. What was missed is tried again, for hosts change; what held is given up when it
is missed, not because the load was another one for some hours."""

FORGIVEN = 0.5
"""Misses that count for nothing: so a single one bars a level for about a half-life."""

ENOUGH = 1.5
"""Windows that held, from which on a level is known: two recent ones."""

LEAST_COUNT = 0.01
"""Smaller counts are not worth keeping."""

SCHEMA = 1


class Known(NamedTuple):
    """What is known of a load.

    Attributes:
        level: The highest level that held lately; -1 for none.
        next_bearable: Nothing speaks against one level more.
    """

    level: int
    next_bearable: bool


class Evidence:
    """Counts of windows by bin of load and by level of BE's allocation; old ones count less.

    What was missed at less load with less for BE would be missed here too, and what held at more load with more for BE
    would hold: so evidence is pooled, and one window says something of many cells.

    Args:
        levels: The highest level; the lowest is 0.
        budget_ratio: Share of missed windows up to which a level still counts as one that holds.
    """

    def __init__(self, levels: int, budget_ratio: float) -> None:
        self.levels, self.budget_ratio = levels, budget_ratio
        self.held, self.missed = np.zeros((BINS, levels + 1)), np.zeros((BINS, levels + 1))
        self._seen_seconds: float | None = None

    def age(self, now_seconds: float) -> None:
        """Let time pass; a clock that was set back lets none."""
        if self._seen_seconds is not None and now_seconds > self._seen_seconds:
            passed = now_seconds - self._seen_seconds
            self.held *= 0.5 ** (passed / HELD_HALF_LIFE_SECONDS)
            self.missed *= 0.5 ** (passed / MISSED_HALF_LIFE_SECONDS)
        self._seen_seconds = now_seconds

    def add_held(self, load: float, level: int) -> None:
        """A window held at this load while BE had this level."""
        place = bin_of(load)
        self.held[place, level] = min(self.held[place, level] + 1.0, MOST_COUNT)

    def add_missed(self, load: float, level: int) -> None:
        """A window missed at this load while BE had this level."""
        place = bin_of(load)
        self.held[place:, level:] *= DISCOUNT
        self.missed[: place + 1, : level + 1] *= DISCOUNT
        self.missed[place, level] += 1.0

    def known(self, load: float) -> Known:
        """What is known of a load, from all windows that say something of it."""
        held, missed = self._pooled(load)
        # misses - FORGIVEN <= budget * windows. Both `bearable` and `held` only fall as the level rises.
        bearable = missed - FORGIVEN <= self.budget_ratio * (missed + held)
        level = int(np.count_nonzero(bearable & (held >= ENOUGH))) - 1
        return Known(level, level < self.levels and bool(bearable[level + 1]))

    def plain(self) -> dict[str, Any]:
        """The counts as plain data: [load, level, windows that held, windows that missed], those above 0."""
        held, missed = self.held.round(2), self.missed.round(2)  # 2 digits: LEAST_COUNT
        places, levels = np.nonzero((held >= LEAST_COUNT) | (missed >= LEAST_COUNT))
        cells = [
            [round(load_of(place), 4), int(level), float(held[place, level]), float(missed[place, level])]
            for place, level in zip(places.tolist(), levels.tolist(), strict=True)
        ]
        return {"schema": SCHEMA, "levels": self.levels, "cells": cells}

    def recall(self, plain: Mapping[str, Any]) -> None:
        """Take over counts that `plain` gave.

        Raises:
            ValueError: They are none of this kind, or of a host with other levels; nothing is taken over.
        """
        held, missed = np.zeros_like(self.held), np.zeros_like(self.missed)
        if plain.get("schema") != SCHEMA or plain.get("levels") != self.levels:
            raise ValueError(f"schema {plain.get('schema')!r} with {plain.get('levels')!r} levels, not those of here")
        cells = plain.get("cells")
        if not isinstance(cells, list) or len(cells) > held.size:
            raise ValueError("no list of cells")
        for cell in cells:
            load, level, cell_held, cell_missed = _checked(cell, self.levels)
            held[bin_of(load), level] = cell_held
            missed[bin_of(load), level] = cell_missed
        self.held, self.missed = held, missed

    def _pooled(self, load: float) -> tuple[Array, Array]:
        """By level: windows that held under no milder conditions, and that missed under no harder ones."""
        place = bin_of(load)
        held = self.held[place:].sum(axis=0)[::-1].cumsum()[::-1]
        return held, self.missed[: place + 1].sum(axis=0).cumsum()


def bin_of(load: float) -> int:
    """The bin of a load; loads beyond either end are in the last one there."""
    within = min(max(load / LEAST_LOAD, 1.0), BIN_RATIO**BINS)
    return min(int(math.log(within, BIN_RATIO)), BINS - 1)


def load_of(place: int) -> float:
    """The load in the middle of a bin."""
    return float(LEAST_LOAD * BIN_RATIO ** (place + 0.5))


def _checked(cell: object, levels: int) -> tuple[float, int, float, float]:
    if not (isinstance(cell, list) and len(cell) == 4 and all(type(one) in (int, float) for one in cell)):
        raise ValueError(f"{cell!r} is no cell: load, level, held, missed")
    load, level, held, missed = cell
    if not (
        0.0 <= load <= 1e3 and level in range(levels + 1) and 0.0 <= held <= MOST_COUNT and 0.0 <= missed <= MOST_COUNT
    ):
        raise ValueError(f"{cell!r} is beyond what a cell can be")
    return float(load), int(level), float(held), float(missed)
