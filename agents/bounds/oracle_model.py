"""The practical ceiling of any policy: it knows plant and trace, and the state up to the last window.

It does not plan as `rlctl.agents.bounds.oracle` does: it takes the most that the next window's risk allows, which
leaves next to no backlog.
"""

from __future__ import annotations

import copy

import numpy as np

from rlctl.agents.bounds.bound import NEVER, UpperBound
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.sim.physics import ARRIVALS, DRIFT, PHASE, RATE, HostOrders, Hosts
from rlctl.envs.sim.plant import SimBatch

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


class _Foreseen(Hosts):
    """What the model says of the next window: utilisation in a few cases, and in each the chance of a tail too long."""

    def foreseen(self, rate_rps: Array, orders: HostOrders) -> tuple[Array, Array, Array]:
        """Probability of a missed window, backlog after it, and BE CPUs, by case; shape (len(SHOCKS), ...)."""
        c = self.constants
        trial = copy.copy(self)
        z = trial._shocks(rate_rps, orders)
        trial._advance(z)
        trial._be_pace = trial._pace(
            SHOCKS[:, None, None, None]
        )  # a case with more utilisation is one in which BE sends more
        offered = trial._offered_rps(rate_rps, z[ARRIVALS])
        share, service, _ = trial._shared_out(offered, trial._threads(orders.frozen), orders)
        rho = offered * service * c.imbalance_ratio / share.lc_capacity_cpus
        backlog, waited, oldest = self.backlog.after(self._quantile, offered, trial._capacity_rps(share, service))
        tails = (trial._tail(offered, rho, service, share, z) for z in (_ZERO, _ONE))
        missed = self._beyond(c.target_seconds - waited, *tails)
        late = oldest + 0.5 * service > c.target_seconds
        return np.where(late, 1.0, missed), backlog.requests, trial._linked_cpus(offered, share.be_cpus)

    def _beyond(self, room: Array, median: Array, upper: Array) -> Array:
        """P(tail > room), from the tail at its noise's median and one standard deviation above: it is lognormal."""
        base = self.constants.base_seconds
        median, upper, room = median - base, upper - base, np.maximum(room - base, 1e-12)
        return _upper_tail(np.log(room / median) / np.log(upper / median))

    def _shocks(self, rate_rps: Array, orders: HostOrders) -> Array:
        """The noise of each case: the likeliest combination that moves the utilisation that far."""
        c = self.constants
        pressure = np.where(orders.frozen, 0.0, np.minimum(orders.quota_cpus, c.threads))
        steep = c.inflation_per_cpu * pressure + 2.0 * c.inflation_per_cpu2 * pressure * pressure
        moves = np.zeros((6, *pressure.shape))
        moves[DRIFT] = c.drift_cv * self._fresh[0]
        moves[RATE] = c.rate_cv * self._fresh[1]
        moves[ARRIVALS] = np.sqrt(c.arrival_scv / np.maximum(rate_rps * self.tick_seconds, 1.0))
        moves[PHASE] = steep * c.phase_sd * self._fresh[2]
        length = np.sqrt((moves * moves).sum(axis=0))
        return np.asarray((moves / np.maximum(length, 1e-12))[:, None] * SHOCKS[:, None, None, None])

    def _threads(self, frozen: Flags) -> Array:
        """All of BE's, for nobody foresees its pauses."""
        return self._running(self.constants.threads, frozen)


_ZERO, _ONE = np.zeros(1), np.ones(1)


def _upper_tail(z: Array) -> Array:
    """P(Z > z) of a standard normal Z, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * series
    return np.asarray(np.where(z >= 0.0, tail, 1.0 - tail))
