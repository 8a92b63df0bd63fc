"""The observation vector of many hosts: a loop over the laws that `Observer` takes for one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES, apply_move
from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import (
    TOLD,
    UNTOLD,
    SafeLevelMemory,
    book_window,
    expect_backlog,
    filter_host,
    forget_host,
    level_in_force,
    periods_of,
    tell,
)
from rlctl.envs.features import (
    BE_CPUS,
    FEATURES,
    FRAME_SIZE,
    LATENCY,
    LOAD,
    OPTIONAL,
    latency_of,
    used_of,
    write_frame,
)
from rlctl.envs.law import law
from rlctl.envs.observation import LAGS, OLD_PERIODS, Observer, told_price
from rlctl.envs.readings import READING, Readings
from rlctl.envs.reins import lc_goes_first
from rlctl.envs.rows import ALLOCATION, LIMIT
from rlctl.envs.telemetry import FEW_SAMPLES

_SAME_SENSOR = {"cpu_per_request": ("stretch",)}
"""Features that go when another one's sensor is absent."""

EXPERIENCE = "experience"
"""Stands among the absent features for all that is told of the experience."""


class ObserverRows(NamedTuple):
    """What the observations of n hosts are made of.

    Attributes:
        memories, limits: HOST_MEMORY and LIMIT of each host.
        frames: The last ticks, a ring; shape (depth, n, FRAME_SIZE).
        lags: Ticks back that the vector shows.
        told: What each host's experience told last, shape (n, TOLD).
        prices: What a violation costs on each.
        tick_seconds: Control period, the unit of ages.
        hidden: A bit for each feature whose sensor the hosts lack.
        learns: Whether their memories book their windows.
    """

    memories: Any
    limits: Any
    frames: NDArray[np.float32]
    lags: NDArray[np.int64]
    told: NDArray[np.float32]
    prices: Array
    tick_seconds: float
    hidden: int
    learns: bool


class VectorObserver:
    """Turns the readings of n hosts into observations, with a short history and all that each host has taught.

    Args:
        limits: Range of allocations, of all hosts or of each.
        tick_seconds: Control period, the unit of ages.
        lags: Ticks back that the vector shows, as in `Observer`.
        absent: Features whose sensor these hosts lack; what else that sensor yields is hidden with them. With
            `EXPERIENCE` among them nothing is learned of the hosts.

    Attributes:
        prices: What a violation costs, on all hosts or on each, see `Observation.price`.
        depth, newest: Ticks that the history holds, and where in it the last one stands.

    Raises:
        ConfigError: Lags that do not descend to 0, or a feature that every host has or that there is not.
    """

    rows: ObserverRows

    def __init__(
        self,
        limits: Limits | VectorLimits,
        tick_seconds: float,
        lags: Sequence[int] = LAGS,
        absent: Collection[str] = (),
    ) -> None:
        self._learns, absent = EXPERIENCE not in absent, set(absent) - {EXPERIENCE}
        if unknown := sorted(absent - set(OPTIONAL)):
            raise ConfigError(f"absent: {', '.join(unknown)}: no optional feature; there are {', '.join(OPTIONAL)}")
        self.limits, self.tick_seconds = limits, tick_seconds
        observer = Observer(limits if isinstance(limits, Limits) else limits.each[0], tick_seconds, lags)
        self._lags, self.space = np.array(observer.lags), observer.space
        hidden = {*absent, *(name for of in absent for name in _SAME_SENSOR.get(of, ()))}
        self._hidden = sum(1 << place for place, feature in enumerate(FEATURES) if feature.name in hidden)
        self.depth, self.newest = int(self._lags[0]) + 1, 0
        self._prices: Array | float = 1.0
        self.forget(0)

    @property
    def prices(self) -> Array | float:
        """What a violation costs, on all hosts or on each."""
        return self._prices

    @prices.setter
    def prices(self, prices: Array | float) -> None:
        self._prices = prices
        self.rows = self.rows._replace(prices=np.full(len(self.rows.told), prices, np.float64))

    def forget(self, count: int) -> None:
        """So many hosts begin, of which nothing is known."""
        self.experience = SafeLevelMemory(self.limits, count, fast=True)
        frames, told = np.zeros((self.depth, count, FRAME_SIZE), np.float32), np.tile(UNTOLD, (count, 1))
        self.rows = ObserverRows(
            self.experience.rows, self.experience.rows_for(LIMIT, self.limits), frames, self._lags, told,
            np.full(count, self._prices, np.float64), self.tick_seconds, self._hidden, self._learns,
        )  # fmt: skip

    def begin(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        """Begin the history of all hosts, which may be others, with this tick; what they see, shape (n, size)."""
        self.forget(len(current.frozen))
        return self._see(readings, current, begins=True)

    def observe(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        """Add one tick to the history of every host; float32, shape (n, size), each entry in [-1, 1]."""
        self.newest = (self.newest + 1) % self.depth
        return self._see(readings, current, begins=False)

    def _see(self, readings: Readings, current: Allocations, *, begins: bool) -> NDArray[np.float32]:
        count = len(current.frozen)
        seen = np.empty((count, *(self.space.shape or ())), np.float32)
        rows = self.experience.rows_for(READING, readings), self.experience.rows_for(ALLOCATION, current)
        self.experience.form(see_hosts)(self.rows, *rows, self.newest, begins, seen, 0, count)
        return seen

    def filter_moves(self, mask: Flags, readings: Readings, current: Allocations) -> Flags:
        """The moves of a mask that each host's experience leaves; all where none is kept."""
        if not self._learns:
            return mask
        rows = self.experience.rows_for(READING, readings), self.experience.rows_for(ALLOCATION, current)
        left = np.empty_like(mask)
        self.experience.form(_filter_hosts)(self.rows, *rows, mask, np.empty(len(MOVES), np.int8), left)
        return left


@law
def load_and_latency(reading: Any, hidden: int) -> tuple[float, float]:
    """The load, and latency by the target; NaN where they are lost or are features that are hidden."""
    load, ratio, target = math.nan, math.nan, float(reading["target_seconds"])
    if not hidden & LOAD and not reading["lost"]:
        load = float(reading["load_ratio"])
    if not hidden & LATENCY and target > 0.0:
        ratio = 1.0 - (target - latency_of(reading)) / target
    return load, ratio


@law
def book_host(
    memory: Any, reading: Any, allocation: Any, limit: Any, tick_seconds: float, hidden: int
) -> tuple[float, float]:
    """Have a host teach what `Observer.observe` books of one: of old figures no hold, of few requests nothing.

    Returns what it went by, as `load_and_latency` has it.
    """
    load, ratio = load_and_latency(reading, hidden)
    oldest, tail = float(reading["oldest_request_seconds"]), float(reading["tail_latency_seconds"])
    stalled = oldest > reading["target_seconds"] and not oldest <= tail
    taught = math.nan if reading["samples"] < FEW_SAMPLES and not stalled else ratio
    age = float(reading["age_seconds"])
    used = math.nan if hidden & BE_CPUS else used_of(reading, float(limit["cpus"]))
    if age >= OLD_PERIODS * tick_seconds:
        used = 0.0
    first, last = periods_of(0.0 if math.isnan(taught) else age, tick_seconds, tick_seconds)
    usable_cpus, level = level_in_force(
        float(allocation["quota_cpus"]), int(allocation["cpuset_cpus"]), bool(allocation["frozen"]), int(limit["cpus"])
    )
    book_window(memory, float(reading["time_seconds"]), load, taught, used, usable_cpus, level, first, last)
    return load, ratio


@law
def take_rein(memory: Any, reading: Any, limit: Any) -> None:
    """Go by what is known of another rein, as `Observer` does; of a simulated one that is nothing."""
    memory["rein"] = reading["rein"]
    memory["apart"] = lc_goes_first(float(reading["rein"]), bool(limit["least_weight"]))
    forget_host(memory)
    expect_backlog(memory, float(reading["time_seconds"]))


@law
def show_hosts(rows: ObserverRows, newest: int, seen: Any, first: int, last: int) -> None:
    """Write some hosts' vectors: the frames of some ticks, what is told of a host, and the price."""
    frames, lags, told, prices = rows.frames, rows.lags, rows.told, rows.prices
    for place in range(first, last):
        at = 0
        for lag in range(len(lags)):
            then = (newest - int(lags[lag])) % len(frames)
            for number in range(FRAME_SIZE):
                seen[place, at + number] = frames[then, place, number]
            at += FRAME_SIZE
        for number in range(TOLD):
            seen[place, at + number] = told[place, number]
        seen[place, at + TOLD] = told_price(prices[place])


@law
def see_hosts(
    rows: ObserverRows, readings: Any, allocations: Any, newest: int, begins: bool, seen: Any, first: int, last: int
) -> None:
    """Have some hosts show and teach a tick, their first where it begins; what policies see is written to `seen`."""
    memories, limits, frames, _, told, _, tick_seconds, hidden, learns = rows
    for place in range(first, last):
        frame = frames[newest, place]
        write_frame(readings[place], allocations[place], limits[place], tick_seconds, hidden, frame)
        if begins:  # before the first tick there is the first
            for ago in range(len(frames)):
                for number in range(FRAME_SIZE):
                    frames[ago, place, number] = frame[number]
    if learns:
        for place in range(first, last):
            if readings[place]["rein"] != memories[place]["rein"]:
                take_rein(memories[place], readings[place], limits[place])
            elif readings[place]["fell_ratio"] > 0.0:
                expect_backlog(memories[place], float(readings[place]["time_seconds"]))
            load, ratio = book_host(
                memories[place], readings[place], allocations[place], limits[place], tick_seconds, hidden
            )
            tell(memories[place], load, ratio, told[place])
    show_hosts(rows, newest, seen, first, last)


@law
def _filter_hosts(rows: ObserverRows, readings: Any, allocations: Any, masks: Any, levels: Any, left: Any) -> None:
    """The moves of each host's mask that its experience leaves; `levels` is overwritten."""
    memories, limits, _, _, _, prices, _, hidden, _ = rows
    for place in range(len(masks)):
        allocation, limit = allocations[place], limits[place]
        quota, cpuset = float(allocation["quota_cpus"]), int(allocation["cpuset_cpus"])
        cpus, least = int(limit["cpus"]), float(limit["min_quota_cpus"])
        for move in range(len(levels)):
            asked = apply_move(move, quota, cpuset, bool(allocation["frozen"]), cpus, least)
            levels[move] = level_in_force(asked[0], asked[1], asked[2], cpus)[1]
        load, ratio = load_and_latency(readings[place], hidden)
        filter_host(memories[place], levels, masks[place], left[place], load, ratio, prices[place])
