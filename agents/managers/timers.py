"""Published control periods on the clock of the ticks."""

from __future__ import annotations

import math

EARLY_RATIO = 0.05
EARLY_SECONDS = 0.02
"""A tick that wakes so much before a firing still counts as it; a live host's ticks jitter by milliseconds."""


def early_seconds(period_seconds: float) -> float:
    """How much earlier than a period's end counts as its end."""
    return min(EARLY_RATIO * period_seconds, EARLY_SECONDS)


def almost(seconds: float) -> float:
    """A period less what ticks of a live host jitter, so that a second of 0.996 s counts as one."""
    return seconds - early_seconds(seconds)


class Every:
    """Counts how often a period has elapsed.

    A published loop may be faster than the tick (Hybrid PRM's 2-s loop under `--time-scale`); it then fires several
    times at once, so that its rate per second stays as published. After a gap that no tick explains (the daemon was
    stopped, the host slept) it fires once: the published timers skip what they missed, and a growth loop that caught
    up with a minute would give BE the host in one step.

    Args:
        period_seconds: Length of the period, already divided by the time scale.
        longest_gap_seconds: Longest time between two calls that is still taken for a tick.

    Raises:
        ValueError: A period that is not a positive number.
    """

    def __init__(self, period_seconds: float, longest_gap_seconds: float = 10.0) -> None:
        if not (math.isfinite(period_seconds) and period_seconds > 0.0):
            raise ValueError(f"a period of {period_seconds!r} s is not positive")
        self.period_seconds = period_seconds
        self.longest_gap_seconds = longest_gap_seconds
        self._early_seconds = early_seconds(period_seconds)
        self._last = 0.0
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
        if self._next is None:
            self._next = now_seconds + self.period_seconds
            return 1
        if gap < 0.0:
            self._next += gap
        if now_seconds + self._early_seconds < self._next:
            return 0
        if gap > self.longest_gap_seconds:
            self._next = now_seconds + self.period_seconds
            return 1
        count = 1 + int((now_seconds + self._early_seconds - self._next) / self.period_seconds)
        self._next += count * self.period_seconds
        return count
