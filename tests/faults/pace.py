"""How fast a machine is, and with it what a run may take: a host, a host in a hurry, an emulated guest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Pace:
    """Periods and patience.

    Attributes:
        tick_seconds: Control period.
        grace_seconds: The watchdog's, on top of it.
        restore_after_seconds: The watchdog's patience with a controller that stays away.
        slow_ratio: By how much what SECURITY.md promises may take longer here.
        gap_seconds: Where nobody looked at BE for so long the machine was too busy to judge.
        patience_seconds: How long anything may take that has no bound of its own.
        request_seconds: Between two requests of the client.
        poll_seconds: Between two looks at BE's knobs.
        most_busy: Busy processes in BE, at most.
        jobs: Cases side by side.
    """

    tick_seconds: float
    grace_seconds: float
    restore_after_seconds: float
    slow_ratio: float
    gap_seconds: float
    patience_seconds: float
    request_seconds: float
    poll_seconds: float
    most_busy: int
    jobs: int


class Promise(StrEnum):
    """Within which time BE has to be where it has to be; SECURITY.md, "any fault of the matrix in a real service"."""

    TICK = "tick"
    """By the next tick; half of one more for its writes."""
    LEASE = "lease"
    """Without a controller, or without its writes: a period and the grace, and .3 s for the watchdog's writes."""
    STALE = "stale"
    """Readings that tell of nothing any more are believed for so long, in the slowest of ways."""
    RESETS = "resets"
    """What is hidden by a counter that is set back: until that has happened twice in the service's ticks."""
    RESTART = "restart"
    """When nobody is left: until the service manager has started a successor, and that has begun."""

    def seconds(self, pace: Pace) -> float:
        """At a pace."""
        tick = pace.tick_seconds
        lease = tick + pace.grace_seconds + 0.3
        long = max(tick, 1.0)
        promised = {"tick": 1.5 * tick, "lease": lease, "stale": 5.0 * long, "resets": 10.0 * long}
        return promised.get(self.value, 15.0 * long) * pace.slow_ratio


HOST = Pace(1.0, 0.7, 5.0, 1.0, 0.25, 40.0, 0.01, 0.005, 8, 5)
"""The shipped period and grace."""

QUICK = Pace(0.4, 0.7, 3.0, 30.0, 2.0, 300.0, 0.01, 0.005, 8, 6)
"""For the tests, on a machine that may be busy: proves what happens, not how fast. The promise is HOST's."""

GUEST = Pace(2.0, 3.0, 15.0, 1.5, 1.0, 200.0, 0.04, 0.02, 1, 1)
"""Under emulation, some seven times slower: proves what happens, not how fast."""
