"""What a host has taught whoever controls it: every window that ended is booked as one that held or one that missed.

experience = SafeLevelMemory(limits)
experience.observe(now, load, latency_ratio, be_cpus, current)      # once a tick
experience.features(load, latency_ratio)                            # what a learned policy sees of it
experience.filter_moves(mask, current, load, latency_ratio)         # the moves that it leaves such a policy
experience.look_up(load)                                            # the same for a rule, at any load

`book_window`, `tell` and `filter_host` are what these do, as laws on a row of `HOST_MEMORY`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES, asked_by_each
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.law import Function, compiled, law
from rlctl.envs.level_counts import (
    BIN_RATIO,
    BINS,
    ENOUGH,
    HOST_MEMORY,
    LADDER,
    MOST_COUNT,
    TOP,
    add_alone,
    add_held,
    add_missed,
    age_counts,
    bin_of,
    forget_answers,
    forget_counts,
    free_holds,
    known_levels,
    level_of,
    load_of,
    look,
    write_anew,
)
from rlctl.envs.rows import plain_field, plain_row, plain_rows, rows_of

if TYPE_CHECKING:
    from rlctl.envs.allocations import VectorLimits

HOLD_RATIO = 0.8
"""Latency by the target up to which a window counts as held: a p95 varies by 18 % from window to window
(docs/measured/simulator.md, 7), so what is nearer may miss."""

SETTLED_SECONDS = 5.0
"""A miss that goes on for so long is one of what BE has now, no longer the backlog of what it had before."""

BAD_RATIO = 2.0
"""Latency by the target from which on a miss is more than a slice of BE's: something queues, and so it would without a
quota."""

IDLE_RATIO = 0.25
"""BE that uses a smaller share of what it may use has little to do: that the window held says nothing of its level."""

EXPLORE_RATIO, EXPLORE_WINDOWS = 0.1, 20.0
"""Below so small a latency by the target a host is far from its knee. So many windows that held at a level are enough
to try the next, at the usual price of a violation."""

AHEAD_RATIO = 1.4
"""What a load may have become before the next look at it, by what it is."""

MEMORY = ("held", "held_ahead", "bearable", "bearable_ahead")
"""Shares of BE's CPUs: the most that held lately at this load and at AHEAD_RATIO of it, and the most that nothing
speaks against there. What held may be unknown; then its number is 0 and its flag -1."""

CALM = ("calm", "above_calm")
"""The latency by the target that this load has here at its best, and how many times that it is now. Both are unknown
at a load that was not seen yet."""

CALM_LOW, CALM_HIGH, ABOVE_HIGH = 1e-3, 10.0, 100.0
"""Ranges of these two, on a logarithmic scale: CALM_LOW to CALM_HIGH, and 1 to ABOVE_HIGH."""

MOST_PERIODS = 3600
"""Periods ago that a latency can be of."""

SHIFTED_BINS, MOST_RPS = 0.75, 1e15
"""A maximum load that is so much of a bin off moves what is known: more than half of one, or it would go to and fro."""

CALMER, LESS_CALM = 0.5, 0.02
"""Weight of a window in what its load has at its best, where it is below and where it is above it."""

SCHEMA = 3
LEAST_COUNT = 0.01
"""Smaller counts are not worth keeping."""

MOST_KEPT_LOAD = 1e3
"""A kept load beyond it is a mistake."""

TOLD = len(MEMORY) + 2 + len(CALM) + 1
"""Numbers that a learned policy sees of it: MEMORY, the flags of the first two, CALM, and its flag."""

UNTOLD: NDArray[np.float32] = np.array([0.0] * len(MEMORY) + [-1.0] * 2 + [0.0] * len(CALM) + [-1.0], np.float32)
"""These, where nothing depends on the host: its load is missing."""

_SHOWN = tuple(2.0 * math.sqrt(share) - 1.0 for share in LADDER)
_LOG_CALM_LOW, _LOG_CALM_SPAN, _LOG_ABOVE_HIGH = (
    math.log10(number) for number in (CALM_LOW, CALM_HIGH / CALM_LOW, ABOVE_HIGH)
)
_COUNTS = "held", "missed", "badly"


@law
def forget_host(row: Any) -> None:
    """All that this host taught: another one stands there now."""
    forget_counts(row)
    begin_host(row)


@law
def begin_host(row: Any) -> None:
    """A row of zeros taught nothing."""
    row["held_worth"] = row["missed_worth"] = row["badly_worth"] = 1.0
    row["missed_from"] = BINS
    forget_answers(row)
    lose_track(row)
    for place in range(BINS):
        row["calm"][place] = math.nan


@law
def lose_track(row: Any) -> None:
    """Of what the next tick would be held against."""
    row["seen_seconds"] = row["missing_since"] = row["before_load"] = row["earlier_load"] = math.nan
    row["missed_load"] = row["missed_ratio"] = math.nan
    row["before_level"] = row["missed_level"] = -1
    for ago in range(len(row["levels"])):
        row["levels"][ago] = -1


@law
def expect_backlog(row: Any, now_seconds: float) -> None:
    """What is missed now is the backlog of something else, until it holds or goes on for long.

    So is what was missed in the window before, which is not booked yet.
    """
    row["missing_since"], row["missed_level"] = now_seconds, -1


@law
def book_window(
    row: Any, now_seconds: float, load: float, latency_ratio: float, be_cpus: float,
    usable_cpus: float, level: int, first: int, last: int,
) -> None:  # fmt: skip
    """Book the window that ended, a miss one window later.

    Args:
        load: Share of the LC's maximum; NaN where it is missing, as in the other readings.
        latency_ratio: Latency by the target.
        be_cpus: What BE used.
        usable_cpus, level: What was in force in the period that ended, see `level_in_force`.
        first, last: Which periods the latency is of, as `periods_of` has them.
    """
    seen = math.isfinite(load) and not math.isnan(latency_ratio)
    lowest, highest = _levels_in(row, level, first, last)
    passed = now_seconds - row["seen_seconds"]
    if not passed > 0.0:
        passed = 0.0
    if seen:
        _see_calm(row, bin_of(load), log_calm(latency_ratio))
    age_counts(row, passed)
    row["seen_seconds"] = now_seconds

    # A load that has just stepped up is measured as a mean over the step, and the requests of a window began in
    # the one before as well: a miss belongs to the highest load and the highest level around it.
    if row["missed_level"] >= 0:  # also where an overload has blinded this window
        most = _larger(float(row["missed_load"]), load)
        badly = _larger(float(row["missed_ratio"]), latency_ratio) >= BAD_RATIO
        add_missed(row, bin_of(most), row["missed_level"], badly, row["apart"])

    missing_since, before_load = float(row["missing_since"]), float(row["before_load"])
    holds, well = seen and latency_ratio <= HOLD_RATIO, math.isnan(missing_since)
    idle = be_cpus < IDLE_RATIO * usable_cpus  # and a BE whose use is unknown is not idle
    if holds and well and lowest >= 0 and not idle:
        add_held(row, bin_of(load), lowest)

    settled_seconds = SETTLED_SECONDS + (first * passed if first else 0.0)
    misses = seen and not holds and (well or now_seconds - missing_since >= settled_seconds)
    if highest < 0 and row["before_level"] < 0 and not math.isnan(before_load):  # and nothing was blind
        add_alone(row, holds and well, misses)
    row["missed_level"] = -1
    if misses:
        row["missing_since"] = now_seconds
        row["missed_level"] = max(row["before_level"], highest)
        row["missed_load"], row["missed_ratio"] = _larger(before_load, load), latency_ratio
    elif holds:
        row["missing_since"] = math.nan
    row["earlier_load"] = before_load
    row["before_load"] = load if seen else math.nan
    row["before_level"] = highest


@law
def _larger(one: float, other: float) -> float:
    """The larger number; of one that is missing the other one."""
    return one if one >= other or math.isnan(other) else other


@law
def _levels_in(row: Any, level: int, first: int, last: int) -> tuple[int, int]:
    """The lowest and the highest level that BE had in the periods that the latency is of."""
    levels = row["levels"]
    newest = (row["newest"] + 1) % len(levels)
    row["newest"] = newest
    levels[newest] = level
    if first == 0:
        return level, level
    lowest, highest = TOP, -1
    for ago in range(last, first + 1):
        then = int(levels[newest - ago]) if ago < len(levels) else -1  # before the first one
        lowest, highest = min(lowest, then), max(highest, then)
    return lowest, highest


@law
def _see_calm(row: Any, place: int, seen: float) -> None:
    """Follow the latency that each load has at its best: fast where it is lower than that, slowly where higher."""
    before = float(row["calm"][place])
    weight = CALMER if seen < before else LESS_CALM
    row["calm"][place] = seen if math.isnan(before) else before + weight * (seen - before)


@law
def log_calm(latency_ratio: float) -> float:
    """Latency by the target on the scale of CALM."""
    if math.isnan(latency_ratio):
        return math.nan
    return math.log10(min(max(latency_ratio, CALM_LOW), CALM_HIGH))


@law
def level_in_force(quota_cpus: float, cpuset_cpus: int, frozen: bool, cpus: int) -> tuple[float, int]:
    """CPUs that BE can keep busy, and the level that this is; 0 and -1 where it is frozen."""
    if frozen:
        return 0.0, -1
    usable_cpus = min(float(cpuset_cpus), float(quota_cpus))
    return usable_cpus, level_of(usable_cpus / cpus)


@law
def periods_of(age_seconds: float, window_seconds: float, tick_seconds: float) -> tuple[int, int]:
    """The first and the last period, in numbers of periods ago, that a window of such an age and length lies in.

    Half of a period does not count.
    """
    age = age_seconds if math.isfinite(age_seconds) else 0.0
    first = math.ceil(min(max(0.0, (age + window_seconds) / tick_seconds - 1.5), MOST_PERIODS))
    return first, min(math.floor(min(max(0.0, age / tick_seconds + 0.5), MOST_PERIODS)), first)


@law
def held_at(row: Any, load: float, enough: float) -> int:
    """The highest level that held lately at a load, so many windows; -1 for none."""
    return known_levels(row, bin_of(load), enough)[0]


@law
def tell(row: Any, load: float, latency_ratio: float, told: Any) -> None:
    """What a learned policy sees: MEMORY on a square root's scale, CALM, and their flags, each in [-1, 1].

    Args:
        load: Where it is NaN all that depends on it is missing.
        latency_ratio: Latency by the target.
        told: Written to, TOLD numbers.
    """
    told[0], told[1], told[2], told[3] = 0.0, 0.0, 0.0, 0.0
    told[4], told[5], told[6], told[7], told[8] = -1.0, -1.0, 0.0, 0.0, -1.0
    if math.isnan(load):
        return
    place = bin_of(load)
    (held, bearable), (held_ahead, bearable_ahead) = look(row, place), look(row, bin_of(AHEAD_RATIO * load))
    if held >= 0:
        told[0], told[4] = _SHOWN[held], 1.0
    if held_ahead >= 0:
        told[1], told[5] = _SHOWN[held_ahead], 1.0
    told[2], told[3] = _SHOWN[max(bearable, 0)], _SHOWN[max(bearable_ahead, 0)]
    calm = float(row["calm"][place])
    above = log_calm(latency_ratio) - calm
    if not math.isnan(above):
        told[6] = 2.0 * (calm - _LOG_CALM_LOW) / _LOG_CALM_SPAN - 1.0
        told[7] = min(max(2.0 * above / _LOG_ABOVE_HIGH - 1.0, -1.0), 1.0)
        told[8] = 1.0


@law
def is_free(row: Any, load: float) -> bool:
    """Whether BE may rise to everything at a load, whatever holds under a quota.

    Where BE has the kernel's least weight, that is taken to be enough until the host has shown that it is not. On a
    CPU such a BE costs the LC nothing, and one with a quota a slice in each period, so that what was missed under a
    quota says little of none.
    """
    return row["apart"] and free_holds(row, load)


@law
def filter_host(row: Any, levels: Any, mask: Any, left: Any, load: float, latency_ratio: float, price: float) -> None:
    """The moves of a mask that a host's experience leaves; never none where there are some.

    A network that was trained on other hosts takes this one for one of those. So it never asks again for what
    missed lately and, while latency is well, never for less than what held, both at AHEAD_RATIO of the load. While
    the load falls what held a bin above it is enough, and the least: so BE comes back as it went. Nor is it ever
    stuck: where latency is next to nothing and a level has held for long, the next one is the least, if nothing
    speaks against that. Where nothing is known all moves are left.

    But where BE is free (see `is_free`) it rises to everything, and stays there until a window is missed: a quota
    would be no relief.

    Args:
        levels: What each move leads to, as the mask has them, see `level_in_force`.
        left: Written to, as long as the mask.
        load: NaN where it is missing, as in `latency_ratio`: there the mask stays as it is.
        price: What a violation costs: the dearer, the longer a level has to hold before the next is tried.
    """
    blind = math.isnan(load) or math.isnan(latency_ratio)
    most, floor = TOP, -1
    if not blind:
        most, floor = _least_and_most(row, load, latency_ratio, price)
    # The minimum may run whatever missed: a miss beside it is the LC's own. And where all moves of the mask are
    # above what is bearable, the lowest of them are the best there is.
    lowest = TOP + 1
    for move in range(len(mask)):
        if mask[move] and levels[move] < lowest:
            lowest = int(levels[move])
    most = max(most, lowest, row["least"])
    # A rise takes several ticks, so the least is what can be reached in this one without going beyond.
    reached = -1
    for move in range(len(mask)):
        if mask[move] and reached < levels[move] <= min(floor, most):
            reached = int(levels[move])
    for move in range(len(mask)):
        left[move] = mask[move] and reached <= levels[move] <= most


@law
def _least_and_most(row: Any, load: float, latency_ratio: float, price: float) -> tuple[int, int]:
    """The highest level that is bearable, and the one that BE should rise to."""
    held, bearable = look(row, bin_of(AHEAD_RATIO * load))
    if load < row["earlier_load"]:
        held = held_at(row, BIN_RATIO * load, ENOUGH)
    free = is_free(row, load)
    bearable = TOP if free else max(bearable, held)
    if not latency_ratio <= (1.0 if free else HOLD_RATIO):
        return bearable, -1
    if free:
        return bearable, TOP
    if latency_ratio <= EXPLORE_RATIO:
        sure = held_at(row, load, EXPLORE_WINDOWS * price)
        if sure >= 0:
            held = max(held, min(sure + 1, bearable))
    return bearable, held


class Known(NamedTuple):
    """What is known of a load.

    Attributes:
        level: The highest level that held lately; -1 for none.
        bearable: The highest level that nothing speaks against; no lower than `level`.
    """

    level: int
    bearable: int


class SafeLevelMemory:
    """Books the windows of hosts, and tells what is known of them: of one, interpreted, or of many.

    Args:
        limits: Range of allocations of each host, or of all.
        hosts: Their number, where the limits are of all.
        fast: Keep them in rows for compiled laws, where Numba is there.

    Attributes:
        rows: A row of HOST_MEMORY for each host, or a dict with its numbers, which Python reads faster.
    """

    name = "experience"

    def __init__(self, limits: Limits | VectorLimits, hosts: int = 1, *, fast: bool = False) -> None:
        count = hosts if isinstance(limits, Limits) else len(limits.each)
        self.limits, self._max_load_rps = limits, 0.0
        fast = fast and compiled(begin_host) is not begin_host
        self.rows: Any = np.zeros(count, HOST_MEMORY) if fast else [plain_row(HOST_MEMORY) for _ in range(count)]
        shares, apart = np.empty(count), np.empty(count, np.bool_)
        shares[:], apart[:] = limits.min_quota_cpus / limits.cpus, limits.least_weight
        self.form(_begin_each)(self.rows, shares, apart)

    def form(self, function: Function) -> Function:
        """The form of a law that is meant for these rows."""
        return compiled(function) if isinstance(self.rows, np.ndarray) else function

    def rows_for(self, kind: np.dtype[np.void], columns: object) -> Any:
        """What these rows' laws read of each host besides, in the form that suits these."""
        rows = rows_of(kind, columns, len(self.rows))
        return rows if isinstance(self.rows, np.ndarray) else plain_rows(rows)

    def forget(self, which: Flags) -> None:
        """All about the hosts in `which`, shape (n,): others stand there now."""
        self.form(_forget_each)(self.rows, which)

    def age(self, seconds: float) -> None:
        """Nobody has looked for so long: what is known of the first host is so much older, whatever clock goes on."""
        age_counts(self.rows[0], seconds)
        lose_track(self.rows[0])

    def expect_backlog(self, now_seconds: float) -> None:
        """Of the first host, see the law."""
        expect_backlog(self.rows[0], now_seconds)

    def rescale_load(self, max_load_rps: float) -> None:
        """The first host's loads are shares of this maximum from now on, requests a second: what is known goes along.

        For a maximum that is learned while the host is watched, and at first is another one by far.
        """
        if not 0.0 < max_load_rps < math.inf:
            return
        before = self._max_load_rps or max_load_rps
        bins = math.log(before / max_load_rps) / math.log(BIN_RATIO)
        shift = round(bins) if abs(bins) > SHIFTED_BINS else 0
        self._max_load_rps = before / BIN_RATIO**shift  # what the bins stand for
        if shift:
            row = self.rows[0]
            self._shift(shift)
            row["calm"] = _shift_bins(np.array(row["calm"]), shift, math.nan).tolist()
            for name in ("before_load", "earlier_load", "missed_load"):
                row[name] *= BIN_RATIO**shift

    def _shift(self, bins: int) -> None:
        """Move what is known of the first host by so many bins of load.

        What comes beyond the highest bin counts in it. The least one also has what was at next to no load: upwards it
        stays, for it says nothing of more, and what is missed there or comes below it counts in it.
        """
        counts = self.counts()
        for place, known in enumerate(counts):
            least = known[0].copy()
            known[0] = 0.0
            moved = _shift_bins(known, bins, 0.0)
            if bins > 0:
                moved[-1] += known[max(BINS - bins, 0) :].sum(axis=0)
                moved[0] = least
            elif place:  # what held at less than the least load says nothing of it
                moved[0] += known[: min(-bins, BINS)].sum(axis=0) + least
            counts[place] = np.minimum(moved, MOST_COUNT)
        self._put_counts(counts)

    def counts(self, host: int = 0) -> NDArray[np.float32]:
        """Windows of a host that held, that missed, and badly; shape (3, BINS, TOP + 1)."""
        row = self.rows[host]
        return np.array([np.asarray(row[name], np.float64) * row[f"{name}_worth"] for name in _COUNTS], np.float32)

    def _put_counts(self, counts: NDArray[np.float32]) -> None:
        row = self.rows[0]
        for name, cells in zip(_COUNTS, counts, strict=True):
            row[name], row[f"{name}_worth"] = plain_field(HOST_MEMORY[name], cells), 1.0
        write_anew(row)

    def observe(
        self, now_seconds: float, load: float, latency_ratio: float, be_cpus: float, current: Allocation,
        periods: tuple[int, int] = (0, 0), host: int = 0,
    ) -> None:  # fmt: skip
        """Book the window of a host that ended, see `book_window`.

        Args:
            current: What was in force in the period that ended.
            periods: Which periods the latency is of, see `periods_of`.
        """
        row, limits = self.rows[host], self._limits_of(host)
        if periods[0] >= (known := len(row["levels"])) and isinstance(row, dict):
            # Before the oldest: so nothing counts as held at first.
            oldest = row["newest"] + 1
            row["levels"][oldest:oldest] = [-1] * (periods[0] + 1 - known)
        usable_cpus, level = level_in_force(*current.numbers, limits.cpus)
        book_window(row, now_seconds, load, latency_ratio, be_cpus, usable_cpus, level, *periods)

    def look_up(self, load: float) -> Known:
        """What is known of a load on the first host, from all windows that say something of it."""
        return Known(*known_levels(self.rows[0], bin_of(load), ENOUGH))

    def features(self, load: float, latency_ratio: float, host: int = 0) -> list[float]:
        """What a learned policy sees of a host, see `tell`."""
        told = [0.0] * TOLD
        tell(self.rows[host], load, latency_ratio, told)
        return told

    def filter_moves(
        self, mask: Flags, current: Allocation, load: float, latency_ratio: float, price: float = 1.0, host: int = 0
    ) -> Flags:
        """The moves of a mask that the experience leaves, shape (len(MOVES),), see `filter_host`."""
        levels, left = _levels_asked(current, self._limits_of(host)), [False] * len(MOVES)
        filter_host(self.rows[host], levels, mask.tolist(), left, load, latency_ratio, price)
        return np.array(left)

    def is_free(self, load: float, host: int = 0) -> bool:
        """Whether BE may rise to everything on a host, see the law of this name."""
        return bool(is_free(self.rows[host], load))

    def _limits_of(self, host: int) -> Limits:
        return self.limits if isinstance(self.limits, Limits) else self.limits.each[host]

    def plain(self, host: int = 0) -> dict[str, Any]:
        """A host's counts above 0 as plain data: [load, share of BE's CPUs, windows that held, that missed, and badly].

        And windows that held and that missed while BE was frozen.
        """
        counts, row = self.counts(host).astype(np.float64).round(2), self.rows[host]
        places, levels = np.nonzero((counts >= LEAST_COUNT).any(axis=0))
        cells = [
            [round(load_of(place), 4), LADDER[level], *counts[:, place, level].tolist()]
            for place, level in zip(places.tolist(), levels.tolist(), strict=True)
        ]
        alone = [round(float(row[name]), 2) for name in ("alone_held", "alone_missed")]
        return {"schema": SCHEMA, "cells": cells, "alone": alone}

    def state_dict(self) -> Mapping[str, Any]:
        """What the first host has taught, as plain data for `restore_state`; empty where it is nothing."""
        plain, row = self.plain(), self.rows[0]
        if not plain["cells"] and not any(plain["alone"]):
            return {}
        calm = [
            [round(load_of(place), 4), round(10.0 ** float(best), 5)]
            for place, best in enumerate(row["calm"])
            if not math.isnan(best)
        ]
        rated = {"max_load_rps": round(self._max_load_rps, 3)} if self._max_load_rps else {}
        return plain | {"calm": calm} | rated

    def restore_state(self, memory: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` said of a host like the first.

        Raises:
            ValueError: It is none of that; nothing is taken over.
        """
        counts = np.zeros((len(_COUNTS), BINS, TOP + 1), np.float32)
        if memory.get("schema") != SCHEMA:
            raise ValueError(f"schema {memory.get('schema')!r}, not {SCHEMA}")
        cells = memory.get("cells")
        if not isinstance(cells, list) or len(cells) > counts[0].size:
            raise ValueError("no list of cells")
        for load, share, *numbers in map(_check_cell, cells):
            counts[:, bin_of(load), level_of(share)] = numbers
        alone, calm, rated = memory.get("alone"), memory.get("calm"), memory.get("max_load_rps", 0.0)
        if not (isinstance(alone, list) and len(alone) == 2 and all(map(_is_count, alone))):
            raise ValueError("no two counts of windows with BE frozen")
        if not isinstance(calm, list) or not all(_is_calm(pair) for pair in calm):
            raise ValueError("no list of latencies by load")
        if type(rated) not in (int, float) or not 0.0 <= rated <= MOST_RPS:
            raise ValueError(f"{rated!r} is no maximum load")
        self._max_load_rps, row = float(rated), self.rows[0]
        row["alone_held"], row["alone_missed"] = map(float, alone)
        self._put_counts(counts)
        row["calm"] = [math.nan] * BINS
        for load, latency_ratio in calm:
            row["calm"][bin_of(float(load))] = math.log10(latency_ratio)


@law
def _begin_each(rows: Any, shares: Any, apart: Any) -> None:
    for host in range(len(rows)):
        rows[host]["least"], rows[host]["apart"] = level_of(float(shares[host])), bool(apart[host])
        begin_host(rows[host])


@law
def _forget_each(rows: Any, which: Any) -> None:
    for host in range(len(which)):
        if which[host]:
            forget_host(rows[host])


@lru_cache(maxsize=8)  # what is in force seldom changes
def _levels_asked(current: Allocation, limits: Limits) -> list[int]:
    """The level that each move leads to."""
    return [level_in_force(*asked.numbers, limits.cpus)[1] for asked in asked_by_each(current, limits)]


def _shift_bins(rows: NDArray[Any], by: int, empty: float) -> NDArray[Any]:
    """An array whose first axis are the bins, moved up by so many of them."""
    moved = np.full_like(rows, empty)
    low, high = max(by, 0), min(BINS + by, BINS)
    if low < high:
        moved[low:high] = rows[low - by : high - by]
    return moved


def _is_calm(pair: object) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(one) in (int, float) for one in pair)):
        return False
    load, latency_ratio = map(float, pair)
    return 0.0 <= load <= MOST_KEPT_LOAD and CALM_LOW <= latency_ratio <= CALM_HIGH


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


def allocation_at(level: int, limits: Limits) -> Allocation:
    """What BE gets at a level: a quota on all its CPUs, at the lowest the smallest, and at the highest none."""
    if level >= TOP:
        return limits.full
    return limits.full.but(quota_cpus=max(limits.min_quota_cpus, LADDER[level] * limits.cpus))
