"""What a latency source tells between two ticks, ahead of its next reading, which loses nothing by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlctl.envs.host.sensors.sensor import Sensor, Window


@dataclass(frozen=True, slots=True)
class Newest:
    """What is new since the last look.

    Attributes:
        latencies: Of completed requests, in seconds, oldest first; infinite for one that has none.
        oldest_seconds: Age of the oldest outstanding request at this moment; None where the source cannot tell.
        seen_seconds: When that was seen, on the monotonic clock, where it was not at this moment.
        tail_seconds: A whole window's latency, such as the next tick is about to read; None where none has come.
    """

    latencies: Sequence[float] = ()
    oldest_seconds: float | None = None
    seen_seconds: float | None = None
    tail_seconds: float | None = None


NOTHING = Newest()


@runtime_checkable
class Windowed(Protocol):
    """A latency source that says of which time its last readings are, so that others can be put beside them.

    Attributes:
        ends_at_ticks: Its windows begin and end when a tick reads it, as those of the counters do.
    """

    ends_at_ticks: bool

    @property
    def window(self) -> Window | None:
        """When that began and ended; None where the last readings are of no window."""


@runtime_checkable
class LatencySource(Sensor, Protocol):
    """A sensor of an LC's latency that can be looked at between its readings."""

    def newest(self) -> Newest:
        """What is new since the last look; the next reading has it as well. Waits for nobody, and costs little."""
