"""Tail of wake-up latency: how late a real-time task wakes, from the lines of `cyclictest --verbose`.

They are all that cyclictest tells of every single wake-up while it runs. Its FIFO and its snapshots (SIGUSR1, SIGUSR2)
hold minimum, mean and maximum since the start, and histogram and JSON come at the end.

    cyclictest --mlockall --priority=80 --interval=1000 --verbose >>/run/wake-ups

That is 27 kB/s; empty the file now and then (`truncate --size 0`), which is noticed. cyclictest hands on 4 KB at a
time, some 150 lines: where that is more than a control period, add --unbuffered.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlctl.envs.host.latency.figures import LONGEST_SECONDS, TimeUnit
from rlctl.envs.host.latency.lines import LineSource
from rlctl.envs.host.latency.window import Requests
from rlctl.envs.workload import SLO

# Thread, number of the wake-up, latency; and with --smi, how many SMIs there were.
_WAKE_UP = re.compile(rb"^ *\d+: *\d+: *(\d{1,15})(?: +\d+)?$", re.MULTILINE)


def wake_ups(lines: bytes) -> list[int]:
    """The latency of each wake-up, in the unit that cyclictest writes (microseconds; nanoseconds with --nsecs)."""
    return [int(latency) for latency in _WAKE_UP.findall(lines)]


class CyclictestLines(LineSource):
    """A line per wake-up, all threads together.

    A task that does not wake up writes nothing: no wake-up, no tail. Its load is the wake-ups that it made, in those
    of `max_load_rps`; one that oversleeps its next period leaves that out.

    Args:
        path: Where cyclictest's standard output goes: a regular file; it may not exist yet.
    """

    unfit = "none of its lines is a wake-up; run cyclictest with --verbose"

    def __init__(
        self, path: Path, slo: SLO, *, unit: TimeUnit = TimeUnit.MICROSECONDS, window_seconds: float = 1.0
    ) -> None:
        super().__init__("cyclictest", path, slo, window_seconds)
        self._unit = unit

    def parse(self, lines: bytes, seconds: float) -> Requests:  # noqa: ARG002 - a line has no time of its own
        """The wake-ups that some lines tell of."""
        scale = self._unit.seconds
        latencies = [latency * scale for latency in wake_ups(lines) if latency * scale <= LONGEST_SECONDS]
        return Requests(latencies, rejected=lines.count(b"\n") - len(latencies))
