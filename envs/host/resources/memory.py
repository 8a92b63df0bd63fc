"""Memory of one group: what reclaim leaves the LC, and how much BE may take.

| wanted | cgroup v2 | cgroup v1 |
| --- | --- | --- |
| LC keeps so much, whatever happens | `memory.min` | nothing |
| LC keeps so much while others have more than theirs | `memory.low` | nothing |
| BE is reclaimed beyond so much | `memory.high` | `memory.soft_limit_in_bytes`, heeded when the host runs short |
| BE never has more than so much | `memory.max` | `memory.limit_in_bytes` |

The kernel counts in pages: what is written is rounded down to whole ones. A limit below what a group uses makes the
write itself reclaim, and the hard one may end with the OOM killer in that group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller
from rlctl.envs.host.cgroup.parse import child_groups, number


class MemoryV2:
    """`memory.min`, `memory.low`, `memory.high`, `memory.max`.

    A protection counts only as far as every group above has one too, which its children share: so those that have too
    little for all are raised with it.

    Args:
        mount: The hierarchy's root, which needs no protection.
    """

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        self._knobs = knobs
        self._group = group
        self._line = [group, *(parent for parent in group.parents if mount in parent.parents)]

    def keep(self, guaranteed_bytes: int | None = None, preferred_bytes: int | None = None) -> None:
        """Protect so much of what the group uses from reclaim, from the top down; None leaves a setting as it is.

        Args:
            guaranteed_bytes: Never reclaimed: rather is a process killed (memory.min).
            preferred_bytes: Reclaimed only when nothing unprotected is left (memory.low).

        Raises:
            CgroupError: The controller is not enabled for the group.
        """
        self._enabled()
        for name, wanted_bytes in (("memory.min", guaranteed_bytes), ("memory.low", preferred_bytes)):
            if wanted_bytes is not None:
                self._raise_above(name, wanted_bytes)
                self._knobs.write(self._group / name, str(wanted_bytes))

    def cap(self, high_bytes: int | None = None, most_bytes: int | None = None) -> None:
        """Bound what the group uses; None leaves a setting as it is.

        Args:
            high_bytes: Beyond it the group's own memory is reclaimed (memory.high, written first: what has been
                reclaimed need not be killed for).
            most_bytes: Never more (memory.max).

        Raises:
            CgroupError: The group cannot be brought down to it, or the controller is not enabled for it.
        """
        self._enabled()
        _write_all(self._knobs, self._group, (("memory.high", high_bytes), ("memory.max", most_bytes)))

    def uncap_high(self) -> None:
        """Undo what `cap` made of the soft limit."""
        _write_original(self._knobs, self._group / "memory.high")

    def _raise_above(self, name: str, wanted_bytes: int) -> None:
        """From the top down: each group above needs what this line claims of it, beside what its siblings have."""
        needed: list[tuple[Path, int]] = []
        for child, group in itertools.pairwise(self._line):
            now_bytes = _bytes(self._knobs, group / name)
            others = (one / name for one in child_groups(self._knobs, group) if one != child)
            claimed_bytes = sum(_bytes(self._knobs, path) for path in others if path.exists())
            wanted_bytes = min(max(wanted_bytes + min(claimed_bytes, now_bytes), now_bytes), _MAX_BYTES)
            if wanted_bytes > now_bytes:
                needed.append((group / name, wanted_bytes))
        for path, least_bytes in reversed(needed):
            self._knobs.write(path, str(least_bytes))

    def _enabled(self) -> None:
        if not (self._group / "memory.current").exists():
            way_out = f"write +memory to {self._group.parent / 'cgroup.subtree_control'}"
            raise CgroupError(f"{self._group}: its parent shares no memory controller ({way_out})")


class MemoryV1:
    """`memory.limit_in_bytes` and `memory.soft_limit_in_bytes`; v1 protects nothing."""

    def __init__(self, knobs: Knobs, group: Path) -> None:
        self._knobs = knobs
        self._group = group

    def keep(self, guaranteed_bytes: int | None = None, preferred_bytes: int | None = None) -> None:
        """Refuse: this version has no protection. Raises CgroupError where a protection is wanted."""
        if guaranteed_bytes is not None or preferred_bytes is not None:
            raise CgroupError(
                f"{self._group}: cgroup v1 protects no memory; limit BE instead, or boot with cgroup_no_v1=memory"
            )

    def cap(self, high_bytes: int | None = None, most_bytes: int | None = None) -> None:
        """Write the soft limit, then the limit."""
        files = (("memory.soft_limit_in_bytes", high_bytes), ("memory.limit_in_bytes", most_bytes))
        _write_all(self._knobs, self._group, files)

    def uncap_high(self) -> None:
        """Undo what `cap` made of the soft limit."""
        _write_original(self._knobs, self._group / "memory.soft_limit_in_bytes")


MemoryDriver = MemoryV1 | MemoryV2
"""Memory of one group, whichever version serves it. Every method raises the CgroupErrors of `Knobs`."""


def memory_of(group: Group, knobs: Knobs) -> MemoryDriver:
    """The driver for a group."""
    mount, path = group.part(Controller.MEMORY)
    return MemoryV1(knobs, path) if mount.version == 1 else MemoryV2(knobs, path, mount.path)


def _write_all(knobs: Knobs, group: Path, files: Iterable[tuple[str, int | None]]) -> None:
    for name, wanted_bytes in files:
        if wanted_bytes is not None:
            knobs.write(group / name, str(wanted_bytes))


def _write_original(knobs: Knobs, path: Path) -> None:
    if (original := knobs.original(path)) is not None:
        knobs.write(path, original.strip())


_MAX_BYTES = 1 << 63


def _bytes(knobs: Knobs, path: Path) -> int:
    """A number of bytes; `max` is more than there can be."""
    content = knobs.read(path)
    return _MAX_BYTES if content.strip() == "max" else number(content, path)
