"""Advice: what BE could have had on a host that was watched, at which QoS, under whom, and what would have gone wrong.

Simulated hosts that explain the log (`rlctl.envs.sim.identify`) live through its load again under each policy and the
shield. What the log does not say they differ in, and the intervals tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.advice.watched import Watched
from rlctl.agents import catalogue
from rlctl.agents.many.batch import batch_policy
from rlctl.agents.seats import Seats
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.arrays import Array, gaps_filled
from rlctl.envs.sim.identify import identified, spread
from rlctl.envs.sim.plant import SimHosts, weight_ratios
from rlctl.envs.sim.profile import Constants
from rlctl.envs.workload import Weight
from rlctl.safety.profile import Profile

HOSTS = 60
"""Simulated hosts that the advice is from."""

MOST_TICKS = 3600
"""Of a longer log so many ticks are lived through."""

STRETCH_SECONDS, WORST, LEAST_PERCENT = 60.0, 3, 1.0
"""What went wrong is told by stretches of this length, so many of them, in which so many windows missed."""

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


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which windows would have missed: when it began (Unix time), and their share."""

    begins_seconds: float
    missed_percent: float
    load_percent: float


@dataclass(frozen=True, slots=True)
class Option:
    """One policy under the shield.

    Attributes:
        qos_percent: Windows that hold the target.
        be_percent: BE's work, as a share of BE alone on this host.
        be_cpus: CPUs that BE keeps busy: its CPU-hours by the hour.
        worst: Where it would have missed most, the worst first.
    """

    policy: str
    qos_percent: Range
    be_percent: Range
    be_cpus: Range
    worst: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """What there is to say of a host.

    Attributes:
        within_twice_percent: Windows whose tail the hosts that explain the log come within 2x of.
        shield: Name of the shield that was reckoned with.
    """

    watched: Watched
    within_twice_percent: float
    shield: str
    options: tuple[Option, ...]
    allowed_percent: float

    @property
    def best(self) -> Option | None:
        """The policy with the most BE of those that miss no more than `allowed_percent`; None where nobody does."""
        good = [one for one in self.options if 100.0 - one.qos_percent.mean <= self.allowed_percent]
        return max(good, key=lambda one: one.be_percent.mean, default=None)


def advise(
    watched: Watched,
    policies: Sequence[str],
    shield: Profile,
    allowed_percent: float,
    done: Callable[[str], None] = lambda _: None,
    seed: int = 0,
) -> Advice:
    """Let the hosts that explain a log live under each policy.

    Args:
        allowed_percent: Windows that may miss the target, by the mean over hosts.
        done: Called with what was done, for progress.

    Raises:
        PolicyError: An unknown policy, or a bundle that cannot be served.
    """
    constants, near = identified(watched.record, HOSTS, seed)
    done("hosts that explain the log")
    options = []
    for name in policies:
        options.append(_lived(watched, constants, name, shield))
        done(name)
    return Advice(watched, 100.0 * near, shield.name, tuple(options), allowed_percent)


class _Again(SimHosts):
    """Hosts with the load of a log."""

    def __init__(self, constants: Constants, load: Array, weight: Weight, tick_seconds: float) -> None:
        seeds = np.arange(len(constants.lc_cpus), dtype=np.uint64)
        super().__init__(constants, seeds, weight_ratios(weight, constants), tick_seconds)
        self._load = load

    def load_ratio(self, tick: int) -> Array:
        """The log's load, the same on all hosts."""
        return np.full(self.count, self._load[tick])


def _lived(watched: Watched, constants: Constants, name: str, shield: Profile) -> Option:
    record, ticks = watched.record, spread(len(watched.load_ratio), MOST_TICKS)
    weight = max(catalogue.build(name).weight, Weight.MINIMUM, key=list(Weight).index)
    hosts = _Again(constants, gaps_filled(watched.load_ratio)[ticks], weight, record.tick_seconds)
    limits = VectorLimits([record.limits] * hosts.count)
    seats = Seats([batch_policy(name, limits, record.tick_seconds)], shield, limits, always=True)
    missed, work, used = np.zeros((len(ticks), hosts.count)), np.zeros(hosts.count), np.zeros(hosts.count)
    current = seats.begin()
    for place in range(len(ticks)):
        window, truth = hosts.step(current), hosts.truth()
        missed[place], work, used = truth.missed, work + truth.be_work_ratio, used + window.be_cpus
        current = seats.decide(hosts.read(), current, hosts.telemetry).allocations
    return Option(
        policy=catalogue.label(name),
        qos_percent=Range.of(100.0 - 100.0 * missed.mean(axis=0)),
        be_percent=Range.of(100.0 * work / len(ticks)),
        be_cpus=Range.of(used / len(ticks)),
        worst=_worst(watched, ticks, missed.mean(axis=1)),
    )


def _worst(watched: Watched, ticks: NDArray[np.intp], missed: Array) -> tuple[Stretch, ...]:
    long = max(round(STRETCH_SECONDS / watched.record.tick_seconds), 1)
    starts = range(0, len(ticks), long)
    load = 100.0 * gaps_filled(watched.load_ratio)[ticks]
    stretches = [
        Stretch(
            float(watched.wall_seconds[ticks[start]]),
            100.0 * float(missed[start : start + long].mean()),
            float(load[start : start + long].mean()),
        )
        for start in starts
    ]
    ranked = sorted(stretches, key=lambda one: -one.missed_percent)
    return tuple(one for one in ranked[:WORST] if one.missed_percent >= LEAST_PERCENT)
