"""The observation table: one tick of a host as numbers in [-1, 1].

Normalisation is fixed here and versioned; nothing is fitted, so nothing hides in a pickle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlctl.envs.law import law
from rlctl.envs.reins import CPU

OLDEST_TICKS = 10.0
"""Age of the latency from which on it counts as this old."""


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
        scale: Bends the range: a tail grows by factors, and a small BE share matters as a large one does.
        optional: A sensor that some hosts lack; it gets a validity flag of its own.
    """

    name: str
    unit: str
    low: float
    high: float
    scale: Scale = Scale.LINEAR
    optional: bool = False


# In the order in which the vector has them: those that may be missing come first.
FEATURES: tuple[Feature, ...] = (
    Feature("slack", "share of target", -1.0, 1.0, optional=True),
    Feature("latency", "target", 1e-3, 10.0, Scale.LOG10, optional=True),
    Feature("stretch", "latency by CPU time of a request", 1.0, 1e4, Scale.LOG10, optional=True),
    Feature("load", "share of maximum", 0.0, 1.25, optional=True),
    Feature("cpi", "cycles per instruction", 0.25, 8.0, Scale.LOG10, optional=True),
    Feature("cpu_per_request", "target", 1e-4, 1.0, Scale.LOG10, optional=True),
    Feature("lc_cpus", "share of LC CPUs", 0.0, 1.0, optional=True),
    Feature("be_cpus", "share of BE CPUs", 0.0, 1.0, Scale.SQRT, optional=True),
    Feature("quota", "share of BE CPUs", 0.0, 1.0, Scale.SQRT),
    Feature("cpuset", "share of BE CPUs", 0.0, 1.0, Scale.SQRT),
    Feature("frozen", "0 or 1", 0.0, 1.0),
    Feature("exclusive", "share of BE CPUs", 0.0, 1.0),
)
"""The observation table. A tick is every feature in this order, followed by the validity flags (+1 valid, -1 missing)
of the optional ones, followed by the latency's age in ticks. Every number is relative to the host: its target, its
CPUs, its maximum load, the CPU time of its requests. So one policy fits hosts of any size."""

OPTIONAL = tuple(feature.name for feature in FEATURES if feature.optional)

FRAME_SIZE = len(FEATURES) + len(OPTIONAL) + 1
"""Numbers of one tick: the features, a flag for each that may be missing, and the age of the latency."""


LATENCY, LOAD, BE_CPUS = (1 << [one.name for one in FEATURES].index(name) for name in ("latency", "load", "be_cpus"))
"""Bits of features, for what is hidden."""


@law
def latency_of(reading: Any) -> float:
    """The latency that counts, as in `Telemetry`; NaN where it is lost."""
    oldest, tail = float(reading["oldest_request_seconds"]), float(reading["tail_latency_seconds"])
    if reading["lost"]:
        return math.nan
    return oldest if oldest > tail else tail


@law
def used_of(reading: Any, cpus: float) -> float:
    """What BE used of its level, in CPUs, whatever moves it."""
    return float(reading["be_cpus"]) if reading["rein"] == CPU else float(reading["be_used_ratio"]) * cpus


@law
def write_frame(reading: Any, allocation: Any, limit: Any, tick_seconds: float, hidden: int, frame: Any) -> None:
    """One tick of a host, FRAME_SIZE numbers in [-1, 1].

    Args:
        reading: As in `READING`; what is missing is NaN, which is 0 in the frame, with its validity flag at -1.
        allocation: In force in the window that was sensed.
        tick_seconds: Control period, the unit of the age.
        hidden: A bit for each feature whose sensor the host lacks.
        frame: The numbers are written here.
    """
    target, latency = float(reading["target_seconds"]), latency_of(reading)
    if not target > 0.0:
        target = math.nan
    demand, cpus = float(reading["lc_cpu_seconds_per_request"]), float(limit["cpus"])
    load = math.nan if reading["lost"] else float(reading["load_ratio"])
    _write(frame, 0, (target - latency) / target, hidden)
    _write(frame, 1, latency / target, hidden)
    _write(frame, 2, latency / demand if demand > 0.0 else math.nan, hidden)
    _write(frame, 3, load, hidden)
    _write(frame, 4, float(reading["cpi"]), hidden)
    _write(frame, 5, demand / target, hidden)
    _write(frame, 6, float(reading["lc_cpus"]) / float(limit["lc_cpus"]), hidden)
    _write(frame, 7, used_of(reading, cpus) / cpus, hidden)
    frame[8] = _put_on_scale(8, min(cpus, float(allocation["quota_cpus"])) / cpus)
    frame[9] = _put_on_scale(9, float(allocation["cpuset_cpus"]) / cpus)
    frame[10] = 1.0 if allocation["frozen"] else -1.0
    frame[11] = _put_on_scale(11, float(limit["exclusive_cpus"]) / cpus)
    age = float(reading["age_seconds"]) / tick_seconds
    frame[FRAME_SIZE - 1] = (max(age, 0.0) if age < OLDEST_TICKS else OLDEST_TICKS) * 2.0 / OLDEST_TICKS - 1.0


@law
def _write(frame: Any, place: int, value: float, hidden: int) -> None:
    """A feature that may be missing, and its flag."""
    if math.isnan(value) or hidden >> place & 1:
        frame[place], frame[_FLAGS + place] = 0.0, -1.0  # NaN never reaches a network
    else:
        frame[place], frame[_FLAGS + place] = _put_on_scale(place, value), 1.0


@law
def _put_on_scale(place: int, value: float) -> float:
    """A feature's number, its range mapped to [-1, 1] on its scale."""
    value = min(max(value, _LOW[place]), _HIGH[place])
    if _LOGARITHMIC[place]:
        value = math.log10(value)
    elif _ROOT[place]:
        value = math.sqrt(value)
    return (value - _LEAST[place]) * 2.0 / _SPAN[place] - 1.0


_FLAGS = len(FEATURES)
_LOW, _HIGH = (tuple(ends) for ends in zip(*((one.low, one.high) for one in FEATURES), strict=True))
_LOGARITHMIC, _ROOT = (tuple(one.scale is scale for one in FEATURES) for scale in (Scale.LOG10, Scale.SQRT))
_BENDS: dict[Scale, Callable[[float], float]] = {Scale.LINEAR: float, Scale.SQRT: math.sqrt, Scale.LOG10: math.log10}
_LEAST = tuple(_BENDS[one.scale](one.low) for one in FEATURES)
_SPAN = tuple(_BENDS[one.scale](one.high) - _BENDS[one.scale](one.low) for one in FEATURES)
