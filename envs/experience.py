"""What a host has taught whoever controls it: every window that ended is booked as one that held or one that missed.

experience = Experience(limits)                     # of one host; limits of n hosts make one of n
experience.observe(now, load, latency_ratio, be_cpus, current)      # arrays of shape (n,), once a tick
experience.features(load)                               # what a learned policy sees of it, shape (n, TOLD)
experience.filter_moves(mask, level, load, latency_ratio)           # the moves that it leaves such a policy
experience.evidence.known(loads)                    # the same for a rule, at any loads
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.level_counts import (
    BIN_RATIO,
    BINS,
    ENOUGH,
    LADDER,
    MOST_KEPT_LOAD,
    TOP,
    LevelCounts,
    Places,
    bins_of,
    levels_of,
    load_of,
    shift_bins,
)

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

MOST_PERIODS, FEWEST_LEVELS = 3600, 8
"""Periods ago that a latency can be of, and of how many levels are kept; of more once a latency is of longer."""

SHIFTED_BINS, MOST_RPS = 0.75, 1e15
"""A maximum load that is so much of a bin off moves what is known: more than half of one, or it would go to and fro."""

CALMER, LESS_CALM = 0.5, 0.02
"""Weight of a window in what its load has at its best, where it is below and where it is above it."""

NUMBERS = "_seen_seconds", "_missing_since", "_before_load", "_earlier_load", "_missed_load", "_missed_ratio"
"""Of an Experience, for each host; NaN for none."""

TOLD = len(MEMORY) + 2 + len(CALM) + 1
"""Numbers that a learned policy sees of it: MEMORY, the flags of the first two, CALM, and its flag."""

UNTOLD: NDArray[np.float32] = np.array([0.0] * len(MEMORY) + [-1.0] * 2 + [0.0] * len(CALM) + [-1.0], np.float32)
"""These, where nothing depends on the host: its load is missing."""

_ALL = np.True_
_AHEAD = np.array([1.0, AHEAD_RATIO, BIN_RATIO])
_SHOWN = 2.0 * np.sqrt(LADDER) - 1.0
_LOG_CALM_LOW, _LOG_CALM_SPAN, _LOG_ABOVE_HIGH = np.log10([CALM_LOW, CALM_HIGH / CALM_LOW, ABOVE_HIGH])


class SafeLevelMemory:
    """Books the windows of n hosts, and tells what is known of them.

    Args:
        limits: Range of allocations of each host, or of all.
        hosts: Their number, where the limits are of all.
    """

    name = "experience"

    def __init__(self, limits: Limits | VectorLimits, hosts: int = 1) -> None:
        count = len(limits.each) if isinstance(limits, VectorLimits) else hosts
        self.evidence = LevelCounts(count, levels_of(np.asarray(limits.min_quota_cpus / limits.cpus)))
        self.limits, self._apart = limits, np.broadcast_to(limits.least_weight, count)
        self._seen_seconds, self._missing_since = np.full(count, np.nan), np.full(count, np.nan)
        self._before_load, self._earlier_load = np.full(count, np.nan), np.full(count, np.nan)
        self._missed_load, self._missed_ratio = np.full(count, np.nan), np.full(count, np.nan)
        self._before_level, self._missed_level = np.full(count, -1), np.full(count, -1)
        self._levels = np.full((FEWEST_LEVELS, count), -1)  # of the last ticks, this one's first
        self._calm = np.full((count, BINS), np.nan)
        self._max_load_rps = 0.0

    def forget(self, which: Flags) -> None:
        """All about the hosts in `which`, shape (n,): others stand there now."""
        self.evidence.forget(which)
        self._lose_track(which)
        self._calm[which] = np.nan

    def copy_hosts(self, other: SafeLevelMemory, mine: Flags | int, theirs: Flags | int) -> None:
        """Go on with what another one knows of hosts; by flags of shape (n,), or one host by its number.

        Args:
            mine: Hosts here of which it is, whatever was known of them.
            theirs: The same hosts there.
        """
        self.evidence.copy_hosts(other.evidence, mine, theirs)
        for name in (*NUMBERS, "_calm", "_before_level", "_missed_level"):
            getattr(self, name)[mine] = getattr(other, name)[theirs]
        self._levels[:, mine] = -1
        both = min(len(self._levels), len(other._levels))
        self._levels[:both, mine] = other._levels[:both, theirs]

    def age(self, seconds: float) -> None:
        """Nobody has looked for so long: what is known of the first host is so much older, whatever clock goes on."""
        self.evidence.age(np.array([seconds]))
        self._lose_track(0)

    def _lose_track(self, which: Flags | int) -> None:
        """Of hosts, what the next tick would be held against."""
        for name in NUMBERS:
            getattr(self, name)[which] = np.nan
        self._before_level[which] = self._missed_level[which] = self._levels[:, which] = -1

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
            self.evidence.shift(0, shift)
            self._calm[0] = shift_bins(self._calm[0], shift, np.nan)
            for loads in (self._before_load, self._earlier_load, self._missed_load):
                loads[0] *= BIN_RATIO**shift

    def observe(
        self, now_seconds: Array, load: Array, latency_ratio: Array, be_cpus: Array, current: Allocations,
        which: Flags | None = None, periods: Periods | None = None,
    ) -> None:  # fmt: skip
        """Book the window that ended, a miss one window later.

        Args:
            load: Share of the LC's maximum; NaN where it is missing, as in the other readings.
            latency_ratio: Latency by the target.
            be_cpus: What BE used.
            current: What was in force in the period that ended.
            which: Hosts that this is about; None for all.
            periods: Which periods the latency is of, see `periods_of`; None for the one that ended.
        """
        here = _ALL if which is None else which
        told = here & np.isfinite(load) & ~np.isnan(latency_ratio)
        lowest, highest = self._levels_in(periods, current, here)
        passed = np.where(here, np.fmax(now_seconds - self._seen_seconds, 0.0), 0.0)
        settled_seconds = SETTLED_SECONDS if periods is None else SETTLED_SECONDS + periods.first * passed
        self._see_calm(told.nonzero()[0], load, latency_ratio)
        self.evidence.age(passed)
        self._seen_seconds = np.where(here, now_seconds, self._seen_seconds)

        # A load that has just stepped up is measured as a mean over the step, and the requests of a window began in
        # the one before as well: a miss belongs to the highest load and the highest level around it.
        booked = (here & (self._missed_level >= 0)).nonzero()[0]  # also where an overload has blinded this window
        if len(booked):
            most = np.fmax(self._missed_load[booked], load[booked])
            badly = np.fmax(self._missed_ratio[booked], latency_ratio[booked]) >= BAD_RATIO
            self.evidence.add_missed(booked, most, self._missed_level[booked], badly, self._apart[booked])

        holds, well = told & (latency_ratio <= HOLD_RATIO), np.isnan(self._missing_since)
        idle = be_cpus < IDLE_RATIO * _usable_cpus(current)  # and a BE whose use is unknown is not idle
        sound = (holds & well & (lowest >= 0) & ~idle).nonzero()[0]
        if len(sound):
            self.evidence.add_held(sound, load[sound], lowest[sound])

        misses = told & ~holds & (well | (now_seconds - self._missing_since >= settled_seconds))
        alone = (highest < 0) & (self._before_level < 0) & ~np.isnan(self._before_load)  # and nothing was blind
        if alone.any():
            self.evidence.add_alone(holds & well & alone, misses & alone)
        self._missing_since = np.where(misses, now_seconds, np.where(holds, np.nan, self._missing_since))
        self._missed_level = np.where(here, -1, self._missed_level)
        if misses.any():
            np.copyto(self._missed_level, np.maximum(self._before_level, highest), where=misses)
            np.copyto(self._missed_load, np.fmax(self._before_load, load), where=misses)
            np.copyto(self._missed_ratio, latency_ratio, where=misses)
        self._earlier_load = np.where(here, self._before_load, self._earlier_load)
        self._before_load = np.where(told, load, np.where(here, np.nan, self._before_load))
        self._before_level = np.where(here, highest, self._before_level)

    def _levels_in(
        self, periods: Periods | None, current: Allocations, here: Flags | np.bool_
    ) -> tuple[Places, Places]:
        """The lowest and the highest level that BE had in the periods that the latency is of."""
        level = levels_reached(current, self.limits)
        first = 0 if periods is None else int(periods.first.max(initial=0))
        if first >= len(self._levels):
            unknown = np.full((first + 1 - len(self._levels), len(level)), -1)  # so nothing counts as held at first
            self._levels = np.concatenate([self._levels, unknown])
        self._levels[1:] = np.where(here, self._levels[:-1], self._levels[1:])
        self._levels[0] = np.where(here, level, self._levels[0])
        if periods is None or not first:
            return level, level
        ago, levels = np.arange(first + 1)[:, None], self._levels[: first + 1]
        within = (ago >= periods.last) & (ago <= periods.first)
        return np.where(within, levels, TOP).min(axis=0), np.where(within, levels, -1).max(axis=0)

    def _see_calm(self, hosts: Places, load: Array, latency_ratio: Array) -> None:
        """Follow the latency that each load has at its best: fast where it is lower than that, slowly where higher."""
        place, seen = bins_of(load[hosts]), _log_calm(latency_ratio[hosts])
        before = self._calm[hosts, place]
        weight = np.where(seen < before, CALMER, LESS_CALM)
        self._calm[hosts, place] = np.where(np.isnan(before), seen, before + weight * (seen - before))

    def features(self, load: Array, latency_ratio: Array) -> NDArray[np.float32]:
        """What a learned policy sees: MEMORY on a square root's scale, CALM, and their flags, each in [-1, 1].

        Args:
            load: Of each host; where it is NaN all that depends on it is missing.
            latency_ratio: Latency by the target.
        """
        loads = _with_ahead(load)
        known = self.evidence.look_up(loads)
        flags = known.level[:, :2] >= 0
        calm = self._calm[np.arange(len(load)), bins_of(loads[:, 0])]
        above = _log_calm(latency_ratio) - calm
        shown = 2.0 * (calm - _LOG_CALM_LOW) / _LOG_CALM_SPAN - 1.0, 2.0 * above / _LOG_ABOVE_HIGH - 1.0
        told = np.empty((len(load), TOLD))
        told[:, 0:2] = np.where(flags, _SHOWN[known.level[:, :2]], 0.0)
        told[:, 2:4] = _SHOWN[np.maximum(known.bearable[:, :2], 0)]
        told[:, 4:6] = np.where(flags, 1.0, -1.0)
        told[:, 6], told[:, 7], told[:, 8] = shown[0], np.minimum(np.maximum(shown[1], -1.0), 1.0), 1.0
        told[np.isnan(above), 6:] = UNTOLD[6:]
        told[np.isnan(load)] = UNTOLD
        return told.astype(np.float32)

    def filter_moves(
        self, mask: Flags, level: Places, load: Array, latency_ratio: Array, price: Array | float = 1.0
    ) -> Flags:
        """The moves of a mask that a host's experience leaves, shape (n, len(MOVES)); never none where there are some.

        A network that was trained on other hosts takes this one for one of those. So it never asks again for what
        missed lately and, while latency is well, never for less than what held, both at AHEAD_RATIO of the load. While
        the load falls what held a bin above it is enough, and the least: so BE comes back as it went. Nor is it ever
        stuck: where latency is next to nothing and a level has held for long, the next one is the least, if nothing
        speaks against that. Where nothing is known all moves are left.

        But where BE is free (see `is_free`) it rises to everything, and stays there until a window is missed: a quota
        would be no relief.

        Args:
            level: What each move leads to, as a mask has them, see `levels_reached`.
            load: NaN where it is missing, as in `latency_ratio`: there the mask stays as it is.
            price: What a violation costs: the dearer, the longer a level has to hold before the next is tried.
        """
        loads = _with_ahead(load)
        enough = np.full_like(loads, ENOUGH)
        enough[:, 0] = EXPLORE_WINDOWS * np.asarray(price)
        (sure, held, near), (_, bearable, _) = (one.T for one in self.evidence.look_up(loads, enough))
        held = np.where(loads[:, 0] < self._earlier_load, near, held)
        bearable = np.maximum(bearable, held)
        free = self.is_free(loads[:, 0])
        bearable = np.where(free, TOP, bearable)

        # The minimum may run whatever missed: a miss beside it is the LC's own. And where all moves of the mask are
        # above what is bearable, the lowest of them are the best there is.
        lowest = np.where(mask, level, TOP + 1).min(axis=1)
        left = mask & (level <= np.maximum(np.maximum(bearable, lowest), self.evidence.least)[:, None])
        more = np.where((sure >= 0) & (latency_ratio <= EXPLORE_RATIO), np.minimum(sure + 1, bearable), -1)
        more = np.where(free, TOP, more)
        floor = np.where(latency_ratio <= np.where(free, 1.0, HOLD_RATIO), np.maximum(held, more), -1)
        # A rise takes several ticks, so the floor is what can be reached in this one without going beyond.
        left &= level >= np.where(left & (level <= floor[:, None]), level, -1).max(axis=1)[:, None]
        blind = np.isnan(load) | np.isnan(latency_ratio)
        return np.where(blind[:, None], mask, left) if blind.any() else left

    def is_free(self, load: Array) -> Flags:
        """Whether BE may rise to everything at a load of each host, shape (n,), whatever holds under a quota.

        Where BE has the kernel's least weight, that is taken to be enough until the host has shown that it is not. On a
        CPU such a BE costs the LC nothing, and one with a quota a slice in each period, so that what was missed under a
        quota says little of none.
        """
        return self._apart & self.evidence.free_holds(load) if self._apart.any() else self._apart

    def state_dict(self) -> Mapping[str, Any]:
        """What the first host has taught, as plain data for `restore_state`; empty where it is nothing."""
        plain = self.evidence.plain()
        if not plain["cells"] and not any(plain["alone"]):
            return {}
        seen = np.flatnonzero(~np.isnan(self._calm[0])).tolist()
        calm = [[round(load_of(place), 4), float(np.round(10.0 ** self._calm[0, place], 5))] for place in seen]
        rated = {"max_load_rps": round(self._max_load_rps, 3)} if self._max_load_rps else {}
        return plain | {"calm": calm} | rated

    def restore_state(self, memory: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` said of a host like the first; ValueError: it is none of that."""
        LevelCounts().restore_state(memory)  # all of it or nothing is taken over
        calm, rated = memory.get("calm"), memory.get("max_load_rps", 0.0)
        if not isinstance(calm, list) or not all(_is_calm(pair) for pair in calm):
            raise ValueError("no list of latencies by load")
        if type(rated) not in (int, float) or not 0.0 <= rated <= MOST_RPS:
            raise ValueError(f"{rated!r} is no maximum load")
        self._max_load_rps = float(rated)
        self.evidence.restore_state(memory)
        self._calm[0] = np.nan
        for load, latency_ratio in calm:
            self._calm[0, bins_of(float(load))] = np.log10(latency_ratio)


def _with_ahead(load: Array) -> Array:
    """Loads, what they may become, and a little more than they are, shape (n, 3); 0 where they are missing."""
    ahead: Array = np.where(np.isnan(load), 0.0, load)[:, None] * _AHEAD
    return ahead


def _log_calm(latency_ratio: Array) -> Array:
    log: Array = np.log10(np.minimum(np.maximum(latency_ratio, CALM_LOW), CALM_HIGH))
    return log


def _is_calm(pair: object) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(one) in (int, float) for one in pair)):
        return False
    load, latency_ratio = map(float, pair)
    return 0.0 <= load <= MOST_KEPT_LOAD and CALM_LOW <= latency_ratio <= CALM_HIGH


def _usable_cpus(allocations: Allocations) -> Array:
    """CPUs that BE can keep busy; 0 where it is frozen."""
    return np.where(allocations.frozen, 0.0, np.minimum(allocations.quota_cpus, allocations.cpuset_cpus))


class Periods(NamedTuple):
    """The first and the last control period that the latency of each host is of, as numbers of periods ago."""

    first: Places
    last: Places


def periods_of(age_seconds: Array, window_seconds: Array | float, tick_seconds: float) -> Periods:
    """The periods that windows of such an age and length lie in; half of one does not count."""
    ages = np.where(np.isfinite(age_seconds), age_seconds, 0.0)
    first = np.ceil((ages + window_seconds) / tick_seconds - 1.5).clip(0.0, MOST_PERIODS)
    last = np.minimum(np.floor(ages / tick_seconds + 0.5), first)
    return Periods(first.astype(int), last.astype(int))


def levels_reached(allocations: Allocations, limits: Limits | VectorLimits) -> Places:
    """The levels that allocations have reached, in the shape of these; -1 where BE is frozen."""
    return np.where(allocations.frozen, -1, levels_of(_usable_cpus(allocations) / limits.cpus))


def allocation_at(level: int, limits: Limits) -> Allocation:
    """What BE gets at a level: a quota on all its CPUs, at the lowest the smallest, and at the highest none."""
    if level >= TOP:
        return limits.full
    return limits.full.but(quota_cpus=max(limits.min_quota_cpus, float(LADDER[level]) * limits.cpus))
