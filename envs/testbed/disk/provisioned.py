"""A disk with a provisioned rate: one control group of LC and BE whose writes the kernel throttles together.

```
LC's files ------------------------------------+
                                               +-- file system > <cap of the group: the provider's limit> > memory
BE's volume (loop device; a cap of its own, ---+
if the kernel's answer is asked for)
```

A provider's limit lies behind the host, and tells nobody its rate. LC and BE meet in its queue, whatever their CPU
weights are. BE writes to a volume of its own, so that the kernel can cap BE by itself in front of that queue. The disk
is a loop device over memory: what others write to the host's own disk is not in front of anybody here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.reins.disk import DiskRein
from rlctl.envs.host.resources.blockio import Disk, limit_io
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.namespace import Namespace, require_tools

MOST_MEGABYTES = 100_000.0
"""MB/s; beyond it the rate is a slip of the pen."""

BE_RATIO = 0.4
"""BE's own cap as a share of the rate that the operator takes the disk to have. The rest is for the LC's log, which
takes .56 of it at the largest load of `live-disk`."""

DISK_BYTES = 4 << 30
"""Of which only what was ever written takes memory: some 500 MB."""

VOLUME_BYTES = 256 << 20
BLOCK_BYTES = 4096  # unit of direct writes
PIECE_BYTES = 1 << 20

# Few files and a small journal, all of which is written at once: nothing is left for the kernel to do meanwhile.
FILE_SYSTEM = ("-N", "8192", "-J", "size=32", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")

TOOLS = {"mkfs.ext4": "e2fsprogs", "mount": "mount"}
"""Debian's package of each program that makes the disk."""

# <linux/loop.h>: requests, and flags of `struct loop_info64`
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR, _DIRECT_IO = 4, 16
_CONFIG = struct.Struct("=2I 5Q4I 64s64s32s2Q 64x")


class ProvisionedDisk:
    """The disk, throttled from entry until its group is removed.

    Nothing of it outlives its users. Its file system is mounted in a namespace of its own, which ends with the last
    process in it. The kernel frees a loop device, and its memory, when the last process that has it open ends. The
    throttle goes with the group. The janitor has recorded the processes and the group.

    Args:
        megabytes: What LC and BE together may write, MB/s, and as much again that they may read.
        holders: Starts the process that holds the namespace.
        group: Holds LC and BE; made with `CgroupController.IO`.

    Attributes:
        folder: On the disk, as who is `inside` sees it; everybody may write there.
        volume: BE's block device.

    Raises:
        HostError: The host has no I/O controller.
    """

    volume: Disk

    def __init__(self, megabytes: float, holders: Launcher, group: Group, knobs: Knobs) -> None:
        self._megabytes, self._holders = megabytes, holders
        mount = group.layout.mount(CgroupController.IO)
        self._joined = group.paths[CgroupController.IO] / "cgroup.procs" if mount.version == 1 else None
        self._group, self._knobs = group, knobs
        self._place = Namespace("namespace of the disk", "mount")
        self._stack = contextlib.ExitStack()
        self.folder = holders.folder / "disk"
        self._disk = ""

    def __enter__(self) -> Self:
        """Make disk and volume and set the cap.

        Raises:
            TestbedError: A program is missing, or the kernel has no loop device (BLK_DEV_LOOP) or no ext4.
            PermissionMissing: Not root.
            CgroupError: The kernel takes no cap (BLK_DEV_THROTTLING).
        """
        require_tools(TOOLS)
        with contextlib.ExitStack() as made:
            disk = made.enter_context(loop_device(_memory, 0))
            self.folder.mkdir()
            self._place.start(self._holders)
            device, folder = f"/dev/{disk.name}", str(self.folder)
            making = ("mkfs.ext4", "-q", "-F", *FILE_SYSTEM, device)
            self._place.run([making, ("mount", "-o", "noatime", device, folder), ("chmod", "1777", folder)])
            seen_from_here = Path(f"/proc/{self._place.pid}/root{folder}")
            self.volume = made.enter_context(loop_device(lambda: _fill_file(seen_from_here / "volume"), _DIRECT_IO))
            self._disk = disk.device
            self._limit(disk, self._megabytes)
            limit_io(self._group, self._knobs, disk, "read", round(self._megabytes * 1e6))
            self._stack = made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the devices go: they are gone when their last user is."""
        self._stack.close()

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command, lets it see the disk and its writes count; its other groups and its process id stay."""
        return (*self._place.inside, *self.joining)

    @property
    def joining(self) -> tuple[str, ...]:
        """The part of it that lets writes count.

        On v1 the I/O hierarchy has one group for both; on v2 it is the parent of theirs, which they are in already.
        """
        return () if self._joined is None else ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._joined))

    def divide(self, rate_ratio: float) -> None:
        """Cap BE's volume by itself.

        Args:
            rate_ratio: Rate that the operator takes the disk to have, as a share of the one that it has.

        Raises:
            CgroupError: The kernel does not take it.
        """
        self._limit(self.volume, BE_RATIO * rate_ratio * self._megabytes)

    def unite(self) -> None:
        """Take BE's own cap back."""
        self._limit(self.volume, MOST_MEGABYTES)

    def rein(self, be_group: Group) -> DiskRein:
        """What holds BE on its volume; on v1 by the group that it shares with the LC, which has another disk."""
        groups = [be_group] if self._joined is None else [self._group]
        rein = VolumeRein.open(groups, self._knobs, [self.volume.device])
        rein.beneath[self.volume.device] = self._disk
        return rein

    def _limit(self, disk: Disk, megabytes: float) -> None:
        limit_io(self._group, self._knobs, disk, "write", round(megabytes * 1e6))


class VolumeRein(DiskRein):
    """A disks' rein that stays with its groups: BE's I/O is in them, whatever groups BE has."""

    def follow(self, be_groups: Sequence[Group]) -> None:
        """Changes nothing after the first call."""
        if not self.groups:
            super().follow(be_groups)


@contextlib.contextmanager
def loop_device(backing: Callable[[], int], flags: int) -> Iterator[Disk]:
    """A block device, for as long as the context lasts or anybody has it open.

    Args:
        backing: Opens what it is made of.
        flags: Of <linux/loop.h>, besides LO_FLAGS_AUTOCLEAR.

    Raises:
        TestbedError: The kernel has no loop device, or none that is free.
    """
    try:
        number, device = _attach(backing(), flags)
    except OSError as error:
        raise TestbedError(f"no loop device: {error.strerror}") from error
    try:
        kernels = os.fstat(device).st_rdev  # whose minor is not the number where loop devices have partitions
        yield Disk(f"loop{number}", f"{os.major(kernels)}:{os.minor(kernels)}", "none")
    finally:
        os.close(device)


def _attach(backing: int, flags: int) -> tuple[int, int]:
    """The number of a loop device over an open file, which is closed here, and what holds the device open."""
    with open(backing, "rb"), open("/dev/loop-control", "rb") as control:
        config = _CONFIG.pack(backing, BLOCK_BYTES, *[0] * 8, _AUTOCLEAR | flags, b"rlctl", b"", b"", 0, 0)
        while True:
            number = fcntl.ioctl(control, _GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # taken by another program meanwhile
                    raise
            else:
                return number, device


def _memory() -> int:
    """A file that is nowhere but in memory."""
    file = os.memfd_create("rlctl-disk", os.MFD_CLOEXEC)
    os.ftruncate(file, DISK_BYTES)
    return file


def _fill_file(path: Path) -> int:
    """A new file whose blocks have all been written: the first write to one is work for the file system's journal."""
    with path.open("xb") as file:
        for _ in range(0, VOLUME_BYTES, PIECE_BYTES):
            file.write(bytes(PIECE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
