"""The lines of a tick log: JSON objects, each with its checksum.

`{..., "crc": "5be7d2a4"}`: `crc` is the CRC-32 of the line up to it. It finds accidents (disks, editors, copies), not
forgers. Missing lines show as a gap in the ticks' numbers. Older logs are read too: `prev`, once the checksum of the
line before, is ignored, and a line from before there were checksums is taken as it is.

A line with the key `log` is a header: under what the ticks after it were recorded.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.envs.errors import reading

LOG_NAME = "ticks.jsonl"
"""The newest file of a log; `ticks.jsonl.1` is the one before it, and so on."""

MOST_LINE_BYTES = 1 << 20
"""No tick is so long (2 kB is usual): a longer line is no line of ours, and is not taken into memory."""

_CHECKSUM = re.compile(rb',?"crc":"([0-9a-f]{8})"\}\Z')


def encode_line(plain: Mapping[str, object]) -> bytes:
    """An object as a line with its checksum and its newline; ValueError: a number in it is not finite."""
    body = json.dumps(plain, separators=(",", ":"), allow_nan=False)[:-1].encode()
    return b'%s%s"crc":"%08x"}\n' % (body, b"," if plain else b"", zlib.crc32(body))


def decode_line(raw: bytes, has_checksums: bool = False) -> tuple[dict[str, Any], bool]:
    """A line's object, and whether it has a checksum, as all have after one; ValueError: how the line is damaged."""
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
    if has_checksums and not checksum:
        raise ValueError("has no checksum, unlike the lines before it")
    content.pop("crc", None)
    content.pop("prev", None)
    return content, checksum is not None


def numbered_files(newest: Path) -> tuple[Path, ...]:
    """A log's newest file and those rotated away, oldest first; there is no newest one while it is being rotated.

    Raises:
        ConfigError: The directory cannot be read.
        PermissionMissing: It may not be.
    """
    with reading(newest.parent):
        numbers = {_number(entry.name, newest.name): entry for entry in newest.parent.iterdir()}
    return tuple(numbers[number] for number in sorted(numbers, reverse=True) if number >= 0)


def _number(name: str, newest: str) -> int:
    """0 for the newest file of a log, its number for a rotated one, -1 for any other file."""
    rest = name.removeprefix(newest)
    if rest == name:
        return -1
    return 0 if not rest else int(rest[1:]) if re.fullmatch(r"\.[1-9][0-9]{0,8}", rest) else -1
