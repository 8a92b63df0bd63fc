"""The two guards beside CPU time: the LC stalled for want of memory, and memory bandwidth near its peak.

Both are optional. A sensor that this host or its configuration never had is no objection (a simulated host has none);
one that was there and is lost lets nothing grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import Missing, Reading, Telemetry, Why
from rlctl.safety.constants import MemoryPressure
from rlctl.safety.guard import Memoryless, elapsed_seconds
from rlctl.safety.trust import NEVER_THERE, Trust
from rlctl.safety.verdict import Bound, Reason

_ABSENT = Missing(Why.NOT_CONFIGURED, "no sensor of this set-up provides it")


class PressureLevel(IntEnum):
    """How far the memory-pressure guard goes."""

    NONE = 0
    """It has no objection."""
    HOLD = 1
    """Nothing may grow."""
    SHRINK = 2
    """BE gets the minimum."""
    SUSPEND = 3
    """BE gets the safe allocation."""


class Stalls(NamedTuple):
    """Memory of the memory-pressure guard.

    Attributes:
        level: How far the guard goes, a `PressureLevel`.
        high_ticks: Ticks in a row above `hold_ratio`, of those with a reading, up to `after_ticks`.
        severe_ticks: Likewise above `suspend_ratio`.
        calm_seconds: Time since the last tick above `hold_ratio`, up to that of the constants.
        stalled_ratio: The last reading that counted; NaN before the first.
        lost: The sensor was there, and has no usable reading now.
    """

    level: int = PressureLevel.HOLD
    high_ticks: int = 0
    severe_ticks: int = 0
    calm_seconds: float = 0.0
    stalled_ratio: float = math.nan
    lost: bool = False
    seen_seconds: float = math.nan


@dataclass(frozen=True, slots=True)
class MemoryPressureGuard:
    """An LC that waits for memory: first nothing grows, then BE shrinks, then it is suspended, until all is calm.

    Less CPU makes BE touch and dirty less memory, and frozen it takes none. What it holds stays with it until the
    kernel reclaims it for the LC; `resources.be_memory_high_bytes` is the better tool for that.
    """

    constants: MemoryPressure
    gap_seconds: float
    trust: Trust
    name: ClassVar[str] = "memory-pressure"

    def start(self) -> Stalls:
        """Nothing grows before the first reading."""
        return Stalls(calm_seconds=self.constants.calm_seconds)

    def advance(self, memory: Stalls, telemetry: Telemetry) -> Stalls:
        """Count the stalls of this tick."""
        now = telemetry.time_seconds
        passed = elapsed_seconds(memory.seen_seconds, now, self.gap_seconds)
        reading = self.reading(telemetry)
        if isinstance(reading, Missing) and reading.why in NEVER_THERE:
            return Stalls(PressureLevel.NONE, seen_seconds=now)
        ratio = _counts(reading, self.constants.hold_ratio, self.trust)
        # A sensor that is lost: what was forbidden stays so, nothing grows, and a row of ticks is not broken.
        if ratio is None:
            return memory._replace(level=max(memory.level, PressureLevel.HOLD), lost=True, seen_seconds=now)
        # Stalled above hold_ratio: HOLD at once, SHRINK after `after_ticks` in a row; above suspend_ratio for as many:
        # SUSPEND. The level falls at once to NONE, and only after calm_seconds below hold_ratio.
        high = min(memory.high_ticks + 1, self.constants.after_ticks) if ratio > self.constants.hold_ratio else 0
        severe = min(memory.severe_ticks + 1, self.constants.after_ticks) if ratio > self.constants.suspend_ratio else 0
        if high:
            level = max(memory.level, self._level(high, severe))
            return Stalls(level, high, severe, 0.0, ratio, seen_seconds=now)
        calm = min(memory.calm_seconds + passed, self.constants.calm_seconds)
        level = PressureLevel.NONE if calm >= self.constants.calm_seconds else memory.level
        return Stalls(level, 0, 0, calm, ratio, seen_seconds=now)

    def bound(self, memory: Stalls, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is in force, the minimum, the safe allocation, or no objection."""
        if memory.level == PressureLevel.NONE:
            return None
        mild: dict[int, Allocation] = {PressureLevel.HOLD: current, PressureLevel.SHRINK: limits.minimum}
        most = mild.get(memory.level, limits.safe)
        stalled = 0.0 if math.isnan(memory.stalled_ratio) else memory.stalled_ratio
        seen = "reading lost" if memory.lost else f"stalled {stalled:.3f} of the time"
        told = (
            f"{seen}, above {self.constants.hold_ratio:g} for {memory.high_ticks} of {self.constants.after_ticks} ticks"
        )
        left = self.constants.calm_seconds - memory.calm_seconds
        return Bound(self.name, Reason.MEMORY_PRESSURE, most, f"{told}, {left:.1f} s of calm to go")

    @staticmethod
    def reading(telemetry: Telemetry) -> Reading:
        """Share of the time in which a task of the LC waits for memory, or one of the host."""
        # PSI "some" of the LC's cgroup2 group, else of the whole host.
        own = telemetry.counters.get("lc_memory_pressure_ratio", _ABSENT)
        if isinstance(own, Missing) and own.why in NEVER_THERE:
            return telemetry.counters.get("host_memory_pressure_ratio", own)
        return own

    def _level(self, high_ticks: int, severe_ticks: int) -> PressureLevel:
        if severe_ticks >= self.constants.after_ticks:
            return PressureLevel.SUSPEND
        return PressureLevel.SHRINK if high_ticks >= self.constants.after_ticks else PressureLevel.HOLD


@dataclass(frozen=True, slots=True)
class MemoryBandwidthGuard(Memoryless):
    """Memory bandwidth above a share of its peak takes from BE what is too much, tick by tick (Heracles, DRAM_LIMIT).

    Attributes:
        limit_ratio: Share of the peak of the busiest socket; 0.90 in Heracles.
    """

    limit_ratio: float
    trust: Trust
    name: ClassVar[str] = "memory-bandwidth"

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
        # TotalBw > DRAM_LIMIT: BE keeps 1 - overage / BeBw of its CPU time, for its bandwidth follows that (Heracles,
        # algorithm 2: be_cores.Remove(overage / BeBwPerCore)). Where BE's part is not known all traffic counts as
        # BE's: that takes less at once, and goes on for as long as needed.
        be = _counts(telemetry.counters.get("be_dram_bandwidth_ratio", _ABSENT), math.inf, self.trust)
        kept = self._share_left(total, total if be is None else be)
        most = current
        if kept < 1.0 and telemetry.rein != Rein.CPU and not current.frozen:
            # Of a link's or a disk's levels only the least holds BE on the CPUs as well.
            kept, most = 0.0, limits.minimum
        elif not current.frozen:
            whole_cpus = min(current.usable_cpus, limits.cpus)
            # Rounding up would allow more than is in force.
            quota_cpus = min(round(whole_cpus * kept, 9), whole_cpus)
            most = current.but(quota_cpus=max(quota_cpus, limits.min_quota_cpus))
        part = "BE's part is not known" if be is None else f"BE's part {be:.3f}"
        detail = f"bandwidth {total:.3f} of the peak, above {self.limit_ratio:g}; {part}: BE keeps {kept:.0%}"
        return Bound(self.name, Reason.MEMORY_BANDWIDTH, most, detail)

    @staticmethod
    def reading(telemetry: Telemetry) -> Reading:
        """Bandwidth of the busiest socket as a share of its peak."""
        return telemetry.counters.get("dram_bandwidth_ratio", _ABSENT)

    def _share_left(self, total_ratio: float, be_ratio: float) -> float:
        """Share of BE's CPU time that leaves the limit; all of it where BE has no part in the traffic."""
        if be_ratio <= 0.0:
            return 1.0
        over = total_ratio - self.limit_ratio
        return max(1.0 - over / be_ratio, 0.0) if math.isfinite(over) else 0.0


def _counts(reading: Reading, bad_above: float, trust: Trust) -> float | None:
    """The reading's number where it is above `bad_above`, however old, or fresh and possible; else None."""
    if isinstance(reading, Missing):
        return None
    sane = math.isfinite(reading.value) and reading.value >= 0.0
    fresh = 0.0 <= reading.age_seconds <= trust.max_age_seconds
    return reading.value if reading.value > bad_above or (sane and fresh) else None
