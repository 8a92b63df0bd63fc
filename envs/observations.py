"""The observation vector of many hosts in arrays: the twin of `Observer`, equal to it number for number.

Each feature is written twice, once for one host's telemetry (`FEATURES`) and once for arrays (`_OF`). Order, ranges and
scales come from `FEATURES`; `tests/envs/test_array_twins.py` holds the two together to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import TOLD, UNTOLD, Experience
from rlctl.envs.observation import BEND, FEATURES, FRAME_SIZE, LAGS, Observer, Scale, told_price
from rlctl.envs.readings import Readings

_OF: Mapping[str, Callable[[Readings, Allocations, Limits | VectorLimits], Array]] = {
    "slack": lambda r, a, m: (r.target_seconds - r.latency_seconds) / r.target_seconds,
    "latency": lambda r, a, m: r.latency_seconds / r.target_seconds,
    "stretch": lambda r, a, m: r.latency_seconds / r.lc_cpu_seconds_per_request,
    "load": lambda r, a, m: r.load_ratio,
    "cpi": lambda r, a, m: r.cpi,
    "cpu_per_request": lambda r, a, m: r.lc_cpu_seconds_per_request / r.target_seconds,
    "lc_cpus": lambda r, a, m: r.lc_cpus / m.lc_cpus,
    "be_cpus": lambda r, a, m: r.be_cpus / m.cpus,
    "quota": lambda r, a, m: np.minimum(a.quota_cpus, m.cpus) / m.cpus,
    "cpuset": lambda r, a, m: a.cpuset_cpus / m.cpus,
    "frozen": lambda r, a, m: a.frozen.astype(np.float64),
    "exclusive": lambda r, a, m: np.broadcast_to(m.exclusive_cpus / m.cpus, a.frozen.shape),
}
"""Every feature by its name in FEATURES."""

_MAY_BE_LOST = frozenset({"slack", "latency", "stretch", "load"})
"""Features of the readings that `lost` takes away; on a simulated host the others are always there."""

_SAME_SENSOR = {"cpu_per_request": ("stretch",)}
"""Features that go when another one's sensor is absent."""

_OPTIONAL = tuple(feature.name for feature in FEATURES if feature.optional)
_PLACE = {feature.name: place for place, feature in enumerate(FEATURES)}
_FLAG = {name: len(FEATURES) + place for place, name in enumerate(_OPTIONAL)}

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
        if unknown := sorted(absent - set(_OPTIONAL)):
            raise ConfigError(f"absent: {', '.join(unknown)}: no optional feature; there are {', '.join(_OPTIONAL)}")
        self.limits = limits
        self.tick_seconds = tick_seconds
        observer = Observer(limits if isinstance(limits, Limits) else limits.each[0], tick_seconds, lags)
        self.lags, self.space = np.array(observer.lags), observer.space
        self._low = _bent(np.array([[feature.low] for feature in FEATURES]))
        self._span = _bent(np.array([[feature.high] for feature in FEATURES])) - self._low
        self._least, self._most = (np.array([[of] for of in ends]) for ends in zip(*_ENDS, strict=True))
        self._lossy = _columns(_MAY_BE_LOST)
        self._hidden = {*absent, *(name for of in absent for name in _SAME_SENSOR.get(of, ()))}
        self._absent = _columns(self._hidden)
        self._depth = int(self.lags[0]) + 1
        self._frames = np.zeros((self._depth, 0, FRAME_SIZE), np.float32)  # a ring: the newest is at `_newest`
        self._newest = 0
        self.experience, self._told = Experience(limits, 0), np.zeros((0, TOLD), np.float32)
        self.prices: Array | float = 1.0

    def begin(
        self, readings: Readings, current: Allocations, which: Flags | None = None, taught: Experience | None = None
    ) -> NDArray[np.float32]:
        """Begin the history on the hosts in `which`, or all, with this tick; what all see, shape (n, size).

        Args:
            taught: What these hosts have taught before this tick; None where others stand there now.
        """
        frame = self._frame(readings, current)
        if which is None or which.all():
            self._frames = np.repeat(frame[None], self._depth, axis=0)
            self.experience, self._told = Experience(self.limits, len(frame)), np.zeros((len(frame), TOLD), np.float32)
        else:
            self._frames[:, which] = frame[which]
            self.experience.forget(which)
        if taught is not None:
            here = np.ones(len(frame), np.bool_) if which is None else which
            self.experience.take(taught, here, here)
        return self._vector(readings, current, which)

    def observe(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        """Add one tick to the history of every host; float32, shape (n, size), each entry in [-1, 1]."""
        self._newest = (self._newest + 1) % self._depth
        self._frames[self._newest] = self._frame(readings, current)
        return self._vector(readings, current)

    def _vector(self, readings: Readings, current: Allocations, which: Flags | None = None) -> NDArray[np.float32]:
        """A copy, since the caller may keep or change it; the hosts in `which` learn from this tick."""
        shown = self._frames[(self._newest - self.lags) % self._depth]
        frames = np.ascontiguousarray(shown.transpose(1, 0, 2)).reshape(shown.shape[1], -1)
        price = np.broadcast_to(told_price(self.prices), len(frames))[:, None].astype(np.float32)
        if not self._learns:
            return np.concatenate([frames, np.tile(UNTOLD, (len(frames), 1)), price], axis=1)
        load, ratio = self._known(readings)
        used = np.full(len(load), np.nan) if "be_cpus" in self._hidden else readings.be_cpus
        self.experience.see(readings.time_seconds, load, ratio, used, current, which)
        told = self.experience.told(load, ratio)
        self._told = told if which is None else np.where(which[:, None], told, self._told)
        return np.concatenate([frames, self._told, price], axis=1)

    def narrowed(self, mask: Flags, readings: Readings, current: Allocations) -> Flags:
        """The moves of a mask that each host's experience leaves, see `Experience.narrowed`; all where none is kept."""
        if not self._learns:
            return mask
        return self.experience.narrowed(mask, current, *self._known(readings), self.prices)

    def _known(self, readings: Readings) -> tuple[Array, Array]:
        """The load, and latency by the target; NaN where they are lost or have no sensor."""
        load, ratio = load_and_latency(readings)
        nothing = np.full(len(load), np.nan)
        return nothing if "load" in self._hidden else load, nothing if "latency" in self._hidden else ratio

    def _frame(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.stack([_OF[feature.name](readings, current, self.limits) for feature in FEATURES])
        unknown = np.isnan(scaled)
        np.clip(scaled, self._least, self._most, out=scaled)
        scaled = _bent(scaled)  # and in the order of operations of `Observer`
        scaled -= self._low
        scaled *= 2.0
        scaled /= self._span
        scaled -= 1.0
        scaled[unknown] = 0.0  # NaN never reaches a network
        frame = np.ones((scaled.shape[1], FRAME_SIZE), np.float32)
        frame[:, : len(FEATURES)] = scaled.T
        _hide(frame, readings.lost, self._lossy)
        _hide(frame, ~(readings.lc_cpu_seconds_per_request > 0.0), _STRETCH)
        values, flags = self._absent
        frame[:, values], frame[:, flags] = 0.0, -1.0
        frame[:, -1] = np.minimum(readings.age_seconds / self.tick_seconds, 10.0) / 5.0 - 1.0
        return frame


def load_and_latency(readings: Readings) -> tuple[Array, Array]:
    """The load, and latency by the target; NaN where they are lost."""
    target = readings.target_seconds
    ratio = 1.0 - (target - readings.latency_seconds) / target
    return np.where(readings.lost, np.nan, readings.load_ratio), np.where(readings.lost, np.nan, ratio)


def _bent(values: Array) -> Array:
    """Each feature's row by its scale."""
    bent = values.copy()
    for scale, rows in _ROWS.items():
        bent[rows] = BEND[scale](values[rows])
    return bent


def _columns(names: Collection[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the values and the flags of some features stand in a frame."""
    ordered = sorted(names)
    return (
        np.array([_PLACE[name] for name in ordered], np.intp),
        np.array([_FLAG[name] for name in ordered], np.intp),
    )


def _hide(frame: NDArray[np.float32], where: Flags, columns: tuple[NDArray[np.intp], NDArray[np.intp]]) -> None:
    """Make features missing on some hosts."""
    if where.any():
        values, flags = columns
        frame[np.ix_(where, values)] = 0.0
        frame[np.ix_(where, flags)] = -1.0


_STRETCH = _columns({"stretch"})
_ENDS = [(feature.low, feature.high) for feature in FEATURES]
_ROWS = {
    scale: np.array([place for place, feature in enumerate(FEATURES) if feature.scale is scale], np.intp)
    for scale in (Scale.SQRT, Scale.LOG10)
}
