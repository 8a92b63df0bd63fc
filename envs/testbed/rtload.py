"""Loads beside a real-time task, compiled from `rtload.c`, and what they get done."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.compile import compiled
from rlctl.envs.testbed.launch import Launcher, Process

__all__ = ["BLOCK_BYTES", "Load", "RtLoad"]

SOURCE = Path(__file__).with_name("rtload.c")
BLOCK_BYTES = 4096
"""What the I/O load writes in a round."""

START_SECONDS = 10.0
PAUSE_SECONDS = 0.005
WORDS_PER_LINE = 8  # of the counter: 64 bytes


class Load(StrEnum):
    """What general-purpose tasks do meanwhile."""

    NONE = "none"
    CPU = "cpu"
    SCHED = "sched"
    IO = "io"


@dataclass(frozen=True, slots=True)
class RtLoadConfig:
    """What to run.

    Attributes:
        load: Not NONE.
        threads: How many do it.
    """

    load: Load
    threads: int


class RtLoad:
    """A load that runs until it is stopped. Its rounds can be read at any time, also while it is frozen.

    Args:
        config: What it does.
    """

    def __init__(self, config: RtLoadConfig) -> None:
        self.config = config
        self._process: Process | None = None
        self._counter = Path()

    def start(self, launcher: Launcher) -> None:
        """Start it, and wait until all its threads run. The files of the I/O load are in the launcher's folder.

        Raises:
            TestbedError: It cannot be compiled or run, or its disk is full.
        """
        program = compiled(SOURCE, "-pthread")
        self._counter = launcher.folder / "rtload.counter"
        self._counter.unlink(missing_ok=True)
        where = [str(launcher.folder)] if self.config.load is Load.IO else []
        command = [str(program), self.config.load, str(self.config.threads), str(self._counter), *where]
        self._process = launcher.start(f"{self.config.load} load", command)
        deadline = time.monotonic() + START_SECONDS
        while self.threads() < self.config.threads:
            self.check()
            if time.monotonic() > deadline:
                raise TestbedError(f"{self._process.name}: {self.threads()} of {self.config.threads} threads run")
            time.sleep(PAUSE_SECONDS)

    def pids(self) -> tuple[int, ...]:
        """Its process; empty when it does not run."""
        return () if self._process is None else self._process.pids()

    def threads(self) -> int:
        """How many of its threads have begun."""
        counter = self._read()
        return int(counter[0]) if counter.size else 0

    def rounds(self) -> int:
        """Rounds of all threads since the start."""
        return int(self._read()[WORDS_PER_LINE::WORDS_PER_LINE].sum())

    def check(self) -> None:
        """See that it still runs.

        Raises:
            TestbedError: It ended; with its last words.
        """
        if self._process is not None and (code := self._process.exit_code) is not None:
            raise TestbedError(f"the {self._process.name} ended with code {code}: {self._process.tail()}")

    def stop(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def _read(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        try:
            return np.fromfile(self._counter, dtype=np.uint64)
        except FileNotFoundError:
            return np.zeros(0, dtype=np.uint64)
