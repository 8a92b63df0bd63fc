"""The two guards beside CPU time: the LC stalled for want of memory, and memory bandwidth near its peak.

Both are optional, and know three kinds of missing readings as the other guards do: a sensor that this host or its
configuration never had is no objection (a simulated host has none); one that was there and is lost lets nothing grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Missing, Reading, Telemetry, Why
from rlctl.safety.guard import elapsed_seconds
from rlctl.safety.sensors import NEVER_THERE, Trust
from rlctl.safety.verdict import Bound, Reason

__all__ = ["Level", "MemoryBandwidthGuard", "MemoryPressureGuard", "Stalls"]

_ABSENT = Missing(Why.NOT_CONFIGURED, "no sensor of this set-up provides it")


class Level(IntEnum):
    """How far a guard goes."""

    NONE = 0
    HOLD = 1  # nothing grows
    SHRINK = 2  # the minimum
    SUSPEND = 3


@dataclass(frozen=True, slots=True)
class Stalls:
    """Memory of the memory-pressure guard.

    Attributes:
        level: A `Level`.
        high_ticks: Ticks in a row above the ratio that holds, counted up to `MemoryPressureGuard.after_ticks`.
        severe_ticks: Likewise of the ratio that suspends.
        calm_seconds: Time since the last tick above the ratio that holds.
        stalled_ratio: The last reading that counted.
        lost: The sensor that there was tells nothing now.
        seen_seconds: Time of the last telemetry.
    """

    level: int = Level.HOLD
    high_ticks: int = 0
    severe_ticks: int = 0
    calm_seconds: float = 0.0
    stalled_ratio: float | None = None
    lost: bool = False
    seen_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryPressureGuard:
    """An LC that waits for memory: first nothing grows, then BE shrinks, then it is suspended, until all is calm.

    Less CPU makes BE touch and dirty less memory, and frozen it takes none; what it holds stays with it until the
    kernel reclaims it for the LC, for which `resources.be_memory_high_bytes` is the better tool. PSI's "some" of the
    LC's group counts; on an LC without a cgroup2 group the whole host's.

    Attributes:
        hold_ratio: Share of the time with an LC task stalled above which nothing grows; and BE gets the minimum once
            it was so for `after_ticks` in a row.
        suspend_ratio: Above it for as many ticks BE is suspended.
        after_ticks: Ticks in a row.
        calm_seconds: Time below `hold_ratio` after which BE is let go.
        gap_seconds: Most time that counts as passed between two readings.
        trust: When a reading is believed.
    """

    hold_ratio: float
    suspend_ratio: float
    after_ticks: int
    calm_seconds: float
    gap_seconds: float
    trust: Trust
    name: ClassVar[str] = "memory-pressure"

    def start(self) -> Stalls:
        """Nothing grows before the first reading."""
        return Stalls(calm_seconds=self.calm_seconds)

    def advance(self, memory: Stalls, telemetry: Telemetry) -> Stalls:
        """Count the stalls of this tick."""
        now = telemetry.time_seconds
        passed = elapsed_seconds(memory.seen_seconds, now, self.gap_seconds)
        reading = self.reading(telemetry)
        if isinstance(reading, Missing) and reading.why in NEVER_THERE:
            return Stalls(Level.NONE, seen_seconds=now)
        ratio = _counts(reading, self.hold_ratio, self.trust)
        if ratio is None:
            level = max(memory.level, Level.HOLD)
            return Stalls(level, calm_seconds=memory.calm_seconds, lost=True, seen_seconds=now)
        high = min(memory.high_ticks + 1, self.after_ticks) if ratio > self.hold_ratio else 0
        severe = min(memory.severe_ticks + 1, self.after_ticks) if ratio > self.suspend_ratio else 0
        if high:
            level = max(memory.level, self._level(high, severe))
            return Stalls(level, high, severe, 0.0, ratio, seen_seconds=now)
        calm = min(memory.calm_seconds + passed, self.calm_seconds)
        level = Level.NONE if calm >= self.calm_seconds else memory.level
        return Stalls(level, 0, 0, calm, ratio, seen_seconds=now)

    def bound(self, memory: Stalls, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is in force, the minimum, the safe allocation, or no objection."""
        if memory.level == Level.NONE:
            return None
        mild: dict[int, Allocation] = {Level.HOLD: current, Level.SHRINK: limits.minimum}
        most = mild.get(memory.level, limits.safe)
        seen = "reading lost" if memory.lost else f"stalled {memory.stalled_ratio or 0.0:.3f} of the time"
        told = f"{seen}, above {self.hold_ratio:g} for {memory.high_ticks} of {self.after_ticks} ticks"
        left = self.calm_seconds - memory.calm_seconds
        return Bound(self.name, Reason.MEMORY_PRESSURE, most, f"{told}, {left:.1f} s of calm to go")

    @staticmethod
    def reading(telemetry: Telemetry) -> Reading:
        """The LC's own stalls, or the host's where the LC's group has no sensor."""
        own = telemetry.counters.get("lc_memory_pressure_ratio", _ABSENT)
        if isinstance(own, Missing) and own.why in NEVER_THERE:
            return telemetry.counters.get("host_memory_pressure_ratio", own)
        return own

    def _level(self, high_ticks: int, severe_ticks: int) -> Level:
        if severe_ticks >= self.after_ticks:
            return Level.SUSPEND
        return Level.SHRINK if high_ticks >= self.after_ticks else Level.HOLD


@dataclass(frozen=True, slots=True)
class MemoryBandwidthGuard:
    """Memory bandwidth above a share of its peak takes from BE what is too much, tick by tick (Heracles, DRAM_LIMIT).

    BE's bandwidth is taken to follow its CPU time: of a BE that makes up half of the traffic twice the overage is
    taken. Where its part is not known all is taken to be BE's, which takes less at once and goes on as long as needed.

    Attributes:
        limit_ratio: Of the peak of the busiest socket; 0.90 in Heracles.
        trust: When a reading is believed.
    """

    limit_ratio: float
    trust: Trust
    name: ClassVar[str] = "memory-bandwidth"

    def start(self) -> None:
        """It needs no memory."""

    def advance(self, memory: None, telemetry: Telemetry) -> None:
        """It needs no memory."""

    def bound(self, memory: None, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is left of the quota; what is in force when the reading is lost or BE is frozen; or no objection."""
        reading = self.reading(telemetry)
        if isinstance(reading, Missing) and reading.why in NEVER_THERE:
            return None
        total = _counts(reading, self.limit_ratio, self.trust)
        if total is None:
            return Bound(self.name, Reason.MEMORY_BANDWIDTH, current, "reading lost: nothing grows")
        if total <= self.limit_ratio:
            return None
        be = _counts(telemetry.counters.get("be_dram_bandwidth_ratio", _ABSENT), math.inf, self.trust)
        kept = self._kept(total, total if be is None else be)
        most = current
        if not current.frozen:
            quota_cpus = round(min(current.quota_cpus, limits.cpus) * kept, 9)
            most = current.but(quota_cpus=max(quota_cpus, limits.min_quota_cpus))
        part = "BE's part is not known" if be is None else f"BE's part {be:.3f}"
        detail = f"bandwidth {total:.3f} of the peak, above {self.limit_ratio:g}; {part}: BE keeps {kept:.0%}"
        return Bound(self.name, Reason.MEMORY_BANDWIDTH, most, detail)

    @staticmethod
    def reading(telemetry: Telemetry) -> Reading:
        """Bandwidth of the busiest socket as a share of its peak."""
        return telemetry.counters.get("dram_bandwidth_ratio", _ABSENT)

    def _kept(self, total_ratio: float, be_ratio: float) -> float:
        """Share of BE's CPU time that leaves the limit; all of it where BE has no part in the traffic."""
        if be_ratio <= 0.0:
            return 1.0
        over = total_ratio - self.limit_ratio
        return max(1.0 - over / be_ratio, 0.0) if math.isfinite(over) else 0.0


def _counts(reading: Reading, bad_above: float, trust: Trust) -> float | None:
    """Any number that is bad news, or one that is fresh and can be; else None."""
    if isinstance(reading, Missing):
        return None
    sane = math.isfinite(reading.value) and reading.value >= 0.0
    fresh = 0.0 <= reading.age_seconds <= trust.max_age_seconds
    return reading.value if reading.value > bad_above or (sane and fresh) else None
