"""A tick log that is being written, decision by decision, each with its header: for whoever decides along."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rlctl.envs.ticklog import MOST_LINE_BYTES, Line, unsealed
from rlctl.ticklog.decisions import Decision, decision_of
from rlctl.ticklog.tail import LogTail

__all__ = ["DecisionTail"]

HEADER = b'{"log":'
"""How a header's line begins; to look for it costs nothing, to parse every line of a file before its tail would."""


class DecisionTail(LogTail):
    """Every decision from the log's end on, in order, through rotations, restarts and damage.

    It begins with what the end of the log holds at the start, as `LogTail` does, under the header that is in force
    there, wherever in the file that stands.

    Args:
        log: The log's newest file, or its directory.

    Raises:
        ConfigError: There is no log.
        PermissionMissing: It may not be read.
    """

    def __init__(self, log: Path) -> None:
        self._header: Mapping[str, Any] = {}
        self._first, self._unbroken = False, False
        self._checksum = ""
        self._fresh: list[Decision] = []
        super().__init__(log)

    def take(self) -> list[Decision]:
        """The decisions since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def _line(self, raw: bytes) -> None:
        try:
            said, prev, crc = unsealed(raw)
            if prev is not None and self._checksum and prev != self._checksum:
                self._unbroken = False
            line = Line(self.path, 0, said)
            if line.is_header:
                self._header, self._first = said, True
            else:
                decision = decision_of(line, self._header, first=self._first, unbroken=self._unbroken)
                self._fresh.append(decision)
                self._first, self._unbroken = False, True
            self._checksum = crc
        except ValueError:
            self._forget_place()
            raise

    def _pass_over(self, file: IO[bytes], end: int) -> None:
        file.seek(0)
        while file.tell() < end and (raw := file.readline(MOST_LINE_BYTES)):
            if raw.startswith(HEADER):
                try:
                    self._header = unsealed(raw)[0]
                except ValueError:
                    self.damaged += 1
        self._first = False  # the ticks that such a header came just before are passed over too
        self._forget_place()

    def _forget_place(self) -> None:
        """What the next line must name as the one before it is not known."""
        self._checksum, self._unbroken = "", False
