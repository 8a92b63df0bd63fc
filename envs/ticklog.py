"""The lines of a tick log: JSON objects, each with its checksum.

`{..., "crc": "5be7d2a4"}`: `crc` is the CRC-32 of the line up to it. It finds accidents (disks, editors, copies), not
forgers. Missing lines show as a gap in the ticks' numbers. Older logs are read too: `prev`, once the checksum of the
line before, is ignored, and a line from before there were checksums is taken as it is.

A line with the key `log` is a header: under what the ticks after it were recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlctl.envs.errors import ConfigError, reading

LOG_NAME = "ticks.jsonl"
"""The newest file of a log; `ticks.jsonl.1` is the one before it, and so on."""

MOST_LINE_BYTES = 1 << 20
"""No tick is so long (2 kB is usual): a longer line is no line of ours, and is not taken into memory."""

_CHECKSUM = re.compile(rb',?"crc":"([0-9a-f]{8})"\}\Z')


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


def encode_line(plain: Mapping[str, object]) -> bytes:
    """An object as a line with its checksum and its newline; ValueError: a number in it is not finite."""
    body = json.dumps(plain, separators=(",", ":"), allow_nan=False)[:-1].encode()
    return b'%s%s"crc":"%08x"}\n' % (body, b"," if plain else b"", zlib.crc32(body))


def decode_line(raw: bytes) -> tuple[dict[str, Any], bool]:
    """A line's object, and whether it has a checksum; ValueError: how the line is damaged."""
    raw = raw.strip()
    checksum = _CHECKSUM.search(raw)
    if checksum and zlib.crc32(raw[: checksum.start()]) != int(checksum[1], 16):
        raise ValueError("its checksum does not fit: the line was changed")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("not a whole JSON object: torn or changed") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    content.pop("crc", None)
    content.pop("prev", None)
    return content, checksum is not None


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


def numbered_files(newest: Path) -> tuple[Path, ...]:
    """A log's newest file and those rotated away, oldest first; there is no newest one while it is being rotated.

    Raises:
        ConfigError: The directory cannot be read.
        PermissionMissing: It may not be.
    """
    with reading(newest.parent):
        numbers = {_number(entry.name, newest.name): entry for entry in newest.parent.iterdir()}
    return tuple(numbers[number] for number in sorted(numbers, reverse=True) if number >= 0)


def read_lines(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[Line]:
    """The whole lines of a log, oldest file first; damaged lines are reported and passed over.

    Raises:
        ConfigError: None of the files is there, or one cannot be read.
        PermissionMissing: One may not be read.
    """
    unbroken = True
    with contextlib.ExitStack() as stack:
        for path, file in _open_files(paths, stack):
            has_checksums = False
            for number, raw in _raw_lines(path, file):
                try:
                    content, checked = decode_line(raw)
                    if has_checksums and not checked:
                        raise ValueError("has no checksum, unlike the lines before it")
                except ValueError as error:
                    if raw.endswith(b"\n"):  # else it is being written, or was cut off by a crash: the end, not damage
                        damaged(Damage(path, number, str(error)))
                    unbroken = False
                    continue
                yield Line(path, number, content, unbroken)
                has_checksums, unbroken = has_checksums or checked, True


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


def _number(name: str, newest: str) -> int:
    """0 for the newest file of a log, its number for a rotated one, -1 for any other file."""
    rest = name.removeprefix(newest)
    if rest == name:
        return -1
    return 0 if not rest else int(rest[1:]) if re.fullmatch(r"\.[1-9][0-9]{0,8}", rest) else -1
