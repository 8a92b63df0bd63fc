"""The sound lines of a tick log, oldest first, and what is told of the others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlctl.envs.errors import ConfigError, reading
from rlctl.envs.ticklog import LOG_NAME, MOST_LINE_BYTES, decode_line, numbered_files


@dataclass(frozen=True, slots=True)
class Line:
    """One sound line of a log.

    Attributes:
        number: Number of the line in its file, from 1.
        content: The object, without its checksum.
        unbroken: No line between it and the one before is damaged.
    """

    path: Path
    number: int
    content: Mapping[str, Any]
    unbroken: bool = True

    @property
    def is_header(self) -> bool:
        """It tells of the ticks after it, and is none."""
        return "log" in self.content


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be believed, by its number from 1."""

    path: Path
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.what}"


def log_files(path: Path) -> tuple[Path, ...]:
    """The files of a log, oldest first: all of a directory, or one file alone.

    Raises:
        ConfigError: There is no log.
        PermissionMissing: The directory may not be read.
    """
    if not path.is_dir():
        return (path,)
    files = numbered_files(path / LOG_NAME)
    if not files:
        raise ConfigError(f"holds no {LOG_NAME}: has `rlctl serve` run with this log directory?", path)
    return files


def read_lines(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[Line]:
    """The whole lines of a log, oldest file first; damaged lines are reported and passed over.

    Raises:
        ConfigError: None of the files is there, or one cannot be read.
        PermissionMissing: One may not be read.
    """
    unbroken, has_checksums = True, False
    with contextlib.ExitStack() as stack:
        for path, file in _open_files(paths, stack):
            for number, raw in _raw_lines(path, file):
                try:
                    content, has_checksums = decode_line(raw, has_checksums)
                except ValueError as error:
                    if raw.endswith(b"\n"):  # else it is being written, or was cut off by a crash: the end, not damage
                        damaged(Damage(path, number, str(error)))
                    unbroken = False
                    continue
                yield Line(path, number, content, unbroken)
                unbroken = True


def _open_files(paths: Iterable[Path], stack: contextlib.ExitStack) -> list[tuple[Path, IO[bytes]]]:
    """Files of a log that may be rotated just now, each opened once, oldest first."""
    files: dict[tuple[int, int], tuple[Path, IO[bytes]]] = {}
    absent = None
    for path in reversed(tuple(paths)):  # rotation moves files from new names to old ones: so none slips through
        with reading(path):
            try:
                file = stack.enter_context(path.open("rb"))
            except FileNotFoundError:
                absent = path
                continue
        status = os.fstat(file.fileno())
        files.setdefault((status.st_dev, status.st_ino), (path, file))
    if absent and not files:
        raise ConfigError("there is no such log: has `rlctl serve` run with this log directory?", absent)
    return list(reversed(files.values()))


def _raw_lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, none longer than MOST_LINE_BYTES."""
    number = 0
    with reading(path):
        while raw := file.readline(MOST_LINE_BYTES):
            number += 1
            rest = raw
            while len(rest) == MOST_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MOST_LINE_BYTES)
            if raw.strip():
                yield number, raw if rest is raw else raw[:-1] + b"\n"  # too long: cut, and so damaged
