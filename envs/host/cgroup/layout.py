"""Which cgroup controller is served by which mount, and in which version.

A host may have all of v1, all of v2, or some controllers here and some there (hybrid): each one is looked up by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.decode import text_of

SYS_CGROUP = Path("/sys/fs/cgroup")


class CgroupController(StrEnum):
    """What rlctl wants of control groups."""

    CPU = "cpu"
    CPUSET = "cpuset"
    FREEZER = "freezer"
    CPUACCT = "cpuacct"
    MEMORY = "memory"
    IO = "io"
    PRESSURE = "pressure"  # PSI of a group: cgroup2 only

    @property
    def v1_name(self) -> str:
        """What cgroup v1 calls it."""
        return "blkio" if self is CgroupController.IO else str(self)


_DISABLES = {
    CgroupController.CPU: "BE's quota and weight",
    CgroupController.CPUSET: "BE's cpuset",
    CgroupController.FREEZER: "freezing BE",
    CgroupController.CPUACCT: "CPU use of LC and BE",
    CgroupController.MEMORY: "memory protection of the LC and memory limits of BE",
    CgroupController.IO: "BE's share of the disks",
    CgroupController.PRESSURE: "pressure of LC and BE",
}

_V2_CONTROLLERS = frozenset({CgroupController.CPU, CgroupController.CPUSET, CgroupController.MEMORY})
_OPTIONAL = frozenset({CgroupController.MEMORY, CgroupController.IO, CgroupController.PRESSURE})
_V2_ONLY = "cpu.weight, memory.low and memory.high, delegation to a user; v1 does the rest"


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a hierarchy is mounted; writable if it is so read-write and this process may make groups in it."""

    path: Path
    version: int
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """The control groups of one host, and why those are missing that there are not."""

    mounts: Mapping[CgroupController, Mount]
    missing: Mapping[CgroupController, str]

    def of_services(self) -> Iterator[tuple[CgroupController, Mount]]:
        """Not v1's blkio: systemd leaves services in their slice's group there, which is not theirs alone."""
        return (one for one in self.mounts.items() if one[0] is not CgroupController.IO or one[1].version == 2)

    @classmethod
    def detect(cls, root: Path = SYS_CGROUP, proc: Path = Path("/proc")) -> Layout:
        """Look at the mounts; `root` stands for /sys/fs/cgroup, as a captured tree lies elsewhere."""
        # A hierarchy may be mounted in several places; all show the same groups, and the first is the usual one.
        first: dict[str, Mount] = {}
        for name, mount in _hierarchies(proc, root):
            first.setdefault(name, mount)
        served = {name: _served_by(name, first, proc) for name in CgroupController}
        mounts = {name: mount for name, mount in served.items() if mount is not None}
        table = _v1_table(proc)
        missing = {name: _why_missing(name, first, table) for name in CgroupController if name not in mounts}
        return cls(mounts, missing)

    @property
    def kind(self) -> str:
        """v1, v2, hybrid or none, by the controllers that actuate."""
        actuators = (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER)
        # Only what restricts BE counts: PSI comes from cgroup2 on hosts that are v1 in all else.
        versions = {self.mounts[name].version for name in actuators if name in self.mounts}
        if not versions:
            return "none"
        list_mounts = versions | ({2} if CgroupController.PRESSURE in self.mounts else set())
        return "hybrid" if len(list_mounts) > 1 else f"v{versions.pop()}"

    def mount(self, controller: CgroupController) -> Mount:
        """The mount that serves a controller. Raises HostError where there is none, with the reason."""
        if controller in self.mounts:
            return self.mounts[controller]
        raise HostError(
            f"cgroup {controller}: {self.missing[controller]}; without it there is no {_DISABLES[controller]}"
        )

    def describe(self) -> tuple[Capability, ...]:
        """For `rlctl doctor`: each controller, where it is and whether groups can be made there."""
        return (*(self._capability(name) for name in CgroupController), self._second_version())

    def _second_version(self) -> Capability:
        """Whether cgroup2 serves what BE is restricted by; a v1 hierarchy that holds a controller keeps it."""
        with_v1 = [str(name) for name, mount in self.mounts.items() if mount.version == 1 and name in _V2_CONTROLLERS]
        with_v2 = [str(name) for name, mount in self.mounts.items() if mount.version == 2 and name in _V2_CONTROLLERS]
        if not with_v1:
            return Capability("cgroup2 controllers", bool(with_v2), f"{', '.join(with_v2) or 'none mounted'}", _V2_ONLY)
        reason = f"v1 holds {', '.join(with_v1)}: they cannot be moved while mounted there"
        return Capability("cgroup2 controllers", False, reason, _V2_ONLY)

    def _capability(self, name: CgroupController) -> Capability:
        title, mount = f"cgroup {name}", self.mounts.get(name)
        if mount is None:
            return Capability(title, False, self.missing[name], _DISABLES[name])
        where = f"v{mount.version} at {mount.path}"
        if not mount.writable and name not in _OPTIONAL:
            return Capability(title, False, f"{where}, but not writable: run as root, or remount it", _DISABLES[name])
        return Capability(title, True, where, _DISABLES[name])


def _hierarchies(proc: Path, root: Path) -> Iterator[tuple[str, Mount]]:
    """Controller names (or `unified`) with their mounts, in mount order."""
    for one in list_mounts("cgroup", "cgroup2", proc=proc):
        path = _below(one.path, root)
        if path is None or "\0" in str(path):
            continue
        writable = not one.read_only and os.access(path, os.W_OK)
        if one.kind == "cgroup2":
            yield "unified", Mount(path, 2, writable)
        else:
            yield from ((name, Mount(path, 1, writable)) for name in one.options)


def _below(mount_point: Path, root: Path) -> Path | None:
    """A mount point as seen in this tree; None for one that an injected tree does not hold."""
    if mount_point.is_relative_to(SYS_CGROUP):
        return root / mount_point.relative_to(SYS_CGROUP)
    return mount_point if root == SYS_CGROUP else None


def _served_by(name: CgroupController, first: Mapping[str, Mount], proc: Path) -> Mount | None:
    # A controller is in one hierarchy at a time: one that v1 has is not in cgroup2 (cgroup-v2.rst, "Mounting").
    unified = first.get("unified")
    if name is not CgroupController.PRESSURE and name.v1_name in first:
        return first[name.v1_name]
    if unified is None:
        return None
    if name is CgroupController.PRESSURE:
        return unified if (proc / "pressure/cpu").exists() else None
    # Every v2 group can be frozen and has its CPU usage in cpu.stat: no file lists either (cgroup-v2.rst, "cpu.stat").
    if name in (CgroupController.FREEZER, CgroupController.CPUACCT):
        return unified
    return unified if name in text_of(unified.path / "cgroup.controllers").split() else None


def _why_missing(name: CgroupController, first: Mapping[str, Mount], table: Mapping[str, tuple[int, bool]]) -> str:
    if name is CgroupController.PRESSURE:
        return "no cgroup2 is mounted" if "unified" not in first else "this kernel measures none (boot with psi=1)"
    if not first:
        return "no control groups are mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    v1_name = name.v1_name
    if v1_name not in table:
        return "this kernel has no such controller"
    hierarchy, enabled = table[v1_name]
    if not enabled:
        return f"switched off at boot (cgroup_disable={v1_name} on the kernel's command line)"
    if hierarchy != 0:
        return f"bound to v1 hierarchy {hierarchy}, which is not mounted here"
    return f"enabled, but mounted nowhere: mount -t cgroup -o {v1_name} {v1_name} /sys/fs/cgroup/{v1_name}"


def _v1_table(proc: Path) -> dict[str, tuple[int, bool]]:
    """/proc/cgroups: hierarchy (0 for cgroup2 or none) and whether it is enabled, by controller."""
    # The table has a line of headings, which begins with #.
    rows = (line.split() for line in text_of(proc / "cgroups").splitlines() if not line.startswith("#"))
    return {
        row[0]: (int(row[1]), row[3] == "1") for row in rows if len(row) == 4 and re.fullmatch(r"[0-9]{1,9}", row[1])
    }


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


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing that a host may offer.

    Attributes:
        name: For the first column of the table, such as "cgroup cpu" or "perf cycles".
        reason: How that shows, or what the kernel answered.
        disables: What rlctl cannot do without it; empty for a mere fact.
    """

    name: str
    present: bool
    reason: str
    disables: str
