"""What all heuristic managers share: the Policy protocol around one `begin` and one `decide`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import Enum

from rlctl.agents.managers.options import check
from rlctl.agents.policy import Policy
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Reading, Telemetry, number
from rlctl.envs.workload import Weight


def slack_of(telemetry: Telemetry) -> float | None:
    """(target - latency) / target; None when the latency is missing or no number, minus infinity when it is endless."""
    slack = telemetry.slack_ratio
    return None if slack is None or math.isnan(slack) else slack


class Mean:
    """Mean of a reading over the ticks of a control period that is longer than a tick."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, reading: Reading) -> None:
        """Take in one tick; a missing reading adds nothing."""
        value = number(reading)
        if value is not None:
            self._sum += value
            self._count += 1

    def take(self) -> float | None:
        """The mean since the last call, or None when there was no reading; begins anew."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


HAIR = 1e-9
"""Added to or taken off thresholds, so that the rounding of sums and quotients does not decide."""


class BeState(Enum):
    """Whether BE runs; at a load between the two gates of the top-level controller the previous state stays."""

    STARTED = "runs, and does not grow until a poll enables it"
    ENABLED = "runs"
    SUSPENDED = "does not run"


class Manager(Policy, ABC):
    """A heuristic policy. It keeps its own settings, as the published programs do, and reads physical units only.

    A dataclass of options refuses values that their annotations exclude; PolicyError: the first such.

    Attributes:
        limits: Range of allocations of the host that it was started on.
        note: Why the last action was taken.
    """

    name: str = ""
    shielded: bool = False
    weight: Weight = Weight.EQUAL
    masked: bool = False
    needs: tuple[str, ...] = ()
    limits: Limits
    note: str = "not started"

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def begin(self) -> Allocation:
        """Forget everything and return the allocation to begin with on `self.limits`."""

    @abstractmethod
    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The next allocation, and why in a few words."""

    def start(self, limits: Limits) -> Allocation:
        """Forget everything and return the allocation to begin with on this host."""
        self.limits, self.note = limits, "start"
        return limits.clip(self.begin())

    def act(self, observation: Observation) -> Allocation:
        """The next allocation, one that this host has."""
        decided = self.decide(observation.telemetry)
        try:
            allocation, self.note = decided
        except (TypeError, ValueError) as error:
            raise TypeError(f"decide returned {decided}; return (Allocation, reason)") from error
        return self.limits.clip(allocation)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of this manager's results must know, complete once it has run; by default nothing."""
        return ()


EARLY_RATIO = 0.05
EARLY_SECONDS = 0.02
"""A tick that wakes so much before a firing still counts as it; a live host's ticks jitter by milliseconds."""


def early_seconds(period_seconds: float) -> float:
    """How much earlier than a period's end counts as its end."""
    return min(EARLY_RATIO * period_seconds, EARLY_SECONDS)


def almost(seconds: float) -> float:
    """A period less what ticks of a live host jitter, so that a second of 0.996 s counts as one."""
    return seconds - early_seconds(seconds)


LONGEST_GAP_SECONDS = 10.0
"""Longest time between two calls that is taken for a tick, unless both before it were half as long."""


class Every:
    """Counts how often a period has elapsed.

    A published loop may be faster than the tick (Hybrid PRM's 2-s loop under `--time-scale`). It then fires several
    times at once, so that its rate per second stays as published. After a gap that no tick explains (the daemon was
    stopped, the host slept) it fires once. The published timers skip what they missed. A growth loop that caught up
    with a minute would give BE the host in one step.

    Args:
        period_seconds: Length of the period, already divided by the time scale.

    Raises:
        ValueError: A period that is not a positive number.
    """

    def __init__(self, period_seconds: float) -> None:
        if not (math.isfinite(period_seconds) and period_seconds > 0.0):
            raise ValueError(f"a period of {period_seconds!r} s is not positive")
        self.period_seconds = period_seconds
        self._early_seconds = early_seconds(period_seconds)
        self._last, self._gaps = 0.0, (0.0, 0.0)
        self._next: float | None = None

    def reset(self) -> None:
        """Start anew at the next call; that call fires once."""
        self._next = None

    def rest(self, now_seconds: float, seconds: float) -> None:
        """Fire next when so many seconds have passed, as a loop does that sleeps (a cool-down)."""
        if math.isfinite(now_seconds):
            self._last, self._next = now_seconds, now_seconds + seconds

    def due(self, now_seconds: float) -> int:
        """How many times the period has elapsed since the last call; 1 at the first call.

        A clock that is not finite fires nothing; one that was set back leaves the time to the next firing as it was.
        """
        if not math.isfinite(now_seconds):
            return 0
        gap, self._last = now_seconds - self._last, now_seconds
        longest, self._gaps = max(LONGEST_GAP_SECONDS, 2.0 * min(self._gaps)), (self._gaps[1], gap)
        if self._next is None:
            self._gaps = (0.0, 0.0)
            self._next = now_seconds + self.period_seconds
            return 1
        if gap < 0.0:
            self._next += gap
        if now_seconds + self._early_seconds < self._next:
            return 0
        if gap > longest:
            self._next = now_seconds + self.period_seconds
            return 1
        count = 1 + int((now_seconds + self._early_seconds - self._next) / self.period_seconds)
        self._next += count * self.period_seconds
        return count
