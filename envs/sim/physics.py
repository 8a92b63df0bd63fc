"""The physics of any number of simulated hosts in arrays, one control period per step; no loop over hosts.

Within a period the LC's queue is in steady state, plus a fluid backlog that is carried to the next period. Below
capacity the tail latency follows the utilisation; beyond it requests pile up and have to be worked off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.sim import link, queueing
from rlctl.envs.sim.noise import normals, uniforms
from rlctl.envs.sim.profile import Constants
from rlctl.envs.sim.sharing import Contest, Share, lc_wants, share_out

# Beyond this utilisation a window of a second does not reach a steady state; what comes above it is the backlog's.
STEADIEST = 0.97

DRIFT, RATE, ARRIVALS, TAIL, PHASE, CPI = range(6)
UNIFORMS = 6  # first channel of the two uniform numbers: missing, spike
AT_START = 2000  # channels of the state at the start
PAUSES = 3000  # channel of BE's pauses
PACE = 6000  # first channel of what a second of BE's CPU time puts on the link


@dataclass(frozen=True, slots=True)
class HostOrders:
    """What BE may use on each host: arrays of shape (n,).

    Attributes:
        quota_cpus: Quota in CPUs, infinite when lifted.
        cpuset_cpus: Number of CPUs, in the host's order: BE's own ones first, then those shared with the LC.
        weight_ratio: BE's CPU weight by the LC's; 1 is equal.
    """

    quota_cpus: Array
    cpuset_cpus: Array
    frozen: Flags
    weight_ratio: Array


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in the last control period on each host: the truth, before sensors; arrays of shape (n,).

    Attributes:
        tail_latency_seconds: The SLO's quantile of the requests that completed.
        oldest_request_seconds: Age of the oldest outstanding request at the end.
        utilisation_ratio: Of the LC's busiest queues, by what they could get; above 1 a backlog grows.
        lc_cpus, be_cpus, host_cpus: CPUs kept busy.
        be_work_ratio: BE work, as a share of BE running alone; what a shared link does not carry is none.
        contended_ratio: Share of the time in which BE ran on the LC's CPUs.
        missing: The latency and load of this window never reach a sensor.
    """

    tail_latency_seconds: Array
    oldest_request_seconds: Array
    offered_rps: Array
    done_rps: Array
    utilisation_ratio: Array
    lc_cpus: Array
    be_cpus: Array
    host_cpus: Array
    be_work_ratio: Array
    contended_ratio: Array
    cpi: Array
    watts: Array
    missing: Flags

    @property
    def latency_seconds(self) -> Array:
        """The latency that counts, as in `Telemetry`: of the tail and the oldest request the larger one."""
        return np.maximum(self.tail_latency_seconds, self.oldest_request_seconds)


class Hosts:
    """The state of n simulated hosts, and what a control period makes of it.

    Args:
        seeds: One per host, shape (n,), uint64: all chance follows from it.
        tick_seconds: Length of a control period, which is also the window of the tail latency.
    """

    def __init__(self, constants: Constants, seeds: NDArray[np.uint64], tick_seconds: float = 1.0) -> None:
        self.constants = constants
        self.tick_seconds = tick_seconds
        c = constants
        self._quantile = float(c.quantile_ratio[0])  # one for all hosts of a batch (`envs/sim/profile.py`)
        self._keep = tuple(np.exp(-tick_seconds / tau) for tau in (c.drift_seconds, c.rate_seconds, c.phase_seconds))
        self._fresh = tuple(np.sqrt(1.0 - keep * keep) for keep in self._keep)
        self._spike_chance = c.spikes_per_hour * tick_seconds / 3600.0
        nothing = np.zeros(1)
        self._linked = bool(np.isfinite(c.link_bytes_per_second).any())  # saves the others the arithmetic
        self._paced, self._restarts = bool(c.link_be_cv.any()), bool((c.restart_ratio != 1.0).any())
        most_cpus = np.minimum(c.threads, c.own_cpus + c.shared_cpus)
        self._solo_cpus = link.be_cpus_carried(c.link_be_bytes, most_cpus, nothing, c.link_bytes_per_second)
        self.reset(seeds)

    @property
    def count(self) -> int:
        """Number of hosts, n."""
        return len(self.seeds)

    def reset(self, seeds: NDArray[np.uint64]) -> None:
        """Begin anew on every host."""
        self.seeds = np.asarray(seeds, np.uint64)
        self.tick = 0
        self.backlog = queueing.Backlog.none(self.count, self.tick_seconds)
        self._drift, self._rate, self._phase = normals(self.seeds, 0, 4, AT_START)[:3]
        self._was_frozen = np.ones(self.count, bool)
        self._credit_bytes = self.constants.link_credit_bytes
        self._be_pace = np.ones(1)

    @classmethod
    def branch_from(cls, hosts: Hosts) -> Self:
        """A copy of hosts as they stand, to try orders on, while they themselves stay as they are.

        A step changes no array in place, so a `copy.copy` before it keeps the state for the next trial. Orders of shape
        (..., n) try any number of them on each host with the same noise.
        """
        branch = cls.__new__(cls)
        vars(branch).update(vars(hosts))
        return branch

    def step(self, rate_rps: Array, orders: HostOrders) -> Window:
        """Let one control period pass with these arrivals per second, shape (n,), and orders."""
        c = self.constants
        # All chance of the period depends on seed, tick and channel only: managers meet the same noise (`noise`).
        z = normals(self.seeds, self.tick, 6)
        u = uniforms(self.seeds, self.tick, 2, UNIFORMS)
        self._advance(z)
        if self._paced:
            self._be_pace = self._pace(normals(self.seeds, self.tick, 2, PACE)[0])
        offered = self._offered_rps(rate_rps, z[ARRIVALS])
        share, service, inflation = self._shared_out(offered, self._threads(orders.frozen), orders)
        # Utilisation of the LC's busiest queues, by the CPUs that it could get beside this BE.
        rho = offered * service * c.imbalance_ratio / share.lc_capacity_cpus
        # Two parts make the latency: the steady state below capacity, and the wait in the backlog beyond it.
        tail = self._tail(offered, rho, service, share, z[TAIL])
        before = self.backlog.requests
        capacity = self._capacity_rps(share, service)
        self.backlog, waited, oldest = self.backlog.after(self._quantile, offered, capacity)
        # Requests are conserved: what arrived and is not in the backlog was answered.
        done = np.maximum(offered - (self.backlog.requests - before) / self.tick_seconds, 0.0)
        lc_cpus, be_cpus, host_cpus = self._busy(share, rho, service, offered, done)
        # CPI grows with the LC's own use of its caches, and with BE's interference.
        use = np.minimum(lc_cpus / c.lc_cpus, 1.0)
        cpi = c.cpi * (1.0 + c.cpi_load_ratio * use + c.cpi_interference_ratio * inflation)
        be_cpus_carried = self._linked_cpus(done, be_cpus)
        # A sender whose output does not fit the link sleeps in its socket, and burns no CPU meanwhile.
        waited_cpus = c.link_wait_ratio * (be_cpus - be_cpus_carried)
        be_cpus, host_cpus = be_cpus - waited_cpus, host_cpus - waited_cpus
        self._was_frozen = orders.frozen
        self.tick += 1
        return Window(
            tail_latency_seconds=tail + waited + (u[1] < self._spike_chance) * c.spike_seconds,
            oldest_request_seconds=oldest + 0.5 * service,  # a request in service is halfway through it on average
            offered_rps=offered,
            done_rps=done,
            utilisation_ratio=rho,
            lc_cpus=lc_cpus,
            be_cpus=be_cpus,
            host_cpus=host_cpus,
            be_work_ratio=be_cpus_carried * self._be_pace / (1.0 + c.be_inflation * use) / self._solo_cpus,
            contended_ratio=share.contended_ratio,
            cpi=cpi * (1.0 + c.cpi_cv * z[CPI]),
            watts=c.idle_watts + c.watts_per_cpu * host_cpus,
            missing=u[0] < c.missing_ratio,
        )

    def _advance(self, z: Array) -> None:
        """Move the slow noises on: each a first-order autoregression of unit variance with its correlation time."""
        # x' = keep x + sqrt(1 - keep^2) z, keep = exp(-tick / tau): the variance stays 1 at any tick length.
        keep, fresh = self._keep, self._fresh
        self._drift = keep[0] * self._drift + fresh[0] * z[DRIFT]
        self._rate = keep[1] * self._rate + fresh[1] * z[RATE]
        self._phase = keep[2] * self._phase + fresh[2] * z[PHASE]

    def _offered_rps(self, rate_rps: Array, z: Array) -> Array:
        """Arrivals per second in the window: the configured rate with slow noise, and the chance of a finite window.

        The number of arrivals of a renewal process has a variance of its mean times the squared coefficient of
        variation of the gaps (1 for Poisson). For many it is normal (Cox 1962, Renewal Theory, chapter 3).
        """
        mean = rate_rps * np.maximum(1.0 + self.constants.rate_cv * self._rate, 0.0)
        offered: Array = np.maximum(mean + np.sqrt(mean * self.constants.arrival_scv / self.tick_seconds) * z, 0.0)
        return offered

    def _threads(self, frozen: Flags) -> Array:
        """BE threads that run, averaged over the period: none between jobs."""
        c = self.constants
        threads = c.threads
        if c.pause_ratio.any():
            job = np.floor(self.tick * self.tick_seconds / c.pause_seconds)
            threads = threads * (_hash_uniform(self.seeds, job) >= c.pause_ratio)
        return self._running(threads, frozen)

    def _running(self, threads: Array, frozen: Flags) -> Array:
        """Those of BE's threads that run, averaged over the period: few while a freeze takes hold."""
        c = self.constants
        # A freeze takes some milliseconds (docs/measured/simulator.md, 8), in which BE runs on.
        # Of a period that begins frozen nothing lingers.
        lingering = np.where(self._was_frozen, 0.0, np.minimum(c.freeze_seconds / self.tick_seconds, 1.0))
        running: Array = threads * np.where(frozen, lingering, 1.0)
        return running

    def _slowness(self) -> Array:
        """What a request takes in this period by what it takes: by drift, and by an LC that was restarted."""
        c = self.constants
        slowness: Array = np.exp(c.drift_cv * self._drift)
        if self._restarts:
            slowness *= np.where(self.tick * self.tick_seconds >= c.restart_seconds, c.restart_ratio, 1.0)
        return slowness

    def _shared_out(self, offered: Array, threads: Array, orders: HostOrders) -> tuple[Share, Array, Array]:
        """CPU shares, the LC's service time in seconds beside this BE, and its growth by BE's interference."""
        c = self.constants
        # BE's order of CPUs begins with those that the LC never runs on; only what is beyond them is shared.
        own = np.minimum(orders.cpuset_cpus, c.own_cpus)
        shared = np.minimum(orders.cpuset_cpus - own, c.shared_cpus)
        free = np.maximum(own - c.client_cpus - c.client_cpu_seconds * offered, 0.0)
        spread = np.minimum(own + shared, c.threads)
        contest = Contest.between(orders.weight_ratio, c.lc_cpus, spread, free, shared, threads)
        demand = offered + self.backlog.requests / self.tick_seconds
        if self._linked:  # an LC that waits for the link leaves its CPUs to BE
            most_be = np.minimum(orders.quota_cpus, np.minimum(own + shared, threads))
            demand = np.minimum(demand, self._link_rps(most_be))
        alone, wakes = c.service_seconds * self._slowness(), demand * c.wake_seconds
        # BE slows the LC, which then wants more CPUs and leaves BE less: two rounds come within 2 % of the balance on
        # thesis-host. The first is without a quota, so that no quota leaves BE more than a larger one.
        most = contest.most(lc_wants(demand * alone, wakes, c.lc_cpus), contest.fair)
        slowed = alone * (1.0 + self._inflation(most))
        share = share_out(contest, lc_wants(demand * slowed, wakes, c.lc_cpus), orders.quota_cpus)
        inflation = self._inflation(share.be_cpus)
        return share, alone * (1.0 + inflation), inflation

    def _inflation(self, be_cpus: Array) -> Array:
        """Growth of the LC's service time beside so many busy BE CPUs: caches, memory bandwidth, SMT, frequency."""
        c = self.constants
        # Quadratic in busy CPUs: one neighbour leaves bandwidth unused, several fill it (fitted, docs/measured).
        pressure = be_cpus * np.maximum(1.0 + c.phase_sd * self._phase, 0.0)
        inflation: Array = c.inflation_per_cpu * pressure + c.inflation_per_cpu2 * pressure * pressure
        return inflation

    def _tail(self, offered: Array, rho: Array, service: Array, share: Share, z: Array) -> Array:
        """The tail latency in steady state: queue, service, wake-up, and what a competing BE's slices add."""
        c = self.constants
        steady = np.minimum(rho, STEADIEST)
        slowed = service * c.lc_cpus / share.lc_capacity_cpus
        delayed = queueing.delay_probability(c.servers, steady)
        wait = queueing.conditional_wait(c.servers, steady, slowed, c.arrival_scv, c.service_scv)
        # A request that finds its server idle wakes it, which delays it and those that queue behind it. In the M/G/1
        # queue with such a set-up time I (Welch 1964, Operations Research 12, 736-752; Harchol-Balter 2013,
        # Performance Modeling and Design of Computer Systems, section 27.3) the time in the system is that of M/G/1
        # plus a delay of mean (2 E[I] + rate E[I^2]) / (2 (1 + rate E[I])). The service time does not occur in it: a
        # wake-up is paid once, whatever BE's quota makes of the service. For an exponential I, taken here, that mean
        # is E[I] at any rate of arrivals.
        tail = queueing.sojourn_quantile(self._quantile, delayed, wait, slowed + c.wake_seconds, c.service_scv)
        tail = tail + self._slices(steady, share)
        if self._linked:
            lc, be = offered * c.link_lc_bytes, share.be_cpus * self._be_bytes()
            tail = tail + link.queue_seconds(self._quantile, c, lc, be, self._link_rate())
        # A quantile of n samples has a relative error of 1.45 / sqrt(n) for the p95 of an exponential tail
        # (asymptotic variance q (1 - q) / (n f^2) of a sample quantile); 2.1 is its square, for a p99 it would be 4.7.
        cv = np.sqrt(c.tail_cv * c.tail_cv + 2.1 / np.maximum(offered * self.tick_seconds, 1.0))
        noisy: Array = c.base_seconds + tail * np.exp(cv * z - 0.5 * cv * cv)  # lognormal with mean 1
        return noisy

    def _slices(self, rho: Array, share: Share) -> Array:
        """Seconds that waiting for BE's slices adds to the tail latency.

        An empirical law, slice_seconds * often * press * crowd * burst: one time and four factors without unit, whose
        constants are fitted to host_surface.csv (docs/measured/simulator.md, 1 to 3). Slices count only where more
        requests meet BE than the quantile leaves out.
        """
        c = self.constants
        met = share.burst_ratio * np.minimum(c.shared_cpus / c.lc_cpus, 1.0)
        left = 1.0 - self._quantile
        often = np.log(np.maximum(met, left) / left) / np.log(1.0 / left)  # 0 where it is left out, 1 where all meet BE
        press = np.power(2.0 * (1.0 - share.fair), c.slice_weight_exponent)  # 1 at equal weights on one CPU
        crowd = np.power(rho / (1.0 - rho), c.crowd_exponent)  # 1 at half of what the LC can get
        burst = np.power(c.period_seconds / 0.010, c.period_exponent)  # 1 at a quota's period of 10 ms
        # A BE that its quota stopped comes back with the next period as if owed a slice, whatever its weight: so
        # at the least weight a quota costs the LC what no quota does not (docs/measured/simulator.md). Who comes in
        # such a slice waits for what is left of it, uniformly from nothing to all.
        spread = share.be_cpus / np.maximum(c.own_cpus + c.shared_cpus, 1e-9)
        owed = np.minimum(spread, c.slice_seconds / c.period_seconds) * np.minimum(c.shared_cpus / c.lc_cpus, 1.0)
        owed = np.where((share.contended_ratio > 0.0) & (share.contended_ratio < 1.0), owed, 0.0)
        rest = 1.0 - np.minimum(left / np.maximum(owed, left), 1.0)
        added: Array = c.slice_seconds * (often * press * crowd * burst + share.yields * (1.0 - press) * rest)
        return added

    def _capacity_rps(self, share: Share, service: Array) -> Array:
        """Requests per second that the LC can work off, and the link carry."""
        c = self.constants
        capacity = share.lc_capacity_cpus / (service * c.imbalance_ratio)
        return np.minimum(capacity, self._link_rps(share.be_cpus)) if self._linked else capacity

    def _link_rps(self, be_cpus: Array) -> Array:
        """Requests per second that the link carries beside so many busy CPUs of BE."""
        c = self.constants
        room = link.lc_room(c, be_cpus * self._be_bytes(), self._link_rate())
        most: Array = room / np.maximum(c.link_batch_ratio * c.link_lc_bytes, 1e-9)
        return most

    def _be_bytes(self) -> Array:
        """What a second of BE's CPU time puts on the link in this period."""
        sent: Array = self.constants.link_be_bytes * self._be_pace
        return sent

    def _pace(self, z: Array) -> Array:
        """BE's bytes per CPU second by their mean: lognormal, with mean 1."""
        cv = self.constants.link_be_cv
        pace: Array = np.exp(cv * z - 0.5 * cv * cv)
        return pace

    def _link_rate(self) -> Array:
        """Bytes per second that the shared link takes in this period."""
        return link.link_rate(self.constants, self.tick * self.tick_seconds, self.tick_seconds, self._credit_bytes)

    def _linked_cpus(self, done: Array, be_cpus: Array) -> Array:
        """BE's CPUs whose output the shared link lets through beside so many answers; what flows costs credits."""
        if not self._linked:
            return be_cpus
        c, rate, be_bytes = self.constants, self._link_rate(), self._be_bytes()
        carried = link.be_cpus_carried(be_bytes, be_cpus, done * c.link_batch_ratio * c.link_lc_bytes, rate)
        be = carried * be_bytes
        sent = be + np.minimum(done * c.link_lc_bytes, rate - be)
        self._credit_bytes = link.credits_after(c, self._credit_bytes, sent, self.tick_seconds)
        return carried

    def _busy(
        self, share: Share, rho: Array, service: Array, offered: Array, done: Array
    ) -> tuple[Array, Array, Array]:
        """CPUs that the LC, BE and the whole host keep busy."""
        c = self.constants
        # A server is idle, and so has to be woken, with probability 1 - utilisation (Poisson arrivals see time
        # averages); the mean queue is less busy than the busiest by the imbalance.
        idle = np.maximum(1.0 - np.minimum(rho / c.imbalance_ratio, 1.0), 0.0)
        lc_cpus = np.minimum(done * (service + c.wake_seconds * idle), share.lc_capacity_cpus)
        client = np.minimum(c.client_cpus + c.client_cpu_seconds * offered, np.maximum(c.own_cpus, c.client_cpus))
        # BE has no CPU that the LC or the client keeps busy.
        be_cpus = np.minimum(share.be_cpus, c.lc_cpus + np.maximum(c.own_cpus - client, 0.0) - lc_cpus)
        return lc_cpus, be_cpus, lc_cpus + be_cpus + client


def _hash_uniform(seeds: NDArray[np.uint64], number: Array) -> Array:
    """A uniform number per host that depends on its seed and one whole number per host."""
    with np.errstate(over="ignore"):
        mixed = seeds + np.uint64(0x632BE59BD9B4E019) * (number.astype(np.uint64) + np.uint64(1))
    number_of_each: Array = uniforms(mixed, 0, 1, PAUSES)[0]
    return number_of_each
