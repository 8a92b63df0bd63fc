"""Latency-aware PRM (thesis 3.2 and 4.2): one monitor, one rule on the tail latency."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Every, Manager, slack_of
from rlctl.agents.managers.options import Count, Positive, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight


@dataclass(kw_only=True, eq=False)
class PrmLatency(Manager):
    """Latency at or above the target: BE to the minimum; below it: one level more.

    Args:
        time_scale: Divides the period.
        period_seconds: Period of the QoS-monitor: 20 s, of which 1.5 s pass in measuring (3.2).
        host_levels: Levels that BE's CPUs are divided into (3.2), whatever `Limits.levels` says.
        last_level: Highest level that BE gets (3.2).
    """

    name = "prm-latency"
    weight = Weight.MINIMUM  # cpu.shares 2 against 200000 (4.2)
    needs = ("tail_latency_seconds",)
    time_scale: TimeScale = 1.0
    period_seconds: Positive = 18.5
    host_levels: Count = 50
    last_level: Count = 48

    def begin(self) -> Allocation:
        """BE begins at the smallest quota, 1000 us of 100 ms in the thesis (4.2)."""
        self.level = 0
        self._monitor = Every(self.period_seconds / self.time_scale)
        self._why = "start at the minimum"
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """One poll of the QoS-monitor per elapsed period."""
        polls = self._monitor.due(telemetry.time_seconds)
        if polls:
            self._poll(slack_of(telemetry), polls)
        return self._allocation(), self._why

    def _poll(self, slack: float | None, polls: int) -> None:
        # A poll without a latency changes nothing (ours).
        if slack is None:
            self._why = f"no latency: level {self.level} kept"
        # lat >= target: level 0. Section 3.2 says "above or equal", 4.2 "above"; the former is taken.
        elif slack <= 0.0:
            self.level = 0
            self._why = "latency at or above target: minimum"
        # lat < target: level = min(level + 1, 48); 48 of 50, so that CFS never takes over (3.2).
        else:
            self.level = min(self.level + polls, self.last_level)
            self._why = f"latency below target: level {self.level}"

    def _allocation(self) -> Allocation:
        # quota(level) = level * ncpu / 50, at least 1000 us (4.2).
        quota_cpus = self.level * self.limits.cpus / self.host_levels
        return Allocation(max(quota_cpus, self.limits.min_quota_cpus), self.limits.cpus)
