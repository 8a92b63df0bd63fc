"""Learn from rlctl which working mode this application is in. One file, to be copied: Python 3.8 and nothing else.

An application that rlctl launched or adopted asks now and then, whenever it suits it:

    modes = rlctl_mode.ModeClient()
    while working:
        mode = modes.poll()             # None as long as nothing has changed; never waits
        if mode is not None:
            pool.resize(mode.threads)
        work()
        modes.send_gap(20.0)            # if it has a goal: 20 % short of it

Where there is no service (yet), the file of RLCTL_MODE_FILE or the environment answers, and a service that comes later
is found by the next `poll`. Outside rlctl `ModeClient` answers nothing and does no harm.
"""

from __future__ import annotations

import os
import select
import socket
import time
from dataclasses import dataclass

RETRY_SECONDS = 1.0
MOST_LINE_BYTES = 512


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
    """A connection to the service that comes back by itself.

    Args:
        path: The service's socket; default RLCTL_MODE_SOCKET.
        file: Where the mode stands too; default RLCTL_MODE_FILE.
    """

    def __init__(self, path: str | None = None, file: str | None = None) -> None:
        self._path = path or os.environ.get("RLCTL_MODE_SOCKET", "")
        self._file = file or os.environ.get("RLCTL_MODE_FILE", "")
        self._socket: socket.socket | None = None
        self._received = b""
        self._retry_at = 0.0
        self._mode: Mode | None = None
        self._connect()

    @property
    def mode(self) -> Mode | None:
        """The mode that came last."""
        return self._mode

    def poll(self) -> Mode | None:
        """The mode if it is another one than at the last call, else None; never waits."""
        if self._socket is None:
            self._connect()
        newest = self._from_socket() if self._socket is not None else self._from_file()
        if newest is None or newest == self._mode:
            return None
        self._mode = newest
        return newest

    def wait(self, seconds: float) -> Mode | None:
        """As `poll`, but waits up to so many seconds for a change."""
        ends = time.monotonic() + seconds
        while (mode := self.poll()) is None and (left := ends - time.monotonic()) > 0.0:
            if self._socket is not None:
                waiting = select.poll()  # select() takes no descriptor above 1023
                waiting.register(self._socket, select.POLLIN)
                waiting.poll(left * 1e3)
            else:
                time.sleep(min(left, 0.1))
        return mode

    def send_gap(self, percent: float) -> bool:
        """Say how far the application is from its goal, -100 to 100 percent of it; False if nobody listens."""
        if not -100.0 <= percent <= 100.0 or self._socket is None:
            return False
        try:
            return self._socket.send(f"gap {percent:.2f}\n".encode()) > 0
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False

    def close(self) -> None:
        """End the connection; the next `poll` makes another one. Idempotent."""
        connected, self._socket = self._socket, None
        self._received = b""
        if connected is not None:
            connected.close()

    def _connect(self) -> None:
        if not self._path or time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + RETRY_SECONDS
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh.setblocking(False)
        try:
            fresh.connect(self._path)
        except OSError:
            fresh.close()
        else:
            self._socket = fresh

    def _from_socket(self) -> Mode | None:
        """The newest whole line; older ones count no more."""
        newest = None
        try:
            while self._socket is not None:
                some = self._socket.recv(4096)
                if not some:
                    self.close()
                *lines, self._received = (self._received + some).split(b"\n")
                self._received = self._received[:MOST_LINE_BYTES]
                for line in lines:
                    newest = _parsed(line) or newest
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        return newest

    def _from_file(self) -> Mode | None:
        try:
            with open(self._file, "rb") as file:
                return _parsed(file.read(MOST_LINE_BYTES))
        except OSError:
            return None


def _parsed(line: bytes) -> Mode | None:
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
