"""Control groups of the real-time conditions: where the real-time task goes, and where the load beside it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil

from rlctl.envs.errors import CgroupError, ConfigError, HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.resources.blockio import Disk, disks, limit_io, set_io_weight
from rlctl.envs.testbed.janitor import Janitor

log = logging.getLogger(__name__)

IO_SHARE = 10
"""The real-time task has ten times the load's I/O bandwidth, as in the study that docs/measured/realtime.md repeats."""

LOAD_WEIGHT = 100

# What a BE that rlctl controls takes: all but memory and I/O.
_BE = tuple(
    controller for controller in CgroupController if controller not in (CgroupController.MEMORY, CgroupController.IO)
)
_IN_MEMORY = ("tmpfs", "ramfs")


class Condition(StrEnum):
    """How the real-time task is set apart."""

    NONE = "none"
    CPUSET = "cpuset"
    IO = "io"
    CPUSET_IO = "cpuset+io"
    RLCTL = "rlctl"

    @property
    def controllers(self) -> tuple[CgroupController, ...]:
        """What it cannot do without; no others are used, for each costs a little."""
        return _NEEDS[self]


_NEEDS = {
    Condition.NONE: (),
    Condition.CPUSET: (CgroupController.CPUSET,),
    Condition.IO: (CgroupController.IO,),
    Condition.CPUSET_IO: (CgroupController.CPUSET, CgroupController.IO),
    Condition.RLCTL: (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER),
}


@dataclass(frozen=True, slots=True)
class Places:
    """Groups of a condition.

    Attributes:
        rt: Group of the real-time task; None leaves it where we are.
        load: Group of the load; None leaves it where we are.
        remarks: What a reader must know of how the condition was brought about.
    """

    rt: Group | None = None
    load: Group | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rig:
    """What conditions are made of on this host.

    Attributes:
        knobs: Writes groups of our own only.
        janitor: Records the groups that are made.
        rt_cpu: The CPU that is the real-time task's where it has one.
        other_cpus: All other CPUs of the host.
        disk: What the I/O load writes to; None if it is no disk of this host's own.
        io_bytes_per_second: What the I/O load writes where nothing holds it; 0 while nobody knows.
    """

    layout: Layout
    knobs: Knobs
    janitor: Janitor
    rt_cpu: int
    other_cpus: tuple[int, ...]
    disk: Disk | None = None
    io_bytes_per_second: float = 0.0

    @contextlib.contextmanager
    def placed(self, condition: Condition) -> Iterator[Places]:
        """Make the groups of a condition. They are removed on exit: who is in them must have ended by then.

        Raises:
            ConfigError: It takes more CPUs than there are.
            HostError: This host cannot do it, and why.
            PermissionMissing: We may not.
        """
        if condition is Condition.NONE:
            yield Places()
            return
        divided = condition is not Condition.RLCTL and CgroupController.CPUSET in condition.controllers
        if divided and not self.other_cpus:
            raise ConfigError("a CPU of its own for the real-time task takes two CPUs; there is one")
        with contextlib.ExitStack() as stack:
            rt = self._make(stack, "rt", condition, real_time=True)
            load = self._make(stack, "load", condition, real_time=False)
            remarks: list[str] = []
            if rt.cpuset:
                rt.cpuset.set_cpus({self.rt_cpu})
            if divided:
                remarks += self._divide_cpus(rt, load)
            if CgroupController.IO in condition.controllers:
                remarks += self._divide_io(rt, load)
            yield Places(rt, load, tuple(remarks))

    def _make(self, stack: contextlib.ExitStack, name: str, condition: Condition, *, real_time: bool) -> Group:
        """A group in those hierarchies that the condition needs; rlctl also reads in some.

        A real-time task cannot join a group of v1's cpu controller (RT_GROUP_SCHED), nor become real-time in one.
        """
        for needed in condition.controllers:
            self.layout.mount(needed)
        used = _BE if condition is Condition.RLCTL else condition.controllers
        mounts = {one: self.layout.mounts[one] for one in used if one in self.layout.mounts}
        cpu = self.layout.mounts.get(CgroupController.CPU)
        if real_time and cpu is not None and cpu.version == 1:
            mounts = {one: mount for one, mount in mounts.items() if mount.path != cpu.path}
        also = [one for one in mounts if one is CgroupController.IO]
        used_alone = replace(self.layout, mounts=mounts)
        return stack.enter_context(self.janitor.group(used_alone, f"rlctl-{name}-{os.getpid()}", self.knobs, also))

    def _divide_cpus(self, rt: Group, load: Group) -> Iterator[str]:
        """All other CPUs for the load; nobody else may claim either's, if the kernel agrees."""
        assert load.cpuset
        load.cpuset.set_cpus(self.other_cpus)
        try:
            if self.layout.mount(CgroupController.CPUSET).version == 2:
                self.knobs.write(rt.paths[CgroupController.CPUSET] / "cpuset.cpus.partition", "root")
            else:
                for group in (rt, load):
                    self.knobs.write(group.paths[CgroupController.CPUSET] / "cpuset.cpu_exclusive", "1")
        except HostError as error:
            yield f"cpuset: not exclusive, as another group has these CPUs too: {error}"

    def _divide_io(self, rt: Group, load: Group) -> Iterator[str]:
        """Weights where a disk heeds them, else a limit for the load."""
        try:
            for group, weight in ((rt, IO_SHARE * LOAD_WEIGHT), (load, LOAD_WEIGHT)):
                set_io_weight(group, self.knobs, weight)
        except CgroupError as unheeded:
            if self.disk is None or not self.io_bytes_per_second:
                raise CgroupError(f"{unheeded}; and the files of the I/O load are on no disk to be limited") from None
            limit = round(self.io_bytes_per_second / IO_SHARE)
            limit_io(load, self.knobs, self.disk, "write", limit)
            yield f"io: {unheeded}; instead the load may write {limit / 1e6:.3g} MB/s, a tenth of what it did freely"


def disk_of(folder: Path, sys: Path = Path("/sys")) -> Disk | None:
    """The disk that holds a folder; None for one in memory, on the network, or on a stacked device."""
    device = os.stat(folder).st_dev
    place = (sys / f"dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = place.parent if (place / "partition").exists() else place
    return next((disk for disk in disks(sys) if disk.name == whole.name), None)


def in_memory(folder: Path) -> bool:
    """Whether the folder's file system has no disk: to sync it is to do nothing."""
    above = {str(one) for one in (folder.resolve(), *folder.resolve().parents)}
    kinds = {one.mountpoint: one.fstype for one in psutil.disk_partitions(all=True) if one.mountpoint in above}
    return bool(kinds) and kinds[max(kinds, key=len)] in _IN_MEMORY
