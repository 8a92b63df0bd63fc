"""The observation vector of many hosts: a loop over the laws that `Observer` takes for one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

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
    filter_host,
    level_in_force,
    periods_of,
    tell,
)
from rlctl.envs.features import BE_CPUS, FEATURES, FRAME_SIZE, LATENCY, LOAD, OPTIONAL, latency_of, write_frame
from rlctl.envs.law import law
from rlctl.envs.observation import LAGS, OLD_PERIODS, Observer, told_price
from rlctl.envs.readings import Readings
from rlctl.envs.rows import ALLOCATION, LIMIT, READING
from rlctl.envs.telemetry import FEW_SAMPLES

_SAME_SENSOR = {"cpu_per_request": ("stretch",)}
"""Features that go when another one's sensor is absent."""

EXPERIENCE = "experience"
"""Stands among the absent features for all that is told of the experience."""


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

    Raises:
        ConfigError: Lags that do not descend to 0, or a feature that every host has or that there is not.
    """

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
        self.lags, self.space = np.array(observer.lags), observer.space
        hidden = {*absent, *(name for of in absent for name in _SAME_SENSOR.get(of, ()))}
        self._hidden = sum(1 << place for place, feature in enumerate(FEATURES) if feature.name in hidden)
        self._newest = 0
        self.prices: Array | float = 1.0
        self._priced: tuple[Array | float, Array] = 0.0, np.zeros(0)
        self.forget(0)

    def forget(self, count: int) -> None:
        """So many hosts begin, of which nothing is known."""
        self.experience = SafeLevelMemory(self.limits, count, fast=True)
        self._frames = np.zeros((count, int(self.lags[0]) + 1, FRAME_SIZE), np.float32)  # rings, all at `_newest`
        self._told, self._all = np.tile(UNTOLD, (count, 1)), np.ones(count, np.bool_)
        self._limits = self.experience.rows_for(LIMIT, self.limits)

    def begin(
        self,
        readings: Readings,
        current: Allocations,
        which: Flags | None = None,
        taught: SafeLevelMemory | None = None,
    ) -> NDArray[np.float32]:
        """Begin the history on the hosts in `which`, or all, with this tick; what all see, shape (n, size).

        Args:
            taught: What these hosts have taught before this tick; None where others stand there now.
        """
        count = len(current.frozen)
        here = np.ones(count, np.bool_) if which is None else which
        if here.all():
            self.forget(count)
        else:
            self.experience.forget(here)
        if taught is not None:
            self.experience.copy_hosts(taught, here, here)
        return self.see(*self._rows(readings, current), which=here, begins=True)

    def observe(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        """Add one tick to the history of every host; float32, shape (n, size), each entry in [-1, 1]."""
        return self.see(*self._rows(readings, current))

    def see(
        self, readings: Any, current: Any, *, which: Flags | None = None, begins: bool = False
    ) -> NDArray[np.float32]:
        """The vectors; the hosts in `which`, or all, have this tick added, or begin with it.

        Args:
            readings, current: Rows of READING and ALLOCATION.
        """
        if not begins:
            self._newest = (self._newest + 1) % self._frames.shape[1]
        count = len(self._all)
        seen = np.empty((count, *(self.space.shape or ())), np.float32)
        self.experience.form(_observe_hosts)(
            self.experience.rows, readings, current, self._limits,
            self._frames, self._newest, self.lags, self._told, self._all if which is None else which, begins,
            self._each_price(count),
            self.tick_seconds, self._hidden, self._learns, seen, 0, count,
        )  # fmt: skip
        return seen

    def _rows(self, readings: Readings, current: Allocations) -> tuple[Any, Any]:
        return self.experience.rows_for(READING, readings), self.experience.rows_for(ALLOCATION, current)

    def _each_price(self, count: int) -> Array:
        if self._priced[0] is not self.prices or len(self._priced[1]) != count:
            self._priced = self.prices, np.full(count, self.prices, np.float64)
        return self._priced[1]

    def filter_moves(self, mask: Flags, readings: Readings, current: Allocations) -> Flags:
        """The moves of a mask that each host's experience leaves; all where none is kept."""
        if not self._learns:
            return mask
        count, left = len(mask), np.empty_like(mask)
        self.experience.form(_filter_hosts)(
            self.experience.rows, *self._rows(readings, current), self._limits,
            self._each_price(count), self._hidden, mask, np.empty(len(MOVES), np.int8), left, 0, count,
        )  # fmt: skip
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
    used = math.nan if hidden & BE_CPUS else float(reading["be_cpus"])
    if age >= OLD_PERIODS * tick_seconds:
        used = 0.0
    first, last = periods_of(0.0 if math.isnan(taught) else age, tick_seconds, tick_seconds)
    usable_cpus, level = level_in_force(
        float(allocation["quota_cpus"]), int(allocation["cpuset_cpus"]), bool(allocation["frozen"]), int(limit["cpus"])
    )
    book_window(memory, float(reading["time_seconds"]), load, taught, used, usable_cpus, level, first, last)
    return load, ratio


@law
def observe_host(
    memory: Any, reading: Any, allocation: Any, limit: Any, tick_seconds: float, hidden: int, learns: bool,
    frame: Any, told: Any,
) -> None:  # fmt: skip
    """Write one tick's frame, and what is told of a host once it has taught its window."""
    write_frame(reading, allocation, limit, tick_seconds, hidden, frame)
    if learns:
        load, ratio = book_host(memory, reading, allocation, limit, tick_seconds, hidden)
        tell(memory, load, ratio, told)


@law
def show_host(frames: Any, newest: int, lags: Any, told: Any, price: float, vector: Any) -> None:
    """Write the vector: the frames of some ticks, what is told of the host, and the price."""
    depth, place = len(frames), 0
    for lag in range(len(lags)):
        then = newest - int(lags[lag])
        frame = frames[then if then >= 0 else then + depth]
        for number in range(FRAME_SIZE):
            vector[place + number] = frame[number]
        place += FRAME_SIZE
    for number in range(TOLD):
        vector[place + number] = told[number]
    vector[place + TOLD] = told_price(price)


@law
def _observe_hosts(
    memories: Any, readings: Any, allocations: Any, limits: Any, frames: Any, newest: int, lags: Any, told: Any,
    which: Any, begins: bool, prices: Any, tick_seconds: float, hidden: int, learns: bool, seen: Any,
    first: int, last: int,
) -> None:  # fmt: skip
    for host in range(first, last):
        if which[host]:
            observe_host(
                memories[host], readings[host], allocations[host], limits[host], tick_seconds, hidden, learns,
                frames[host][newest], told[host],
            )  # fmt: skip
            if begins:  # before the first tick there is the first
                for ago in range(len(frames[host])):
                    frames[host][ago][:] = frames[host][newest]
        show_host(frames[host], newest, lags, told[host], prices[host], seen[host])


@law
def filter_moves_of(
    memory: Any, reading: Any, allocation: Any, limit: Any, price: float, hidden: int, mask: Any, levels: Any, left: Any
) -> None:
    """The moves of a mask that a host's experience leaves; `levels` is overwritten."""
    quota, cpuset = float(allocation["quota_cpus"]), int(allocation["cpuset_cpus"])
    cpus, least = int(limit["cpus"]), float(limit["min_quota_cpus"])
    for move in range(len(levels)):
        asked = apply_move(move, quota, cpuset, bool(allocation["frozen"]), cpus, least)
        levels[move] = level_in_force(asked[0], asked[1], asked[2], cpus)[1]
    load, ratio = load_and_latency(reading, hidden)
    filter_host(memory, levels, mask, left, load, ratio, price)


@law
def _filter_hosts(
    memories: Any, readings: Any, allocations: Any, limits: Any, prices: Any, hidden: int, masks: Any, levels: Any,
    left: Any, first: int, last: int,
) -> None:  # fmt: skip
    for host in range(first, last):
        filter_moves_of(
            memories[host], readings[host], allocations[host], limits[host], prices[host], hidden,
            masks[host], levels, left[host],
        )  # fmt: skip


def book(experience: SafeLevelMemory, readings: Readings, current: Allocations, tick_seconds: float) -> None:
    """Have all hosts teach a tick, see `book_host`."""
    count = len(current.frozen)
    experience.form(_book_hosts)(
        experience.rows, experience.rows_for(READING, readings), experience.rows_for(ALLOCATION, current),
        experience.rows_for(LIMIT, experience.limits), tick_seconds, 0, count,
    )  # fmt: skip


@law
def _book_hosts(
    memories: Any, readings: Any, allocations: Any, limits: Any, tick_seconds: float, first: int, last: int
) -> None:
    for host in range(first, last):
        book_host(memories[host], readings[host], allocations[host], limits[host], tick_seconds, 0)
