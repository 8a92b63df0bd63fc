"""Reads what is added to a file, as `tail -F` does, without ever waiting.

A FIFO is refused, unopened: its writer, the LC, would wait whenever rlctl is late, and end by SIGPIPE when rlctl ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rlctl.envs.host.sensors.kernel_file import missing_because, read_timed
from rlctl.envs.telemetry import Missing, Why

A_FIFO = "is a FIFO, and whoever writes to it would wait for rlctl: let it write to a regular file"
MOST_BYTES = 4 << 20
"""Per call. What a longer burst holds beyond its newest part is skipped, and counted: `taken_ratio`."""

TIMES_AGREE_SECONDS = 2.0
"""File systems tell the time of a write with up to so much of an error."""

MARK_BYTES = 256
"""Of what was read last, compared with the file at the next look: one that was truncated may have grown beyond its old
end meanwhile."""


class GrowingFile:
    """Whole lines that are added to a file from now on.

    Survives rotation (the name leads to another file; the old one is read to its end first) and truncation in place. It
    also survives a file that does not exist yet, and writers that stop in the middle of a line. What is in a file into
    which nobody has written since the last call is of the past: it was moved here.

    Args:
        clock: Of `read_seconds`, monotonic.

    Attributes:
        taken_ratio: Of the bytes that were added before the last `read`, the share that it gave; 1 but in a burst.
            After `early` that of what it gave.
        read_seconds: When the last bytes that `read` or `early` gave were there, and no more.
        gap: Why `read` gave not all that was written since the call before; empty where it did, as far as can be known.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock = path, clock
        self._file: int | None = None
        self._offset = 0
        self._partial = self._mark = b""
        self._resync = False
        self._ahead = 0  # where `ahead` goes on
        self._written_ns, self._is_emptied = 0, False  # as of the last look
        self._opened = deque[int](maxlen=8)  # numbers of the files that had the name
        self._ends_unsure = False  # when the last lines were there is not known
        self.taken_ratio = 1.0
        self.gap = self._next_gap = ""
        self._looked_seconds = math.inf
        self._open()
        self._looked_seconds, self.read_seconds = time.time(), clock()

    def read(self) -> bytes | Missing:
        """All whole lines written since the last call, perhaps none; missing when there is no such file."""
        self.taken_ratio, self.read_seconds = 1.0, self._clock()
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
            self.gap, self._next_gap = self._next_gap, ""
        return data

    def early(self, least_bytes: int) -> bytes:
        """What `read` would give of the open file, where at least so many bytes wait; the next one gives what follows.

        A file that has taken its place is opened: of two that follow each other before the next `read` none is missed.
        Nothing where that fails, which the next `read` tells.
        """
        with contextlib.suppress(OSError):
            if self._file is not None and self._moved():
                self.taken_ratio = 1.0
                data = self._drain() + self._flush() + self._swap()
                self._looked_seconds = time.time()
                return data
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
        self._begin_anew()
        self._ahead = 0
        there = os.fstat(self._file)
        self._opened.append(there.st_ino)
        self._written_ns, self._is_emptied = there.st_mtime_ns, False
        if there.st_mtime < self._looked_seconds - TIMES_AGREE_SECONDS:
            self._skip_the_past()
        return None

    def _skip_the_past(self) -> None:
        """Begin at the end of what is there; in the middle of a line, behind that line."""
        with contextlib.suppress(OSError):  # a directory: `read` will say so
            self._offset = self._ahead = os.fstat(self._descriptor).st_size
            begin = max(self._offset - MARK_BYTES, 0)
            self._mark = os.pread(self._descriptor, self._offset - begin, begin)
            self._resync = self._offset > 0 and not self._mark.endswith(b"\n")

    def _begin_anew(self) -> None:
        self._offset, self._partial, self._mark, self._resync = 0, b"", b"", False

    def _swap(self) -> bytes:
        since = self._looked_seconds - TIMES_AGREE_SECONDS
        self.close()
        data = self._drain() if self._open() is None else b""
        if self._passed_over(since):
            self._next_gap = "the file was renamed twice since the last look, and what was between is not read"
        return data

    def _passed_over(self, since_seconds: float) -> bool:
        """Whether a file beside this one was written to since then that had the name, and was never opened here."""
        with contextlib.suppress(OSError), os.scandir(self.path.parent) as found:
            beside = [one for one in found if one.name.startswith(self.path.name) and one.inode() not in self._opened]
            return any(at.st_mtime >= since_seconds for at in map(os.DirEntry.stat, beside) if stat.S_ISREG(at.st_mode))
        return False

    def _moved(self) -> bool:
        """Does the name now lead to another file than the open one?"""
        there, here = os.stat(self.path), os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _drain(self) -> bytes:
        return self._whole_lines(self._added())

    def _added(self) -> bytes:
        found = self._look()
        size = found.st_size
        if self._is_truncated(found):
            self._next_gap = "the file was truncated in place, and what was written before that is not read"
            self._begin_anew()
            self._is_emptied = size == 0
        self._written_ns = found.st_mtime_ns
        added = size - self._offset
        if added > MOST_BYTES:
            self._offset, self._partial, self._mark, self._resync = size - MOST_BYTES, b"", b"", True
        self.taken_ratio = min(self.taken_ratio, MOST_BYTES / max(added, 1))
        # no more than there is: a megabyte asked for at every tick, and shrunk to some lines, wears the heap out
        data = os.pread(self._descriptor, size - self._offset, self._offset)
        self._offset += len(data)
        self._mark = (self._mark + data[-MARK_BYTES:])[-MARK_BYTES:]
        return data

    def _look(self) -> os.stat_result:
        """The file's size, and in `read_seconds` when it was this: what is added later is of the next window."""
        began_unsure = self._ends_unsure
        found, self.read_seconds, known = read_timed(self._clock, lambda: os.fstat(self._descriptor))
        self._ends_unsure = not known
        if began_unsure or self._ends_unsure:  # where one window ends the next one begins
            self._next_gap = "rlctl was held up while it read the log: it is not known of which time the lines are"
        return found

    def _is_truncated(self, found: os.stat_result) -> bool:
        if found.st_size == self._offset and found.st_mtime_ns == self._written_ns:
            return False
        # Where it was found empty there is nothing to compare: what was written and truncated since is not to be seen.
        was_emptied = self._offset == 0 and self._is_emptied
        marked = os.pread(self._descriptor, len(self._mark), self._offset - len(self._mark))
        return found.st_size < self._offset or was_emptied or marked != self._mark

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
