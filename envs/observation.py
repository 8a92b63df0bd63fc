"""What a policy sees: the physical readings for managers, and a fixed-range vector for learned policies.

The vector is the FEATURES of each tick of LAGS, oldest first; units and ranges stand in `features`. After all ticks
comes what is told of the experience, see `SafeLevelMemory.features`, and the price of a violation, see `told_price`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import TOLD, SafeLevelMemory, periods_of
from rlctl.envs.features import FRAME_SIZE, write_frame
from rlctl.envs.law import law
from rlctl.envs.reins import CPU, REINS, Rein, is_mended, lc_goes_first, used_cpus
from rlctl.envs.rows import ALLOCATION, LIMIT, row_of
from rlctl.envs.telemetry import FEW_SAMPLES, MAX_LOAD, Quantile, Telemetry, Value, number, number_or_nan

if TYPE_CHECKING:
    from gymnasium import spaces

VERSION = 4
"""Bumped on any change of order, range or meaning of FEATURES or of what stands after the history."""

LAGS = (16, 8, 4, 2, 1, 0)
"""Ticks back, oldest first, whose frames the vector holds: the last few show a trend and the sensors' delay, the older
ones how this host's latency goes with its load."""


MOST_PRICE = 4.0
"""Range of prices that training draws from, 1 / MOST_PRICE to MOST_PRICE."""

OLD_PERIODS = 2.0
"""A latency of so many control periods ago was booked when it was new. One period is what a sensor may be late."""

RATED_APART = 1.25
"""Where the learned maximum load of one of several LCs is so many times what it was, all that is known is forgotten."""

_SENSED = "load_ratio", "cpi", "lc_cpu_seconds_per_request", "lc_cpus", "be_cpus"
_LOG_MOST_PRICE = math.log(MOST_PRICE)
TAIL_SIZE = TOLD + 1
"""Numbers after the history."""


@law
def told_price(price: float) -> float:
    """The price as a policy sees it: on a logarithmic scale, 0 for 1, from -1 to 1 in the range that was trained."""
    return 0.0 if price == 1.0 else math.log(min(max(price, 1.0 / MOST_PRICE), MOST_PRICE)) / _LOG_MOST_PRICE


class Frame:
    """One tick's part of the vector, computed when it is first asked for: managers never ask."""

    __slots__ = ("_made", "_of")

    def __init__(self, telemetry: Telemetry, current: Allocation, limits: Mapping[str, Any]) -> None:
        self._of = telemetry, current, limits
        self._made: list[float] = []

    def values(self, tick_seconds: float) -> list[float]:
        """FRAME_SIZE numbers in [-1, 1]: features, validity flags, the latency's age."""
        if not self._made:
            telemetry, current, limits = self._of
            made = [0.0] * FRAME_SIZE
            write_frame(_reading_of(telemetry, limits), row_of(ALLOCATION, current), limits, tick_seconds, 0, made)
            self._made = made
        return self._made


def _reading_of(telemetry: Telemetry, limits: Mapping[str, Any]) -> dict[str, Any]:
    """What a frame is made of, under the names of READING."""
    latency = telemetry.latency_seconds
    read = {name: number_or_nan(getattr(telemetry, name)) for name in _SENSED}
    if telemetry.rein != Rein.CPU:  # what BE used of its level, which is the CPUs' no more
        read["be_cpus"] = _or_nan(used_cpus(telemetry, limits["cpus"]))
    return read | {
        "target_seconds": telemetry.target_seconds, "tail_latency_seconds": number_or_nan(latency),
        "oldest_request_seconds": math.nan, "age_seconds": latency.age_seconds, "lost": False, "rein": CPU,
    }  # fmt: skip


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
    experience: SafeLevelMemory = field(default_factory=lambda: SafeLevelMemory(Limits(1)))
    price: float = 1.0

    @property
    def vector(self) -> NDArray[np.float32]:
        """float32, shape (Observer.size,), each entry in [-1, 1]."""
        numbers = [number for frame in self.frames for number in frame.values(self.tick_seconds)]
        return np.array(numbers + self.tail(), np.float32)

    def tail(self, price: float = 1.0) -> list[float]:
        """What stands after the history, shape (TAIL_SIZE,): what is told of the experience, and the price.

        Args:
            price: What a violation costs the policy that looks, by what it costs here.
        """
        return [*self.experience.features(*self._load_and_latency()), told_price(price * self.price)]

    def filter_moves(self, mask: NDArray[np.bool_], price: float = 1.0) -> NDArray[np.bool_]:
        """The moves of a mask that the experience leaves, shape (len(MOVES),), see `SafeLevelMemory.filter_moves`.

        Args:
            price: As of `tail`.
        """
        return self.experience.filter_moves(mask, self.current, *self._load_and_latency(), price * self.price)

    def _load_and_latency(self) -> tuple[float, float]:
        return _or_nan(number(self.telemetry.load_ratio)), _or_nan(self.telemetry.latency_ratio)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class Observer:
    """Turns telemetry into observations, with a short history and all that the host has taught.

    Args:
        tick_seconds: Control period, the unit of ages.
        lags: Ticks back that the vector shows, oldest first; before the first tick there is the first.
        learns: Books every window; else the experience stays empty, for policies that do not go by it.
    """

    def __init__(self, limits: Limits, tick_seconds: float, lags: Sequence[int] = LAGS, *, learns: bool = True) -> None:
        self.limits, self.learns = limits, learns
        self._limits = row_of(LIMIT, limits)
        self.tick_seconds = tick_seconds
        self.lags = checked_lags(lags)
        self._frames: deque[Frame] = deque(maxlen=self.lags[0] + 1)
        self._rated: dict[str, float] = {}
        self.price = 1.0
        self.forget()

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
        self.forget()

    def forget(self) -> None:
        """Forget what was learned, on every rein."""
        self._rein: str = Rein.CPU
        self._experiences: dict[str, SafeLevelMemory] = {}
        self._seen_seconds = math.nan

    @property
    def experience(self) -> SafeLevelMemory:
        """What the host has taught on the rein that is in hand."""
        return self.experience_on(self._rein)

    def experience_on(self, rein: str) -> SafeLevelMemory:
        """What the host has taught on a rein: a level of one says nothing of the same level of another."""
        if rein not in self._experiences:
            first = lc_goes_first(REINS.index(Rein(rein)), self.limits.least_weight)
            limits = replace(self.limits, least_weight=first)
            self._experiences[rein] = experience = SafeLevelMemory(limits)
            experience.name += "" if rein == Rein.CPU else f" on the {rein}"
        return self._experiences[rein]

    @property
    def experiences(self) -> tuple[SafeLevelMemory, ...]:
        """What the host has taught on each rein that was in hand."""
        return tuple(self._experiences.values())

    def go_on(self, before: Observer, gap_seconds: float = 0.0) -> None:
        """Go on with what another one has learned of this host, so long ago."""
        self.limits, self._rein, self._experiences = before.limits, before._rein, before._experiences
        for experience in self.experiences:
            if gap_seconds:
                experience.age(gap_seconds)

    def _age_others(self, telemetry: Telemetry) -> None:
        """What is known of reins that are not in hand grows older, also in the file that keeps it."""
        passed_seconds = telemetry.time_seconds - self._seen_seconds
        self._seen_seconds = telemetry.time_seconds
        for rein, other in self._experiences.items():
            if rein != telemetry.rein and passed_seconds > 0.0:
                other.age(passed_seconds)

    def _take_rein(self, rein: str, now_seconds: float) -> None:
        """Go by what is known of another rein."""
        self._rein = rein
        self.experience.expect_backlog(now_seconds)

    def follow_weight(self, *, least: bool) -> None:
        """Go by whether BE's least weight counts now: what held beside another one says nothing."""
        if least != self.limits.least_weight:
            self.limits = replace(self.limits, least_weight=least)
            self._experiences.pop(Rein.CPU, None)

    def observe(
        self, telemetry: Telemetry, current: Allocation, mask: NDArray[np.bool_] | None = None, *, cut: bool = False
    ) -> Observation:
        """Add one tick to the history and return what a policy sees.

        Args:
            current: What was in force in the period before.
            cut: BE was taken down in the midst of it.
        """
        self._age_others(telemetry)
        if telemetry.rein != self._rein:
            self._take_rein(telemetry.rein, telemetry.time_seconds)
        elif is_mended(telemetry):
            self.experience.expect_backlog(telemetry.time_seconds)
        frame = Frame(telemetry, current, self._limits)
        if not self._frames:
            self._frames.extend([frame] * (self._frames.maxlen or 1))
        self._frames.append(frame)
        shown = tuple(self._frames[-1 - lag] for lag in self.lags)
        if self.learns:
            latency, ratio = telemetry.latency_seconds, telemetry.latency_ratio
            if ratio is None and telemetry.missed:
                ratio = math.inf  # requests fail, or another LC than the one that rules misses its target
            tail, window_seconds = telemetry.tail_latency_seconds, self.tick_seconds
            if isinstance(tail, Quantile):
                window_seconds = tail.window_seconds
                if tail.samples < FEW_SAMPLES and (latency is tail or not telemetry.missed):
                    ratio = None
            elif telemetry.idle:
                ratio = None  # nobody knows what a request would have taken beside this BE
            age_seconds = latency.age_seconds if isinstance(latency, Value) and ratio is not None else 0.0
            # That a window held says nothing of what BE had if it was cut in its midst, nor if the source has said so
            # before, which is older: as little as where BE had next to nothing to do.
            old = age_seconds >= OLD_PERIODS * self.tick_seconds
            used = 0.0 if cut or old else used_cpus(telemetry, self.limits.cpus)
            self._rate(telemetry)
            load, ratio, used = map(_or_nan, (number(telemetry.load_ratio), ratio, used))
            periods = periods_of(age_seconds, window_seconds, self.tick_seconds)
            self.experience.observe(telemetry.time_seconds, load, ratio, used, current, periods)
        return Observation(telemetry, current, shown, self.tick_seconds, mask, self.experience, self.price)

    def _rate(self, telemetry: Telemetry) -> None:
        """Have what is known go along with a maximum load that is learned."""
        if not telemetry.ruling:
            if isinstance(most := telemetry.counters.get(MAX_LOAD), Value):
                self.experience.rescale_load(most.value)
            return
        # Of several LCs the load is that of whichever is nearest its own maximum: shares of others cannot go along.
        for name, lc in telemetry.lcs.items():
            if isinstance(most := lc.counters.get(MAX_LOAD), Value):
                known = self._rated.setdefault(name, most.value)
                if not 1.0 / RATED_APART < most.value / known < RATED_APART:
                    self._rated[name] = most.value
                    for experience in self.experiences:
                        experience.forget(np.array([True]))


def checked_lags(lags: Sequence[int]) -> tuple[int, ...]:
    """Lags as a tuple; ConfigError: they do not descend to 0."""
    if not lags or lags[-1] != 0 or any(older <= newer for older, newer in pairwise(lags)):
        raise ConfigError(f"lags {list(lags)}: give ticks back, oldest first, the last one 0")
    return tuple(lags)
