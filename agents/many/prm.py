"""Hybrid PRM of n hosts at once: `rlctl.agents.managers.prm_hybrid` in arrays; the rules stand there."""

from __future__ import annotations

import numpy as np

from rlctl.agents.batch_runner import BatchAnswer, BatchObservation
from rlctl.agents.managers.manager import HAIR, LONGEST_GAP_SECONDS, early_seconds
from rlctl.agents.managers.prm_hybrid import PrmHybrid
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array, Flags

STARTED, ENABLED, SUSPENDED = range(3)


class BatchEvery:
    """`rlctl.agents.managers.manager.Every` for n hosts on a simulated clock, which never goes back."""

    def __init__(self, period_seconds: float, count: int) -> None:
        self._period = period_seconds
        self._early = early_seconds(period_seconds)
        self._last, self._gaps = np.zeros(count), np.zeros((2, count))
        self._next = np.full(count, np.nan)

    def reset(self, which: Flags) -> None:
        """Start anew on the hosts in `which`."""
        self._next[which] = np.nan

    def rest(self, which: Flags, now_seconds: Array, seconds: float) -> None:
        """Fire next when so many seconds have passed, on the hosts in `which`."""
        self._last[which] = now_seconds[which]
        self._next[which] = now_seconds[which] + seconds

    def due(self, which: Flags, now_seconds: Array) -> Array:
        """How many periods have elapsed since the last call, on the hosts in `which`; 0 on the others."""
        fresh = which & np.isnan(self._next)
        fires = which & ~(now_seconds + self._early < self._next) & ~fresh
        gap = now_seconds - self._last
        stalled = fires & (gap > np.maximum(LONGEST_GAP_SECONDS, 2.0 * self._gaps.min(axis=0)))
        elapsed = np.floor((now_seconds + self._early - self._next) / self._period)
        count = np.where(stalled, 1.0, np.where(fires, 1.0 + elapsed, 0.0))
        self._next = np.where(fires, self._next + count * self._period, self._next)
        self._next = np.where(fresh | stalled, now_seconds + self._period, self._next)
        self._gaps = np.where(which, np.where(fresh, 0.0, np.stack((self._gaps[1], gap))), self._gaps)
        self._last = np.where(which, now_seconds, self._last)
        fired: Array = count + fresh
        return fired


class BatchPrmHybrid:
    """Hybrid PRM on n hosts, each with a state of its own.

    Args:
        manager: Holds the constants; it must not follow the listing as printed.
    """

    def __init__(self, manager: PrmHybrid, limits: VectorLimits) -> None:
        self.shielded, self.masked, self.remarks = manager.shielded, manager.masked, manager.remarks
        self._limits, self._manager = limits, manager
        count = len(limits.each)
        self._top = BatchEvery(manager.poll_seconds / manager.time_scale, count)
        self._sub = BatchEvery(manager.grow_seconds / manager.time_scale, count)
        share = None if manager.host_levels is None else limits.cpus / manager.host_levels
        self._step_cpus = np.full(count, manager.core_cpus) if share is None else share
        self._state = np.zeros(count, np.int8)
        self._growing = np.zeros(count, np.bool_)
        self._quota_cpus = limits.min_quota_cpus.copy()

    def begin(self, which: Flags) -> Allocations:
        """BE begins at the smallest quota (1000 us of each period), running."""
        self._top.reset(which)
        self._sub.reset(which)
        self._state[which] = STARTED
        self._growing[which] = False
        self._quota_cpus[which] = self._limits.min_quota_cpus[which]
        return self._allocations()

    def act(self, seen: BatchObservation) -> BatchAnswer:
        """The top-level controller where a poll is due, then the sub-controller where it is signalled."""
        now, everywhere = seen.readings.time_seconds, np.ones(len(self._state), np.bool_)
        polled = self._top.due(everywhere, now) > 0.0
        if polled.any():
            self._poll(polled, seen)
        steps = self._sub.due(self._growing, now)
        self._quota_cpus = np.minimum(self._quota_cpus + steps * self._step_cpus, self._limits.cpus)
        return BatchAnswer.sound(self._allocations())

    def _poll(self, polled: Flags, seen: BatchObservation) -> None:
        """The poll of `PrmHybrid`, branch by branch."""
        m, r = self._manager, seen.readings
        load, slack = r.load_ratio, (r.target_seconds - r.latency_seconds) / r.target_seconds
        # A poll without readings changes nothing, and nothing grows (ours).
        known = polled & ~r.lost
        # Slack below 0: suspend BE and cool down. Load above its gate: suspend BE (thesis 3.3).
        cool = known & (slack < 0.0)
        suspend = known & ~cool & (load > m.suspend_load_ratio)
        # Load below the lower gate: enable BE; between the gates the state stays.
        enable = known & ~cool & ~suspend & ((self._state == ENABLED) | (load < m.enable_load_ratio))
        # Enabled, with more slack than the hold ratio: signal the sub-controller, which adds a step each 2 s.
        grow = enable & (slack > m.hold_slack_ratio + HAIR)
        if m.resume_level == "minimum":
            resumed = enable & (self._state == SUSPENDED)
            self._quota_cpus = np.where(resumed, self._limits.min_quota_cpus, self._quota_cpus)
        self._state[cool | suspend] = SUSPENDED
        self._state[enable] = ENABLED
        self._top.rest(cool, r.time_seconds, m.cool_down_seconds / m.time_scale)
        self._sub.reset(grow & ~self._growing)
        self._growing = np.where(polled, grow, self._growing)

    def _allocations(self) -> Allocations:
        suspended = self._state == SUSPENDED
        cpuset_cpus = self._limits.full.cpuset_cpus
        if self._manager.suspend == "freeze":
            return Allocations(self._quota_cpus, cpuset_cpus, suspended)
        quota_cpus = np.where(suspended, self._limits.min_quota_cpus, self._quota_cpus)
        return Allocations(quota_cpus, cpuset_cpus, np.zeros_like(suspended))
