"""The observation vector of many hosts in arrays: the twin of `Observer`, equal to it number for number.

`tests/envs/test_array_twins.py` holds the two together to the bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits, apply_moves
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import TOLD, UNTOLD, SafeLevelMemory, levels_reached, periods_of
from rlctl.envs.features import FEATURES, FRAME_SIZE, OPTIONAL, Sensed, frames
from rlctl.envs.observation import LAGS, OLD_PERIODS, Observer, told_price
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import FEW_SAMPLES

_SAME_SENSOR = {"cpu_per_request": ("stretch",)}
"""Features that go when another one's sensor is absent."""

_PLACE = {feature.name: place for place, feature in enumerate(FEATURES)}
_FLAG = {name: len(FEATURES) + place for place, name in enumerate(OPTIONAL)}

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
        self.limits = limits
        self.tick_seconds = tick_seconds
        observer = Observer(limits if isinstance(limits, Limits) else limits.each[0], tick_seconds, lags)
        self.lags, self.space = np.array(observer.lags), observer.space
        self._hidden = {*absent, *(name for of in absent for name in _SAME_SENSOR.get(of, ()))}
        self._absent = _columns(self._hidden)
        self._depth = int(self.lags[0]) + 1
        self._frames = np.zeros((self._depth, 0, FRAME_SIZE), np.float32)  # a ring: the newest is at `_newest`
        self._newest = 0
        self.experience, self._told = SafeLevelMemory(limits, 0), np.zeros((0, TOLD), np.float32)
        self.prices: Array | float = 1.0

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
        frame = self._frame(readings, current)
        if which is None or which.all():
            self._frames = np.repeat(frame[None], self._depth, axis=0)
            self.experience, self._told = (
                SafeLevelMemory(self.limits, len(frame)),
                np.zeros((len(frame), TOLD), np.float32),
            )
        else:
            self._frames[:, which] = frame[which]
            self.experience.forget(which)
        if taught is not None:
            here = np.ones(len(frame), np.bool_) if which is None else which
            self.experience.copy_hosts(taught, here, here)
        return self._vector(readings, current, which)

    def observe(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        """Add one tick to the history of every host; float32, shape (n, size), each entry in [-1, 1]."""
        self._newest = (self._newest + 1) % self._depth
        self._frames[self._newest] = self._frame(readings, current)
        return self._vector(readings, current)

    def _vector(self, readings: Readings, current: Allocations, which: Flags | None = None) -> NDArray[np.float32]:
        """A copy, since the caller may keep or change it; the hosts in `which` learn from this tick."""
        shown = self._frames[(self._newest - self.lags) % self._depth]
        history = np.ascontiguousarray(shown.transpose(1, 0, 2)).reshape(shown.shape[1], -1)
        price = np.broadcast_to(told_price(self.prices), len(history))[:, None].astype(np.float32)
        if not self._learns:
            return np.concatenate([history, np.tile(UNTOLD, (len(history), 1)), price], axis=1)
        load, ratio = book(self.experience, readings, current, self.tick_seconds, self._hidden, which)
        told = self.experience.features(load, ratio)
        self._told = told if which is None else np.where(which[:, None], told, self._told)
        return np.concatenate([history, self._told, price], axis=1)

    def filter_moves(self, mask: Flags, readings: Readings, current: Allocations) -> Flags:
        """The moves of a mask that each host's experience leaves; all where none is kept."""
        if not self._learns:
            return mask
        level = levels_reached(apply_moves(current, self.limits), self.limits).T
        return self.experience.filter_moves(mask, level, *load_and_latency(readings, self._hidden), self.prices)

    def _frame(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        frame = frames(Sensed.of(readings), current, self.limits, self.tick_seconds)
        values, flags = self._absent
        frame[:, values], frame[:, flags] = 0.0, -1.0
        return frame


def load_and_latency(readings: Readings, hidden: Collection[str] = ()) -> tuple[Array, Array]:
    """The load, and latency by the target; NaN where they are lost or are features that are hidden."""
    sensed = Sensed.of(readings)
    nothing = np.full(len(sensed.load_ratio), np.nan)
    load, ratio = sensed.load_ratio, 1.0 - sensed.slack_ratio
    return nothing if "load" in hidden else load, nothing if "latency" in hidden else ratio


def book(
    experience: SafeLevelMemory, readings: Readings, current: Allocations, tick_seconds: float,
    hidden: Collection[str] = (), which: Flags | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Have hosts teach what `Observer.observe` books of one: of old figures no hold, of few requests nothing.

    Returns what it went by, as `load_and_latency` has it.

    Args:
        hidden: Features that these hosts have no sensor for.
        which: Hosts that this is about; None for all.
    """
    load, ratio = load_and_latency(readings, hidden)
    tail, oldest = readings.tail_latency_seconds, readings.oldest_request_seconds
    taught = np.where(
        (readings.samples < FEW_SAMPLES) & ~(oldest > np.fmax(tail, readings.target_seconds)), np.nan, ratio
    )
    used = np.full(len(load), np.nan) if "be_cpus" in hidden else readings.be_cpus
    used = np.where(readings.age_seconds >= OLD_PERIODS * tick_seconds, 0.0, used)
    periods = periods_of(np.where(np.isnan(taught), 0.0, readings.age_seconds), tick_seconds, tick_seconds)
    experience.observe(readings.time_seconds, load, taught, used, current, which, periods)
    return load, ratio


def _columns(names: Collection[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the values and the flags of some features stand in a frame."""
    ordered = sorted(names)
    return (
        np.array([_PLACE[name] for name in ordered], np.intp),
        np.array([_FLAG[name] for name in ordered], np.intp),
    )
