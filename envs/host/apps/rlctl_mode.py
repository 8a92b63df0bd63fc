"""Learn from rlctl which working mode this application is in. One file, to be copied: Python 3.8 and nothing else.

An application that `rlctl app run` launched asks now and then, whenever it suits it:

    modes = rlctl_mode.ModeClient()
    while working:
        mode = modes.poll()             # None as long as nothing has changed
        if mode is not None:
            pool.resize(mode.threads)
        work()

The mode is a line of the file RLCTL_MODE_FILE, which the service replaces as a whole. Outside rlctl `ModeClient`
answers nothing and does no harm.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

MOST_LINE_BYTES = 512
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Mode:
    """A working mode of this application.

    Attributes:
        index: Which of those in the application's description, from 0.
        cpus: CPU time per second of wall clock that it gets; may be more or less than the description says.
        memory_bytes: Memory that it may use; 0 says nothing about it.
    """

    index: int
    threads: int
    cpus: float
    memory_bytes: int


def threads_at_start(default: int) -> int:
    """RLCTL_THREADS, the number of threads to begin with; `default` outside rlctl."""
    text = os.environ.get("RLCTL_THREADS", "")
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else default


class ModeClient:
    """Reads the mode from a file, by default RLCTL_MODE_FILE.

    Attributes:
        mode: The mode that was read last; None before the first.
    """

    def __init__(self, file: str | None = None) -> None:
        self.mode: Mode | None = None
        self._file = file or os.environ.get("RLCTL_MODE_FILE", "")

    def poll(self) -> Mode | None:
        """The mode if it is another one than at the last call, else None."""
        try:
            with open(self._file, "rb") as file:
                newest = parse_mode(file.read(MOST_LINE_BYTES))
        except OSError:
            return None
        if newest is None or newest == self.mode:
            return None
        self.mode = newest
        return newest

    def wait(self, seconds: float) -> Mode | None:
        """As `poll`, but waits up to so many seconds for a change."""
        ends = time.monotonic() + seconds
        mode = self.poll()
        while mode is None and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
            mode = self.poll()
        return mode


def parse_mode(line: bytes) -> Mode | None:
    """`mode 2 threads 4 millicpus 1500 memory 0`, and words that a later version adds; None for anything else."""
    words = line.split()
    numbers = dict(zip(words[::2], words[1::2]))  # noqa: B905 - `strict` came with Python 3.10
    try:
        index, threads, millicpus, memory = (
            int(numbers[key]) for key in (b"mode", b"threads", b"millicpus", b"memory")
        )
    except (KeyError, ValueError):
        return None
    return Mode(index, threads, millicpus / 1000.0, memory)
