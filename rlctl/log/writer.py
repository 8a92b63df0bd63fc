"""A JSON-lines file that grows by a line a record: append-only, rotated, bounded, readable after a crash."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Generic, TypeVar

from rlctl.envs.errors import RlctlError
from rlctl.envs.ticklog import encode_line, numbered_files
from rlctl.envs.whole_file import is_ours

log = logging.getLogger(__name__)

T = TypeVar("T")


class LogWriter(Generic[T]):
    """A JSON-lines file that is rotated before it grows beyond a bound; see `rlctl.envs.ticklog` for its lines.

    All files together never take more than `(keep + 1) * most_bytes`. A full disk costs records, never the loop: they
    are dropped and counted in `dropped`; that it begins and ends is logged, ever more seldom where it does so often.

    Args:
        path: The newest file; `path.1` is the one before it, and so on.

    Attributes:
        header: Makes the header's plain data from the record that follows it; headers stand at the start, in each new
            file, and where records were dropped. None writes no headers.

    Raises:
        OSError: The file cannot be opened at the start, or another process writes it.
    """

    def __init__(
        self, path: Path, as_json: Callable[[T], Mapping[str, object]], most_bytes: int = 16 << 20, keep: int = 4
    ) -> None:
        self.path = path
        self._as_json = as_json
        self.most_bytes = most_bytes
        self.keep = keep
        self.dropped = 0
        self.header: Callable[[T], Mapping[str, object]] | None = None
        self._has_header = self._failing = False
        self._stretches = 0  # of records that were dropped
        self._file: IO[bytes] | None = self._open()
        self._remove_surplus()

    def write(self, record: T) -> None:
        """Append one line with one system call, so that a crash tears at most the last one."""
        try:
            self._append(record)
        except (OSError, ValueError) as error:
            if not self._failing:
                self._stretches += 1
                if self._worth_a_line:
                    log.warning("%s: %s; records are dropped until it can be written again", self.path, error)
            self._failing, self._has_header = True, False
            self.dropped += 1
        else:
            if self._failing and self._worth_a_line:
                log.warning("%s: is written again; %d records since the start are lost", self.path, self.dropped)
            self._failing = False

    @property
    def _worth_a_line(self) -> bool:
        """Of a disk that is at its edge the 1st, 2nd, 4th, 8th stretch is."""
        return not self._stretches & (self._stretches - 1)

    def renew_header(self) -> None:
        """Write a header before the next record: what it says has changed."""
        self._has_header = False

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self, record: T) -> None:
        file = self._file = self._file or self._open()
        status = os.fstat(file.fileno())
        if not status.st_nlink:  # it was removed: what is written there is lost, and takes up the disk
            file, status = self._reopen()
        size = status.st_size
        if not size:
            self._has_header = False  # somebody emptied it
        lines = self._lines(record)
        if size and size + len(lines) > self.most_bytes:
            file, size = self._rotate(), 0
            lines = self._lines(record)
        if len(lines) > self.most_bytes:
            raise OSError(errno.EFBIG, f"a record of {len(lines)} bytes is longer than a whole file may be")
        if file.write(lines) != len(lines):
            file.truncate(size)  # half a line would spoil the next one too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._has_header = True

    def _lines(self, record: T) -> bytes:
        """The record's line, after a header where one is due."""
        line = encode_line(self._as_json(record))
        if self.header and not self._has_header:
            return encode_line(self.header(record)) + line
        return line

    def _open(self) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)  # each time: somebody may have removed it meanwhile
        # Without waiting: a FIFO in its place would hold the loop up once nobody reads it.
        file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666), "a+b", 0)
        status = os.fstat(file.fileno())
        if stat.S_ISFIFO(status.st_mode):
            file.close()
            raise OSError(errno.EINVAL, "is a FIFO: remove it", str(self.path))
        if not is_ours(file):
            file.close()
            raise OSError(errno.EBUSY, "another process writes it; name another", str(self.path))
        size = status.st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            with contextlib.suppress(OSError):  # a full disk: what comes first then is lost with the torn line
                file.write(b"\n")  # ends the line that a crash tore
        return file

    def _reopen(self) -> tuple[IO[bytes], os.stat_result]:
        self.close()
        self._has_header = False
        file = self._file = self._open()
        return file, os.fstat(file.fileno())

    def _rotate(self) -> IO[bytes]:
        self.close()
        for number in range(self.keep, 0, -1):
            newer = self.path if number == 1 else self._numbered_path(number - 1)
            if newer.exists():
                os.replace(newer, self._numbered_path(number))
        self._remove_surplus()
        return self._reopen()[0]

    def _remove_surplus(self) -> None:
        """Remove the oldest files, where an earlier run had more or larger ones."""
        left = self.most_bytes * self.keep
        with contextlib.suppress(RlctlError):  # a directory that cannot be read is no reason to stop
            older = (path for path in reversed(numbered_files(self.path)) if path != self.path)
            for position, path in enumerate(older, start=1):
                with contextlib.suppress(OSError):  # gone, or not ours to remove
                    left -= path.stat().st_size
                    if position > self.keep or left < 0:
                        path.unlink()

    def _numbered_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
