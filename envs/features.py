"""The observation table: one tick as numbers in [-1, 1], of one host or of many in arrays.

Normalisation is fixed here and versioned; nothing is fitted, so nothing hides in a pickle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Telemetry, number_or_nan

OLDEST_TICKS = 10.0
"""Age of the latency from which on it counts as this old."""


class Sensed(NamedTuple):
    """What the features are made of, arrays of shape (n,); names and units as in `Telemetry`, NaN where missing."""

    target_seconds: Array
    latency_seconds: Array
    load_ratio: Array
    cpi: Array
    lc_cpu_seconds_per_request: Array
    lc_cpus: Array
    be_cpus: Array
    age_seconds: Array

    @classmethod
    def by(cls, telemetry: Telemetry) -> Self:
        """One host's, n being 1."""
        latency, target = telemetry.latency_seconds, telemetry.target_seconds
        numbers = (
            target if target > 0.0 else math.nan,
            number_or_nan(latency),
            number_or_nan(telemetry.load_ratio),
            number_or_nan(telemetry.cpi),
            number_or_nan(telemetry.lc_cpu_seconds_per_request),
            number_or_nan(telemetry.lc_cpus),
            number_or_nan(telemetry.be_cpus),
            latency.age_seconds,
        )
        return cls(*np.array(numbers, np.float64)[:, None])

    @classmethod
    def of(cls, readings: Readings) -> Self:
        """Those of many simulated hosts."""
        return cls(
            readings.target_seconds,
            np.where(readings.lost, np.nan, readings.latency_seconds),
            np.where(readings.lost, np.nan, readings.load_ratio),
            readings.cpi,
            readings.lc_cpu_seconds_per_request,
            readings.lc_cpus,
            readings.be_cpus,
            readings.age_seconds,
        )

    @property
    def slack_ratio(self) -> Array:
        """What is left of the target, as `Telemetry.slack_ratio`."""
        return (self.target_seconds - self.latency_seconds) / self.target_seconds


class Scale(StrEnum):
    """How a number is bent before its range is mapped to [-1, 1]."""

    LINEAR = "linear"
    SQRT = "sqrt"
    LOG10 = "log10"


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the observation table.

    Attributes:
        unit: Unit before scaling.
        low, high: Range that is mapped to [-1, 1]; values beyond it are clipped.
        of: The numbers, one for all hosts or shape (n,), from (s) what was sensed, (a) the allocations in force and (m)
            the hosts' limits; a missing one is NaN, which is 0 in the vector, with its validity flag at -1.
        scale: Bends the range: a tail grows by factors, and a small BE share matters as a large one does.
        optional: A sensor that some hosts lack; it gets a validity flag of its own.
    """

    name: str
    unit: str
    low: float
    high: float
    of: Callable[[Sensed, Allocations, Limits | VectorLimits], Array | Flags | float]
    scale: Scale = Scale.LINEAR
    optional: bool = False


def _latency_ratio(sensed: Sensed, *_: object) -> Array:
    return sensed.latency_seconds / sensed.target_seconds


def _stretch(sensed: Sensed, *_: object) -> Array:
    demand = sensed.lc_cpu_seconds_per_request
    stretch: Array = sensed.latency_seconds / np.where(demand > 0.0, demand, np.nan)
    return stretch


# In the order in which the vector has them.
FEATURES: tuple[Feature, ...] = (
    Feature("slack", "share of target", -1.0, 1.0, lambda s, a, m: s.slack_ratio, optional=True),
    Feature(
        "latency",
        "target",
        1e-3,
        10.0,
        _latency_ratio,
        Scale.LOG10,
        optional=True,
    ),
    Feature("stretch", "latency by CPU time of a request", 1.0, 1e4, _stretch, Scale.LOG10, optional=True),
    Feature("load", "share of maximum", 0.0, 1.25, lambda s, a, m: s.load_ratio, optional=True),
    Feature("cpi", "cycles per instruction", 0.25, 8.0, lambda s, a, m: s.cpi, Scale.LOG10, optional=True),
    Feature(
        "cpu_per_request",
        "target",
        1e-4,
        1.0,
        lambda s, a, m: s.lc_cpu_seconds_per_request / s.target_seconds,
        Scale.LOG10,
        optional=True,
    ),
    Feature("lc_cpus", "share of LC CPUs", 0.0, 1.0, lambda s, a, m: s.lc_cpus / m.lc_cpus, optional=True),
    Feature("be_cpus", "share of BE CPUs", 0.0, 1.0, lambda s, a, m: s.be_cpus / m.cpus, Scale.SQRT, optional=True),
    Feature(
        "quota", "share of BE CPUs", 0.0, 1.0, lambda s, a, m: np.minimum(a.quota_cpus, m.cpus) / m.cpus, Scale.SQRT
    ),
    Feature("cpuset", "share of BE CPUs", 0.0, 1.0, lambda s, a, m: a.cpuset_cpus / m.cpus, Scale.SQRT),
    Feature("frozen", "0 or 1", 0.0, 1.0, lambda s, a, m: a.frozen),
    Feature("exclusive", "share of BE CPUs", 0.0, 1.0, lambda s, a, m: m.exclusive_cpus / m.cpus),
)
"""The observation table. A tick is every feature in this order, followed by the validity flags (+1 valid, -1 missing)
of the optional ones, followed by the latency's age in ticks. Every number is relative to the host: its target, its
CPUs, its maximum load, the CPU time of its requests. So one policy fits hosts of any size."""

OPTIONAL = tuple(feature.name for feature in FEATURES if feature.optional)

FRAME_SIZE = len(FEATURES) + len(OPTIONAL) + 1
"""Numbers of one tick: the features, a flag for each that may be missing, and the age of the latency."""


def frames(
    sensed: Sensed, current: Allocations, limits: Limits | VectorLimits, tick_seconds: float
) -> NDArray[np.float32]:
    """One tick of n hosts, float32, shape (n, FRAME_SIZE), each entry in [-1, 1].

    Args:
        current: In force in the window that was sensed.
        tick_seconds: Control period, the unit of the age.
    """
    scaled = np.empty((len(FEATURES), len(current.frozen)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # what a sensor says may be any number
        for row, feature in zip(scaled, FEATURES, strict=True):
            row[:] = feature.of(sensed, current, limits)
    missing = np.isnan(scaled)
    np.minimum(np.maximum(scaled, _LOW, out=scaled), _HIGH, out=scaled)
    _bend(scaled)
    scaled -= _LEAST
    scaled *= 2.0
    scaled /= _SPAN
    scaled -= 1.0
    scaled[missing] = 0.0  # NaN never reaches a network
    frame = np.empty((FRAME_SIZE, scaled.shape[1]), np.float32)
    frame[: len(FEATURES)] = scaled
    frame[len(FEATURES) : -1] = np.where(missing[_MAY_MISS], -1.0, 1.0)
    frame[-1] = np.minimum(sensed.age_seconds / tick_seconds, OLDEST_TICKS) * 2.0 / OLDEST_TICKS - 1.0
    return frame.T


def _bend(values: Array) -> Array:
    """Each feature's row by its scale, in place."""
    for bend, rows in _ROWS.items():
        values[rows] = bend(values[rows])
    return values


_MAY_MISS = np.array([place for place, feature in enumerate(FEATURES) if feature.optional], np.intp)
_ROWS: Mapping[np.ufunc, NDArray[np.intp]] = {
    bend: np.array([place for place, feature in enumerate(FEATURES) if feature.scale is scale], np.intp)
    for scale, bend in ((Scale.SQRT, np.sqrt), (Scale.LOG10, np.log10))
}
_LOW, _HIGH = (np.array([[end] for end in ends]) for ends in zip(*((f.low, f.high) for f in FEATURES), strict=True))
_LEAST = _bend(_LOW.copy())
_SPAN = _bend(_HIGH.copy()) - _LEAST
