"""What is mounted where, as the kernel tells it in /proc/self/mountinfo (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.decode import text_of


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mounted file system.

    Attributes:
        kind: Its type, such as `cgroup2`.
        path: Where it is mounted.
        device: Its device number, as `os.stat` has it.
        options: Of the file system: the controllers of a v1 hierarchy, how resctrl was mounted.
        read_only: Whether this mount of it is.
    """

    kind: str
    path: Path
    device: int
    options: tuple[str, ...]
    read_only: bool


def list_mounts(*kinds: str, proc: Path = Path("/proc")) -> Iterator[Mounted]:
    """Mounts of these types in their order; a line that is none is passed over."""
    for line in text_of(proc / "self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        fields, origin = mount.split(), source.split()
        if len(fields) < 6 or len(origin) < 2 or origin[0] not in kinds:
            continue
        numbers = fields[2].split(":")
        if len(numbers) == 2 and all(one.isdecimal() and len(one) < 10 for one in numbers):
            device = os.makedev(int(numbers[0]), int(numbers[1]))
            options = tuple(origin[-1].split(","))
            yield Mounted(origin[0], _unescape(fields[4]), device, options, "ro" in fields[5].split(","))


def _unescape(field: str) -> Path:
    """Spaces and the like are written as three octal digits."""
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field))
