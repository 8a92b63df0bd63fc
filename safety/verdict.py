"""What the shield answers: an allocation, and every guard that had a hand in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rlctl.envs.allocation import Allocation

__all__ = ["Bound", "Reason", "Verdict"]


class Reason(StrEnum):
    """Why a guard restricts BE; a closed set, so that logs, metrics and docs can name each."""

    LATENCY_MISSING = "latency-missing"
    LATENCY_STALE = "latency-stale"
    TOO_FEW_SAMPLES = "too-few-samples"
    LOAD_MISSING = "load-missing"
    LC_DEAD = "lc-dead"
    ABSURD = "absurd-reading"
    LOAD_HIGH = "load-high"
    SLACK_NEGATIVE = "slack-negative"
    COOLING_DOWN = "cooling-down"
    SLACK_TINY = "slack-tiny"  # BE goes to the floor
    SLACK_SMALL = "slack-small"  # BE may not grow
    MEMORY_PRESSURE = "memory-pressure"
    MEMORY_BANDWIDTH = "memory-bandwidth"
    GROWTH_RATE = "growth-rate"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one guard allows this tick.

    Attributes:
        guard: The guard's name.
        reason: Why.
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
        proposed: What was asked for.
        bounds: Every guard's bound of this tick, whether or not it changed anything.
    """

    allocation: Allocation
    proposed: Allocation
    bounds: tuple[Bound, ...] = field(default_factory=tuple)

    @property
    def overridden(self) -> bool:
        """True when the proposal was not let through as it was."""
        return self.allocation != self.proposed

    @property
    def decisive(self) -> tuple[Bound, ...]:
        """The bounds that the proposal exceeded."""
        return tuple(bound for bound in self.bounds if not self.proposed.at_most(bound.most))
