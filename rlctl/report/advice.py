"""Advice: what BE could have had on a host that was watched, at which QoS, under whom, and what would have gone wrong.

Simulated hosts that explain the log (`rlctl.envs.sim.identify`) live through its load again under each policy and the
shield. What the log does not say they differ in, and the intervals tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents import catalogue
from rlctl.agents.batch_policies import batch_policy
from rlctl.agents.batch_runner import BatchPolicyRunner
from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import CheckFailed, printable
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.log_lines import Damage
from rlctl.envs.reins import Rein, on_cpus
from rlctl.envs.sim.identify import HostRecord, identify_hosts, spread
from rlctl.envs.sim.plant import SimHosts, weight_ratios
from rlctl.envs.sim.profile import Constants
from rlctl.envs.telemetry import NO_TARGET_SECONDS, TARGET_PROPOSED, Telemetry, number_or_nan, offered_rps
from rlctl.envs.workload import Weight
from rlctl.log.reader import LoggedLoad, LoggedTick, limits_in, profile_in, read_log
from rlctl.log.replay import period_in
from rlctl.safety.profile import Profile

ASSUMED_RPS = 1000.0
"""Maximum load where the log has the load as a share only: what is advised hardly depends on it."""

MOST_TICKS, PIECES = 3600, 24
"""Of a longer log so many ticks are lived through again, in so many pieces: of a day all would take half an hour. Few
pieces meet a load that comes again and again always in the same places."""

SETTLE_TICKS = 30
"""Ticks at the start of a later piece that do not count: its load has jumped there, which the host's never did."""


@dataclass(frozen=True, slots=True)
class AdviceData:
    """A log of one host; arrays of shape (ticks,), NaN where something is not known.

    Attributes:
        acting: Policies that acted, in order.
        shield: The last one in force; None where nothing says.
        max_loads: What the log says of each LC's maximum load, learned as `slo.max_load_rps: auto` does.
        load_ratio: Share of the LC's maximum, as the shield saw it.
        latency_ratio: The latency that counts, by the target; inf where it is known only to be at least so much.
        missed: 1.0 where an LC missed its target or its requests failed, 0.0 where none did.
        workloads: Who LC and BE are; None where the log does not say.
        proposed: The target is one that rlctl proposed, as nobody told one.
        earlier_ticks: Ticks before these, left out because they are of another host, period or target.
    """

    record: HostRecord
    acting: tuple[str, ...]
    shield: Profile | None
    max_loads: tuple[MaxLoad, ...]
    wall_seconds: Array
    load_ratio: Array
    latency_ratio: Array
    missed: Array
    earlier_ticks: int = 0
    workloads: Mapping[str, Any] | None = None
    proposed: bool = False

    @property
    def hours(self) -> float:
        """Length of all ticks together, gaps left out."""
        return len(self.wall_seconds) * self.record.tick_seconds / 3600.0

    @property
    def alone(self) -> Flags:
        """Ticks in which BE had its minimum at most."""
        usable_cpus = np.minimum(self.record.quota_cpus, self.record.cpuset_cpus)
        return self.record.frozen | (usable_cpus <= self.record.limits.least_cpus)

    @property
    def lived(self) -> NDArray[np.intp]:
        """Numbers of the ticks that are lived through again, in order: all, or of a long log MOST_TICKS in pieces."""
        return spread(len(self.load_ratio), MOST_TICKS, PIECES)

    @property
    def counted(self) -> Flags:
        """Which of the ticks `lived` count, in the same shape: all but the first SETTLE_TICKS of each later piece."""
        ticks = self.lived
        counts = np.ones(len(ticks), np.bool_)
        for start in np.flatnonzero(np.diff(ticks) > 1) + 1:
            counts[start : start + SETTLE_TICKS] = False
        return counts


def watched(
    files: Iterable[Path],
    damaged: Callable[[Damage], None],
    *,
    own_cpus: float | None,
    quantile_ratio: float,
) -> AdviceData:
    """Read the ticks under the log's last host and target.

    Args:
        own_cpus: CPUs of BE's on which the LC never runs; None takes what the log says.
        quantile_ratio: The quantile that the target is about, which no log says.

    Raises:
        CheckFailed: No tick says what host it is of.
        ConfigError: Too few of them have load, latency and the LC's CPU time.
    """
    load, shield = LoggedLoad(), None
    header: Mapping[str, Any] = {}
    rows: list[tuple[float, ...]] = []
    offered: list[list[tuple[float, float]]] = []
    acting: list[str] = []
    subject: tuple[Limits, float, Mapping[str, float]] | None = None
    earlier, proposed = 0, False
    for logged in read_log(files, damaged):
        limits, period = limits_in(logged.header), period_in(logged.header)
        targets = logged.tick.telemetry.targets_seconds
        if limits is None or period is None or not min(targets.values()) > 0.0:  # nothing was ever read
            continue
        if max(targets.values()) >= NO_TARGET_SECONDS:  # `target: auto` before its first guess
            continue
        now = (limits, period, targets)
        if now != subject:
            earlier += len(rows)
            load, rows, offered, subject, acting = LoggedLoad(), [], [], now, []
        load.observe(logged)
        header, proposed = logged.header, TARGET_PROPOSED in logged.tick.telemetry.counters
        shield = profile_in(logged.header) or shield
        if (policy := printable(logged.tick.policy)) not in acting:
            acting.append(policy)
        rows.append(_row(logged, limits))
        offered.append(_offered(logged.tick.telemetry))
    if subject is None:
        raise CheckFailed("no tick here says what host it is of, and has a target")
    limits, period, targets = subject
    target_seconds = min(targets.values())
    wall, tail, latency, missed, lc_cpus, be_cpus, quota, cpuset, frozen = np.array(rows, float).T
    each = [_shares(*of_lc) for of_lc in np.array(offered, float).transpose(1, 2, 0)]
    most_rps = each[0][1] if len(each) == 1 else ASSUMED_RPS  # a request of one LC is none of another's
    # Of several it is the load of whichever is nearest its own maximum. `fmax` leaves out what is missing.
    loads = np.fmax.reduce([shares for shares, _ in each])
    record = HostRecord(
        limits=limits,
        tick_seconds=period,
        target_seconds=target_seconds,
        quantile_ratio=quantile_ratio,
        max_load_rps=most_rps,
        own_cpus=float(limits.exclusive_cpus) if own_cpus is None else own_cpus,
        weight=Weight.of(least=limits.least_weight),
        offered_rps=loads * most_rps,
        tail_seconds=np.where(tail > 0.0, tail * target_seconds, np.nan),
        lc_cpus=lc_cpus,
        be_cpus=be_cpus,
        quota_cpus=quota,
        cpuset_cpus=cpuset,
        frozen=frozen > 0.0,
    )
    return AdviceData(
        record, tuple(acting), shield, tuple(load.loads.values()), wall, loads, latency, missed, earlier,
        header.get("workloads"), proposed,
    )  # fmt: skip


def _row(logged: LoggedTick, limits: Limits) -> tuple[float, ...]:
    tick, telemetry = logged.tick, logged.tick.telemetry
    latency, before = telemetry.latency_ratio, on_cpus(tick.before, Rein(telemetry.rein), limits)
    tail = number_or_nan(telemetry.tail_latency_seconds) / telemetry.target_seconds
    lc_cpus, be_cpus = map(number_or_nan, (telemetry.lc_cpus, telemetry.be_cpus))
    cpuset = min(before.cpuset_cpus, limits.cpus)
    if number_or_nan(telemetry.counter("tail_is_lower_limit")) > 0.0:
        latency = math.inf
    latency = latency or math.nan  # who answers nobody has no tail
    missed = math.nan if telemetry.missed is None else float(telemetry.missed)
    allowed = (before.quota_cpus, cpuset, before.frozen)
    return (tick.wall_seconds, tail, latency, missed, lc_cpus, be_cpus, *allowed)


def _offered(telemetry: Telemetry) -> list[tuple[float, float]]:
    """Requests a second and share of the maximum, of each LC."""
    lcs = telemetry.lcs.values()
    return [(number_or_nan(offered_rps(lc.counters)), number_or_nan(lc.load_ratio)) for lc in lcs]


def _shares(rate: Array, ratio: Array) -> tuple[Array, float]:
    """Loads of an LC as shares of one maximum, and that maximum.

    Not as the log has them: where the maximum is learned, its shares are of another one from tick to tick.
    """
    known = np.isfinite(rate) & (ratio > 0.0)
    most_rps = float(np.median(rate[known] / ratio[known])) if known.any() else ASSUMED_RPS
    return np.where(np.isfinite(rate), rate / most_rps, ratio), most_rps


HOSTS = 60
"""Simulated hosts that the advice is from."""

STRETCH_SECONDS, WORST, LEAST_PERCENT = 60.0, 3, 1.0
"""What went wrong is told by stretches of this length at most, so many of them, in which so many windows missed."""

GAP_TICKS = 3.0
"""A stretch ends where the log has nothing for longer than so many ticks."""

DAY_HOURS = 24.0

INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Range:
    """A figure over the hosts that explain a log: the mean, and what 95 % of them lie between."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Array) -> Range:
        """Over hosts, shape (hosts,)."""
        low, high = np.quantile(values, INTERVAL)
        return cls(float(values.mean()), float(low), float(high))

    def times(self, factor: float) -> Range:
        """The same in another unit."""
        return Range(factor * self.mean, factor * self.low, factor * self.high)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which windows would have missed: when it began (Unix time), its length, and their share."""

    begins_seconds: float
    seconds: float
    missed_percent: float
    load_percent: float


@dataclass(frozen=True, slots=True)
class Option:
    """One policy behind one shield.

    Attributes:
        shield: Name of the safety profile.
        qos_percent: Windows that hold the target.
        be_percent: BE's work, as a share of BE alone on this host.
        be_cpus: CPUs that BE keeps busy, in the mean.
        worst: Where it would have missed most, the worst first.
    """

    policy: str
    shield: str
    qos_percent: Range
    be_percent: Range
    be_cpus: Range
    worst: tuple[Stretch, ...]

    @property
    def be_cpu_hours_a_day(self) -> Range:
        """CPU-hours of BE in 24 hours with such loads."""
        return self.be_cpus.times(DAY_HOURS)


@dataclass(frozen=True, slots=True)
class Advice:
    """What there is to say of a host.

    Attributes:
        within_twice_percent: Of the windows compared, those whose tail the hosts that explain the log are within 2x of.
    """

    watched: AdviceData
    within_twice_percent: float
    options: tuple[Option, ...]
    allowed_percent: float

    @property
    def best(self) -> Option | None:
        """The option with the most BE of those that miss no more than `allowed_percent`; None where none does."""
        good = [one for one in self.options if 100.0 - one.qos_percent.mean <= self.allowed_percent]
        return max(good, key=lambda one: one.be_percent.mean, default=None)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A log on which there is no advice, and why, in one line."""

    reason: str


def advise(
    watched: AdviceData,
    policies: Sequence[str],
    shields: Sequence[Profile],
    allowed_percent: float,
    done: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Let the hosts that explain a log live under each policy, behind each shield.

    Args:
        allowed_percent: Windows that may miss the target, by the mean over hosts.
        done: Called with what was done, for progress.

    Raises:
        PolicyError: An unknown policy, or a bundle that cannot be served.
    """
    constants, near = identify_hosts(watched.record, HOSTS, seed=0)
    done("hosts that explain the log")
    options = []
    for shield in shields:
        for name in policies:
            options.append(_lived(watched, constants, name, shield))
            done(f"{name} ({shield.name})")
    return Advice(watched, 100.0 * near, tuple(options), allowed_percent)


class _Again(SimHosts):
    """Hosts with the load of a log."""

    def __init__(self, constants: Constants, load: Array, weight: Weight, tick_seconds: float) -> None:
        seeds = np.arange(len(constants.lc_cpus), dtype=np.uint64)
        super().__init__(constants, seeds, weight_ratios(weight, constants), tick_seconds)
        self._load = load

    def load_ratio(self, tick: int) -> Array:
        """The log's load, the same on all hosts."""
        return np.full(self.count, self._load[tick])


def _lived(watched: AdviceData, constants: Constants, name: str, shield: Profile) -> Option:
    record, ticks, counted = watched.record, watched.lived, watched.counted
    weight = max(catalogue.build(name).weight, Weight.MINIMUM, key=list(Weight).index)
    hosts = _Again(constants, gaps_filled(watched.load_ratio)[ticks], weight, record.tick_seconds)
    limits = VectorLimits([replace(record.limits, least_weight=weight.is_least)] * hosts.count)
    runner = BatchPolicyRunner(batch_policy(name, limits, record.tick_seconds), shield, limits, always=True)
    missed, work, used = np.zeros((len(ticks), hosts.count)), np.zeros(hosts.count), np.zeros(hosts.count)
    current = runner.begin()
    for place, counts in enumerate(counted):
        window, truth = hosts.step(current), hosts.truth()
        missed[place] = truth.missed
        if counts:
            work, used = work + truth.be_work_ratio, used + window.be_cpus
        current = runner.decide(hosts.read(), current, hosts.telemetry).allocations
    missed, count = missed[counted], np.count_nonzero(counted)
    return Option(
        policy=catalogue.label(name),
        shield=shield.name,
        qos_percent=Range.of(100.0 - 100.0 * missed.mean(axis=0)),
        be_percent=Range.of(100.0 * work / count),
        be_cpus=Range.of(used / count),
        worst=_worst(watched, missed.mean(axis=1)),
    )


def _worst(watched: AdviceData, missed: Array) -> tuple[Stretch, ...]:
    """The stretches with the most misses.

    Args:
        missed: Share of hosts that miss, shape (ticks that count,).
    """
    period, ticks = watched.record.tick_seconds, watched.lived[watched.counted]
    load, wall = 100.0 * gaps_filled(watched.load_ratio)[ticks], watched.wall_seconds[ticks]
    broken = (np.diff(ticks) > 1) | (np.diff(wall) > GAP_TICKS * period)
    long = max(round(STRETCH_SECONDS / period), 1)
    stretches = [
        Stretch(
            begins_seconds=float(wall[part[0]]),
            seconds=len(part) * period,
            missed_percent=100.0 * float(missed[part].mean()),
            load_percent=float(load[part].mean()),
        )
        for unbroken in np.split(np.arange(len(ticks)), np.flatnonzero(broken) + 1)
        for part in np.split(unbroken, range(long, len(unbroken), long))
    ]
    ranked = sorted(stretches, key=lambda one: -one.missed_percent * one.seconds)
    return tuple(one for one in ranked if one.missed_percent >= LEAST_PERCENT)[:WORST]


def gaps_filled(values: Array) -> Array:
    """Values in which each NaN is the last number before it, or the first of all; at least one must be known."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    filled: Array = np.where(np.isfinite(values[last]), values[last], values[known][0])
    return filled
