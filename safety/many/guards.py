"""The shipped guards over n hosts at once: what they remember, and what they allow.

A shipped guard is written twice. Its rule and the reasons stand in `trust`, `gates` and `growth`; this file repeats
the arithmetic on arrays, and `tests/safety/many/test_shield.py` holds both equal to the last bit. What is None there is
NaN here, so that every comparison with it is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Array, Flags
from rlctl.safety.gates import NOISE_TIMES, NOISE_WEIGHT
from rlctl.safety.growth import SAVED, Ceiling, SlackFloor
from rlctl.safety.guard import POLL_TOLERANCE
from rlctl.safety.many.readings import Beliefs
from rlctl.safety.profile import Profile
from rlctl.safety.trust import Trust

NEAR_HALF, LARGEST_NANOS = 1e-3, 2.0**43
"""A product with 1e9 that is this near to a half, or this large, may round to another nano-CPU than the number."""

YES = np.array(True)
"""True on every host."""


class Memory(NamedTuple):
    """What the guards of n hosts remember; arrays of shape (n,), NaN where a guard of one host has None.

    The three guards that judge the slack do so in the same ticks, and share what they remember of it.

    Attributes:
        closed: Where the load gate is closed.
        load_ratio: Load last judged; NaN before the first.
        load_polled_seconds: When the load was last judged; NaN for never.
        noise_ratio: Mean change of the load from one judgement to the next.
        slack_ratio: The slack last judged by; NaN for none.
        slack_polled_seconds: When the slack was last judged; NaN for never.
        remaining_seconds: What is left of the cool-down.
        seen_seconds: Time of the last readings; NaN before the first.
        passed_seconds: Time before these readings that earns growth.
        well_seconds: Time without a miss that was saved.
    """

    closed: Flags
    load_ratio: Array
    load_polled_seconds: Array
    noise_ratio: Array
    slack_ratio: Array
    slack_polled_seconds: Array
    strikes: Array
    clean_seconds: Array
    remaining_seconds: Array
    seen_seconds: Array
    passed_seconds: Array
    well_seconds: Array

    @classmethod
    def start(cls, count: int, profile: Profile) -> Memory:
        """What the guards of `count` hosts remember before any reading."""
        never, zero = np.full(count, np.nan), np.zeros(count)
        noise = np.full(count, profile.load_suspend_ratio - profile.load_resume_ratio)
        return cls(np.ones(count, bool), never, never, noise, never, never, zero, zero, zero, never, zero, zero)

    def where(self, which: Flags, other: Memory) -> Memory:
        """This memory on the hosts in `which`, the other one elsewhere."""
        return Memory(*(np.where(which, mine, its) for mine, its in zip(self, other, strict=True)))


def advance(memory: Memory, time_seconds: Array, beliefs: Beliefs, profile: Profile) -> Memory:
    """The memory after a tick; hosts without a finite time learn nothing."""
    now, load, slack = time_seconds, beliefs.load_ratio, beliefs.slack_ratio
    since = np.fmax(now - memory.seen_seconds, 0.0)
    # LoadGate: closed above the suspend ratio, open again below the resume ratio, or nearer where the load hardly
    # wavers, in between as it was.
    judged = _due(memory.load_polled_seconds, now, profile.poll_seconds) & ~np.isnan(load)
    change, most = np.abs(load - memory.load_ratio), profile.load_suspend_ratio - profile.load_resume_ratio
    noise = memory.noise_ratio + NOISE_WEIGHT * (np.where(change < most, change, most) - memory.noise_ratio)
    noise = np.where(judged & ~np.isnan(memory.load_ratio) & (change != 0.0), noise, memory.noise_ratio)
    near = profile.load_suspend_ratio - np.maximum(NOISE_TIMES * noise, profile.least_gap_ratio)
    resumes_below = np.maximum(profile.load_resume_ratio, near)
    closed = (load > profile.load_suspend_ratio) | (memory.closed & ~(load < resumes_below))
    # SlackGate: a slack below its ratio is a strike; `_count_strikes` has the rest.
    polled = _due(memory.slack_polled_seconds, now, profile.poll_seconds) & ~np.isnan(slack)
    struck = polled & (slack < profile.slack_suspend_ratio)
    strikes, clean, remaining = _count_strikes(memory, np.minimum(since, profile.gap_seconds), struck, polled, profile)
    # GrowthRate: time is saved where the target is seen to be held; a miss costs some of it, as a blind tick does.
    passed = np.minimum(since, profile.growth_gap_seconds)
    well_seconds = profile.growth_when_well[1]
    saved = np.minimum(memory.well_seconds + passed, SAVED * well_seconds)
    well = np.where(slack >= 0.0, saved, np.maximum(memory.well_seconds - well_seconds, 0.0))
    after = Memory(
        np.where(judged, closed, memory.closed),
        np.where(judged, load, memory.load_ratio),
        np.where(judged, now, memory.load_polled_seconds),
        noise,
        np.where(polled, slack, memory.slack_ratio),
        np.where(polled, now, memory.slack_polled_seconds),
        strikes,
        clean,
        remaining,
        now,
        passed,
        well,
    )
    known = np.isfinite(now)
    return after if known.all() else after.where(known, memory)


class Bounding:
    """The guards' bounds for one profile, within the limits of all hosts or of each."""

    def __init__(self, profile: Profile, limits: Limits | VectorLimits) -> None:
        self.profile, self.limits = profile, limits
        p = profile
        trust = Trust(p.max_age_seconds, p.min_samples)
        floor = SlackFloor(p.slack_floor_ratio, p.poll_seconds, trust, p.floor_cpus, p.floor_ratio)
        # Floor and ceiling follow from the limits alone, so they are computed once.
        self._floor = _of_each(limits, floor.floor)
        self._ceiling = _of_each(limits, Ceiling(p.ceiling_ratio).most)

    def bounds(self, memory: Memory, beliefs: Beliefs, current: Allocations, cleared: Flags) -> Allocations:
        """The most that all guards together allow on each host, whatever is proposed.

        Args:
            cleared: Hosts on which the slack guards and the growth rate are waived.
        """
        p, limits, slack, heeded = self.profile, self.limits, memory.slack_ratio, ~cleared
        # SlackGate: a strike takes BE to the minimum; one strike too many suspends it for the cool-down.
        struck = (slack < p.slack_suspend_ratio) & heeded
        suspended = ((memory.remaining_seconds > 0.0) & heeded) | (struck & (memory.strikes >= p.suspend_after_strikes))
        # SensorGuard and LoadGate leave the safe allocation as well.
        suspended |= beliefs.complaint | memory.closed
        # SlackFloor and SlackHold. Not "below": a slack that was never seen (NaN) is too small as well.
        floored, held = ~(slack >= p.slack_floor_ratio) & heeded, ~(slack >= p.slack_hold_ratio) & heeded
        objections = (struck, limits.minimum), (suspended, limits.safe), (floored, self._floor), (held, current)
        quota_cpus, cpuset_cpus = self._grown(memory, current)
        quota_cpus[cleared] = UNLIMITED
        cpuset_cpus[cleared] = np.iinfo(np.int64).max
        quota_cpus = np.minimum(quota_cpus, self._ceiling.quota_cpus)
        cpuset_cpus = np.minimum(cpuset_cpus, self._ceiling.cpuset_cpus)
        frozen = np.zeros(len(slack), np.bool_)
        for where, most in objections:
            if where.any():
                np.minimum(quota_cpus, most.quota_cpus, out=quota_cpus, where=where)
                np.minimum(cpuset_cpus, most.cpuset_cpus, out=cpuset_cpus, where=where)
                frozen |= where & most.frozen
        return Allocations(quota_cpus, cpuset_cpus, frozen)

    def _grown(self, memory: Memory, current: Allocations) -> tuple[Array, NDArray[np.int64]]:
        """GrowthRate: quota and cpuset in force and a step more for the time passed; frozen BE resumes at least."""
        # most = in force + rate * time, in CPUs; as `GrowthRate.bound`, to the same nano-CPU.
        p, limits, least, passed_seconds = self.profile, self.limits, self.limits.minimum, memory.passed_seconds
        well_ratio, well_seconds = p.growth_when_well
        well = memory.well_seconds >= well_seconds
        rate = np.where(well, well_ratio, p.growth_ratio_per_second)
        base_cpus = np.where(current.frozen, least.quota_cpus, current.quota_cpus)
        quota_cpus = _nano_rounded(base_cpus + rate * limits.cpus * passed_seconds)
        lifted = (quota_cpus > base_cpus) & (quota_cpus >= limits.cpus)
        cpuset_cpus = np.where(current.frozen, least.cpuset_cpus, current.cpuset_cpus)
        step_cpus = np.where(well, np.floor(rate * limits.cpus * passed_seconds), 0.0)
        step_cpus = np.maximum(p.growth_cpuset_cpus, step_cpus) * (passed_seconds > 0.0)
        grown_cpus = np.where(lifted, UNLIMITED, np.maximum(quota_cpus, base_cpus))
        return grown_cpus, (cpuset_cpus + step_cpus).astype(np.int64)


def _of_each(limits: Limits | VectorLimits, rule: Callable[[Limits], Allocation]) -> Allocation | Allocations:
    """An allocation that follows from the limits alone, of all hosts or of each."""
    if isinstance(limits, Limits):
        return rule(limits)
    by_limits = {limits_of_host: rule(limits_of_host) for limits_of_host in set(limits.each)}
    return Allocations.of([by_limits[limits_of_host] for limits_of_host in limits.each])


def _count_strikes(
    memory: Memory, passed_seconds: Array, struck: Flags, polled: Flags, profile: Profile
) -> tuple[Array, Array, Array]:
    """Strikes, clean time and remaining cool-down after a tick, as `SlackGate` counts them."""
    # min and max in the order of `SlackGate.advance`: a strike starts the cool-down anew, whatever is left of it, and
    # only a tick without one can forget the others.
    clean = np.minimum(memory.clean_seconds + passed_seconds, profile.forget_strikes_seconds)
    remaining = np.maximum(memory.remaining_seconds - passed_seconds, 0.0)
    more = np.minimum(memory.strikes + 1.0, profile.suspend_after_strikes)
    forgotten = polled & ~struck & (clean >= profile.forget_strikes_seconds)
    strikes = np.where(struck, more, np.where(forgotten, 0.0, memory.strikes))
    suspends = struck & (more >= profile.suspend_after_strikes)
    return strikes, np.where(struck, 0.0, clean), np.where(suspends, profile.cool_down_seconds, remaining)


def _due(polled_seconds: Array, now_seconds: Array, poll_seconds: float) -> Flags:
    """`poll_due` in arrays: true unless less than a period passed since the last poll."""
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
