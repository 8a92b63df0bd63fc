"""Locks that keep a second rlctl off BE's groups, and off files that several services share.

Two controllers, each with a state directory of its own, would fight over a group's knobs. A flock on one of them ends
with the process. A mark on the group's directory, an extended attribute, outlives a crash. It names the state directory
with the originals. Otherwise a start with another one would take the crashed controller's settings for originals. The
mark goes with the group and with the boot, and is seen from every mount. It counts only while that directory has an
original of that very group and no other user may write to it. So a stale mark blocks no start, and forging one takes
the right to forge a journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from rlctl.envs.closing import Closing
from rlctl.envs.errors import CgroupError, HostError, PermissionMissing, RlctlError, printable
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import load
from rlctl.envs.host.cgroup.kernel import Identity, identity_of, refusing
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.members import RESTRICTING
from rlctl.envs.host.decode import text_of

_log = logging.getLogger(__name__)

MOST_NAME = 200
"""Characters of a foreign name that a line of the log takes."""


class FileLocks:
    """flocks on kernel files, one kept descriptor for each, until let go or until the process ends.

    Children that this process starts do not share them.
    """

    def __init__(self) -> None:
        self._held: dict[Identity, tuple[int, int, Path]] = {}  # descriptor, mode, path

    def take(self, path: Path, mode: int) -> str:
        """Lock a file, `LOCK_SH` or `LOCK_EX`; one that is locked so already stays so.

        Returns:
            The pid of the process that has it, or "unknown"; empty where it is ours now.
        """
        with refusing(path, "open it"):
            file = os.open(path, os.O_CLOEXEC | (os.O_RDWR if mode == fcntl.LOCK_EX else os.O_RDONLY))
        status = os.fstat(file)
        key = status.st_dev, status.st_ino
        if (held := self._held.get(key)) is not None and mode <= held[1]:  # shared is less than exclusive
            os.close(file)
            return ""
        if held is not None:  # a group above one of ours is one itself now
            self._drop(key)
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return _owner(status) or "unknown"
        self._held[key] = file, mode, path
        return ""

    @property
    def keys(self) -> frozenset[Identity]:
        """Which files are locked."""
        return frozenset(self._held)

    def keep(self, remaining: Collection[Identity]) -> None:
        """Let go of all files but these."""
        for key in self._held.keys() - remaining:
            self._drop(key)

    def drop_gone(self) -> None:
        """Let go of files that are no more: groups come and go for months."""
        self.keep({key for key, (_, _, path) in self._held.items() if identity_of(path) == key})

    def _drop(self, key: Identity) -> None:
        os.close(self._held.pop(key)[0])


_shared_files = FileLocks()


def claim(knobs: Knobs, path: Path) -> None:
    """Keep every other rlctl off a file that several LCs or BE groups share, for as long as this process lives.

    A second service would take the first one's settings for originals, and the first to end would undo what both rely
    on. A dry run claims nothing.

    Raises:
        CgroupError: Another one has it. Besides it, what the kernel says of a file that cannot be opened.
    """
    _shared_files.drop_gone()
    if not knobs.dry_run and _shared_files.take(path, fcntl.LOCK_EX):
        raise CgroupError(f"{path}: another running rlctl has it, and would undo at its end what is written")


class Claims(Closing):
    """Groups that no other rlctl controls meanwhile, until closed or until the process ends.

    A claim is a flock on a knob of the group in each hierarchy, exclusive, and a shared one on those of the groups
    above it: nobody else gets the group, one within it or one that holds it, whatever the state directory. While the
    originals are not back, only who has the state directory that is marked gets the group.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._locks = FileLocks()
        self._marked: set[Path] = set()

    def take(self, group: Group) -> None:
        """Claim a group; one that is claimed already stays so.

        Raises:
            HostError: Another process has it, or another state directory has its originals.
            CgroupGone: It was removed.
            PermissionMissing: Its knobs may not be written.
        """
        # All or nothing, over all hierarchies of the group.
        before = self._locks.keys
        try:
            self._take(group)
        except BaseException:  # what is refused is not held: its owner's successor would be locked out
            self._locks.keep(before)
            raise

    def _take(self, group: Group) -> None:
        # Shared above, exclusive here: two groups of one parent are two services', but one within the other is not.
        for knob in _knobs(group):
            for above in _above(knob):
                self._lock(above, fcntl.LOCK_SH, f"{group.name} lies within {above.parent}, which")
            self._lock(knob, fcntl.LOCK_EX, group.name)
        # A crashed one has no locks any more, but its settings are still in force.
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
        self._locks.keep({key for file in files if (key := identity_of(file))})
        self._marked = {directory for directory in self._marked if directory.is_dir()}  # a mark goes with its group

    def close(self) -> None:
        """Let go of all groups, and of the marks when the originals are back. Idempotent."""
        self.keep(())
        unmark(self._marked, self._state_dir)
        self._marked.clear()

    def _lock(self, knob: Path, mode: int, whose: str) -> None:
        """Lock a file; raises HostError where another process has it: `whose` is then controlled by that."""
        if owner := self._locks.take(knob, mode):
            raise HostError(
                f"BE group {whose} is controlled by a running rlctl (pid {owner}): stop it first, or name other groups"
            )

    def _mark(self, directory: Path) -> None:
        there = read_mark(directory)
        # Where the state directory was moved its originals are ours.
        if there not in (None, self._state_dir.absolute()) and not holds(self._state_dir, directory):
            named = printable(str(there))[:MOST_NAME]  # anybody who may write the group's directory has written it
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


# Of the namespace that needs no capability, only permission to write the directory; kernels before 5.7 lack it.
ATTRIBUTE = "user.rlctl.originals"


def mark(directory: Path, state_dir: Path) -> None:
    """Say that a state directory has this group's originals, or is about to; no more than a kernel allows."""
    with contextlib.suppress(OSError):
        os.setxattr(directory, ATTRIBUTE, os.fsencode(state_dir.absolute()))


def read_mark(directory: Path) -> Path | None:
    """The state directory that a group's mark names, believed or not."""
    try:
        name = os.getxattr(directory, ATTRIBUTE)
    except OSError:
        return None
    return Path(os.fsdecode(name)) if name.startswith(b"/") and b"\0" not in name else None


def other_holder(directory: Path, state_dir: Path) -> Path | None:
    """Another state directory than this one that has a group's originals; None if none has."""
    there = read_mark(directory)
    if there is None or identity_of(there) == identity_of(state_dir):
        return None
    return there if holds(there, directory) else None


def holds(state_dir: Path, directory: Path) -> bool:
    """Whether a state directory has originals of a group; one that may not be read may have."""
    # The mark is of this boot, and who made it has set a journal of an earlier one aside.
    try:
        return identity_of(directory) in {entry.identity for entry in load(state_dir).entries}
    except PermissionMissing:
        return True
    except RlctlError:
        return False


def unmark(directories: Iterable[Path], state_dir: Path) -> None:
    """Take a state directory's mark off groups once it has no journal any more."""
    with contextlib.suppress(RlctlError):
        if load(state_dir).entries:
            return
    # By identity: a state directory may have several names.
    ours = identity_of(state_dir)
    for directory in directories:
        if (there := read_mark(directory)) is not None and identity_of(there) == ours:
            with contextlib.suppress(OSError):
                os.removexattr(directory, ATTRIBUTE)
