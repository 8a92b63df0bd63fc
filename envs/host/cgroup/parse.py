"""Contents of kernel files as numbers; whatever is none becomes a CgroupError that names the file."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.cpulist import parse_cpus
from rlctl.envs.host.cgroup.knobs import Knobs

__all__ = ["child_groups", "cpu_set", "number", "table"]


def number(content: str, path: Path) -> int:
    """The whole number that a file holds.

    Raises:
        CgroupError: It holds something else.
    """
    try:
        return int(content)
    except ValueError:
        raise CgroupError(f"{path}: {content.strip()!r} is no number") from None


def table(content: str, path: Path) -> dict[str, int]:
    """The `key number` lines of cpu.stat and the like.

    Raises:
        CgroupError: A line is of another form.
    """
    try:
        return {key: int(value) for key, value in map(str.split, content.splitlines())}
    except ValueError:
        raise CgroupError(f"{path}: {content[:60]!r} is no table of numbers") from None


def cpu_set(content: str, path: Path) -> frozenset[int]:
    """The CPUs that a file lists.

    Raises:
        CgroupError: It holds something else.
    """
    try:
        return parse_cpus(content)
    except ValueError as error:
        raise CgroupError(f"{path}: {error}") from None


def child_groups(knobs: Knobs, group: Path) -> tuple[Path, ...]:
    """Child groups that exist at this moment; none when the group itself vanished."""
    with contextlib.suppress(OSError):
        return knobs.kernel.subgroups(group)
    return ()
