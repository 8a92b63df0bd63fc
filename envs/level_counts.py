"""What a host was seen to bear: windows that held and that missed, by the load of the LC and by what BE had.

It is what is remembered of a host across minutes and restarts. It has no model of the host, and is told neither its
capacity nor what LC and BE share. Counts stand by bin of load and level of BE's allocation; old ones count less. What
was missed at less load with less for BE would be missed here too, and what held at more load with more for BE would
hold: so evidence is pooled, and one window says something of many cells. All are laws on a row of `HOST_MEMORY`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlctl.envs.law import law

BINS, LEAST_LOAD, BIN_RATIO = 34, 0.04, 1.125
"""Bins of load, each an eighth wider than the one before: from LEAST_LOAD to twice the maximum load."""

_LADDER_PERCENTS = (0, 1, 2, 3, 4.5, 6.5, 9, 12, 16, *range(20, 101, 5))
LADDER = tuple(percent / 100.0 for percent in _LADDER_PERCENTS)
"""Levels of BE's allocation, as shares of its CPUs; the lowest is the smallest quota, the highest is everything."""

_REACHED = tuple(share - 1e-9 for share in LADDER)
TOP = len(LADDER) - 1
HALF = LADDER.index(0.5)
_EDGES = tuple(LEAST_LOAD * BIN_RATIO**place for place in range(1, BINS))

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
"""Evidence is aged in steps of so long."""

LEAST_WORTH = 2.0**-20
"""A stored count loses no more of its worth before the counts are written anew."""

NEARLY = 1.0 - 1e-6
"""Counts are sums of rounded numbers: what is this near is reached."""

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

UNKNOWN = -2
"""Of a bin that nobody has asked about since its answer may have changed."""

TILE = 4
"""Bins whose sums stand side by side."""

LEVELS = 16
"""Of so many ticks BE's levels are kept, the sensors' delay at most; a live host keeps more where its windows do."""

HOST_MEMORY = np.dtype(
    [
        # First what every tick reads and writes, side by side. The worth of windows is what a stored 1.0 counts today.
        *((name, "f8") for name in ("held_worth", "missed_worth", "badly_worth")),
        # Windows while BE was frozen, at any load.
        *((name, "f8") for name in ("alone_held", "alone_missed", "unaged_seconds")),
        # The least bin with a miss; the level of the minimum: what is missed there is the LC's own. BE has the least
        # weight: what it missed under a quota says nothing of none, nor the other way round. What moves BE's level.
        ("missed_from", "i8"), ("least", "i8"), ("apart", "?"), ("rein", "f8"),
        # What the next tick is held against.
        *((name, "f8") for name in ("seen_seconds", "missing_since", "before_load", "earlier_load")),
        *((name, "f8") for name in ("missed_load", "missed_ratio")),
        *((name, "i8") for name in ("before_level", "missed_level")),
        # Levels of the last ticks, a ring.
        ("levels", "i1", (LEVELS,)), ("newest", "i8"),
        # What `known_levels` says of each bin at ENOUGH, until something changes it: UNKNOWN, where nobody has asked.
        *((name, "i1", (BINS,)) for name in ("known", "bearable")),
        # Latency that a load has at its best, as a logarithm.
        ("calm", "f8", (BINS,)),
        # Windows that held and that missed, and of the latter those missed by far, which are tried again later: none
        # at the minimum.
        *((name, "f4", (BINS, TOP + 1)) for name in ("held", "missed", "badly")),
        # Sums over the bins of no less load, and of no more: kept along, since every tick asks. The former in tiles of
        # TILE bins: a tick reads all levels of two near bins, and writes one level of all bins below.
        ("held_above", "f4", (BINS // TILE + 1, TOP + 1, TILE)),
        *((name, "f4", (BINS, TOP + 1)) for name in ("missed_below", "badly_below")),
    ],
    align=True,
)  # fmt: skip
"""All that one host has taught; `forget_host` begins it. NaN and -1 are none."""


@law
def bin_of(load: float) -> int:
    """The bin of a load; what is beyond either end is in the last one there."""
    return _count_reached(_EDGES, load)


@law
def level_of(share: float) -> int:
    """The highest level that a share of BE's CPUs has reached."""
    return _count_reached(_REACHED, share) - 1


@law
def _count_reached(ascending: Any, value: float) -> int:
    """How many of some ascending numbers a value has reached, by bisection."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


def load_of(place: int) -> float:
    """The load in the middle of a bin."""
    return float(LEAST_LOAD * BIN_RATIO ** (place + 0.5))


@law
def forget_counts(row: Any) -> None:
    """No window was seen yet."""
    for place in range(BINS):
        for level in range(TOP + 1):
            row["held"][place][level] = row["missed"][place][level] = row["badly"][place][level] = 0.0
            row["held_above"][place // TILE][level][place % TILE] = 0.0
            row["missed_below"][place][level] = row["badly_below"][place][level] = 0.0
    row["held_worth"] = row["missed_worth"] = row["badly_worth"] = 1.0
    row["alone_held"] = row["alone_missed"] = row["unaged_seconds"] = 0.0
    row["missed_from"] = BINS


@law
def forget_answers(row: Any) -> None:
    """What was said of all bins may not hold any more."""
    for place in range(BINS):
        row["known"][place] = UNKNOWN


@law
def age_counts(row: Any, passed_seconds: float) -> None:
    """Let time pass; a clock that was set back lets none."""
    if passed_seconds > 0.0:
        row["unaged_seconds"] += passed_seconds
    passed = float(row["unaged_seconds"])
    if passed < AGED_SECONDS:
        return
    held, missed = 0.5 ** (passed / HELD_HALF_LIFE_SECONDS), 0.5 ** (passed / MISSED_HALF_LIFE_SECONDS)
    row["alone_held"] *= held
    row["alone_missed"] *= missed
    row["held_worth"] *= held
    row["missed_worth"] *= missed
    row["badly_worth"] *= 0.5 ** (passed / BADLY_HALF_LIFE_SECONDS)
    row["unaged_seconds"] = 0.0
    forget_answers(row)
    if min(row["held_worth"], row["missed_worth"], row["badly_worth"]) < LEAST_WORTH:
        write_anew(row)


@law
def write_anew(row: Any) -> None:
    """Have each stored count be what it is worth, and sum up anew."""
    missed_from = BINS
    for place in range(BINS):
        held, missed, badly = row["held"][place], row["missed"][place], row["badly"][place]
        for level in range(TOP + 1):
            held[level] = float(held[level]) * row["held_worth"]
            missed[level] = _worth_keeping(float(missed[level]) * row["missed_worth"])
            badly[level] = _worth_keeping(float(badly[level]) * row["badly_worth"])
            if missed[level] + badly[level] > 0.0:
                missed_from = min(missed_from, place)
    row["held_worth"] = row["missed_worth"] = row["badly_worth"] = 1.0
    row["missed_from"] = missed_from
    forget_answers(row)
    for level in range(TOP + 1):
        held, missed, badly = 0.0, 0.0, 0.0
        for place in range(BINS):
            above = BINS - 1 - place
            held += float(row["held"][above][level])
            missed += float(row["missed"][place][level])
            badly += float(row["badly"][place][level])
            row["held_above"][above // TILE][level][above % TILE] = held
            row["missed_below"][place][level] = missed
            row["badly_below"][place][level] = badly


@law
def _worth_keeping(count: float) -> float:
    return count if count >= LEAST_WORTH else 0.0


@law
def add_held(row: Any, place: int, level: int) -> None:
    """A window held at a bin of load while BE had this level."""
    cells, worth = row["held"][place], float(row["held_worth"])
    before = float(cells[level])
    after = min(before + 1.0 / worth, MOST_COUNT / worth)
    cells[level] = after
    for below in range(place + 1):
        above = row["held_above"][below // TILE][level]
        above[below % TILE] = float(above[below % TILE]) + (after - before)
        # Of no more load: where this level or a higher one is known to hold, one more window of it says nothing new.
        if row["known"][below] < level:
            row["known"][below] = UNKNOWN
    if level == row["least"]:
        _forget_by_own_ratio(row)


@law
def _forget_by_own_ratio(row: Any) -> None:
    """What is borne depends on `own_ratio`, which has changed; where nothing was missed all is borne."""
    if row["missed_from"] < BINS:
        forget_answers(row)


@law
def add_missed(row: Any, place: int, level: int, badly: bool, apart: bool) -> None:
    """A window missed its target at a bin of load while BE had this level.

    Args:
        badly: By so much that it would have been missed with everything, too.
        apart: As in HOST_MEMORY.
    """
    row["missed_from"] = min(place, row["missed_from"])
    forget_answers(row)
    for reached in range(level, TOP if apart and level < TOP and not badly else TOP + 1):
        if row["held_above"][0][reached][0] > 0.0:  # else nothing held at that level
            _discount_held(row["held"], row["held_above"], place, reached)
    lowest, worth = TOP if apart and level == TOP else 0, float(row["missed_worth"])
    _count_miss(row["missed"], row["missed_below"], place, lowest, level, worth)
    if badly and level > row["least"]:
        _count_miss(row["badly"], row["badly_below"], place, lowest, level, float(row["badly_worth"]))
    if badly and level < TOP:
        _count_miss(row["missed"], row["missed_below"], place, TOP, TOP, worth)


@law
def _discount_held(held: Any, above: Any, place: int, level: int) -> None:
    """What held at no less load with this level counts for less."""
    total = 0.0
    for down in range(BINS):
        where = BINS - 1 - down
        if where >= place:
            held[where][level] = DISCOUNT * float(held[where][level])
        total += float(held[where][level])
        above[where // TILE][level][where % TILE] = total


@law
def _count_miss(missed: Any, below: Any, place: int, lowest: int, level: int, worth: float) -> None:
    """One more miss at a level; what was missed at no more load with no more for BE counts for less."""
    for reached in range(lowest, level + 1):
        if reached < level and not below[BINS - 1][reached] > 0.0:
            continue
        total = 0.0
        for where in range(BINS):
            if where <= place:
                missed[where][reached] = DISCOUNT * float(missed[where][reached])
            if where == place and reached == level:
                missed[where][reached] = float(missed[where][reached]) + 1.0 / worth
            total += float(missed[where][reached])
            below[where][reached] = total


@law
def add_alone(row: Any, held: bool, missed: bool) -> None:
    """A window while BE was frozen.

    What an LC misses there is its own, or the freeze's doing: a CPU that idles wakes up slowly.
    """
    if missed:
        row["alone_held"] *= DISCOUNT
        row["alone_missed"] = DISCOUNT * float(row["alone_missed"]) + 1.0
    if held:
        row["alone_held"] = min(float(row["alone_held"]) + 1.0, MOST_COUNT)
    _forget_by_own_ratio(row)


@law
def look(row: Any, place: int) -> tuple[int, int]:
    """As `known_levels`, of windows that are ENOUGH; most ticks ask what was asked before."""
    if row["known"][place] == UNKNOWN:
        row["known"][place], row["bearable"][place] = known_levels(row, place, ENOUGH)
    return int(row["known"][place]), int(row["bearable"][place])


@law
def known_levels(row: Any, place: int, enough: float) -> tuple[int, int]:
    """What is known of a bin of load: two levels, -1 for none.

    The first is the highest that held lately, so many windows with it or with more. The second is the highest that
    nothing speaks against; the first is no higher.
    """
    above, inside, worth = row["held_above"][place // TILE], place % TILE, float(row["held_worth"])
    needed, missing = NEARLY * enough / worth, place >= row["missed_from"]
    held, most = 0.0, -1
    for down in range(TOP + 1):
        held += float(above[TOP - down][inside])
        if most < 0 and held >= needed:
            most = TOP - down
            if not missing:
                break
    if not missing:
        return most, TOP
    # What is missed only grows with the level, and what held only falls.
    budget_ratio, missed = BUDGET_RATIO + own_ratio(row), 0.0
    for level in range(TOP + 1):
        missed += against(row, place, level)
        if not is_borne(missed, held * worth, budget_ratio):
            return min(most, level - 1), level - 1
        held -= float(above[level][inside])
    return most, TOP


@law
def against(row: Any, place: int, level: int) -> float:
    """Windows that were missed at no more load with this level."""
    missed = float(row["missed_below"][place][level]) * float(row["missed_worth"])
    badly = float(row["badly_below"][place][level]) * float(row["badly_worth"])
    return max(missed, badly)


@law
def is_borne(missed: float, held: float, budget_ratio: float) -> bool:
    """Whether misses are within a budget of the windows that there were, FORGIVEN left out."""
    return missed - FORGIVEN <= budget_ratio * (missed + held)


@law
def own_ratio(row: Any) -> float:
    """Share of windows that are missed while BE is frozen or at the minimum: the LC's own misses.

    Of all loads: else a load with such misses would be known to bear more than a smaller one without.
    """
    least = row["least"]
    missed = float(row["missed_below"][BINS - 1][least]) * float(row["missed_worth"]) + float(row["alone_missed"])
    held = float(row["held_above"][0][least][0]) * float(row["held_worth"]) + float(row["alone_held"])
    return missed / (missed + held + FEW)


@law
def free_holds(row: Any, load: float) -> bool:
    """Whether a BE that has everything may be what holds at a load.

    Against that counts what was missed while it had everything, or badly, on the host, and what speaks against it at
    this load: by more than is missed under a quota or beside a frozen BE, there as here, for that part is the LC's own,
    or the quota's doing.
    """
    if row["missed_from"] == BINS:
        return True
    # With less than half of its CPUs for BE a bad miss is the LC's own, as likely as not.
    badly, last, place = 0.0, row["badly_below"][BINS - 1], bin_of(load)
    for level in range(HALF, TOP + 1):
        badly = max(badly, float(last[level]) * row["badly_worth"])
    on_host = max(float(row["missed_below"][BINS - 1][TOP]) * row["missed_worth"], badly)
    here = float(row["missed_below"][place][TOP]) * row["missed_worth"] - FREE_FORGIVEN
    return free_is_borne(row, on_host, BINS - 1, 0) and free_is_borne(row, here, place, place)


@law
def free_is_borne(row: Any, free_missed: float, missed_place: int, held_place: int) -> bool:
    """Whether misses beside a BE that has everything are no more than those otherwise."""
    missed, held, above, inside = 0.0, 0.0, row["held_above"][held_place // TILE], held_place % TILE
    for level in range(TOP):
        missed += float(row["missed_below"][missed_place][level])
        held += float(above[level][inside])
    otherwise = missed * row["missed_worth"] + row["alone_missed"]
    windows = otherwise + held * row["held_worth"] + row["alone_held"]
    free_held = float(above[TOP][inside]) * row["held_worth"]
    return is_borne(free_missed, free_held, FREE_BUDGET_RATIO + otherwise / (windows + FEW))
