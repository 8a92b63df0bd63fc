"""What the shield answers: an allocation, and every guard that had a hand in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from rlctl.envs.allocation import UNLIMITED, Allocation


class Reason(StrEnum):
    """Why a guard restricts BE; a closed set, so that logs, metrics and docs can name each."""

    LATENCY_MISSING = "latency-missing"
    """The LC's tail latency is missing: nobody knows how the LC is."""
    LATENCY_STALE = "latency-stale"
    """The tail latency is older than `max_age_seconds` of the profile."""
    TOO_FEW_SAMPLES = "too-few-samples"
    """The tail latency stands on fewer requests than `min_samples`."""
    LOAD_MISSING = "load-missing"
    """The load is missing."""
    LC_DEAD = "lc-dead"
    """The LC has no running process."""
    ABSURD = "absurd-reading"
    """A reading is not finite, negative, or beyond what can be."""
    LOAD_HIGH = "load-high"
    """The load is above `load_suspend_ratio`, or has not been below `load_resume_ratio` since then or the start.
    Where `measured` is set that one may lie nearer."""
    LOAD_UNKNOWN = "load-unknown"
    """No load was seen since the start: nobody knows that it is below `load_resume_ratio`."""
    SLACK_NEGATIVE = "slack-negative"
    """The slack fell below `slack_suspend_ratio`: a strike."""
    COOLING_DOWN = "cooling-down"
    """BE stays suspended for `cool_down_seconds` after the last strike."""
    SLACK_TINY = "slack-tiny"
    """The slack is below `slack_floor_ratio`: BE goes down to the floor."""
    SLACK_SMALL = "slack-small"
    """The slack is below `slack_hold_ratio`: BE may not grow."""
    SLACK_UNKNOWN = "slack-unknown"
    """No slack was seen since the start: BE goes down to the floor and may not grow."""
    MEMORY_PRESSURE = "memory-pressure"
    """The LC waits for memory for a larger share of the time than the profile allows."""
    MEMORY_BANDWIDTH = "memory-bandwidth"
    """Memory traffic is above `limit_ratio` of its peak."""
    BE_OVERRUN = "be-overrun"
    """BE uses more CPU time than it may: a task of it escaped, or the kernel does not hold what was written."""
    GROWTH_RATE = "growth-rate"
    """BE may grow by so much each second and no more."""
    CEILING = "ceiling"
    """BE may have this share of the host and no more."""
    OPERATOR = "operator"
    """Somebody said so: `rlctl pause` or `rlctl limit`; who, why and until when stands beside it."""
    SCHEDULE = "schedule"
    """The configuration's `schedule` allows no more at this time."""
    ERROR_BUDGET = "error-budget"
    """The LC has missed its target in as many windows as `slo.error_budget_percent` allows, or does so too fast."""
    TARGET_WATCH = "target-watch"
    """BE is held for some windows that show the LC's own tail, from which `target: auto` proposes a target."""
    NOT_APPROVED = "not-approved"
    """In tick logs of earlier versions: the policy waited for approval."""
    OWN = "own-rule"
    """A guard of a user: its name says which, its detail says why."""


OF_SERVICE = frozenset(
    {Reason.OPERATOR, Reason.SCHEDULE, Reason.ERROR_BUDGET, Reason.TARGET_WATCH, Reason.NOT_APPROVED}
)
"""Reasons of the service and of no guard; they say nothing about a policy: whatever it proposes, BE gets no more."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one guard allows this tick.

    Attributes:
        most: No knob of the verdict may be freer than this.
        detail: The numbers behind it, for `rlctl why`.
    """

    guard: str
    reason: Reason
    most: Allocation
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The allocation that may be written.

    Attributes:
        allocation: The greatest lower bound of the proposal and all bounds.
        bounds: Every guard's bound of this tick, whether or not it changed anything.
    """

    # Knob by knob: allocation <= proposed, and allocation <= most of every bound.

    allocation: Allocation
    proposed: Allocation
    bounds: tuple[Bound, ...] = field(default_factory=tuple)

    @property
    def overridden(self) -> bool:
        """True when the proposal was not let through as it was, whoever forbade it."""
        return self.allocation != self.proposed

    @property
    def overridden_by_guard(self) -> bool:
        """True when a guard did not let the proposal through; a bound of the service alone says nothing of a policy."""
        reasons = {bound.reason for bound in self.decisive}
        return self.overridden and not (reasons and reasons <= OF_SERVICE)

    @property
    def decisive(self) -> tuple[Bound, ...]:
        """The bounds that the proposal exceeded."""
        # Decisive is what the proposal exceeds, not what is tightest: two guards that each forbid it both have a say.
        return tuple(bound for bound in self.bounds if not self.proposed.at_most(bound.most))

    @property
    def binding(self) -> tuple[Bound, ...]:
        """The bounds that hold BE where it is: the decisive ones, and those that leave no more than it got."""
        # Who is told what may be had, as learned policies are by a mask, asks for no more, and exceeds nothing. A bound
        # that lifts the quota is passed over, for most of those leave everything.
        had_cpus = self.allocation.usable_cpus
        return tuple(
            bound
            for bound in self.bounds
            if not self.proposed.at_most(bound.most)
            or (bound.most.usable_cpus <= had_cpus and (bound.most.frozen or bound.most.quota_cpus < UNLIMITED))
        )

    def cause(self, but: Collection[Reason] = ()) -> Bound | None:
        """The bound to name where only one is named: of those that bind the one that leaves BE least, then the first.

        Args:
            but: Reasons to pass over.
        """
        # The guards stand in the order of what follows from what: lost sensors first.
        left = (bound for bound in self.binding if bound.reason not in but)
        return min(left, key=lambda bound: bound.most.usable_cpus, default=None)
