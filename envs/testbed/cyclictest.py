"""cyclictest of rt-tests: one real-time thread that sleeps for an interval, and how late it wakes up each time."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.errors import PermissionMissing, TestbedError
from rlctl.envs.host.latency.cyclictest import wake_ups
from rlctl.envs.testbed.launch import Launcher, Process, find_program

__all__ = ["Cyclictest", "CyclictestConfig"]

READY_SECONDS = 10.0
PAUSE_SECONDS = 0.005
LAST_BYTES = 4096

_NEWEST = re.compile(rb"^ *\d+: *(\d+): *\d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CyclictestConfig:
    """How it wakes up.

    Attributes:
        interval_us: Time between two wake-ups.
        priority: Of SCHED_FIFO.
    """

    interval_us: int = 200
    priority: int = 80


class Cyclictest:
    """A cyclictest that runs until it is stopped, and writes down each wake-up.

    While it runs, the CPUs do not enter deep idle states (/dev/cpu_dma_latency), as is its habit.

    Its lines go to a file of the launcher's folder, 27 bytes for each wake-up. Give it a folder in memory: on a disk,
    the load's syncs would hold up the lines (not the measuring thread, which leaves them to another one).

    Args:
        config: How it wakes up.
    """

    def __init__(self, config: CyclictestConfig | None = None) -> None:
        self.config = config or CyclictestConfig()
        self._process: Process | None = None

    @property
    def output(self) -> Path:
        """Its lines, for `rlctl.envs.host.latency.cyclictest`; latencies are in nanoseconds.

        Raises:
            TestbedError: It was not started.
        """
        if self._process is None:
            raise TestbedError("cyclictest does not run; start it first")
        return self._process.output

    def start(self, launcher: Launcher) -> None:
        """Start it, and wait for its first wake-up.

        Raises:
            TestbedError: It is not installed or cannot be run.
            PermissionMissing: It may not be a real-time task.
        """
        program = find_program("cyclictest", "rt-tests")
        wakes = [f"--interval={self.config.interval_us}", f"--priority={self.config.priority}"]
        self._process = launcher.start("cyclictest", [program, "--mlockall", "--nsecs", "--verbose", *wakes])
        deadline = time.monotonic() + READY_SECONDS
        while not self.count():
            self.check()
            if time.monotonic() > deadline:
                raise TestbedError(f"cyclictest did not wake up in {READY_SECONDS:g} s: {self._process.tail()}")
            time.sleep(PAUSE_SECONDS)

    def pids(self) -> tuple[int, ...]:
        """Its process; empty when it does not run."""
        return () if self._process is None else self._process.pids()

    def count(self) -> int:
        """Wake-ups that it has told of so far."""
        with self.output.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            found = _NEWEST.findall(file.read().rpartition(b"\n")[0])
        return int(found[-1]) + 1 if found else 0

    def check(self) -> None:
        """See that it still runs.

        Raises:
            TestbedError: It ended; with its last words.
            PermissionMissing: It may not be a real-time task.
        """
        if self._process is None or (code := self._process.exit_code) is None:
            return
        words = self._process.tail()
        if "RLIMIT_RTPRIO" in words:
            way_out = f"run as root, or raise `ulimit -r` to {self.config.priority}"
            raise PermissionMissing(f"cyclictest may not be a real-time task: {way_out}")
        raise TestbedError(f"cyclictest ended with code {code}: {words}")

    def stop(self) -> NDArray[np.int64]:
        """End it.

        Returns:
            Latency of every wake-up in nanoseconds, shape (n,), in the order of time.

        Raises:
            TestbedError: It does not run.
        """
        lines = self.output
        assert self._process is not None
        self._process.stop()
        self._process = None
        return np.array(wake_ups(lines.read_bytes()), dtype=np.int64)
