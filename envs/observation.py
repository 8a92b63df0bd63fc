"""What a policy sees: the physical readings for managers, and a fixed-range vector for learned policies.

Normalisation is fixed here and versioned; nothing is fitted, so nothing hides in a pickle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.allocations import Allocations
from rlctl.envs.arrays import Array, as_array
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import TOLD, Experience
from rlctl.envs.telemetry import Missing, Reading, Telemetry, Value, Why, number

if TYPE_CHECKING:
    from gymnasium import spaces

VERSION = 4
"""Bumped on any change of order, range or meaning of FEATURES or of what stands after the history."""

LAGS = (16, 8, 4, 2, 1, 0)
"""Ticks back, oldest first, whose frames the vector holds: the last few show a trend and the sensors' delay, the older
ones how this host's latency goes with its load."""


MOST_PRICE = 4.0
"""Range of prices that training draws from, 1 / MOST_PRICE to MOST_PRICE."""

TAIL_SIZE = TOLD + 1
"""Numbers after the history."""


def told_price(price: Array | float) -> Array | float:
    """The price as a policy sees it: on a logarithmic scale, 0 for 1, from -1 to 1 in the range that was trained."""
    return np.clip(np.log(price) / np.log(MOST_PRICE), -1.0, 1.0)  # type: ignore[no-any-return]


class Frame:
    """One tick's part of the vector, computed when it is first asked for: managers never ask."""

    __slots__ = ("_made", "_of")

    def __init__(self, telemetry: Telemetry, current: Allocation, limits: Limits) -> None:
        self._of = telemetry, current, limits
        self._made: NDArray[np.float32] | None = None

    def values(self, tick_seconds: float) -> NDArray[np.float32]:
        """float32, each entry in [-1, 1]: features, validity flags, the latency's age."""
        if self._made is None:
            self._made = _frame(*self._of, tick_seconds)
        return self._made


@dataclass(frozen=True, slots=True)
class Observation:
    """One tick as a policy sees it.

    Attributes:
        frames: The ticks of the history, oldest first.
        tick_seconds: Control period, the unit of ages in the vector.
        mask: bool, shape (len(MOVES),): moves that the shield would let through unchanged; None without a shield.
        experience: What this host has taught until now; it goes on learning with the next tick.
        price: What a violation costs here, by what it cost on the mean training host.
    """

    telemetry: Telemetry
    current: Allocation
    frames: tuple[Frame, ...] = ()
    tick_seconds: float = 1.0
    mask: NDArray[np.bool_] | None = None
    experience: Experience = field(default_factory=lambda: Experience(Limits(1)))
    price: float = 1.0

    @property
    def vector(self) -> NDArray[np.float32]:
        """float32, shape (Observer.size,), each entry in [-1, 1]."""
        return np.concatenate([*(frame.values(self.tick_seconds) for frame in self.frames), self.tail()])

    def tail(self, price: float = 1.0) -> NDArray[np.float32]:
        """What stands after the history, shape (TAIL_SIZE,): what is told of the experience, and the price.

        Args:
            price: What a violation costs the policy that looks, by what it costs here.
        """
        load, ratio = as_array(number(self.telemetry.load_ratio)), as_array(self.telemetry.latency_ratio)
        return np.append(self.experience.told(load, ratio)[0], told_price(price * self.price)).astype(np.float32)

    def narrowed(self, mask: NDArray[np.bool_], price: float = 1.0) -> NDArray[np.bool_]:
        """The moves of a mask that the experience leaves, shape (len(MOVES),), see `Experience.narrowed`.

        Args:
            price: As of `tail`.
        """
        load, ratio = as_array(number(self.telemetry.load_ratio)), as_array(self.telemetry.latency_ratio)
        here = Allocations.same(self.current, 1)
        left = self.experience.narrowed(mask[None], here, load, ratio, price * self.price)
        return cast("NDArray[np.bool_]", left[0])


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
        of: Reads the number, or a Missing, from (t) telemetry, (a) the allocation in force and (m) the host's limits; a
            missing one is 0 in the vector, with its validity flag at -1.
        scale: Bends the range: a tail grows by factors, and a small BE share matters as a large one does.
        optional: A sensor that some hosts lack; it gets a validity flag of its own.
    """

    name: str
    unit: str
    low: float
    high: float
    of: Callable[[Telemetry, Allocation, Limits], Reading | float]
    scale: Scale = Scale.LINEAR
    optional: bool = False


def _slack(telemetry: Telemetry, *_: object) -> Reading | float:
    slack = telemetry.slack_ratio
    if slack is not None:
        return slack
    latency = telemetry.latency_seconds
    return latency if isinstance(latency, Missing) else Missing(Why.ABSURD, "no target")


def _latency_ratio(telemetry: Telemetry, *_: object) -> Reading:
    return _quotient(telemetry.latency_seconds, telemetry.target_seconds, "no target")


def _stretch(telemetry: Telemetry, *_: object) -> Reading:
    demand = telemetry.lc_cpu_seconds_per_request
    return demand if isinstance(demand, Missing) else _quotient(telemetry.latency_seconds, demand.value, "no CPU time")


def _quotient(reading: Reading, by: float, lack: str) -> Reading:
    if isinstance(reading, Missing):
        return reading
    return Value(reading.value / by, reading.age_seconds) if by > 0.0 else Missing(Why.ABSURD, lack)


def _share(reading: Reading, of_cpus: float) -> Reading:
    return reading if isinstance(reading, Missing) else Value(reading.value / of_cpus, reading.age_seconds)


# In the order in which the vector has them.
FEATURES: tuple[Feature, ...] = (
    Feature("slack", "share of target", -1.0, 1.0, _slack, optional=True),
    Feature("latency", "target", 1e-3, 10.0, _latency_ratio, Scale.LOG10, optional=True),
    Feature("stretch", "latency by CPU time of a request", 1.0, 1e4, _stretch, Scale.LOG10, optional=True),
    Feature("load", "share of maximum", 0.0, 1.25, lambda t, a, m: t.load_ratio, optional=True),
    Feature("cpi", "cycles per instruction", 0.25, 8.0, lambda t, a, m: t.cpi, Scale.LOG10, optional=True),
    Feature(
        "cpu_per_request",
        "target",
        1e-4,
        1.0,
        lambda t, a, m: _quotient(t.lc_cpu_seconds_per_request, t.target_seconds, "no target"),
        Scale.LOG10,
        optional=True,
    ),
    Feature("lc_cpus", "share of LC CPUs", 0.0, 1.0, lambda t, a, m: _share(t.lc_cpus, m.lc_cpus), optional=True),
    Feature(
        "be_cpus", "share of BE CPUs", 0.0, 1.0, lambda t, a, m: _share(t.be_cpus, m.cpus), Scale.SQRT, optional=True
    ),
    Feature("quota", "share of BE CPUs", 0.0, 1.0, lambda t, a, m: min(a.quota_cpus, m.cpus) / m.cpus, Scale.SQRT),
    Feature("cpuset", "share of BE CPUs", 0.0, 1.0, lambda t, a, m: a.cpuset_cpus / m.cpus, Scale.SQRT),
    Feature("frozen", "0 or 1", 0.0, 1.0, lambda t, a, m: float(a.frozen)),
    Feature("exclusive", "share of BE CPUs", 0.0, 1.0, lambda t, a, m: m.exclusive_cpus / m.cpus),
)
"""The observation table. The vector is, for each tick of `LAGS`, every feature in this order, followed by the validity
flags (+1 valid, -1 missing) of the optional ones, followed by the latency's age in ticks; and after all ticks what is
told of the experience, see `Experience.told`, and the price of a violation, see `told_price`. Every number is relative
to the host: its target, its CPUs, its maximum load, the CPU time of its requests. So one policy fits hosts of any
size."""


class Observer:
    """Turns telemetry into observations, with a short history and all that the host has taught.

    Args:
        tick_seconds: Control period, the unit of ages.
        lags: Ticks back that the vector shows, oldest first; before the first tick there is the first.
        learns: Books every window; else the experience stays empty, for policies that do not go by it.
    """

    def __init__(self, limits: Limits, tick_seconds: float, lags: Sequence[int] = LAGS, *, learns: bool = True) -> None:
        self.limits, self.learns = limits, learns
        self.tick_seconds = tick_seconds
        self.lags = checked_lags(lags)
        self._frames: deque[Frame] = deque(maxlen=self.lags[0] + 1)
        self.experience = Experience(limits)
        self.price = 1.0

    @property
    def size(self) -> int:
        """Length of the vector."""
        return FRAME_SIZE * len(self.lags) + TAIL_SIZE

    @property
    def space(self) -> spaces.Space[NDArray[np.float32]]:
        """Box(-1, 1, (size,), float32)."""
        from gymnasium import spaces  # here only: the daemon needs no Gymnasium

        return cast("spaces.Space[NDArray[np.float32]]", spaces.Box(-1.0, 1.0, (self.size,), np.float32))

    def reset(self) -> None:
        """Forget the history and what was learned: the next tick is the first."""
        self._frames.clear()
        self.experience = Experience(self.limits)

    def observe(self, telemetry: Telemetry, current: Allocation, mask: NDArray[np.bool_] | None = None) -> Observation:
        """Add one tick to the history and return what a policy sees."""
        frame = Frame(telemetry, current, self.limits)
        if not self._frames:
            self._frames.extend([frame] * (self._frames.maxlen or 1))
        self._frames.append(frame)
        shown = tuple(self._frames[-1 - lag] for lag in self.lags)
        if self.learns:
            now, ratio = as_array(telemetry.time_seconds), as_array(telemetry.latency_ratio)
            load, used = as_array(number(telemetry.load_ratio)), as_array(number(telemetry.be_cpus))
            self.experience.see(now, load, ratio, used, Allocations.same(current, 1))
        return Observation(telemetry, current, shown, self.tick_seconds, mask, self.experience, self.price)


def checked_lags(lags: Sequence[int]) -> tuple[int, ...]:
    """Lags as a tuple; ConfigError: they do not descend to 0."""
    if not lags or lags[-1] != 0 or any(older <= newer for older, newer in pairwise(lags)):
        raise ConfigError(f"lags {list(lags)}: give ticks back, oldest first, the last one 0")
    return tuple(lags)


def _frame(telemetry: Telemetry, current: Allocation, limits: Limits, tick_seconds: float) -> NDArray[np.float32]:
    readings = [feature.of(telemetry, current, limits) for feature in FEATURES]
    values = [_scaled(feature, reading) for feature, reading in zip(FEATURES, readings, strict=True)]
    flags = [
        -1.0 if isinstance(reading, Missing) else 1.0
        for feature, reading in zip(FEATURES, readings, strict=True)
        if feature.optional
    ]
    age = min(telemetry.latency_seconds.age_seconds / tick_seconds, 10.0) / 5.0 - 1.0
    return np.array([*values, *flags, age], np.float32)


def _scaled(feature: Feature, reading: Reading | float) -> float:
    if isinstance(reading, Missing):
        return 0.0
    value = reading.value if isinstance(reading, Value) else reading
    if value != value:  # NaN never reaches a network
        return 0.0
    bend = BEND[feature.scale]
    low = bend(feature.low)
    return float(2.0 * (bend(min(max(value, feature.low), feature.high)) - low) / (bend(feature.high) - low) - 1.0)


FRAME_SIZE = len(FEATURES) + sum(feature.optional for feature in FEATURES) + 1
"""Numbers of one tick: the features, a flag for each that may be missing, and the age of the latency."""

BEND: Mapping[Scale, Callable[[Any], Any]] = {
    Scale.LINEAR: lambda value: value,
    Scale.SQRT: np.sqrt,
    Scale.LOG10: np.log10,
}
"""What each scale does to a number or an array."""
