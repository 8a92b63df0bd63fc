"""Reads what is added to a file, as `tail -F` does, without ever waiting.

A FIFO is refused, unopened: its writer, the LC, would wait whenever rlctl is late, and end by SIGPIPE when rlctl ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from pathlib import Path

from rlctl.envs.host.sensors.kernel_file import missing_because
from rlctl.envs.telemetry import Missing, Why

A_FIFO = "is a FIFO, and whoever writes to it would wait for rlctl: let it write to a regular file"
MOST_BYTES = 4 << 20
"""Per call. What a longer burst holds beyond its newest part is skipped, and counted: `taken_ratio`."""

TIMES_AGREE_SECONDS = 2.0
"""File systems tell the time of a write with up to so much of an error."""


class GrowingFile:
    """Whole lines that are added to a file from now on.

    Survives rotation (the name leads to another file: the old one is read to its end first), truncation in place,
    a file that does not exist yet, and writers that stop in the middle of a line. What is in a file into which nobody
    has written since the last call is of the past: it was moved here.

    Attributes:
        taken_ratio: Of the bytes that were added before the last `read`, the share that it gave; 1 but in a burst.
            After `early` that of what it gave.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._offset = 0
        self._partial = b""
        self._resync = False
        self._ahead = 0  # where `ahead` goes on
        self.taken_ratio = 1.0
        self._looked_seconds = math.inf
        self._open()
        self._looked_seconds = time.time()

    def read(self) -> bytes | Missing:
        """All whole lines written since the last call, perhaps none; missing when there is no such file."""
        self.taken_ratio = 1.0
        data = b""
        try:
            if self._file is None and (trouble := self._open()) is not None:
                return trouble
            data = self._drain()
            if self._moved():
                data += self._flush() + self._swap()
        except FileNotFoundError as error:  # moved away, and nothing new in its place yet
            return data or missing_because(error, self.path)
        except OSError as error:
            self.close()
            return missing_because(error, self.path)
        finally:
            self._looked_seconds = time.time()
        return data

    def early(self, least_bytes: int) -> bytes:
        """What `read` would give of the open file, where at least so many bytes wait; the next one gives what follows.

        Nothing where that fails, which the next `read` tells.
        """
        with contextlib.suppress(OSError):
            if self._file is not None and os.fstat(self._file).st_size - self._offset >= least_bytes:
                self.taken_ratio = 1.0
                return self._drain()
        return b""

    def ahead(self, most_bytes: int) -> bytes:
        """The newest whole lines since the last call, at most so many bytes, which `read` gives all the same.

        It looks at the open file only: of one that has taken its place nothing is seen before the next `read`.
        """
        if self._file is None:
            return b""
        try:
            size = os.fstat(self._file).st_size
            if size < self._ahead:  # truncated in place
                self._ahead = 0
            start = max(self._ahead, size - most_bytes)
            # From the byte before: it tells whether a line begins here, or only behind the next line feed.
            data = os.pread(self._file, size - max(start - 1, 0), max(start - 1, 0)) if size > start else b""
        except OSError:  # `read` will say so
            return b""
        begun = data.partition(b"\n")[2] if start else data
        lines = begun[: begun.rfind(b"\n") + 1]
        self._ahead = size - len(begun) + len(lines)
        return lines

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    @property
    def _descriptor(self) -> int:
        assert self._file is not None
        return self._file

    def _open(self) -> Missing | None:
        try:
            if stat.S_ISFIFO(os.stat(self.path).st_mode):
                return Missing(Why.NOT_SUPPORTED, f"{self.path}: {A_FIFO}")
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return missing_because(error, self.path)
        self._offset, self._partial, self._resync, self._ahead = 0, b"", False, 0
        if os.fstat(self._file).st_mtime < self._looked_seconds - TIMES_AGREE_SECONDS:
            self._skip_the_past()
        return None

    def _skip_the_past(self) -> None:
        """Begin at the end of what is there; in the middle of a line, behind that line."""
        with contextlib.suppress(OSError):  # a directory: `read` will say so
            self._offset = self._ahead = os.fstat(self._descriptor).st_size
            self._resync = self._offset > 0 and os.pread(self._descriptor, 1, self._offset - 1) != b"\n"

    def _swap(self) -> bytes:
        self.close()
        return self._drain() if self._open() is None else b""

    def _moved(self) -> bool:
        """Does the name now lead to another file than the open one?"""
        there, here = os.stat(self.path), os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _drain(self) -> bytes:
        return self._whole_lines(self._added())

    def _added(self) -> bytes:
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:  # truncated in place
            self._offset, self._partial, self._resync = 0, b"", False
        added = size - self._offset
        if added > MOST_BYTES:
            self._offset, self._partial, self._resync = size - MOST_BYTES, b"", True
        self.taken_ratio = min(self.taken_ratio, MOST_BYTES / max(added, 1))
        # no more than there is: a megabyte asked for at every tick, and shrunk to some lines, wears the heap out
        data = os.pread(self._descriptor, size - self._offset, self._offset)
        self._offset += len(data)
        return data

    def _whole_lines(self, data: bytes) -> bytes:
        if self._resync:  # the first line was begun before the place where reading began
            _, newline, data = data.partition(b"\n")
            self._resync = not newline
        data = self._partial + data
        end = data.rfind(b"\n") + 1
        self._partial = data[end:]
        if len(self._partial) > MOST_BYTES:  # no line is a megabyte long
            self._partial, self._resync = b"", True
        return data[:end]

    def _flush(self) -> bytes:
        """The last line of a file that has been moved away counts although it lacks its newline."""
        rest, self._partial = self._partial, b""
        return rest + b"\n" if rest else b""
