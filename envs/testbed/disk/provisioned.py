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
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rlctl.envs.errors import ConfigError, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.layout import Controller

MOST_MEGABYTES = 100_000.0
"""MB/s; beyond it the rate is a slip of the pen."""

LEAST_MEGABYTES = 1.0
"""MB/s; below it a single block of BE's is a queue of a second."""

BE_RATIO = 0.4
"""BE's own cap as a share of the rate that the operator takes the disk to have; the rest is for the LC's log. At .8 of
the load the LC was within its target beside .45, and not beside .53 (docs/measured/disk.md)."""

VOLUME_BYTES = 256 << 20
BLOCK_BYTES = 4096  # unit of direct writes

# <linux/loop.h>: requests, and flags of `struct loop_info64`
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR, _DIRECT_IO = 4, 16
_CONFIG = struct.Struct("=2I 5Q4I 64s64s32s2Q 64x")


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """A provisioned disk.

    Attributes:
        megabytes: What LC and BE together may write, MB/s.

    Raises:
        ConfigError: A rate that cannot be.
    """

    megabytes: float

    def __post_init__(self) -> None:
        if not LEAST_MEGABYTES <= self.megabytes <= MOST_MEGABYTES:
            raise ConfigError(
                f"a disk of {self.megabytes:g} MB/s: {LEAST_MEGABYTES:g} to {MOST_MEGABYTES:g} are possible"
            )


class Disk:
    """The disk, throttled from entry until its group is removed.

    Nothing of it outlives its users: the kernel frees the loop device when the last process that has it open ends,
    the throttle goes with the group, and the volume's file with the folder, both of which the janitor has recorded.

    Args:
        folder: On the disk; takes BE's volume.
        group: Holds LC and BE; made with `Controller.IO`.

    Raises:
        HostError: The host has no I/O controller.

    Attributes:
        volume: BE's block device.
    """

    volume: Path

    def __init__(self, config: DiskConfig, folder: Path, group: Group) -> None:
        self.config, self._folder = config, folder
        self._first = group.layout.mount(Controller.IO).version == 1
        self._directory = group.paths[Controller.IO]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Make the volume and set the cap.

        Raises:
            TestbedError: The folder is on no disk, or the kernel lacks a part (BLK_DEV_LOOP, BLK_DEV_THROTTLING).
        """
        with self._stack:
            device = device_of(self._folder)
            number = self._stack.enter_context(loop_device(self._folder / "volume"))
            self.volume = Path(f"/dev/loop{number}")
            self._limit(device, self.config.megabytes)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the volume go."""
        self._stack.close()

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command, lets its writes count; its other control groups and its process id stay.

        On v1 the I/O hierarchy has one group for both; on v2 it is the parent of theirs, which they are in already.
        """
        join = 'echo $$ >"$0" && exec "$@"'
        return ("sh", "-c", join, str(self._directory / "cgroup.procs")) if self._first else ()

    def divide(self, rate_ratio: float) -> None:
        """Cap BE's volume by itself.

        Args:
            rate_ratio: Rate that the operator takes the disk to have, as a share of the one that it has.

        Raises:
            TestbedError: The kernel does not take it.
        """
        self._limit(self._volume_device, BE_RATIO * rate_ratio * self.config.megabytes)

    def unite(self) -> None:
        """Take BE's own cap back."""
        self._limit(self._volume_device, None)

    @property
    def _volume_device(self) -> str:
        number = os.stat(self.volume).st_rdev
        return f"{os.major(number)}:{os.minor(number)}"

    def _limit(self, device: str, megabytes: float | None) -> None:
        path = self._directory / ("blkio.throttle.write_bps_device" if self._first else "io.max")
        rate = None if megabytes is None else round(megabytes * 1e6)
        line = f"{device} {rate or 0}" if self._first else f"{device} wbps={rate or 'max'}"
        try:
            with path.open("r+") as file:  # never makes it
                file.write(line)
        except OSError as error:
            raise TestbedError(f"{path}: cannot write '{line}': {error.strerror}") from error


def device_of(folder: Path) -> str:
    """Numbers of the disk that a folder is on, as the kernel's throttles name it: the whole one, not its partition.

    Raises:
        TestbedError: It is on none: in memory, on a network, or on a file system that spans several.
    """
    number = os.stat(folder).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    entry = Path("/sys/dev/block", name)
    if not entry.exists():
        raise TestbedError(f"{folder} is on no disk (device {name}): set TMPDIR to a folder on one")
    whole = entry.resolve().parent if (entry / "partition").exists() else entry
    return (whole / "dev").read_text().strip()


@contextlib.contextmanager
def loop_device(file: Path) -> Iterator[int]:
    """A new file as a block device, for as long as the context lasts or anybody has the device open; its number.

    Raises:
        TestbedError: The kernel has no loop device, or none that is free.
    """
    try:
        number, device = _attach(file)
    except OSError as error:
        raise TestbedError(f"no loop device for {file}: {error.strerror}") from error
    try:
        yield number
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
