"""The practical ceiling of any policy: it knows plant and trace, and the state up to the last window.

It does not plan as `rlctl.agents.bounds.oracle` does: it takes the most that the next window's risk allows, which
leaves next to no backlog.
"""

from __future__ import annotations

import math

import numpy as np

from rlctl.agents.bounds.bound import NEVER, UpperBound
from rlctl.envs.arrays import Array
from rlctl.envs.law import compiled, law
from rlctl.envs.rows import Row, Rows
from rlctl.envs.sim.physics import (
    BLOCK,
    HOST,
    PERIOD,
    HostOrders,
    Hosts,
    Order,
    Shocks,
    advance_noise,
    capacity_rps,
    divide_cpus,
    noisy_tail_seconds,
    offered_rps,
    order_in,
    order_rows,
    pace_of,
    pass_link,
    running_threads,
    share_in,
    slowness_of,
    steady_tail,
)
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.queueing import pass_backlog, waiting_requests

RISK_RATIO = 5e-4
"""Probability of missing a window that BE-frozen holds; half of what 99.9 % of the windows leave."""

SHOCKS = np.arange(-1.5, 4.6, 0.5)
"""Where the next window's utilisation is foreseen, in standard deviations from its expectation."""


class OracleModel(UpperBound):
    """Knows the model: the largest choice whose risk of a miss that BE-frozen would avoid stays below RISK_RATIO.

    The states of drift, rate and phase at the end of the last window count as known, as does the backlog. A perfect
    sensor would read all of them. What is new in the next window is not known, nor are spikes, nor pauses of BE. In a
    window that is lost either way, BE runs only where it leaves no larger backlog.
    """

    def __init__(self, batch: SimBatch) -> None:
        super().__init__(batch)
        density = np.exp(-0.5 * SHOCKS * SHOCKS)
        self._chances = (density / density.sum())[:, None, None, None]

    def _foresee(self) -> None:
        self._model = _Foreseen.branch_from(self._batch.hosts)
        self._rate = self._batch.rate_rps(self._model.tick)
        nothing = self._orders(np.full_like(self._most, self._batch.limits.min_quota_cpus), frozen=True)
        self._lost, self._backlog, _ = self._model.foreseen(self._rate, nothing)

    def _worth(self, quota_cpus: Array) -> Array:
        missed, backlog, work = self._model.foreseen(self._rate, self._orders(quota_cpus))
        blame = missed - self._lost + self._lost * (backlog > self._backlog)
        risk = (self._chances * blame).sum(axis=0)
        return np.where(risk <= RISK_RATIO, (self._chances * work).sum(axis=0), NEVER)


FORESEEN = np.dtype(
    [(name, "f8") for name in ("missed", "backlog_requests", "be_cpus", "median_seconds", "upper_seconds")]
)
"""Of a case: the chance of a tail too long, the backlog after the window, BE's CPUs, and the tail at its noise's median
and one standard deviation above."""


class _Foreseen(Hosts):
    """What the model says of the next window: utilisation in a few cases, and in each the chance of a tail too long."""

    def foreseen(self, rate_rps: Array, orders: HostOrders) -> tuple[Array, Array, Array]:
        """Probability of a missed window, backlog after it, and BE CPUs, by case; shape (len(SHOCKS), ...)."""
        given = order_rows(
            orders, (len(SHOCKS), *np.broadcast_shapes(orders.quota_cpus.shape, orders.cpuset_cpus.shape))
        )
        found = np.empty(given.shape, FORESEEN)
        shocks = np.broadcast_to(SHOCKS.reshape(-1, *(1,) * (given.ndim - 1)), given.shape)
        compiled(foresee_all)(
            self.rows, self.constant_rows, given.reshape(-1), found.reshape(-1), np.empty(BLOCK, HOST),
            np.empty(BLOCK, PERIOD), np.ascontiguousarray(shocks).reshape(-1), rate_rps, self.tick, self.tick_seconds,
        )  # fmt: skip
        return found["missed"], found["backlog_requests"], found["be_cpus"]


@law
def foresee_all(
    hosts: Rows, constants: Rows, orders: Rows, found: Rows, trials: Rows, periods: Rows, shocks: Array,
    rates_rps: Array, tick: int, tick_seconds: float,
) -> None:  # fmt: skip
    """Every case of every host, host after host; `trials` and `periods` hold those of a BLOCK."""
    count = len(constants)
    for first in range(0, len(orders), count):
        for begin in range(0, count, BLOCK):
            own = slice(begin, min(begin + BLOCK, count))
            these = slice(first + own.start, first + own.stop)
            foresee_block(
                hosts[own], constants[own], orders[these], found[these], trials, periods, shocks[these],
                rates_rps[own], tick * tick_seconds, tick_seconds,
            )  # fmt: skip


@law
def foresee_block(
    hosts: Rows, constants: Rows, orders: Rows, found: Rows, trials: Rows, periods: Rows, shocks: Array,
    rates_rps: Array, seconds: float, tick_seconds: float,
) -> None:  # fmt: skip
    """A case of each of a few hosts: the period as `step_block` has it, with its shocks and all of BE's threads.

    Nobody foresees BE's pauses. A case with more utilisation is one in which BE sends more.
    """
    for place in range(len(hosts)):
        trials[place] = hosts[place]
        host, c, order, period = trials[place], constants[place], order_in(orders[place]), periods[place]
        z = likeliest_shocks(c, order, rates_rps[place], shocks[place], tick_seconds)
        advance_noise(host, c, z)
        host["be_pace"] = pace_of(c, shocks[place])
        period["offered_rps"] = offered_rps(host, c, rates_rps[place], z.arrivals, tick_seconds)
        period["slowness"] = slowness_of(host, c, seconds)
        threads = running_threads(host, c, c["threads"], order.frozen, tick_seconds)
        divide_cpus(host, c, order, period, threads, seconds, tick_seconds)
    for place in range(len(hosts)):
        c, period, case = constants[place], periods[place], found[place]
        tail, offered = steady_tail(c, period), period["offered_rps"]
        case["median_seconds"] = noisy_tail_seconds(c, tail, offered, 0.0, tick_seconds) - c["base_seconds"]
        case["upper_seconds"] = noisy_tail_seconds(c, tail, offered, 1.0, tick_seconds) - c["base_seconds"]
    for place in range(len(hosts)):
        judge_case(trials[place], constants[place], periods[place], found[place], tick_seconds)


@law
def judge_case(host: Row, c: Row, period: Row, case: Row, tick_seconds: float) -> None:
    """What comes of a case."""
    share, service, link = share_in(period), period["service_seconds"], period["link_rate"]
    offered, be_bytes = period["offered_rps"], c["link_be_bytes"] * host["be_pace"]
    capacity = capacity_rps(c, share, service, be_bytes, link)
    waited, oldest = pass_backlog(host, c["quantile_ratio"], offered, capacity, tick_seconds)
    # P(tail > room), from the tail at its noise's median and one standard deviation above: it is lognormal.
    room, median = max(c["target_seconds"] - waited - c["base_seconds"], 1e-12), case["median_seconds"]
    late = oldest + 0.5 * service > c["target_seconds"]
    case["missed"] = 1.0 if late else upper_tail(math.log(room / median) / math.log(case["upper_seconds"] / median))
    case["backlog_requests"] = waiting_requests(host)
    linked = link < math.inf
    case["be_cpus"] = pass_link(host, c, offered, share.be_cpus, link, tick_seconds) if linked else share.be_cpus


@law
def likeliest_shocks(c: Row, order: Order, rate_rps: float, shock: float, tick_seconds: float) -> Shocks:
    """The noise of a case: the likeliest combination that moves the utilisation that far."""
    pressure = 0.0 if order.frozen else min(order.quota_cpus, c["threads"])
    steep = c["inflation_per_cpu"] * pressure + 2.0 * c["inflation_per_cpu2"] * pressure * pressure
    drift, rate = c["drift_cv"] * c["fresh_drift"], c["rate_cv"] * c["fresh_rate"]
    arrivals = math.sqrt(c["arrival_scv"] / max(rate_rps * tick_seconds, 1.0))
    phase = steep * c["phase_sd"] * c["fresh_phase"]
    by = shock / max(math.sqrt(drift * drift + rate * rate + arrivals * arrivals + phase * phase), 1e-12)
    return Shocks(drift * by, rate * by, arrivals * by, 0.0, phase * by, 0.0)


@law
def upper_tail(z: float) -> float:
    """P(Z > z) of a standard normal Z, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * series
    return tail if z >= 0.0 else 1.0 - tail
