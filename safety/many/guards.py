"""The shipped guards over n hosts at once: what they remember, and what they allow.

The rules and their reasons stand in `sensors`, `gates` and `growth`; this file only repeats their arithmetic on
arrays, to the last bit, and tests hold the two together. None is NaN here, so that every comparison with it is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.gates import LoadGate, SlackGate
from rlctl.safety.growth import Ceiling, GrowthRate, SlackFloor, SlackHold
from rlctl.safety.guard import POLL_TOLERANCE
from rlctl.safety.many.readings import Beliefs
from rlctl.safety.profile import Profile
from rlctl.safety.sensors import SensorGuard, Trust
from rlctl.safety.shield import bounds

__all__ = ["GUARDS", "Bounding", "Bounds", "Memory", "advance"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

GUARDS = tuple(guard.name for guard in (SensorGuard, LoadGate, SlackGate, SlackFloor, SlackHold, GrowthRate, Ceiling))
"""The guards that are repeated here, in the order of `Profile.guards`."""

NEAR_HALF, LARGEST_NANOS = 1e-3, 2.0**43
"""A product with 1e9 that is this near to a half, or this large, may round to another nano-CPU than the number."""

YES = np.array(True)


class Memory(NamedTuple):
    """What the guards of n hosts remember; arrays of shape (n,). The three guards of the slack poll it together.

    Attributes:
        closed: The load gate is closed.
        load_polled_seconds: When the load was last judged; NaN for never, as in all of these.
        slack_ratio: The slack last judged by, and
        slack_polled_seconds: when that was.
        strikes: Strikes that are not forgotten yet.
        clean_seconds: Time since the last strike.
        remaining_seconds: What is left of the cool-down.
        seen_seconds: Time of the last readings, and
        passed_seconds: time before them that earns growth.
    """

    closed: Flags
    load_polled_seconds: Array
    slack_ratio: Array
    slack_polled_seconds: Array
    strikes: Array
    clean_seconds: Array
    remaining_seconds: Array
    seen_seconds: Array
    passed_seconds: Array

    @classmethod
    def start(cls, count: int) -> Memory:
        """What the guards of `count` hosts remember before any reading."""
        never, zero = np.full(count, np.nan), np.zeros(count)
        return cls(np.ones(count, bool), never, never, never, zero, zero, zero, never, zero)

    def where(self, which: Flags, other: Memory) -> Memory:
        """This memory on some hosts, another one on the rest."""
        return Memory(*(np.where(which, mine, its) for mine, its in zip(self, other, strict=True)))


def advance(memory: Memory, time_seconds: Array, beliefs: Beliefs, profile: Profile) -> Memory:
    """The memory after a tick; hosts without a finite time learn nothing."""
    now, load, slack = time_seconds, beliefs.load_ratio, beliefs.slack_ratio
    since = np.fmax(now - memory.seen_seconds, 0.0)
    judged = _due(memory.load_polled_seconds, now, profile.poll_seconds) & ~np.isnan(load)
    closed = (load > profile.load_suspend_ratio) | (memory.closed & ~(load < profile.load_resume_ratio))
    polled = _due(memory.slack_polled_seconds, now, profile.poll_seconds) & ~np.isnan(slack)
    struck = polled & (slack < profile.slack_suspend_ratio)
    strikes, clean, remaining = _counted(memory, np.minimum(since, profile.gap_seconds), struck, polled, profile)
    after = Memory(
        np.where(judged, closed, memory.closed),
        np.where(judged, now, memory.load_polled_seconds),
        np.where(polled, slack, memory.slack_ratio),
        np.where(polled, now, memory.slack_polled_seconds),
        strikes,
        clean,
        remaining,
        now + np.zeros_like(memory.seen_seconds),
        np.minimum(since, profile.growth_gap_seconds),
    )
    known = np.isfinite(now)
    return after if known.all() else after.where(known, memory)


class Bounds(NamedTuple):
    """The most that each guard allows on each host, shape (len(GUARDS), n); infinite and not frozen is no objection."""

    quota_cpus: Array
    cpuset_cpus: Array
    frozen: Flags

    def put(self, guard: str, where: Flags, most: Allocation | Allocations) -> None:
        """On some hosts a guard allows so much of each knob: the same on all, or host by host."""
        if not where.any():
            return
        row = GUARDS.index(guard)
        np.copyto(self.quota_cpus[row], most.quota_cpus, where=where)
        np.copyto(self.cpuset_cpus[row], most.cpuset_cpus, where=where)
        np.copyto(self.frozen[row], most.frozen, where=where)


class Bounding:
    """The guards' bounds for one profile.

    Args:
        profile: Constants of the guards.
        limits: Range of allocations, of all hosts or of each.
    """

    def __init__(self, profile: Profile, limits: Limits | VectorLimits) -> None:
        self.profile, self.limits = profile, limits
        p = profile
        trust = Trust(p.max_age_seconds, p.min_samples)
        floor = SlackFloor(p.slack_floor_ratio, p.poll_seconds, trust, p.floor_cpus, p.floor_ratio)
        self._floor = _of_each(limits, floor.floor)
        # The ceiling looks at nothing but the limits, so it may be asked once.
        self._ceiling = _of_each(limits, lambda one: _ceiling(p.ceiling_ratio, one))

    def bounds(self, memory: Memory, beliefs: Beliefs, current: Allocations) -> Bounds:
        """Every guard's bound of a tick, whatever is proposed."""
        p, shape = self.profile, (len(GUARDS), len(memory.closed))
        given = Bounds(np.full(shape, np.inf), np.full(shape, np.inf), np.zeros(shape, bool))
        slack = memory.slack_ratio
        struck = slack < p.slack_suspend_ratio
        suspended = (memory.remaining_seconds > 0.0) | (struck & (memory.strikes >= p.suspend_after_strikes))
        given.put(SensorGuard.name, beliefs.complaint, self.limits.safe)
        given.put(LoadGate.name, memory.closed, self.limits.safe)
        given.put(SlackGate.name, struck, self.limits.minimum)
        given.put(SlackGate.name, suspended, self.limits.safe)
        # Not "below": a slack that was never seen is too small as well.
        given.put(SlackFloor.name, ~(slack >= p.slack_floor_ratio), self._floor)
        given.put(SlackHold.name, ~(slack >= p.slack_hold_ratio), current)
        growth, ceiling = GUARDS.index(GrowthRate.name), GUARDS.index(Ceiling.name)
        given.quota_cpus[growth], given.cpuset_cpus[growth] = self._grown(memory.passed_seconds, current)
        given.quota_cpus[ceiling], given.cpuset_cpus[ceiling] = self._ceiling.quota_cpus, self._ceiling.cpuset_cpus
        return given

    def _grown(self, passed_seconds: Array, current: Allocations) -> tuple[Array, Array]:
        """Quota and cpuset of what is in force and one step more; a frozen BE resumes from the minimum."""
        p, limits, least = self.profile, self.limits, self.limits.minimum
        base_cpus = np.where(current.frozen, least.quota_cpus, current.quota_cpus)
        quota_cpus = _nano_rounded(base_cpus + p.growth_ratio_per_second * limits.cpus * passed_seconds)
        lifted = (quota_cpus > base_cpus) & (quota_cpus >= limits.cpus)
        cpuset_cpus = np.where(current.frozen, least.cpuset_cpus, current.cpuset_cpus)
        step_cpus = p.growth_cpuset_cpus * (passed_seconds > 0.0)
        return np.where(lifted, UNLIMITED, np.maximum(quota_cpus, base_cpus)), cpuset_cpus + step_cpus


def _of_each(limits: Limits | VectorLimits, rule: Callable[[Limits], Allocation]) -> Allocation | Allocations:
    """What follows from the limits alone."""
    if isinstance(limits, Limits):
        return rule(limits)
    found = {one: rule(one) for one in set(limits.each)}
    return Allocations.of([found[one] for one in limits.each])


def _ceiling(ratio: float, limits: Limits) -> Allocation:
    (bound,) = bounds((Ceiling(ratio),), (None,), Telemetry(0.0, 1.0), limits.safe, limits)
    return bound.most


def _counted(
    memory: Memory, passed_seconds: Array, struck: Flags, polled: Flags, profile: Profile
) -> tuple[Array, Array, Array]:
    """Strikes, clean time and remaining cool-down after a tick."""
    clean = np.minimum(memory.clean_seconds + passed_seconds, profile.forget_strikes_seconds)
    remaining = np.maximum(memory.remaining_seconds - passed_seconds, 0.0)
    more = np.minimum(memory.strikes + 1.0, profile.suspend_after_strikes)
    forgotten = polled & ~struck & (clean >= profile.forget_strikes_seconds)
    strikes = np.where(struck, more, np.where(forgotten, 0.0, memory.strikes))
    suspends = struck & (more >= profile.suspend_after_strikes)
    return strikes, np.where(struck, 0.0, clean), np.where(suspends, profile.cool_down_seconds, remaining)


def _due(polled_seconds: Array, now_seconds: Array, poll_seconds: float) -> Flags:
    """As `poll_due`: true unless less than a period passed since the last poll."""
    if poll_seconds == 0.0:
        return YES
    since = now_seconds - polled_seconds
    return ~((since >= 0.0) & (since < poll_seconds * (1.0 - POLL_TOLERANCE)))


def _nano_rounded(cpus: Array) -> Array:
    """`round(x, 9)` of each; numpy's own rounds the product with 1e9, which differs near a half."""
    nanos = cpus * 1e9
    rounded = np.rint(nanos) / 1e9
    doubtful = (np.abs(nanos - np.floor(nanos) - 0.5) < NEAR_HALF) | ((nanos > LARGEST_NANOS) & (nanos < np.inf))
    if doubtful.any():
        rounded[doubtful] = [round(one, 9) for one in cpus[doubtful].tolist()]
    return rounded
