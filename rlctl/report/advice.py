"""Advice: what BE could have had on a host that was watched, at which QoS, under whom, and what would have gone wrong.

Simulated hosts that explain the log (`rlctl.envs.sim.identify`) live through its load again under each policy and the
shield. What the log does not say they differ in, and the intervals tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlctl.agents import catalogue
from rlctl.agents.batch_policies import batch_policy
from rlctl.agents.batch_runner import BatchPolicyRunner
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.arrays import Array, gaps_filled
from rlctl.envs.sim.identify import identify_hosts
from rlctl.envs.sim.plant import SimHosts, weight_ratios
from rlctl.envs.sim.profile import Constants
from rlctl.envs.workload import Weight
from rlctl.report.advice_log import AdviceData
from rlctl.safety.profile import Profile

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
