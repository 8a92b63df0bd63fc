"""cyclictest of rt-tests: one real-time thread that sleeps for an interval, and how late it wakes up each time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.errors import PermissionMissing
from rlctl.envs.host.latency.figures import TimeUnit
from rlctl.envs.host.latency.line_formats import PatternLines
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import Program

LAST_BYTES = 4096

PATTERN = r"^ *\d+: *\d+: *(?P<latency>\d{1,15})(?: +\d+)?$"
"""Thread, number of the wake-up, latency; and with --smi, how many SMIs there were."""

_WAKE_UP = re.compile(PATTERN.encode(), re.MULTILINE)

_NEWEST = re.compile(rb"^ *\d+: *(\d+): *\d+$", re.MULTILINE)


def wake_ups(lines: bytes) -> list[int]:
    """The latency of each wake-up, in the unit that cyclictest writes."""
    return [int(latency) for latency in _WAKE_UP.findall(lines)]


def cyclictest_lines(unit: TimeUnit = TimeUnit.MICROSECONDS) -> PatternLines:
    """How late a real-time task wakes, all threads together, from `cyclictest --verbose` (nanoseconds with --nsecs).

    Its FIFO and its snapshots hold minimum, mean and maximum since the start, and histogram and JSON come at the end. A
    task that does not wake up writes nothing: no wake-up, no tail. Its load is the wake-ups that it made; one that
    oversleeps its next period leaves that out. cyclictest hands on 4 KB at a time, some 150 lines: where that is more
    than a control period, add --unbuffered.
    """
    return PatternLines(PATTERN, unit)


class Cyclictest(Program):
    """A cyclictest that runs until it is stopped, and writes down each wake-up.

    While it runs, the CPUs do not enter deep idle states (/dev/cpu_dma_latency), as is its habit.

    Its lines go to a file of the launcher's folder, 27 bytes for each wake-up. Give it a folder in memory: on a disk,
    the load's syncs would hold up the lines (not the measuring thread, which leaves them to another one).

    Args:
        interval_us: Time between two wake-ups in microseconds.
        priority: Its priority in SCHED_FIFO.
    """

    name = "cyclictest"

    def __init__(self, interval_us: int = 200, priority: int = 80) -> None:
        self.interval_us, self.priority = interval_us, priority

    @property
    def output(self) -> Path:
        """Its lines, for `rlctl.envs.host.latency.line_formats`; latencies are in nanoseconds."""
        return self.process.output

    def start(self, launcher: Launcher) -> None:
        """Start it, and wait for its first wake-up.

        Raises:
            TestbedError: It is not installed, runs already, or cannot be run.
            PermissionMissing: It may not be a real-time task.
        """
        super().start(launcher)
        self.await_that(lambda: self.count() > 0, "wake up")

    def count(self) -> int:
        """Wake-ups that it has written down so far."""
        with self.output.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            numbers = _NEWEST.findall(file.read().rpartition(b"\n")[0])
        return int(numbers[-1]) + 1 if numbers else 0

    def check(self) -> None:
        """See that it still runs.

        Raises:
            TestbedError: It does not, or ended; with its last words.
            PermissionMissing: It may not be a real-time task.
        """
        if self.process.exit_code is not None and "RLIMIT_RTPRIO" in self.process.tail():
            way_out = f"run as root, or raise `ulimit -r` to {self.priority}"
            raise PermissionMissing(f"cyclictest may not be a real-time task: {way_out}")
        super().check()

    def stop(self) -> NDArray[np.int64]:
        """End it and read its measurements.

        Returns:
            Latency of every wake-up in nanoseconds, shape (n,), in the order of time.

        Raises:
            TestbedError: It does not run.
        """
        lines = self.output
        super().stop()
        return np.array(wake_ups(lines.read_bytes()), dtype=np.int64)

    def _command(self, launcher: Launcher) -> list[str]:  # noqa: ARG002 - it makes no files
        program = find_program("cyclictest", "rt-tests")
        wakes = [f"--interval={self.interval_us}", f"--priority={self.priority}"]
        return [program, "--mlockall", "--nsecs", "--verbose", *wakes]
