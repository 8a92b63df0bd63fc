"""The clairvoyant bound: it knows the plant, the trace and the noise, and does the most BE work with no window missed.

A window that BE-frozen itself misses (the yardstick run) does not count.

Why the oracle plans. Noise depends on neither the orders nor the past, so windows are coupled by two things only: the
backlog, and the few milliseconds that a freeze takes. (A link's burst credits are a third, which it does not plan for:
it takes them to be what the LC alone would have left, so there it is no bound.) Taking the most in every window is not
optimal: a backlog of 1 ms costs nothing where it is made, but a next window with a long tail of its own must drain it
within its first 5 % (the p95 of a draining queue), at twenty times the CPU time. Near the knee such greed loses BE work
and windows alike. So the oracle runs a dynamic programme, backwards over a block of ticks. The state is the backlog
above the yardstick's and whether BE was frozen. The value is the BE work still to be had with no window missed that the
yardstick holds. Arrivals do not depend on the orders, so a number of requests is all there is to a backlog; the grid
ends where the target's worth of work waits. A backlog between grid points counts as allowed only if the larger one is,
so the error of the grid costs BE work, never a window. Blocks overlap, and at their end the yardstick must be reached
again. "Frozen with no backlog above the yardstick's" is the yardstick itself, so a plan always exists. What the grids
lose against a finer search is tested (tests/agents/bounds/test_oracle.py).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from rlctl.agents.bounds.bound import NEVER, UpperBound
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.sim.physics import HostOrders, Hosts, Window
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.queueing import REMEMBERED

PLAN_TICKS, OVERLAP_TICKS = 48, 12
"""Ticks planned at a time, and those planned beyond them."""

PLAN_QUOTAS, PLAN_BACKLOGS = 32, 10
"""Grid of the plan."""

RAN, FROZE = 0, 1

ROUNDING = 1e-9
"""Part of the grid's range that is rounding only: arrivals are counted from the start of a run."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """One tick of the yardstick run, in which BE is frozen throughout: before it, and what came of it."""

    before: _Trial
    held: Flags
    backlog_requests: Array


class Oracle(UpperBound):
    """Clairvoyant: tries its choices on copies of the hosts, with the noise that will come."""

    def __init__(self, batch: SimBatch) -> None:
        super().__init__(batch)
        self._alone = _Trial.branch_from(batch.hosts)
        self._begin = self._end = self._now.tick
        parts = np.linspace(0.0, 1.0, PLAN_QUOTAS)[:, None]
        self._quotas = np.maximum(self._most * parts, batch.limits.min_quota_cpus)[:, :, None]
        c = self._now.constants
        # What the LC alone works off within the target: whoever comes behind more than that is late.
        self._most_requests = c.target_seconds * c.lc_cpus / (c.service_seconds * c.imbalance_ratio)
        self._backlogs = np.linspace(0.0, 1.0, PLAN_BACKLOGS)[:, None] ** 2 * self._most_requests

    def _foresee(self) -> None:
        if self._now.tick >= self._end:
            self._plan()

    def _worth(self, quota_cpus: Array) -> Array:
        place = self._now.tick - self._begin
        return self._gain(copy.copy(self._now), self._orders(quota_cpus), self._aheads[place], self._values[place][RAN])

    def _plan(self) -> None:
        """From now on: the yardstick forwards, then the values after each of its ticks backwards."""
        self._begin, self._end = self._now.tick, self._now.tick + PLAN_TICKS
        self._aheads = [self._look() for _ in range(PLAN_TICKS + OVERLAP_TICKS)]
        value = np.full((2, PLAN_BACKLOGS, self._batch.count), NEVER)
        value[FROZE, 0] = 0.0
        values = []
        for ahead in reversed(self._aheads):
            values.append(value)
            value = self._value(ahead, value)
        self._values = values[::-1]
        self._alone = self._aheads[PLAN_TICKS].before

    def _look(self) -> _Ahead:
        before = copy.copy(self._alone)
        window = self._alone.step(self._batch.rate_rps(before.tick), self._still())
        self._alone.remember(before)
        return _Ahead(before, self._within(window), self._alone.waiting_requests)

    def _value(self, ahead: _Ahead, after: Array) -> Array:
        """What a state is worth before a tick, from what it is worth after it; shape (2, backlogs, n)."""
        backlog = ahead.before.waiting_requests + self._backlogs
        orders = HostOrders(self._quotas, self._cpusets[:, :, None], np.zeros(self._quotas.shape, bool), self._weights)
        runs = self._gain(ahead.before.at(backlog, frozen=True), orders, ahead, after[RAN]).max(axis=(0, 1))
        stops, stays = (
            self._gain(ahead.before.at(backlog, frozen=frozen), self._still(), ahead, after[FROZE])
            for frozen in (False, True)
        )
        return np.stack((np.maximum(runs, stops), np.maximum(runs, stays)))

    def _gain(self, trial: Hosts, orders: HostOrders, ahead: _Ahead, after: Array) -> Array:
        """BE work in a tick and after it."""
        window = trial.step(self._batch.rate_rps(trial.tick), orders)
        later = self._later(after, trial.waiting_requests - ahead.backlog_requests)
        allowed = (self._within(window) | ~ahead.held) & (later >= 0.0)
        return np.where(allowed, window.be_work_ratio + later, NEVER)

    def _later(self, after: Array, excess_requests: Array) -> Array:
        """The value between grid points, which are squares; not allowed if the larger backlog is not."""
        ratio = np.maximum(excess_requests / self._most_requests - ROUNDING, 0.0)
        place = np.sqrt(ratio) * (PLAN_BACKLOGS - 1)
        upper = np.minimum(np.ceil(place), PLAN_BACKLOGS - 1).astype(int)
        every = np.arange(self._batch.count)
        worst, best = after[upper, every], after[np.maximum(upper - 1, 0), every]
        return np.where((worst >= 0.0) & (ratio <= 1.0), worst + (upper - place) * (best - worst), NEVER)

    def _still(self) -> HostOrders:
        count = self._batch.count
        least = np.full(count, self._batch.limits.min_quota_cpus)
        return HostOrders(least, self._cpusets[0, 0], np.ones(count, bool), self._weights)

    def _within(self, window: Window) -> Flags:
        return window.latency_seconds <= self._now.constants.target_seconds


class _Trial(Hosts):
    """Hosts on which many backlogs are tried at once, shape (backlogs, n); arrivals do not depend on the orders."""

    def remember(self, before: Hosts) -> None:
        """Keep the arrivals of the past, which the yardstick no longer needs: a larger backlog reaches further back."""
        self.rows["kept"] = np.minimum(before.rows["kept"] + 1, REMEMBERED)

    def at(self, backlog_requests: Array, *, frozen: bool) -> _Trial:
        """A copy with another backlog, in which BE was frozen in the last window or was not."""
        other = copy.copy(self)
        other.spread_over(backlog_requests.shape)
        other.rows["gone"] += other.waiting_requests - backlog_requests
        other.rows["was_frozen"] = frozen
        return other
