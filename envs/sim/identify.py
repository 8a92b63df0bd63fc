"""Which simulated hosts explain a recorded log: hosts drawn at random, weighed by how near they come to its readings.

A sequential Monte Carlo sampler (Del Moral, Doucet and Jasra 2006, Journal of the Royal Statistical Society B 68,
411-436). Its error is bounded, so that single unexplained windows decide nothing. What a log does not show stays as
wide as it was drawn, such as the effect of a BE that never ran. The hosts that are left differ in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Limits
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.physics import HostOrders, Hosts, Window
from rlctl.envs.sim.plant import weight_ratios
from rlctl.envs.sim.profile import Constants, load_profile
from rlctl.envs.workload import Weight

DRAWN, KEPT = 4000, 1000
"""Hosts that are drawn, and those that go on to be moved."""

FEWEST_RATIO, MOVES = 0.5, 2
"""Share of the hosts that must go on to count when the readings gain weight, and moves of each host at each weight."""

LEAST_STEP = 1e-3
"""Of the weight, so that a record which hosts explain badly takes no longer than a thousand steps."""

MOVE_RATIO = 0.4
"""A move's size by the spread of the hosts. 2.4 by the root of the dimensions accepts a quarter (Gelman, Roberts and
Gilks 1996, Bayesian Statistics 5, 599-607). A record says nothing of some of these dimensions."""

MOST_TICKS, PIECES = 480, 8
"""Of a longer log so many ticks are compared, and in how many pieces these lie."""

TAIL_FACTOR, CPU_SHARE, MOST_ERROR = 0.4, 0.06, 3.0
"""An error of one: of a tail, as the logarithm of a factor, and of CPUs, as a share of all; the largest that counts."""

INDEPENDENT = 20.0
"""Windows that a log is worth at most: those next to each other say the same, and the model errs in all of them."""

FEWEST_TICKS = 60


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What a log says of a host, tick by tick; arrays of shape (ticks,), NaN where something is not known.

    Attributes:
        max_load_rps: The load that counted as 1.0.
        own_cpus: CPUs of BE's on which the LC never runs.
        weight: BE's CPU weight meanwhile.
        tail_seconds, lc_cpus, be_cpus: Readings of the window.
        quota_cpus, cpuset_cpus, frozen: What BE might use in it.
    """

    limits: Limits
    tick_seconds: float
    target_seconds: float
    quantile_ratio: float
    max_load_rps: float
    own_cpus: float
    weight: Weight
    offered_rps: Array
    tail_seconds: Array
    lc_cpus: Array
    be_cpus: Array
    quota_cpus: Array
    cpuset_cpus: Array
    frozen: Flags

    def __post_init__(self) -> None:
        if (usable := len(self._usable)) < FEWEST_TICKS:
            raise ConfigError(
                f"{usable} ticks have load, tail latency and the LC's CPU time; {FEWEST_TICKS} are needed: "
                "let `rlctl serve` log for longer, ten minutes or more"
            )

    @property
    def _usable(self) -> NDArray[np.intp]:
        """Numbers of the ticks that say what the LC did."""
        known = np.isfinite(self.offered_rps) & np.isfinite(self.tail_seconds) & (self.lc_cpus > 0.0)
        return np.flatnonzero(known)

    @property
    def cpu_seconds_per_request(self) -> float:
        """CPU time of a request where BE disturbed it least."""
        known = np.isfinite(self.lc_cpus) & (self.offered_rps > 0.0)
        # Interference only adds to it, so a low quantile is near the LC alone; the very lowest are chance.
        return float(np.quantile(self.lc_cpus[known] / self.offered_rps[known], 0.2))

    @property
    def compared(self) -> NDArray[np.intp]:
        """Numbers of the ticks that hosts are compared on, in order."""
        usable = self._usable
        return usable[spread(len(usable), MOST_TICKS, PIECES)]


def spread(count: int, most: int, pieces: int) -> NDArray[np.intp]:
    """Numbers of at most `most` of `count` ticks, in order: so many pieces of ticks in a row, evenly spread."""
    if count <= most:
        return np.arange(count)
    long = most // pieces
    starts = np.linspace(0, count - long, pieces).astype(int)
    return np.unique(np.concatenate([np.arange(start, start + long) for start in starts]))


def identify_hosts(record: HostRecord, count: int, seed: int = 0) -> tuple[Constants, float]:
    """Hosts that explain a record, and how many windows' tails they come within 2x of.

    Returns:
        Constants of `count` hosts, some perhaps the same; and the share of the windows compared, by the median of these
        hosts, 0 where none of those has a tail.
    """
    chance = np.random.default_rng(seed)
    points = _explaining(record, chance)
    chosen = _constants(record, points[chance.choice(KEPT, count, replace=count > KEPT)])
    seeds = np.arange(count, dtype=np.uint64)
    # The median of the hosts is compared: the chance of a single one does not decide.
    tails = np.array([window.tail_latency_seconds for window in _replay(record, chosen, seeds)])
    seen = record.tail_seconds[record.compared]
    known = np.isfinite(seen)
    near = np.abs(np.log2(np.median(tails, axis=1)[known] / seen[known])) <= 1.0
    return chosen, float(near.mean()) if near.size else 0.0


def _explaining(record: HostRecord, chance: np.random.Generator) -> Array:
    """Points of hosts that explain a record, shape (KEPT, dimensions), each as likely as another."""
    points = chance.random((DRAWN, len(_DIMENSIONS)))
    fits = _fits(record, points)
    weight = 0.0
    while weight < 1.0:
        # The readings gain weight in steps, each such that it decides little, and the hosts move between the steps:
        # of 4000 hosts drawn at random hardly ten come near to a record, and these ten would be the whole answer.
        step = _step(fits, 1.0 - weight)
        weight += step
        kept = _drawn(np.exp(step * (fits - fits.max())), KEPT, chance)
        points, fits = points[kept], fits[kept]
        for _ in range(MOVES):
            sizes = MOVE_RATIO * points.std(axis=0)
            moved = _reflect(points + sizes * chance.normal(size=points.shape))
            there = _fits(record, moved)
            # Metropolis: the way back is as likely as the way there, also at a side of the cube.
            accepted = np.log(chance.random(KEPT)) < weight * (there - fits)
            points, fits = np.where(accepted[:, None], moved, points), np.where(accepted, there, fits)
    return points


def _fits(record: HostRecord, points: Array) -> Array:
    """How well each host explains the record: the logarithm of its likelihood."""
    errors, terms = np.zeros(len(points)), 0
    every = record.limits.cpus + record.limits.lc_cpus
    # All have the same noise: a host that met with good luck would be kept for it.
    seeds = np.zeros(len(points), np.uint64)
    for tick, window in zip(record.compared, _replay(record, _constants(record, points), seeds), strict=True):
        for found, seen, one in (
            (np.log(window.tail_latency_seconds), np.log(record.tail_seconds[tick]), TAIL_FACTOR),
            (window.lc_cpus, record.lc_cpus[tick], CPU_SHARE * every),
            (window.be_cpus, record.be_cpus[tick], CPU_SHARE * every),
        ):
            if np.isfinite(seen):
                errors += np.square(np.fmin(np.abs(found - seen) / one, MOST_ERROR))  # fmin: also of NaN
                terms += 1
    return np.asarray(-0.5 * min(INDEPENDENT, terms / 3.0) * errors / max(terms, 1))


def _step(fits: Array, most: float) -> float:
    """The weight that the readings may gain, `most` at most: as many hosts go on to count as FEWEST_RATIO says."""

    def counting(step: float) -> float:  # the effective sample size (Kong, Liu and Wong 1994)
        weights = np.exp(step * (fits - fits.max()))
        return float(weights.sum() ** 2 / np.square(weights).sum())

    fewest = FEWEST_RATIO * min(len(fits), 2 * KEPT)
    if counting(most) >= fewest:
        return most
    low, high = 0.0, most
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if counting(middle) >= fewest else (low, middle)
    return min(max(low, LEAST_STEP), most)


def _replay(record: HostRecord, constants: Constants, seeds: NDArray[np.uint64]) -> Iterator[Window]:
    """What happens on these hosts with the load and the orders of the record."""
    count = len(constants.lc_cpus)
    hosts = Hosts(constants, seeds, record.tick_seconds)
    weights, rate = weight_ratios(record.weight, constants), 0.0
    for tick in record.compared:
        rate = record.offered_rps[tick] if np.isfinite(record.offered_rps[tick]) else rate
        orders = HostOrders(
            np.full(count, record.quota_cpus[tick]),
            np.full(count, record.cpuset_cpus[tick]),
            np.full(count, record.frozen[tick]),
            weights,
        )
        yield hosts.step(np.full(count, rate), orders)


def _drawn(weights: Array, count: int, chance: np.random.Generator) -> NDArray[np.intp]:
    """Systematic resampling by weights of any sum."""
    places = np.searchsorted(np.cumsum(weights) / weights.sum(), (chance.random() + np.arange(count)) / count)
    return np.minimum(places, len(weights) - 1)


def _reflect(points: Array) -> Array:
    """Into the unit cube, mirrored at its sides."""
    inside = np.abs(points) % 2.0
    return np.where(inside > 1.0, 2.0 - inside, inside)


def _log(low: float, high: float) -> Callable[[Array], Array]:
    return lambda u: low * (high / low) ** u


def _flat(low: float, high: float) -> Callable[[Array], Array]:
    return lambda u: low + (high - low) * u


# What hosts may differ in. Link and memory are in units of what the record shows, so that they fit a host of any size.
_DIMENSIONS: Mapping[str, Callable[[Array], Array]] = {
    "busy": _flat(0.5, 1.05),  # of a request's CPU time: what it is on a busy server; the rest is wake-ups
    "wake": _flat(0.5, 1.5),
    "service_scv": _log(0.1, 3.0),
    "imbalance_ratio": _flat(1.0, 1.4),
    "one_queue": _flat(0.0, 1.0),
    "base": _log(0.02, 0.9),  # of the shortest tails, and of a target that the LC alone can hold
    "threads": _log(0.3, 4.0),  # of BE, by its CPUs
    "inflation": _log(0.003, 0.8),  # of the LC's service time beside BE on all its CPUs
    "be_inflation": _flat(0.0, 0.4),
    "slice_seconds": _log(1e-5, 1e-2),
    "crowd_exponent": _flat(0.0, 2.0),
    "tail_cv": _flat(0.03, 0.3),
    "linked": _flat(0.0, 1.0),
    "link_lc": _flat(0.02, 0.95),  # of the link: what the LC puts on it at its highest load
    "link_be": _log(0.3, 30.0),  # of the link: what BE puts on it with all its CPUs
    "link_lc_ratio": _log(0.003, 1.0),
    "link_wait_ratio": _flat(0.0, 1.0),
    "link_queue": _log(0.005, 2.0),  # seconds of a full queue
    "link_burst": _log(1e-5, 3e-3),  # seconds of what either writes at once
    "link_bucket": _log(1e-5, 3e-2),  # seconds of what passes without delay
    "credited": _flat(0.0, 1.0),
    "link_base": _flat(0.25, 1.0),  # of the rate: what is left when the credits have run out
    "link_credit": _log(3.0, 600.0),  # seconds of the whole rate that the credits are worth
}

ALONE_RATIO = 0.6
"""A target is one that the LC holds without BE: what no load changes of its latency is at most this share of it."""

WITHOUT_LINK = 0.4
"""Share of the drawn hosts on which nothing but CPUs and memory is shared."""

WITHOUT_CREDITS = 0.6
"""Share of the drawn links and disks that keep their rate for as long as it is used."""

BYTES = 1e8
"""A link's rate; any, for all else is relative to it."""


def _constants(record: HostRecord, points: Array) -> Constants:
    """The hosts of points in the unit cube, shape (n, dimensions)."""
    u = {name: bend(points[:, place]) for place, (name, bend) in enumerate(_DIMENSIONS.items())}
    limits, demand = record.limits, record.cpu_seconds_per_request
    plain = load_profile("two-core-nginx").values()
    columns = {name: np.full(len(points), value) for name, value in plain.items()}
    service = demand * u["busy"]
    linked = u["linked"] >= WITHOUT_LINK
    credited = linked & (u["credited"] >= WITHOUT_CREDITS)
    cpus = float(limits.cpus)
    known = record.tail_seconds[np.isfinite(record.tail_seconds)]
    most_rps = float(np.nanmax(record.offered_rps))
    columns |= {
        "lc_cpus": np.full(len(points), limits.lc_cpus),
        "servers": np.where(u["one_queue"] < 0.5, np.maximum(limits.lc_cpus, 1.0), 1.0),
        "service_seconds": service,
        "wake_seconds": np.maximum(demand - service, 0.0) * u["wake"],
        "service_scv": u["service_scv"],
        "imbalance_ratio": u["imbalance_ratio"],
        "base_seconds": u["base"] * min(float(np.quantile(known, 0.05)), ALONE_RATIO * record.target_seconds),
        "target_seconds": np.full(len(points), record.target_seconds),
        "quantile_ratio": np.full(len(points), record.quantile_ratio),
        "max_load_rps": np.full(len(points), record.max_load_rps),
        "threads": cpus * u["threads"],
        "own_cpus": np.full(len(points), record.own_cpus),
        "shared_cpus": np.full(len(points), cpus - record.own_cpus),
        "host_cpus": np.full(len(points), cpus),
        "client_cpus": np.zeros(len(points)),
        "inflation_per_cpu": u["inflation"] / cpus,
        "be_inflation": u["be_inflation"],
        "slice_seconds": u["slice_seconds"],
        "slice_weight_exponent": np.full(len(points), 1.5),
        "crowd_exponent": u["crowd_exponent"],
        "tail_cv": u["tail_cv"],
        "drift_cv": np.zeros(len(points)),
        "link_bytes_per_second": np.where(linked, BYTES, np.inf),
        "link_lc_bytes": np.where(linked, u["link_lc"] * BYTES / most_rps, 0.0),
        "link_be_bytes": np.where(linked, u["link_be"] * BYTES / cpus, 0.0),
        "link_lc_ratio": np.where(linked, u["link_lc_ratio"], 1.0),
        "link_wait_ratio": np.where(linked, u["link_wait_ratio"], 0.0),
        "link_burst_bytes": np.where(linked, u["link_burst"] * BYTES, 1.0),
        "link_bucket_bytes": np.where(linked, u["link_bucket"] * BYTES, 0.0),
        "link_queue_bytes": np.where(linked, u["link_queue"] * BYTES, 1.0),
        "link_base_ratio": np.where(credited, u["link_base"], 1.0),
        "link_credit_bytes": np.where(credited, u["link_credit"] * BYTES, 0.0),
    }
    return Constants(**columns)
