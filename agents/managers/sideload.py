"""Facebook's sideloader (resctl-demo): BE gets what is idle less a headroom, and is frozen while nothing is.

After rd-agent/src/misc/sideloader.py and the configuration that rd-agent writes for it. It reads no latency at all:
the headroom is what protects the LC from wake-up delay and from sharing the insides of a CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rlctl.agents.managers.manager import HAIR, Every, Manager, almost
from rlctl.agents.managers.options import Positive, PositiveShare, Share, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry, number


@dataclass(frozen=True, slots=True)
class Use:
    """One tick: when it was read, and the CPUs that BE used and that were idle since the tick before."""

    time_seconds: float
    be_cpus: float
    idle_cpus: float


class UsageHistory:
    """CPUs that BE used and that were idle, over the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ticks: list[Use] = []

    def add(self, use: Use) -> None:
        """Take in one tick. The first only marks the start; after a clock that was set back there is a first again."""
        if self._ticks and use.time_seconds == self._ticks[-1].time_seconds:
            return
        if self._ticks and use.time_seconds < self._ticks[-1].time_seconds:
            self._ticks.clear()
        self._ticks.append(use)
        while len(self._ticks) > 1 and self._age(self._ticks[1]) >= almost(self._seconds):
            del self._ticks[0]

    def mean(self, seconds: float) -> tuple[float, float]:
        """Means of BE's use and of the idle CPUs, in CPUs; both 0 while there is less history, as in the source.

        Ticks count by their length, up to the period's; for a period shorter than a tick the newest one counts.
        """
        if not self._ticks or self._age(self._ticks[0]) < almost(seconds):
            return 0.0, 0.0
        total = be = idle = 0.0
        for before, tick in pairwise(self._ticks):
            if self._age(tick) < almost(seconds):
                length = min(tick.time_seconds - before.time_seconds, seconds)
                total, be, idle = total + length, be + length * tick.be_cpus, idle + length * tick.idle_cpus
        return be / total, idle / total

    def _age(self, tick: Use) -> float:
        return self._ticks[-1].time_seconds - tick.time_seconds


@dataclass(slots=True)
class Overload:
    """How long BE stays frozen: a hold that grows when overloads repeat, and decays while there is none.

    Attributes:
        step_seconds, most_seconds: What each overload adds to the hold; the longest hold.
        decay_seconds: What each pass of the loop without overload takes off the hold.
        active: True while BE is frozen.
    """

    step_seconds: float
    most_seconds: float
    decay_seconds: float
    hold_seconds: float = 0.0
    active: bool = False
    _last_seconds: float = 0.0

    def update(self, now_seconds: float, overloaded: bool, passes: int) -> None:
        """Take in one judgement of the margin.

        Args:
            now_seconds: On a clock of published seconds: the tick's times the time scale.
            overloaded: BE has to be frozen now.
            passes: How often the published loop would have run since the last call.
        """
        # Hold 10 s from the last overload on, 10 s longer for each one that begins, up to 30 s; without overload the
        # hold shrinks by 0.5 s a second. The source's loop takes a little over a second, so the tenth pass after an
        # overload ends a hold of 10 s; hence `almost`.
        if overloaded:
            if not self.active:
                self.active = True
                self.hold_seconds = min(self.hold_seconds + self.step_seconds, self.most_seconds)
            self._last_seconds = now_seconds
        elif self.active and not 0.0 <= now_seconds - self._last_seconds < almost(self.hold_seconds):
            self.active = False
        if not self.active:
            self.hold_seconds = max(self.hold_seconds - passes * self.decay_seconds, 0.0)


@dataclass(kw_only=True, eq=False)
class Sideload(Manager):
    """Quota = BE's use + idle - headroom, at least a floor; frozen while its 10-s mean is below `min_avail_ratio`.

    Shares are of the machine, which here is BE's CPUs: idle is `limits.cpus` less what is busy, whether or not the LC
    runs on all of them. A tick without a reading decides nothing.

    Args:
        time_scale: Divides all periods.
        interval_seconds: Period of the control loop.
        headroom_ratio: Idle share that BE must leave (rd-agent's command default).
        headroom_seconds: The longer of the two means (cpu_headroom_period).
        min_avail_ratio: Margin below which it is an overload (cpu_min_avail).
        floor_ratio: Least quota while BE runs, as a share (cpu_floor).
        overload_seconds: Time over which the margin's mean is taken (overload_cpu_duration).
        hold_seconds, most_hold_seconds: BE stays frozen so long after an overload, more for each repeat.
        hold_decay_ratio: Seconds of hold lost per second without overload.
        busy: Who takes idle CPUs away: everything on the `host`, as published, or the two `workloads` only, for a
            testbed whose client runs on CPUs beside BE's.
    """

    name = "sideload"
    needs = ("be_cpus", "host_cpus")
    time_scale: TimeScale = 1.0
    interval_seconds: Positive = 1.0
    headroom_ratio: Share = 0.20
    headroom_seconds: Positive = 5.0
    min_avail_ratio: Share = 0.10
    floor_ratio: PositiveShare = 0.05
    overload_seconds: Positive = 10.0
    hold_seconds: Positive = 10.0
    most_hold_seconds: Positive = 30.0
    hold_decay_ratio: Share = 0.5
    busy: Literal["host", "workloads"] = "host"

    def begin(self) -> Allocation:
        """BE begins frozen: no CPU is known to be idle."""
        self._loop = Every(self.interval_seconds / self.time_scale)
        self._history = UsageHistory(max(self.overload_seconds, self.headroom_seconds) / self.time_scale)
        self._overload = Overload(
            step_seconds=self.hold_seconds,
            most_seconds=self.most_hold_seconds,
            decay_seconds=self.hold_decay_ratio * self.interval_seconds,
            hold_seconds=min(self.hold_seconds, self.most_hold_seconds),
            active=True,
        )
        self._quota_cpus = self.floor_ratio * self.limits.cpus
        self._why = "start frozen"
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """One pass per elapsed interval, on the means over the ticks."""
        now_seconds = telemetry.time_seconds
        passes = self._loop.due(now_seconds)
        be_cpus, busy_cpus = number(telemetry.be_cpus), self._busy(telemetry)
        if be_cpus is None or busy_cpus is None or not math.isfinite(now_seconds):
            return self._allocation(), "BE's or the host's CPU use is missing: kept"
        cpus = float(self.limits.cpus)
        self._history.add(Use(now_seconds, min(be_cpus, cpus), max(cpus - busy_cpus, 0.0)))
        if passes:
            self._judge(now_seconds, passes)
        return self._allocation(), self._why

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which parts of the source are left out, and what counts as the machine."""
        return (
            f"the machine is BE's CPUs, busy by {self.busy}; no memory or io pressure triggers (not in telemetry), no "
            f"weights of its own, and nothing is ever killed (the source kills what stays frozen, or in a shortage)",
        )

    def _busy(self, telemetry: Telemetry) -> float | None:
        if self.busy == "host":
            return number(telemetry.host_cpus)
        lc_cpus, be_cpus = number(telemetry.lc_cpus), number(telemetry.be_cpus)
        return None if lc_cpus is None or be_cpus is None else lc_cpus + be_cpus

    def _judge(self, now_seconds: float, passes: int) -> None:
        cpus, headroom_cpus = self.limits.cpus, self.headroom_ratio * self.limits.cpus
        # avail = max(side_1s, side_5s) + min(idle_1s, idle_5s) - headroom, at least the floor, becomes cpu.max. Of the
        # two means the larger use of BE and the smaller idle share count, as in the source.
        newest = self._history.mean(self.interval_seconds / self.time_scale)
        longer = self._history.mean(self.headroom_seconds / self.time_scale)
        avail_cpus = max(newest[0], longer[0]) + min(newest[1], longer[1]) - headroom_cpus
        self._quota_cpus = max(avail_cpus, self.floor_ratio * cpus)
        # overload: the 10-s mean of side + idle - headroom below cpu_min_avail freezes the slice. Without 10 s of
        # history the means are 0, which is an overload.
        margin_ratio = max((sum(self._history.mean(self.overload_seconds / self.time_scale)) - headroom_cpus) / cpus, 0)
        self._overload.update(now_seconds * self.time_scale, margin_ratio < self.min_avail_ratio - HAIR, passes)
        state = f"overload, hold {self._overload.hold_seconds:g} s" if self._overload.active else "running"
        self._why = f"margin {margin_ratio:.0%}, available {avail_cpus:.2f} CPU: {state}"

    def _allocation(self) -> Allocation:
        return Allocation(self._quota_cpus, self.limits.cpus, frozen=self._overload.active)
