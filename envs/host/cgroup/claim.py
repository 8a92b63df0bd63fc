"""One controller for each BE group: two of them, each with a state directory of its own, would fight over its knobs."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from rlctl.envs.errors import HostError, shown
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity, identity_of, refusing
from rlctl.envs.host.cgroup.mark import holds, mark, marked, other_holder, unmark
from rlctl.envs.host.cgroup.members import RESTRICTING
from rlctl.envs.host.decode import text_of

_log = logging.getLogger(__name__)

MOST_NAME = 200
"""Characters of a foreign name that a line of the log takes."""


class Claims:
    """Groups that no other rlctl controls meanwhile, until closed or until the process ends.

    A claim is a flock on a knob of the group in each hierarchy, exclusive, and a shared one on those of the groups
    above it: nobody else gets the group, one within it or one that holds it, whatever the state directory. It ends with
    the process. What outlives it is the mark of the state directory with the originals, see `mark`: while they are not
    back, only who has that directory gets the group.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._held: dict[Identity, tuple[int, int]] = {}
        self._marked: set[Path] = set()

    def take(self, group: Group) -> None:
        """Claim a group; one that is claimed already stays so.

        Raises:
            HostError: Another process has it, or another state directory has its originals.
            CgroupGone: It was removed.
            PermissionMissing: Its knobs may not be written.
        """
        before = set(self._held)
        try:
            self._take(group)
        except BaseException:  # what is refused is not held: its owner's successor would be locked out
            for key in self._held.keys() - before:
                os.close(self._held.pop(key)[0])
            raise

    def _take(self, group: Group) -> None:
        for knob in _knobs(group):
            for above in _above(knob):
                self._lock(above, fcntl.LOCK_SH, f"{group.name} lies within {above.parent}, which")
            self._lock(knob, fcntl.LOCK_EX, group.name)
        for directory in group.relatives():
            if (holder := other_holder(directory, self._state_dir)) is not None:
                raise HostError(
                    f"BE group {group.name}: {holder} has the originals of {directory}: start with that "
                    f"state_directory, or put them back first: `rlctl restore --state {holder}`"
                )
        for knob in _knobs(group):
            self._mark(knob.parent)

    def keep(self, groups: Iterable[Group]) -> None:
        """Let go of all groups but these."""
        files = [file for group in groups for knob in _knobs(group) for file in (knob, *_above(knob))]
        remaining = {key for file in files if (key := identity_of(file))}
        for key in self._held.keys() - remaining:
            os.close(self._held.pop(key)[0])
        self._marked = {directory for directory in self._marked if directory.is_dir()}  # a mark goes with its group

    def close(self) -> None:
        """Let go of all groups, and of the marks when the originals are back. Idempotent."""
        self.keep(())
        unmark(self._marked, self._state_dir)
        self._marked.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self, knob: Path, mode: int, whose: str) -> None:
        """Lock a file; raises HostError where another process has it: `whose` is then controlled by that."""
        with refusing(knob, "open it"):
            file = os.open(knob, os.O_CLOEXEC | (os.O_RDWR if mode == fcntl.LOCK_EX else os.O_RDONLY))
        status = os.fstat(file)
        key = status.st_dev, status.st_ino
        if (held := self._held.get(key)) is not None and mode <= held[1]:  # shared is less than exclusive
            os.close(file)
            return
        if held is not None:  # a group above one of ours is one itself now
            os.close(self._held.pop(key)[0])
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            owner = _owner(status) or "unknown"
            raise HostError(
                f"BE group {whose} is controlled by a running rlctl (pid {owner}): stop it first, or name other groups"
            ) from None
        self._held[key] = file, mode

    def _mark(self, directory: Path) -> None:
        there = marked(directory)
        # Where the state directory was moved its originals are ours.
        if there not in (None, self._state_dir.absolute()) and not holds(self._state_dir, directory):
            named = shown(str(there))[:MOST_NAME]  # anybody who may write the group's directory has written it
            _log.warning("%s: %s has its originals no more: what it has now counts as them", directory, named)
        mark(directory, self._state_dir)
        self._marked.add(directory)


def _knobs(group: Group) -> Iterable[Path]:
    """One file of a group in each hierarchy."""
    return {file.parent: file for file in group.knob_files(*RESTRICTING)}.values()


def _above(knob: Path) -> Iterator[Path]:
    """The same file of the groups above, the next one first; some hierarchies have none in their root."""
    for folder in knob.parent.parents:
        if not (file := folder / knob.name).exists():
            return
        yield file


def _owner(status: os.stat_result) -> str:
    """The pid that the kernel names for a lock on this file; empty if it names none."""
    # A row of /proc/locks: number, FLOCK, kind, mode, pid, major:minor:inode, range (proc(5)).
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in text_of(Path("/proc/locks")).splitlines())
    return next((row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == file), "")
