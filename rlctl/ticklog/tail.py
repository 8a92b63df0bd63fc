"""The end of a tick log that is being written: its last ticks, and each new one, through rotations."""

from __future__ import annotations

import itertools
import os
from collections import deque
from pathlib import Path
from typing import IO

from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.ticklog import LOG_NAME, Line, unsealed
from rlctl.loop.record import Tick
from rlctl.ticklog.decisions import decision_of

__all__ = ["LogTail"]

HISTORY_TICKS = 600
"""Ten minutes at a tick a second."""

TAIL_BYTES = 2 << 20
"""Read of each file at the start: more than so many ticks take."""


class LogTail:
    """The last ticks of a log.

    Args:
        log: The log's newest file, or its directory.

    Attributes:
        path: The newest file.
        ticks: The last ones, oldest first.
        damaged: Lines that were no ticks.

    Raises:
        ConfigError: There is no log.
        PermissionMissing: It may not be read.
    """

    def __init__(self, log: Path) -> None:
        self.path = log / LOG_NAME if log.is_dir() else log
        self.ticks: deque[Tick] = deque(maxlen=HISTORY_TICKS)
        self.damaged = 0
        self._part = b""
        file = self._opened(self.path)
        if file is None:
            raise ConfigError("there is no tick log: does `rlctl serve` run with this log directory?", self.path)
        self._file = file
        self._look_back()

    def poll(self) -> None:
        """Take what has been written since the last call; a log that is gone for now gives nothing."""
        self._take()
        newest = self._opened(self.path)
        if newest is None:
            return
        if _same(newest, self._file):
            newest.close()
            self._follow_truncation()
            return
        self._take()  # what came just before the rotation
        for file in (*self._between(newest), newest):
            self._file.close()
            self._file, self._part = file, b""
            self._take()

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._file.close()

    def _opened(self, path: Path) -> IO[bytes] | None:
        try:
            return path.open("rb")
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise PermissionMissing(f"{path}: may not be read; run as a user who may") from error
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", path) from error

    def _between(self, newest: IO[bytes]) -> list[IO[bytes]]:
        """Files that came after ours and before the newest, oldest first: who was stopped for long missed whole ones.

        None where ours is no longer among the numbered files: which of those are new cannot be told then.
        """
        found: list[IO[bytes]] = []
        for number in itertools.count(1):
            file = self._opened(self.path.with_name(f"{self.path.name}.{number}"))
            if file is None or _same(file, self._file):
                break
            found.append(file)
        if file is not None:
            file.close()
        kept = [] if file is None else [one for one in found if not _same(one, newest)]  # rotated again just now
        for one in found:
            if one not in kept:
                one.close()
        return kept[::-1]

    def _look_back(self) -> None:
        """The ends of the file before, if there is one, and of this one."""
        try:
            before = self.path.with_name(f"{self.path.name}.1").open("rb")
        except OSError:
            before = None
        if before is not None:
            with before:
                self._to_tail(before)
                self._learn(before.read(TAIL_BYTES))
            self._part = b""
        self._to_tail(self._file)
        self._take()

    def _to_tail(self, file: IO[bytes]) -> None:
        """To the first whole line of the file's end."""
        size = os.fstat(file.fileno()).st_size
        if size > TAIL_BYTES:
            self._pass_over(file, size - TAIL_BYTES)
            file.seek(size - TAIL_BYTES)
            file.readline(TAIL_BYTES)

    def _pass_over(self, file: IO[bytes], end: int) -> None:
        """What comes before a file's tail: nothing that matters here."""

    def _follow_truncation(self) -> None:
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._part = b""
            self._take()

    def _take(self) -> None:
        while data := self._file.read(TAIL_BYTES):
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-TAIL_BYTES:]  # a line without an end is no line of ours
        for raw in filter(bytes.strip, lines):
            try:
                self._line(raw)
            except ValueError:
                self.damaged += 1

    def _line(self, raw: bytes) -> None:
        """Take a whole line.

        Raises:
            ValueError: It is damaged, or no tick.
        """
        line = Line(self.path, 0, unsealed(raw)[0])
        if not line.is_header:
            self.ticks.append(decision_of(line, {}).tick)


def _same(one: IO[bytes], other: IO[bytes]) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())
