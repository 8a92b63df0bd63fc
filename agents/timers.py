"""Published control periods on the clock of the ticks."""

from __future__ import annotations

__all__ = ["Every"]


class Every:
    """Counts how often a period has elapsed.

    A published loop may be faster than the tick (Hybrid PRM's 2-s loop under `--time-scale`); it then fires several
    times at once, so that its rate per second stays as published.

    Args:
        period_seconds: Length of the period, already divided by the time scale.
    """

    def __init__(self, period_seconds: float) -> None:
        self.period_seconds = period_seconds
        self._next: float | None = None

    def reset(self) -> None:
        """Start anew at the next call; that call fires once."""
        self._next = None

    def due(self, now_seconds: float) -> int:
        """How many times the period has elapsed since the last call; 1 at the first call."""
        if self._next is None:
            self._next = now_seconds + self.period_seconds
            return 1
        if now_seconds + 1e-3 * self.period_seconds < self._next:  # a tick that wakes a little early still counts
            return 0
        count = 1 + int((now_seconds - self._next) / self.period_seconds + 1e-3)
        self._next += count * self.period_seconds
        return count
