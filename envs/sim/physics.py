"""The physics of simulated hosts, one control period per step: each law a function of one host's numbers.

Within a period the LC's queue is in steady state, plus a fluid backlog that is carried to the next period. Below
capacity the tail latency follows the utilisation; beyond it requests pile up and have to be worked off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.law import compiled, law
from rlctl.envs.reins import CPU
from rlctl.envs.rows import Row, Rows
from rlctl.envs.sim.elementary import exponential, logarithm, power
from rlctl.envs.sim.link import be_cpus_carried, credits_after, lc_room, link_rate, queue_seconds
from rlctl.envs.sim.noise import key_of, key_of_stretch, normal_pair, normals, places, uniform
from rlctl.envs.sim.profile import Constants
from rlctl.envs.sim.queueing import (
    BACKLOG,
    conditional_wait,
    delay_probability,
    empty_backlog,
    pass_backlog,
    sojourn_quantile,
    waiting_requests,
)
from rlctl.envs.sim.reins import HAND, begin_hand, is_least, level_of, note_latency, note_use, on_cpus
from rlctl.envs.sim.sharing import Share, contest_of, lc_wants, most_cpus, share_out

# Beyond this utilisation a window of a second does not reach a steady state; what comes above it is the backlog's.
STEADIEST = 0.97

MOST_RPS = 1e15
"""Requests per second beyond which all loads are alike."""

AT_START = 2000  # channels of the state at the start
PAUSES = 3000  # channel of BE's pauses
PACE = 6000  # first channel of what a second of BE's CPU time puts on the link
CHANNELS = (0, 1, 2, 3, 4, 5, 6, 7, PACE, PACE + 1, PAUSES)
"""Of a period's noise: six for `Shocks`, two uniform numbers (missing, spike), the pace's two, and the pauses'."""

HOST = np.dtype(
    [
        ("seed", "u8"), ("drift", "f8"), ("rate", "f8"), ("phase", "f8"), ("was_frozen", "?"), ("credit_bytes", "f8"),
        ("be_pace", "f8"), *HAND, *BACKLOG,
    ], align=True,
)  # fmt: skip
"""The state of one host: slow noises of unit variance, the link's credits, the rein in hand, and the backlog."""

ORDER = np.dtype([("quota_cpus", "f8"), ("cpuset_cpus", "f8"), ("frozen", "?"), ("weight_ratio", "f8")], align=True)
"""As `HostOrders`, of one host."""

WINDOW = np.dtype(
    [
        ("tail_latency_seconds", "f8"), ("oldest_request_seconds", "f8"), ("offered_rps", "f8"), ("done_rps", "f8"),
        ("utilisation_ratio", "f8"), ("lc_cpus", "f8"), ("be_cpus", "f8"), ("host_cpus", "f8"),
        ("be_work_ratio", "f8"), ("contended_ratio", "f8"), ("cpi", "f8"), ("watts", "f8"), ("missing", "?"),
        ("rein", "f8"), ("be_used_ratio", "f8"), ("others_ratio", "f8"), ("fell_ratio", "f8"),
    ], align=True,
)  # fmt: skip
"""What happened on one host, see `Window`."""


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


class Window:
    """What happened in the last control period on each host: the truth, before sensors; arrays of shape (n,).

    Attributes:
        rows: WINDOW, shape (n,); each of its columns is an attribute.
        tail_latency_seconds: The SLO's quantile of the requests that completed.
        oldest_request_seconds: Age of the oldest outstanding request at the end.
        utilisation_ratio: Of the LC's busiest queues, by what they could get; above 1 a backlog grows.
        lc_cpus, be_cpus, host_cpus: CPUs kept busy.
        be_work_ratio: BE work, as a share of BE running alone; what a shared link does not carry is none.
        contended_ratio: Share of the time in which BE ran on the LC's CPUs.
        missing: The latency and load of this window never reach a sensor.
        rein: What moved BE's level, as in `Readings`; so `be_used_ratio`.
        others_ratio: What all but BE sent on the link, by what that is taken to carry.
        fell_ratio: The share by which it was taken to carry less, after the window before.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __getattr__(self, name: str) -> Any:
        if name not in (WINDOW.names or ()):
            raise AttributeError(f"a window has no {name!r}")
        return self.rows[name]

    @property
    def latency_seconds(self) -> Array:
        """The latency that counts, as in `Telemetry`: of the tail and the oldest request the larger one."""
        return np.maximum(self.tail_latency_seconds, self.oldest_request_seconds)


class Order(NamedTuple):
    """What BE may use on one host, see `HostOrders`."""

    quota_cpus: float
    cpuset_cpus: float
    frozen: bool
    weight_ratio: float


@law
def order_in(row: Row) -> Order:
    """The order in a row of ORDER."""
    return Order(row["quota_cpus"], row["cpuset_cpus"], row["frozen"], row["weight_ratio"])


class Shocks(NamedTuple):
    """The noise that is new in a period, standard normal numbers."""

    drift: float
    rate: float
    arrivals: float
    tail: float
    phase: float
    cpi: float


@law
def shocks_of(key: int, at: NDArray[np.uint64]) -> Shocks:
    """A period's shocks on a host, from its key and the `places` of the period's CHANNELS."""
    drift, tail = normal_pair(uniform(key, int(at[0])), uniform(key, int(at[3])))
    rate, phase = normal_pair(uniform(key, int(at[1])), uniform(key, int(at[4])))
    arrivals, cpi = normal_pair(uniform(key, int(at[2])), uniform(key, int(at[5])))
    return Shocks(drift, rate, arrivals, tail, phase, cpi)


@law
def advance_noise(host: Row, c: Row, z: Shocks) -> None:
    """Move the slow noises on: each a first-order autoregression of unit variance with its correlation time."""
    # x' = keep x + sqrt(1 - keep^2) z, keep = exp(-tick / tau): the variance stays 1 at any tick length.
    host["drift"] = c["keep_drift"] * host["drift"] + c["fresh_drift"] * z.drift
    host["rate"] = c["keep_rate"] * host["rate"] + c["fresh_rate"] * z.rate
    host["phase"] = c["keep_phase"] * host["phase"] + c["fresh_phase"] * z.phase


@law
def offered_rps(host: Row, c: Row, rate_rps: float, z: float, tick_seconds: float) -> float:
    """Arrivals per second in the window: the configured rate with slow noise, and the chance of a finite window.

    The number of arrivals of a renewal process has a variance of its mean times the squared coefficient of
    variation of the gaps (1 for Poisson). For many it is normal (Cox 1962, Renewal Theory, chapter 3).
    """
    # A load that is no number is none, and what no host can be offered is bounded: from there on all numbers are.
    mean = min(max(0.0, rate_rps), MOST_RPS) * max(1.0 + c["rate_cv"] * host["rate"], 0.0)
    return max(mean + math.sqrt(mean * c["arrival_scv"] / tick_seconds) * z, 0.0)


@law
def pace_of(c: Row, z: float) -> float:
    """BE's bytes per CPU second by their mean: lognormal, with mean 1."""
    cv = c["link_be_cv"]
    return exponential(cv * z - 0.5 * cv * cv)


@law
def threads_between_pauses(host: Row, c: Row, at: NDArray[np.uint64], seconds: float) -> float:
    """BE threads that there are so many seconds after the start: none between jobs."""
    if c["pause_ratio"] <= 0.0:
        return c["threads"]
    key = key_of(key_of_stretch(int(host["seed"]), math.floor(seconds / c["pause_seconds"])))
    return c["threads"] if uniform(key, int(at[10])) >= c["pause_ratio"] else 0.0


@law
def running_threads(host: Row, c: Row, threads: float, frozen: bool, tick_seconds: float) -> float:
    """Those of BE's threads that run, averaged over the period: few while a freeze takes hold."""
    # A freeze takes some milliseconds (docs/measured/simulator.md, 8), in which BE runs on.
    # Of a period that begins frozen nothing lingers.
    if not frozen:
        return threads
    return 0.0 if host["was_frozen"] else threads * min(c["freeze_seconds"] / tick_seconds, 1.0)


@law
def inflation_beside(host: Row, c: Row, be_cpus: float) -> float:
    """Growth of the LC's service time beside so many busy BE CPUs: caches, memory bandwidth, SMT, frequency."""
    # Quadratic in busy CPUs: one neighbour leaves bandwidth unused, several fill it (fitted, docs/measured).
    pressure = be_cpus * max(1.0 + c["phase_sd"] * host["phase"], 0.0)
    return c["inflation_per_cpu"] * pressure + c["inflation_per_cpu2"] * pressure * pressure


@law
def slowness_of(host: Row, c: Row, seconds: float) -> float:
    """Growth of the LC's service time by drift, and by a restart of the LC, so many seconds after the start."""
    slowness = exponential(c["drift_cv"] * host["drift"])
    return slowness * c["restart_ratio"] if seconds >= c["restart_seconds"] else slowness


@law
def link_rps(c: Row, be_bytes: float, rate: float) -> float:
    """Requests per second that the link carries beside so many bytes per second of BE."""
    return lc_room(c, be_bytes, rate) / max(c["link_batch_ratio"] * c["link_lc_bytes"], 1e-9)


@law
def share_cpus(
    host: Row, c: Row, order: Order, offered: float, slowness: float, threads: float, link: float, tick_seconds: float
) -> tuple[Share, float, float]:
    """CPU shares, the LC's service time in seconds beside this BE, and its growth by BE's interference.

    Args:
        offered: Arrivals per second.
        slowness: Growth of its service time without BE, from `slowness_of`.
        threads: BE threads that run.
        link: Bytes per second that the shared link takes; infinite where there is none.
    """
    # BE's order of CPUs begins with those that the LC never runs on; only what is beyond them is shared.
    own = min(order.cpuset_cpus, c["own_cpus"])
    shared = min(order.cpuset_cpus - own, c["shared_cpus"])
    free = max(own - c["client_cpus"] - c["client_cpu_seconds"] * offered, 0.0)
    spread = min(own + shared, c["threads"])
    contest = contest_of(order.weight_ratio, c["lc_cpus"], spread, free, shared, threads)
    demand = offered + waiting_requests(host) / tick_seconds
    if link < math.inf:  # an LC that waits for the link leaves its CPUs to BE
        most_be = min(order.quota_cpus, min(own + shared, threads))
        demand = min(demand, link_rps(c, most_be * c["link_be_bytes"] * host["be_pace"], link))
    alone, wakes = c["service_seconds"] * slowness, demand * c["wake_seconds"]
    # BE slows the LC, which then wants more CPUs and leaves BE less: two rounds come within 2 % of the balance on
    # thesis-host. The first is without a quota, so that no quota leaves BE more than a larger one.
    most = most_cpus(contest, lc_wants(demand * alone, wakes, c["lc_cpus"]), contest.fair)
    slowed = alone * (1.0 + inflation_beside(host, c, most))
    share = share_out(contest, lc_wants(demand * slowed, wakes, c["lc_cpus"]), order.quota_cpus)
    inflation = inflation_beside(host, c, share.be_cpus)
    return share, alone * (1.0 + inflation), inflation


@law
def slices_seconds(c: Row, rho: float, share: Share) -> float:
    """Seconds that waiting for BE's slices adds to the tail latency.

    An empirical law, slice_seconds * often * press * crowd * burst: one time and four factors without unit, whose
    constants are fitted to host_surface.csv (docs/measured/simulator.md, 1 to 3). Slices count only where more
    requests meet BE than the quantile leaves out.
    """
    common, left = min(c["shared_cpus"] / c["lc_cpus"], 1.0), 1.0 - c["quantile_ratio"]
    met = share.burst_ratio * common
    often = logarithm(max(met, left) / left) / -logarithm(left)  # 1 where all requests meet BE
    press = power(2.0 * (1.0 - share.fair), c["slice_weight_exponent"])  # 1 at equal weights on one CPU
    crowd = power(rho / (1.0 - rho), c["crowd_exponent"])  # 1 at half of what the LC can get
    burst = c["period_burst"]  # 1 at a quota's period of 10 ms
    # A BE that its quota stopped comes back with the next period as if owed a slice, whatever its weight: so
    # at the least weight a quota costs the LC what no quota does not (docs/measured/simulator.md). Who comes in
    # such a slice waits for what is left of it, uniformly from nothing to all.
    spread = share.be_cpus / max(c["own_cpus"] + c["shared_cpus"], 1e-9)
    comes_back = 0.0 < share.contended_ratio < 1.0
    owed = min(spread, c["slice_seconds"] / c["period_seconds"]) * common if comes_back else 0.0
    rest = 1.0 - min(left / max(owed, left), 1.0)
    slices = c["slice_seconds"] * (often * press * crowd * burst + share.yields * (1.0 - press) * rest)
    return slices if met > left else 0.0


@law
def tail_seconds(c: Row, rho: float, service: float, share: Share, delayed: float, link_seconds: float) -> float:
    """The tail latency in steady state: queue, service, wake-up, link, and what a competing BE's slices add.

    Args:
        delayed: Share of the requests that wait for a server, from `delay_probability`.
        link_seconds: Wait for the link, from `link_wait`.
    """
    steady, q = min(rho, STEADIEST), c["quantile_ratio"]
    slowed = service * c["lc_cpus"] / share.lc_capacity_cpus
    wait = conditional_wait(c["servers"], steady, slowed, c["arrival_scv"], c["service_scv"])
    # A request that finds its server idle wakes it, which delays it and those that queue behind it. In the M/G/1
    # queue with such a set-up time I (Welch 1964, Operations Research 12, 736-752; Harchol-Balter 2013,
    # Performance Modeling and Design of Computer Systems, section 27.3) the time in the system is that of M/G/1
    # plus a delay of mean (2 E[I] + rate E[I^2]) / (2 (1 + rate E[I])). The service time does not occur in it: a
    # wake-up is paid once, whatever BE's quota makes of the service. For an exponential I, taken here, that mean
    # is E[I] at any rate of arrivals.
    tail = sojourn_quantile(q, delayed, wait, slowed + c["wake_seconds"], c["service_scv"])
    return tail + slices_seconds(c, steady, share) + link_seconds


@law
def link_wait(c: Row, offered: float, be_cpus: float, be_bytes: float, link: float) -> float:
    """What the tail waits for a link of this rate; `be_bytes` is what a second of BE's CPU time puts on it."""
    if link == math.inf:
        return 0.0
    return queue_seconds(c["quantile_ratio"], c, offered * c["link_lc_bytes"], be_cpus * be_bytes, link)


@law
def noisy_tail_seconds(c: Row, tail: float, offered: float, z: float, tick_seconds: float) -> float:
    """The tail latency that a window of finitely many requests shows."""
    # A quantile of n samples has a relative error of 1.45 / sqrt(n) for the p95 of an exponential tail
    # (asymptotic variance q (1 - q) / (n f^2) of a sample quantile); 2.1 is its square, for a p99 it would be 4.7.
    cv = math.sqrt(c["tail_cv"] * c["tail_cv"] + 2.1 / max(offered * tick_seconds, 1.0))
    return c["base_seconds"] + tail * exponential(cv * z - 0.5 * cv * cv)


@law
def capacity_rps(c: Row, share: Share, service: float, be_bytes: float, link: float) -> float:
    """Requests per second that the LC can work off, and the link carry."""
    capacity = share.lc_capacity_cpus / (service * c["imbalance_ratio"])
    return min(capacity, link_rps(c, share.be_cpus * be_bytes, link)) if link < math.inf else capacity


@law
def pass_link(host: Row, c: Row, done: float, be_cpus: float, link: float, tick_seconds: float) -> float:
    """BE's CPUs whose output the shared link lets through beside so many answers; what flows costs credits."""
    be_bytes = c["link_be_bytes"] * host["be_pace"]
    carried = be_cpus_carried(be_bytes, be_cpus, done * c["link_batch_ratio"] * c["link_lc_bytes"], link)
    be = carried * be_bytes
    sent = be + min(done * c["link_lc_bytes"], link - be)
    host["credit_bytes"] = credits_after(c, host["credit_bytes"], sent, tick_seconds)
    return carried


PERIOD = np.dtype(
    [
        *((name, "f8") for name in (
            "offered_rps", "slowness", "tail_shock", "cpi_shock", "spike_seconds", *Share._fields, "service_seconds",
            "inflation", "utilisation_ratio", "delayed_ratio", "link_rate", "link_seconds", "tail_seconds", "missing",
        )),
    ]
)  # fmt: skip
"""What the steps of a host's period hand on, from one to the next."""

BLOCK = 64
"""Hosts that pass a step together: their rows stay in the processor's cache."""


@law
def meet_chance(
    host: Row, c: Row, period: Row, at: NDArray[np.uint64], rate_rps: float, seconds: float, tick_seconds: float
) -> None:
    """The period's noise, and what is offered under it."""
    # All chance of the period depends on seed, tick and channel only: managers meet the same noise (`noise`).
    key = key_of(int(host["seed"]))
    z = shocks_of(key, at)
    advance_noise(host, c, z)
    period["offered_rps"] = offered_rps(host, c, rate_rps, z.arrivals, tick_seconds)
    period["slowness"] = slowness_of(host, c, seconds)
    period["tail_shock"], period["cpi_shock"] = z.tail, z.cpi
    period["spike_seconds"] = c["spike_seconds"] if uniform(key, int(at[7])) < c["spike_chance"] else 0.0
    period["missing"] = 1.0 if uniform(key, int(at[6])) < c["missing_ratio"] else 0.0


@law
def meet_be(host: Row, c: Row, frozen: bool, at: NDArray[np.uint64], seconds: float, tick_seconds: float) -> float:
    """BE threads that run in the period; what they put on the link has noise of its own."""
    if c["link_be_cv"] > 0.0:
        key = key_of(int(host["seed"]))
        host["be_pace"] = pace_of(c, normal_pair(uniform(key, int(at[8])), uniform(key, int(at[9])))[0])
    return running_threads(host, c, threads_between_pauses(host, c, at, seconds), frozen, tick_seconds)


@law
def divide_cpus(
    host: Row, c: Row, order: Order, period: Row, threads: float, seconds: float, tick_seconds: float
) -> None:
    """Who gets which CPU, and what it makes of the LC's service."""
    offered, link = period["offered_rps"], math.inf
    if c["link_bytes_per_second"] < math.inf:
        link = link_rate(c, seconds, tick_seconds, host["credit_bytes"])
    be_bytes = c["link_be_bytes"] * host["be_pace"]
    if host["rein"] != CPU:
        lc_bytes = min(offered * c["link_lc_bytes"], link)
        quota, cpuset = on_cpus(host, c, order.quota_cpus, order.cpuset_cpus, be_bytes, lc_bytes)
        order = Order(quota, cpuset, order.frozen, order.weight_ratio)
    share, service, inflation = share_cpus(host, c, order, offered, period["slowness"], threads, link, tick_seconds)
    # Utilisation of the LC's busiest queues, by the CPUs that it could get beside this BE.
    rho = offered * service * c["imbalance_ratio"] / share.lc_capacity_cpus
    period["be_cpus"], period["lc_capacity_cpus"] = share.be_cpus, share.lc_capacity_cpus
    period["contended_ratio"], period["burst_ratio"] = share.contended_ratio, share.burst_ratio
    period["fair"], period["yields"] = share.fair, share.yields
    period["service_seconds"], period["inflation"], period["utilisation_ratio"] = service, inflation, rho
    period["delayed_ratio"] = delay_probability(c["servers"], min(rho, STEADIEST))
    period["link_rate"] = link
    period["link_seconds"] = link_wait(c, offered, share.be_cpus, be_bytes, link)


@law
def share_in(period: Row) -> Share:
    """What came of the allocation in a period."""
    return Share(
        period["be_cpus"], period["lc_capacity_cpus"], period["contended_ratio"], period["burst_ratio"],
        period["fair"], period["yields"],
    )  # fmt: skip


@law
def steady_tail(c: Row, period: Row) -> float:
    """The period's tail latency before the noise of its requests, as `tail_seconds` has it."""
    return tail_seconds(
        c, period["utilisation_ratio"], period["service_seconds"], share_in(period), period["delayed_ratio"],
        period["link_seconds"],
    )  # fmt: skip


@law
def keep_waiting(c: Row, period: Row, tick_seconds: float) -> None:
    """The tail latency of the period, as its requests show it."""
    offered, shock = period["offered_rps"], period["tail_shock"]
    period["tail_seconds"] = noisy_tail_seconds(c, steady_tail(c, period), offered, shock, tick_seconds)


@law
def end_period(host: Row, c: Row, order: Order, period: Row, window: Row, seconds: float, tick_seconds: float) -> None:
    """The backlog, and what the period's window shows."""
    share, offered, link = share_in(period), period["offered_rps"], period["link_rate"]
    service, rho = period["service_seconds"], period["utilisation_ratio"]
    # Two parts make the latency: the steady state below capacity, and the wait in the backlog beyond it.
    be_bytes = c["link_be_bytes"] * host["be_pace"]
    before, capacity = waiting_requests(host), capacity_rps(c, share, service, be_bytes, link)
    waited, oldest = pass_backlog(host, c["quantile_ratio"], offered, capacity, tick_seconds)
    # Requests are conserved: what arrived and is not in the backlog was answered.
    done = max(offered - (waiting_requests(host) - before) / tick_seconds, 0.0)
    # A server is idle, and so has to be woken, with probability 1 - utilisation (Poisson arrivals see time
    # averages); the mean queue is less busy than the busiest by the imbalance.
    idle = max(1.0 - min(rho / c["imbalance_ratio"], 1.0), 0.0)
    lc_cpus = min(done * (service + c["wake_seconds"] * idle), share.lc_capacity_cpus)
    client = min(c["client_cpus"] + c["client_cpu_seconds"] * offered, max(c["own_cpus"], c["client_cpus"]))
    # BE has no CPU that the LC or the client keeps busy.
    be_cpus = min(share.be_cpus, c["lc_cpus"] + max(c["own_cpus"] - client, 0.0) - lc_cpus)
    # CPI grows with the LC's own use of its caches, and with BE's interference.
    use = min(lc_cpus / c["lc_cpus"], 1.0)
    cpi = c["cpi"] * (1.0 + c["cpi_load_ratio"] * use + c["cpi_interference_ratio"] * period["inflation"])
    carried = pass_link(host, c, done, be_cpus, link, tick_seconds) if link < math.inf else be_cpus
    # A sender whose output does not fit the link sleeps in its socket, and burns no CPU meanwhile.
    be_cpus_burned = be_cpus - c["link_wait_ratio"] * (be_cpus - carried)
    host["was_frozen"] = order.frozen
    window["tail_latency_seconds"] = period["tail_seconds"] + waited + period["spike_seconds"]
    window["oldest_request_seconds"] = oldest + 0.5 * service  # who is in service is halfway through it on average
    window["offered_rps"] = offered
    window["done_rps"] = done
    window["utilisation_ratio"] = rho
    window["lc_cpus"] = lc_cpus
    window["be_cpus"] = be_cpus_burned
    window["host_cpus"] = lc_cpus + be_cpus_burned + client
    window["be_work_ratio"] = carried * host["be_pace"] / (1.0 + c["be_inflation"] * use) / c["solo_cpus"]
    window["contended_ratio"] = share.contended_ratio
    window["cpi"] = cpi * (1.0 + c["cpi_cv"] * period["cpi_shock"])
    window["watts"] = c["idle_watts"] + c["watts_per_cpu"] * window["host_cpus"]
    window["missing"] = period["missing"] != 0.0
    window["rein"] = host["rein"]
    window["be_used_ratio"] = window["others_ratio"] = window["fell_ratio"] = 0.0
    # A host with another rein: how far BE used it, and what this window says about what the LC waits for.
    if c["rein"] != CPU:
        sent, quota, cpuset = carried * be_bytes, order.quota_cpus, order.cpuset_cpus
        level = level_of(c, quota, cpuset)
        note_use(host, c, window, level, min(done * c["link_lc_bytes"], link - sent), sent, link, tick_seconds)
        latency = max(window["tail_latency_seconds"], window["oldest_request_seconds"])
        # Only a window beside a BE that ran says anything; under another rein the least level is held on the CPUs.
        if not (order.frozen or (host["rein"] != CPU and is_least(quota, cpuset))):
            # The LC waits for the link where that is more of its tail, or what its backlog waits for.
            behind = period["link_seconds"] > 0.5 * period["tail_seconds"]
            if waited > c["target_seconds"]:
                behind = link_rps(c, share.be_cpus * be_bytes, link) <= capacity
            burned = 0.0 if is_least(quota, cpuset) else be_cpus_burned
            note_latency(host, c, latency / c["target_seconds"], behind, level, burned, sent, seconds)


@law
def step_block(
    hosts: Rows, constants: Rows, orders: Rows, windows: Rows, periods: Rows, at: NDArray[np.uint64], rates_rps: Array,
    tick: int, tick_seconds: float,
) -> None:  # fmt: skip
    """Let one control period pass on a few hosts; what happened is written to their windows.

    Args:
        periods: PERIOD, written to; no fewer than the hosts.
        at: The period's `places`.
        rates_rps: Configured arrivals per second.
        tick: Number of the period, since the start of the run.
    """
    seconds = tick * tick_seconds
    # A loop for each step: those whose laws are plain arithmetic take several hosts in one instruction.
    for place in range(len(hosts)):
        meet_chance(hosts[place], constants[place], periods[place], at, rates_rps[place], seconds, tick_seconds)
    for place in range(len(hosts)):
        host, c, order = hosts[place], constants[place], order_in(orders[place])
        threads = meet_be(host, c, order.frozen, at, seconds, tick_seconds)
        divide_cpus(host, c, order, periods[place], threads, seconds, tick_seconds)
    for place in range(len(hosts)):
        keep_waiting(constants[place], periods[place], tick_seconds)
    for place in range(len(hosts)):
        order = order_in(orders[place])
        end_period(hosts[place], constants[place], order, periods[place], windows[place], seconds, tick_seconds)


@law
def step_hosts(
    hosts: Rows, constants: Rows, orders: Rows, windows: Rows, periods: Rows, at: NDArray[np.uint64], rates_rps: Array,
    tick: int, tick_seconds: float,
) -> None:  # fmt: skip
    """As `step_block`, of all hosts; there may be several states, one host after the other, for the constants."""
    count = len(constants)
    for first in range(0, len(hosts), count):
        for begin in range(0, count, BLOCK):
            # One block after the other: the next step finds its rows still in the cache.
            own, these = (
                slice(begin, min(begin + BLOCK, count)),
                slice(first + begin, first + min(begin + BLOCK, count)),
            )
            step_block(
                hosts[these], constants[own], orders[these], windows[these], periods, at, rates_rps[own], tick,
                tick_seconds,
            )  # fmt: skip


class Hosts:
    """The state of n simulated hosts, and what a control period makes of it.

    Args:
        seeds: One per host, shape (n,), uint64: all chance follows from it.
        tick_seconds: Length of a control period, which is also the window of the tail latency.

    Attributes:
        rows: HOST, shape (n,); after orders of shape (..., n) in that shape.
    """

    def __init__(self, constants: Constants, seeds: NDArray[np.uint64], tick_seconds: float = 1.0) -> None:
        self.constants = constants
        self.tick_seconds = tick_seconds
        self.constant_rows = constant_rows(constants, len(seeds), tick_seconds)
        self._step = compiled(step_hosts)
        self.reset(seeds)

    @property
    def count(self) -> int:
        """Number of hosts, n."""
        return len(self.constant_rows)

    @property
    def seeds(self) -> NDArray[np.uint64]:
        """What each host's noise follows from."""
        seeds: NDArray[np.uint64] = self.rows["seed"]
        return seeds

    @property
    def waiting_requests(self) -> Array:
        """Requests that wait, shape (n,) or (..., n)."""
        newest = np.take_along_axis(self.rows["came"], self.rows["newest"][..., None], -1)[..., 0]
        waiting: Array = newest - self.rows["gone"]
        return waiting

    def reset(self, seeds: NDArray[np.uint64]) -> None:
        """Begin anew on every host."""
        self.tick = 0
        self.rows = np.zeros(len(seeds), HOST)
        self.rows["seed"] = seeds
        # Drift, rate and phase begin anywhere in their range: a run is no start of the host.
        self.rows["drift"], self.rows["rate"], self.rows["phase"] = normals(self.seeds, 0, 4, AT_START)[:3]
        # BE begins frozen, so nothing lingers of a freeze.
        self.rows["was_frozen"], self.rows["be_pace"] = True, 1.0
        self.rows["credit_bytes"] = self.constants.link_credit_bytes
        begin_hand(self.rows, self.constant_rows)
        empty_backlog(self.rows)

    def __copy__(self) -> Self:
        return type(self).branch_from(self)

    @classmethod
    def branch_from(cls, hosts: Hosts) -> Self:
        """A copy of hosts as they stand, to try orders on, while they themselves stay as they are.

        Orders of shape (..., n) try any number of them on each host with the same noise.
        """
        branch = cls.__new__(cls)
        vars(branch).update(vars(hosts))
        branch.rows = hosts.rows.copy()  # a step writes to its rows
        return branch

    def spread_over(self, shape: tuple[int, ...]) -> None:
        """Have a state for each place of an array of this shape, (..., n)."""
        if shape != self.rows.shape:
            self.rows = np.broadcast_to(self.rows, np.broadcast_shapes(self.rows.shape, shape)).copy()

    def step(self, rate_rps: Array, orders: HostOrders) -> Window:
        """Let one control period pass with these arrivals per second, shape (n,), and orders."""
        # Orders that are tried side by side leave each host as many states as there are of them.
        for column in (orders.quota_cpus, orders.cpuset_cpus, orders.frozen, orders.weight_ratio):
            self.spread_over(column.shape)
        given, windows = order_rows(orders, self.rows.shape), np.empty(self.rows.shape, WINDOW)
        self._step(
            self.rows.reshape(-1), self.constant_rows, given.reshape(-1), windows.reshape(-1), np.empty(BLOCK, PERIOD),
            places(self.tick, CHANNELS), np.ascontiguousarray(rate_rps, float), self.tick, self.tick_seconds,
        )  # fmt: skip
        self.tick += 1
        return Window(windows)


def order_rows(orders: HostOrders, shape: tuple[int, ...]) -> Rows:
    """Orders as rows of ORDER, spread over a shape (..., n)."""
    rows = np.empty(shape, ORDER)
    rows["quota_cpus"], rows["cpuset_cpus"] = orders.quota_cpus, orders.cpuset_cpus
    rows["frozen"], rows["weight_ratio"] = orders.frozen, orders.weight_ratio
    return rows


def constant_rows(constants: Constants, count: int, tick_seconds: float) -> Rows:
    """The constants of n hosts as rows, and what follows from them and the length of a period."""
    c = constants
    columns: dict[str, Any] = dict(vars(c))
    # What depends on no state is worked out once, not in every period.
    for name in ("drift", "rate", "phase"):
        keep = np.exp(-tick_seconds / columns[f"{name}_seconds"])
        columns[f"keep_{name}"], columns[f"fresh_{name}"] = keep, np.sqrt(1.0 - keep * keep)
    columns["period_burst"] = (c.period_seconds / 0.010) ** c.period_exponent
    # Spikes come as a Poisson process, and so seldom that two in a period do not matter.
    columns["spike_chance"] = c.spikes_per_hour * tick_seconds / 3600.0
    most = np.minimum(c.threads, c.own_cpus + c.shared_cpus)  # what BE would use alone
    columns["solo_cpus"] = np.minimum(most, c.link_bytes_per_second / np.maximum(c.link_be_bytes, 1e-9))
    rows = np.empty(count, np.dtype([(name, "f8") for name in sorted(columns)]))
    for name, column in columns.items():
        rows[name] = column
    return rows
