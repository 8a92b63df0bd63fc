"""What every reader of the live host promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rlctl.envs.telemetry import Reading

Window = tuple[float, float]
"""Monotonic times, in seconds, between which what a source tells has happened."""


class Sensor(Protocol):
    """Reads some of a tick's telemetry."""

    @property
    def name(self) -> str:
        """For logs and metrics."""

    @property
    def provides(self) -> tuple[str, ...]:
        """Every key that `read` can return: names of Telemetry's fields, which it fills, and of counters per second."""

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """All readings; a missing one is a `Missing`. Never raises for a missing reading and never blocks.

        Args:
            now_seconds: `time.monotonic()`. Rates are differences since the previous call; where they are held against
                another sensor's, between the moments at which the counter itself was read.
        """

    def close(self) -> None:
        """Let go of files and children. Idempotent."""
