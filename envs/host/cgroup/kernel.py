"""The one place that reads and writes files of a control group, and what the kernel's refusals mean."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupGone, CgroupRejected, PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.layout import list_mounts

Identity = tuple[int, int]
"""Device and inode of a group's directory. kernfs never hands out an inode number twice within a boot."""

READ_BYTES, MOST_BYTES = 4096, 1 << 20
"""Of one read, enough for most files, and of a whole file: `io.max` has a line for each of hundreds of disks."""
# Of the files that this process may open; beyond it a file is opened for each read.
OPEN_SHARE = 0.5

# A directory's links: its name and its own `.`; each child's `..` is one more.
_LINKS_OF_A_LEAF = 2
# Of v1: an open file goes on showing the pids of its first read for a second (CGROUP_PIDLIST_DESTROY_DELAY in
# kernel/cgroup/cgroup-v1.c), and each read begins that second anew.
_NOT_KEPT_OPEN = frozenset({"cgroup.procs", "tasks"})
_SUBSETS = frozenset({"cpuset.cpus", "cpuset.mems"})


GROUP_SYSTEMS = frozenset({"cgroup", "cgroup2", "resctrl"})


class Kernel(Protocol):
    """What a tree of control groups can do; the fake one for tests is `tests.doubles.cgroup_kernel.FakeKernel`.

    Every method raises OSError with the kernel's errno. One that arises from opening a file carries its name, one from
    the write itself does not: that tells a missing permission from a refused value.
    """

    def read(self, path: Path) -> str:
        """The content of a file now."""

    def write(self, path: Path, text: str) -> None:
        """Hand the kernel a value, in one write and with no truncation."""

    def identity(self, group: Path) -> Identity:
        """Tells a group from another one made later under the same name."""

    def make_group(self, group: Path) -> None:
        """Make the directory of a group."""

    def remove_group(self, group: Path) -> None:
        """Remove the directory of a group."""

    def subgroups(self, group: Path) -> tuple[Path, ...]:
        """Its child groups, sorted by name."""

    def close(self) -> None:
        """Let go of open files. Idempotent."""


class KernelFiles:
    """The real thing. Files that are read stay open, since opening costs ten times as much as `pread`.

    An open file of a removed group answers ENODEV for ever; it is then opened again, in case the name was reused. The
    group's other files are closed with it, so that groups may come and go for months.

    Args:
        open_file: Opens a path with flags; tests give one that refuses.
        most_kept: Files kept open; default half of what this process may open now.
    """

    def __init__(self, open_file: Callable[[Path, int], int] = os.open, most_kept: int | None = None) -> None:
        self._open = open_file
        self._open_files: dict[Path, int] = {}
        self._devices: frozenset[int] = frozenset()
        if most_kept is None:
            most_kept = int(OPEN_SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._most_kept = most_kept

    def read(self, path: Path) -> str:
        """The content of a file now."""
        file = self._open_files.get(path)
        if file is not None:
            try:
                return _content(file)
            except OSError:
                self._forget_group(path)
        try:
            file = self._open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._forget_group(path)
            raise
        if len(self._open_files) < self._most_kept and path.name not in _NOT_KEPT_OPEN:
            self._open_files[path] = file
            return _content(file)
        with os.fdopen(file, "rb") as stream:
            return stream.read().decode(errors="surrogateescape")

    def write(self, path: Path, text: str) -> None:
        """Hand the kernel a value: the file is neither made nor truncated. EXDEV: it is none of the kernel's."""
        # No link is followed: BE's owner may have put one where a knob was.
        file = self._open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._check(os.fstat(file).st_dev, path)
            os.write(file, text.encode(errors="surrogateescape"))
        finally:
            os.close(file)

    def identity(self, group: Path) -> Identity:
        """Device and inode of the directory."""
        status = os.stat(group)
        return status.st_dev, status.st_ino

    def make_group(self, group: Path) -> None:
        """Make one directory; the kernel fills it."""
        os.mkdir(group, 0o755)

    def remove_group(self, group: Path) -> None:
        """Remove one directory; the kernel's files in it do not count. EXDEV: it is none of the kernel's."""
        self._check(os.stat(group, follow_symlinks=False).st_dev, group)
        os.rmdir(group)

    def subgroups(self, group: Path) -> tuple[Path, ...]:
        """Its child groups, sorted by name."""
        if os.stat(group).st_nlink == _LINKS_OF_A_LEAF:
            return ()
        with os.scandir(group) as entries:
            return tuple(sorted(group / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))

    def close(self) -> None:
        """Close all files that are open."""
        for path in tuple(self._open_files):
            self._forget(path)

    def _check(self, device: int, path: Path) -> None:
        """Refuse what no control group or resctrl class is: a journal, however forged, leads to nothing else."""
        if device not in self._devices:
            self._devices = group_devices()
            if not self._devices:  # as without a free descriptor
                raise OSError(errno.EMFILE, "the mounts cannot be read", str(path))
        if device not in self._devices:
            raise OSError(errno.EXDEV, "not on a file system of control groups", str(path))

    def _forget_group(self, path: Path) -> None:
        """Close all files in the directory of one."""
        # Inode numbers are never reused within a boot, so all open files of a gone group are dead at once.
        folder = f"{path.parent}/"
        for other in [other for other in self._open_files if str(other).startswith(folder)]:
            self._forget(other)

    def _forget(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            os.close(self._open_files.pop(path))


def _content(file: int) -> str:
    """All that is in an open file now."""
    # At offset 0 a kernfs file is made anew (fs/seq_file.c); later parts belong to that same look.
    # One read is nearly always enough: most of these files are a few bytes long.
    data = part = os.pread(file, READ_BYTES, 0)
    while len(part) == READ_BYTES and len(data) < MOST_BYTES:
        part = os.pread(file, READ_BYTES, len(data))
        data += part
    return data.decode(errors="surrogateescape")


def group_devices() -> frozenset[int]:
    """Device numbers of the mounted file systems whose files are control groups or resctrl classes."""
    return frozenset(one.device for one in list_mounts(*GROUP_SYSTEMS))


def whereabouts(kernel: Kernel, directory: Path, identity: Identity) -> Path | None:
    """Where a group is by now, for v1 lets it, or one above it, have another name in its place; None: it is gone."""
    with contextlib.suppress(OSError):  # nearly always where it was
        if kernel.identity(directory) == identity:
            return directory
    above = next(folder for folder in directory.parents if folder.is_dir())
    below, places = directory.relative_to(above).parts[1:], list[Path]()
    # A group that was renamed has its identity still.
    with contextlib.suppress(OSError):
        places = [one.joinpath(*below) for one in kernel.subgroups(above)]
    for place in places:
        with contextlib.suppress(OSError):
            if kernel.identity(place) == identity:
                return place
    return None


def identity_of(path: str | Path) -> Identity | None:
    """Device and inode of a file or directory, to know it from a later one of its name; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_BY_ERRNO: dict[int, tuple[type[RlctlError], str]] = {
    errno.EACCES: (PermissionMissing, "run as root, or have the group delegated to this user"),
    errno.EPERM: (PermissionMissing, "run as root, or have the group delegated to this user"),
    errno.EROFS: (PermissionMissing, "mounted read-only; remount it, or run outside this container"),
    errno.ENOENT: (CgroupGone, "the group was removed"),
    errno.ENODEV: (CgroupGone, "the group was removed"),
    errno.EBUSY: (CgroupBusy, "tasks, child groups or an exclusive sibling are in the way"),
    errno.ENOTEMPTY: (CgroupBusy, "child groups are in the way"),
    errno.EEXIST: (CgroupBusy, "it exists already; remove it, or choose another name"),
    errno.ENOSPC: (CgroupBusy, "tasks in the group need at least one CPU and one memory node"),
    errno.EINVAL: (CgroupRejected, "out of range, or in conflict with the parent, a child or an exclusive sibling"),
    errno.ERANGE: (CgroupRejected, "out of this host's range"),
    errno.EXDEV: (CgroupError, "nothing else is ever written"),
    errno.EMFILE: (CgroupError, "close files, or raise `ulimit -n`"),
    errno.ESRCH: (CgroupError, "the process has ended"),
    errno.EOPNOTSUPP: (CgroupRejected, "not possible in a group of this type"),
}


def refusal(error: OSError, path: Path, doing: str, *, group: bool = False) -> RlctlError:
    """The kernel's errno in words for the operator.

    Args:
        doing: What was tried, to be read after "cannot".
        group: The path is that of a group and not of a file in it.
    """
    kind, way_out = _BY_ERRNO.get(error.errno or 0, (CgroupError, "see the kernel log"))
    if error.errno == errno.EACCES and error.filename is None and path.name in _SUBSETS:
        # How v1 says so, even to root: validate_change in kernel/cgroup/cpuset.c.
        kind, way_out = CgroupRejected, "the parent group has not all of these"
    elif error.errno == errno.ENOENT and not group and path.parent.is_dir():
        kind, way_out = CgroupError, "this kernel lacks it, or its controller is not enabled for this group"
    name = errno.errorcode.get(error.errno or 0, "?")
    return kind(f"{path}: cannot {doing}: {name} ({error.strerror or error}): {way_out}")


@contextlib.contextmanager
def refusing(path: Path, doing: str, *, group: bool = False) -> Iterator[None]:
    """What the kernel refuses within, as `refusal` says it."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path, doing, group=group) from error
