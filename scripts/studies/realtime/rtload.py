"""Loads beside a real-time task, compiled from `rtload.c`, and what they get done."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import numpy as np

from rlctl.envs.testbed.generator import compile_program
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.workloads import Program

SOURCE = Path(__file__).with_name("rtload.c")
BLOCK_BYTES = 4096
"""What the I/O load writes in a round."""

WORDS_PER_LINE = 8  # of the counter: 64 bytes


class Load(StrEnum):
    """What general-purpose tasks do meanwhile."""

    NONE = "none"
    CPU = "cpu"
    SCHED = "sched"
    IO = "io"


class RtLoad(Program):
    """A load that runs until it is stopped. Its rounds can be read at any time, also while it is frozen.

    Args:
        load: What it does; not NONE.
        threads: How many do it.
    """

    def __init__(self, load: Load, threads: int) -> None:
        self.name = f"{load} load"
        self.load, self.wanted_threads = load, threads
        self._counter = Path()

    def start(self, launcher: Launcher) -> None:
        """Start it, and wait until all its threads run. The files of the I/O load are in the launcher's folder.

        Raises:
            TestbedError: It cannot be compiled or run, or its disk is full.
        """
        super().start(launcher)
        wanted = self.wanted_threads
        self.await_that(lambda: self.threads() >= wanted, f"start its {wanted} threads")

    def threads(self) -> int:
        """How many of its threads have begun."""
        counter = self._read()
        return int(counter[0]) if counter.size else 0

    def rounds(self) -> int:
        """Rounds of all threads since the start."""
        return int(self._read()[WORDS_PER_LINE::WORDS_PER_LINE].sum())

    def _command(self, launcher: Launcher) -> list[str]:
        self._counter = launcher.folder / "rtload.counter"
        self._counter.unlink(missing_ok=True)
        where = [str(launcher.folder)] if self.load is Load.IO else []
        return [
            str(compile_program(SOURCE, "-pthread")),
            self.load,
            str(self.wanted_threads),
            str(self._counter),
            *where,
        ]

    def _read(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        try:
            return np.fromfile(self._counter, dtype=np.uint64)
        except FileNotFoundError:
            return np.zeros(0, dtype=np.uint64)
