"""How fast a machine is, and with it what a run may take: a host, a host in a hurry, an emulated guest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Periods and patience.

    Attributes:
        tick_seconds: Control period.
        grace_seconds: The watchdog's, on top of it.
        restore_after_seconds: The watchdog's patience with a controller that stays away.
        dead_seconds: Within which BE has to be safe when the controller was killed.
        patience_seconds: How long anything may take that has no bound of its own.
        request_seconds: Between two requests of the client.
        poll_seconds: Between two looks at BE's knobs.
        most_busy: Busy processes in BE, at most.
        jobs: Cases side by side.
    """

    tick_seconds: float
    grace_seconds: float
    restore_after_seconds: float
    dead_seconds: float
    patience_seconds: float
    request_seconds: float
    poll_seconds: float
    most_busy: int
    jobs: int


HOST = Pace(1.0, 0.7, 5.0, 2.0, 40.0, 0.01, 0.005, 8, 5)
"""The shipped period and grace; dead_seconds is what the project promises."""

QUICK = Pace(0.4, 0.7, 3.0, 60.0, 300.0, 0.01, 0.005, 8, 6)
"""For the tests, on a machine that may be busy: proves what happens, not how fast. The promise is HOST's."""

GUEST = Pace(2.0, 3.0, 15.0, 8.0, 200.0, 0.04, 0.02, 1, 1)
"""Under emulation, some seven times slower: proves what happens, not how fast."""
