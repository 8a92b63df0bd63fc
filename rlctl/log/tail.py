"""The end of a tick log that is being written: its last ticks, and each new one, through rotations."""

from __future__ import annotations

import itertools
import os
from collections import deque
from pathlib import Path
from typing import IO

from rlctl.envs.errors import ConfigError, reading
from rlctl.envs.log_lines import Line
from rlctl.envs.ticklog import LOG_NAME, MOST_LINE_BYTES, decode_line
from rlctl.log.reader import LoggedTick, TickReader
from rlctl.log.record import Tick

HISTORY_TICKS = 600
"""Ten minutes at a tick a second."""

TAIL_BYTES = 2 << 20
"""Read of each file at the start: more than so many ticks take."""

HEADER = b'{"log":'
"""How a header's line begins: before the tail only such lines are parsed."""


class LogTail:
    """The last ticks of a log, and each new one, through rotations, restarts and damage; ConfigError if there is none.

    `ticks` are the last ones, oldest first, at most `HISTORY_TICKS`; `damaged` counts the lines that were none.
    """

    def __init__(self, log: Path) -> None:
        self.path = log / LOG_NAME if log.is_dir() else log
        self.ticks: deque[Tick] = deque(maxlen=HISTORY_TICKS)
        self.damaged = 0
        self._new: list[LoggedTick] = []
        self._reader = TickReader()
        self._reader.pass_damage()  # of the lines before the tail nothing is known
        self._part, self._has_checksums = b"", False
        file = self._open(self.path)
        if file is None:
            raise ConfigError("there is no tick log: does `rlctl serve` run with this log directory?", self.path)
        self._file = file
        self._look_back()

    def poll(self) -> list[LoggedTick]:
        """The ticks since the last call, at the first call those of the log's end; none while the log is gone."""
        self._take()
        newest = self._open(self.path)
        if newest is not None and _same(newest, self._file):
            newest.close()
            if os.fstat(self._file.fileno()).st_size < self._file.tell():  # truncated: begin anew
                self._file.seek(0)
                self._part = b""
                self._take()
        elif newest is not None:
            self._take()  # what came just before the rotation
            for file in (*self._between(newest), newest):
                self._file.close()
                self._file, self._part = file, b""
                self._take()
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._file.close()

    def _open(self, path: Path) -> IO[bytes] | None:
        with reading(path):
            try:
                return path.open("rb")
            except FileNotFoundError:
                return None

    def _between(self, newest: IO[bytes]) -> list[IO[bytes]]:
        """Files that came after ours and before the newest, oldest first: a long pause may have missed whole ones.

        Empty where ours is no longer among the numbered files: which of those are new cannot be known then.
        """
        newer: list[IO[bytes]] = []
        for number in itertools.count(1):
            file = self._open(self.path.with_name(f"{self.path.name}.{number}"))
            if file is None or _same(file, self._file):
                break
            if _same(file, newest):  # rotated again just now
                file.close()
            else:
                newer.append(file)
        if file is not None:
            file.close()
            return newer[::-1]
        for file in newer:
            file.close()
        self._reader.pass_damage()
        return []

    def _look_back(self) -> None:
        """Read the ends of the file before, if there is one, and of this one."""
        try:
            before = self.path.with_name(f"{self.path.name}.1").open("rb")
        except OSError:
            before = None
        if before is not None:
            with before:
                self._to_tail(before)
                self._take_data(before.read(TAIL_BYTES))
            self._part = b""
        self._to_tail(self._file)
        self._take()

    def _to_tail(self, file: IO[bytes]) -> None:
        """Go to the first whole line of the file's end."""
        size = os.fstat(file.fileno()).st_size
        if size > TAIL_BYTES:
            self._pass_over(file, size - TAIL_BYTES)
            file.seek(size - TAIL_BYTES)
            file.readline(TAIL_BYTES)

    def _pass_over(self, file: IO[bytes], end: int) -> None:
        """Look for the header in force in what comes before a file's tail."""
        file.seek(0)
        while file.tell() < end and (raw := file.readline(MOST_LINE_BYTES)):
            if raw.startswith(HEADER):
                try:
                    self._reader.pass_header(decode_line(raw)[0])
                except ValueError:
                    self.damaged += 1
        self._reader.pass_damage()

    def _take(self) -> None:
        while data := self._file.read(TAIL_BYTES):
            self._take_data(data)

    def _take_data(self, data: bytes) -> None:
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-TAIL_BYTES:]  # no tick is so long: a line without an end is none
        for raw in filter(bytes.strip, lines):
            self._take_line(raw)

    def _take_line(self, raw: bytes) -> None:
        try:
            content, self._has_checksums = decode_line(raw, self._has_checksums)
            logged = self._reader.read(Line(self.path, 0, content))
        except ValueError:
            self.damaged += 1
            self._reader.pass_damage()
            return
        if logged is not None:
            self._new.append(logged)
            self.ticks.append(logged.tick)


def _same(one: IO[bytes], other: IO[bytes]) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())
