"""The `watchdog` section of the serve configuration."""

from __future__ import annotations

from pydantic import Field

from rlctl.config.fields import Described

__all__ = ["WatchdogSection"]


class WatchdogSection(Described):
    """The process that takes BE to the safe allocation when the controller dies or hangs.

    Attributes:
        enabled: Without it a controller that dies leaves BE as it is, until `rlctl restore`.
        grace_seconds: How late a tick may be completed before the controller counts as hung. The default is above the
            time-out of the latency sensors, and at a 1-s tick lets BE run for less than 2 s.
        restore_after_seconds: How long BE then stays at the safe allocation and a successor is waited for, before the
            controller is ended for good and the originals are put back.
    """

    enabled: bool = True
    grace_seconds: float = Field(default=0.7, ge=0.1, le=60.0)
    restore_after_seconds: float = Field(default=30.0, ge=1.0, le=86400.0)

    def lease_seconds(self, tick_seconds: float) -> float:
        """How long a renewal lasts, given the control period."""
        return tick_seconds + self.grace_seconds
