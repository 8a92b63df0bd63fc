"""The observation vector of many simulated hosts in arrays, number for number what `Observer` makes of their telemetry.

Order and ranges come from `FEATURES`; only how a number is got from arrays stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Limits
from rlctl.envs.observation import FEATURES, Observer
from rlctl.envs.sim.hosts import Window
from rlctl.envs.sim.sensing import Sensors
from rlctl.envs.sim.vector_actions import Allocations

__all__ = ["Readings", "VectorObserver", "read"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Readings(NamedTuple):
    """What the sensors of n hosts say, arrays of shape (n,); the names are those of `Telemetry`.

    Attributes:
        time_seconds: Of each host's own clock, which starts with its episode.
        lost: True where the tail, the oldest request and the load are missing; their numbers are then old ones.
        age_seconds: Of these three.
        samples: Requests behind the tail.
    """

    time_seconds: Array
    target_seconds: Array
    tail_latency_seconds: Array
    oldest_request_seconds: Array
    load_ratio: Array
    samples: Array
    lost: Flags
    age_seconds: Array
    cpi: Array
    lc_cpu_seconds_per_request: Array
    lc_cpus: Array
    be_cpus: Array
    host_cpus: Array
    lc_pressure_ratio: Array
    lc_run_delay_ratio: Array
    be_work_rate: Array

    @property
    def latency_seconds(self) -> Array:
        """The latency that counts, as in `Telemetry`; meaningless where `lost`."""
        oldest, tail = self.oldest_request_seconds, self.tail_latency_seconds
        return np.where(oldest > tail, oldest, tail)


def read(sensors: Sensors, window: Window, time_seconds: float) -> Readings:
    """The readings in arrays; the twin of `Sensors.telemetry`.

    Args:
        sensors: Those that took the window last.
        window: That window.
        time_seconds: Of the plant's clock.
    """
    c = sensors.constants
    tail, oldest, load, samples, lost = sensors.seen
    derived = sensors.derived(window)
    return Readings(
        time_seconds=np.full(len(tail), time_seconds),
        target_seconds=c.target_seconds,
        tail_latency_seconds=tail,
        oldest_request_seconds=oldest,
        load_ratio=load,
        samples=samples,
        lost=lost != 0.0,
        age_seconds=sensors.age_ticks * sensors.tick_seconds,
        cpi=window.cpi,
        lc_cpu_seconds_per_request=derived.lc_cpu_seconds_per_request,
        lc_cpus=window.lc_cpus,
        be_cpus=window.be_cpus,
        host_cpus=window.host_cpus,
        lc_pressure_ratio=derived.lc_pressure_ratio,
        lc_run_delay_ratio=derived.lc_run_delay_ratio,
        be_work_rate=window.be_work_ratio,
    )


def _level(quota_cpus: Array, limits: Limits) -> Array:
    return np.floor(np.minimum(quota_cpus, limits.cpus) / limits.cpus * limits.levels + 1e-9)


_OF: Mapping[str, Callable[[Readings, Allocations, Limits], Array]] = {
    "slack": lambda r, a, m: (r.target_seconds - r.latency_seconds) / r.target_seconds,
    "latency": lambda r, a, m: r.latency_seconds / r.target_seconds,
    "load": lambda r, a, m: r.load_ratio,
    "cpi": lambda r, a, m: r.cpi,
    "cpu_per_request": lambda r, a, m: r.lc_cpu_seconds_per_request / r.target_seconds,
    "lc_cpus": lambda r, a, m: r.lc_cpus / m.lc_cpus,
    "be_cpus": lambda r, a, m: r.be_cpus / m.cpus,
    "host_cpus": lambda r, a, m: r.host_cpus / m.cpus,
    "lc_pressure": lambda r, a, m: r.lc_pressure_ratio,
    "lc_run_delay": lambda r, a, m: r.lc_run_delay_ratio,
    "quota": lambda r, a, m: _level(a.quota_cpus, m) / m.levels,
    "cpuset": lambda r, a, m: a.cpuset_cpus / m.cpus,
    "frozen": lambda r, a, m: a.frozen.astype(np.float64),
}
"""Every feature by its name in FEATURES."""

_MAY_BE_LOST = frozenset({"slack", "latency", "load"})
"""Features of the readings that `lost` takes away; on a simulated host the others are always there."""


class VectorObserver:
    """Turns the readings of n hosts into observations, with a short history.

    Args:
        limits: Range of allocations, the same on all hosts.
        tick_seconds: Control period, the unit of ages.
        history: Ticks kept, at least 1.
    """

    def __init__(self, limits: Limits, tick_seconds: float, history: int = 4) -> None:
        self.limits = limits
        self.tick_seconds = tick_seconds
        self.history = history
        self.space = Observer(limits, tick_seconds, history).space
        self._low = np.array([[feature.low] for feature in FEATURES])
        self._span = np.array([[feature.high - feature.low] for feature in FEATURES])
        lossy = [place for place, feature in enumerate(FEATURES) if feature.name in _MAY_BE_LOST]
        optional = [feature.name for feature in FEATURES if feature.optional]
        flags = [len(FEATURES) + place for place, name in enumerate(optional) if name in _MAY_BE_LOST]
        self._lossy, self._flags = np.array(lossy), np.array(flags)
        self._width = len(FEATURES) + len(optional) + 1
        self._frames = np.zeros((0, history, self._width), np.float32)

    def begin(self, readings: Readings, current: Allocations, which: Flags | None = None) -> NDArray[np.float32]:
        """Start the history anew with this tick, on the hosts in `which` or on all.

        Returns:
            What the policies of all hosts see, shape (n, size).
        """
        frame = np.repeat(self._frame(readings, current)[:, None], self.history, axis=1)
        if which is None or which.all():
            self._frames = frame
        else:
            self._frames = np.where(which[:, None, None], frame, self._frames)
        return self._vector()

    def observe(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        """Add one tick to the history of every host; float32, shape (n, size), each entry in [-1, 1]."""
        frames = np.empty_like(self._frames)
        frames[:, :-1] = self._frames[:, 1:]
        frames[:, -1] = self._frame(readings, current)
        self._frames = frames
        return self._vector()

    def _vector(self) -> NDArray[np.float32]:
        """A copy, since the caller may keep or change it."""
        return self._frames.reshape(len(self._frames), -1).copy()

    def _frame(self, readings: Readings, current: Allocations) -> NDArray[np.float32]:
        scaled = np.stack([_OF[feature.name](readings, current, self.limits) for feature in FEATURES])
        scaled -= self._low  # in place, and in the order of operations of `Observer`
        scaled *= 2.0
        scaled /= self._span
        scaled -= 1.0
        np.clip(scaled, -1.0, 1.0, out=scaled)
        scaled[np.isnan(scaled)] = 0.0  # NaN never reaches a network
        frame = np.ones((scaled.shape[1], self._width), np.float32)
        frame[:, : len(FEATURES)] = scaled.T
        if readings.lost.any():
            frame[np.ix_(readings.lost, self._lossy)] = 0.0
            frame[np.ix_(readings.lost, self._flags)] = -1.0
        frame[:, -1] = np.minimum(readings.age_seconds / self.tick_seconds, 10.0) / 5.0 - 1.0
        return frame
