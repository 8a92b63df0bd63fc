"""Tail of wake-up latency: how late a real-time task wakes, from the lines of `cyclictest --verbose`.

They are all that cyclictest tells of every single wake-up while it runs. Its FIFO and its snapshots (SIGUSR1, SIGUSR2)
hold minimum, mean and maximum since the start, and histogram and JSON come at the end.

    cyclictest --mlockall --priority=80 --interval=1000 --verbose >>/run/wake-ups

That is 27 kB/s; empty the file now and then (`truncate --size 0`), which is noticed. A FIFO is read too, but holds old
wake-ups back while nobody reads it. cyclictest hands on 4 KB at a time, some 150 lines: where that is more than a
control period, add --unbuffered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rlctl.envs.host.latency.figures import LONGEST_SECONDS, PROVIDES, Reporter, TimeUnit
from rlctl.envs.host.latency.follow import Follower
from rlctl.envs.host.latency.window import SampleWindow
from rlctl.envs.telemetry import Missing, Reading, Why
from rlctl.envs.workload import SLO

__all__ = ["CyclictestLines", "wake_ups"]

_WAKE_UP = re.compile(rb"^ *\d+: *\d+: *(\d{1,15})(?: +\d+)?$", re.MULTILINE)
"""Thread, number of the wake-up, latency; and with --smi, how many SMIs there were."""


def wake_ups(lines: bytes) -> list[int]:
    """The latency of each wake-up, in the unit that cyclictest writes (microseconds; nanoseconds with --nsecs)."""
    return [int(latency) for latency in _WAKE_UP.findall(lines)]


class CyclictestLines:
    """The SLO's quantile over the wake-ups of the last seconds, all threads together.

    A task that does not wake up writes nothing: no wake-up, no tail. Its load is the wake-ups that it made, in those
    of `max_load_rps`; one that oversleeps its next period leaves that out.

    Args:
        path: Where cyclictest's standard output goes: a regular file or a FIFO; it may not exist yet.
        slo: The task's objective.
        unit: Of the latencies.
        window_seconds: Length of the window.
    """

    provides = (*PROVIDES, "rejected_rps")

    def __init__(
        self, path: Path, slo: SLO, *, unit: TimeUnit = TimeUnit.MICROSECONDS, window_seconds: float = 1.0
    ) -> None:
        self.name = f"cyclictest {path}"
        self._unit = unit
        self._follower = Follower(path)
        self._window = SampleWindow(window_seconds, slo.quantile)
        self._reporter = Reporter(self.name, slo, stale_seconds=float("inf"))  # the window ends with every tick

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The window's figures as readings."""
        lines = self._follower.read()
        if isinstance(lines, Missing):
            self._window.add(now_seconds, [])
            return {**self._reporter.readings(lines, now_seconds), "rejected_rps": lines}
        scale = self._unit.seconds
        latencies = [latency * scale for latency in wake_ups(lines) if latency * scale <= LONGEST_SECONDS]
        self._window.add(now_seconds, latencies, rejected=lines.count(b"\n") - len(latencies))
        unfit = Missing(Why.MALFORMED, "none of its lines is a wake-up; run cyclictest with --verbose")
        figures = unfit if self._window.unfit else self._window.figures()
        return {**self._reporter.readings(figures, now_seconds), "rejected_rps": self._window.rejected_rps()}

    def close(self) -> None:
        """Close the file."""
        self._follower.close()
