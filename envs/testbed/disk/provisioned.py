"""A disk with a provisioned rate: one control group of LC and BE whose writes the kernel throttles together.

```
LC's files ------------------------------------+
                                               +-- <cap of the group on the machine's disk: the provider's limit>
BE's volume (loop device; a cap of its own, ---+
if the kernel's answer is asked for)
```

A provider's limit lies behind the host, and tells nobody its rate. LC and BE meet in its queue, whatever their CPU
weights are. BE writes to a volume of its own, so that the kernel can cap BE by itself in front of that queue.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller
from rlctl.envs.host.resources.blockio import Disk, io_of
from rlctl.envs.testbed.rtgroups import disk_of

MOST_MEGABYTES = 100_000.0
"""MB/s; beyond it the rate is a slip of the pen."""

BE_RATIO = 0.5
"""BE's own cap as a share of the rate that the operator takes the disk to have; the rest is for the LC's log. At 2000
requests a second the LC's p95 was 5 ms beside this, and 34 beside a third more (docs/measured/disk.md)."""

VOLUME_BYTES = 256 << 20
BLOCK_BYTES = 4096  # unit of direct writes

# <linux/loop.h>: requests, and flags of `struct loop_info64`
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR, _DIRECT_IO = 4, 16
_CONFIG = struct.Struct("=2I 5Q4I 64s64s32s2Q 64x")


class ProvisionedDisk:
    """The disk, throttled from entry until its group is removed.

    Nothing of it outlives its users: the kernel frees the loop device when the last process that has it open ends,
    the throttle goes with the group, and the volume's file with the folder, both of which the janitor has recorded.

    Args:
        megabytes: What LC and BE together may write, MB/s.
        folder: On the disk; takes BE's volume.
        group: Holds LC and BE; made with `Controller.IO`.

    Attributes:
        volume: BE's block device.

    Raises:
        HostError: The host has no I/O controller.
    """

    volume: Disk

    def __init__(self, megabytes: float, folder: Path, group: Group, knobs: Knobs) -> None:
        self._megabytes, self._folder = megabytes, folder
        mount = group.layout.mount(Controller.IO)
        self._joined = group.paths[Controller.IO] / "cgroup.procs" if mount.version == 1 else None
        self._io = io_of(group, knobs)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Make the volume and set the cap.

        Raises:
            TestbedError: The folder is on no disk, or the kernel has no loop device (BLK_DEV_LOOP).
            CgroupError: The kernel takes no cap (BLK_DEV_THROTTLING).
        """
        disk = disk_of(self._folder)
        if disk is None:
            raise TestbedError(f"{self._folder} is not on a disk of this host's own: set TMPDIR to a folder on one")
        self._limit(disk, self._megabytes)
        self.volume = self._stack.enter_context(loop_device(self._folder / "volume"))
        return self

    def __exit__(self, *_: object) -> None:
        """Let the volume go."""
        self._stack.close()

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command, lets its writes count; its other control groups and its process id stay.

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

    def _limit(self, disk: Disk, megabytes: float) -> None:
        self._io.limit(disk, None, round(megabytes * 1e6))


@contextlib.contextmanager
def loop_device(file: Path) -> Iterator[Disk]:
    """A new file as a block device, for as long as the context lasts or anybody has the device open.

    Raises:
        TestbedError: The kernel has no loop device, or none that is free.
    """
    try:
        number, device = _attach(file)
    except OSError as error:
        raise TestbedError(f"no loop device for {file}: {error.strerror}") from error
    try:
        yield Disk(f"loop{number}", f"{os.major(os.fstat(device).st_rdev)}:{number}", "none")
    finally:
        os.close(device)


def _attach(file: Path) -> tuple[int, int]:
    """The number of a loop device on a new file, and what holds it open."""
    with _opened(file, os.O_CREAT | os.O_DIRECT) as backing, _opened(Path("/dev/loop-control")) as control:
        os.posix_fallocate(backing, 0, VOLUME_BYTES)
        config = _CONFIG.pack(backing, BLOCK_BYTES, *[0] * 8, _AUTOCLEAR | _DIRECT_IO, b"rlctl", b"", b"", 0, 0)
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


@contextlib.contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        yield file
    finally:
        os.close(file)
