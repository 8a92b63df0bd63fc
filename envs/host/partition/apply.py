"""Builds the partitions: groups first, then everything movable into the host's; or nothing, if a step fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupGone, CgroupRejected, ConfigError, RlctlError, shown
from rlctl.envs.host.cgroup.group import USED, Group, tree
from rlctl.envs.host.cgroup.journal import Journal, StateLock
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout, Mount
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.host.cgroup.v1 import CpusetV1
from rlctl.envs.host.cpulist import format_cpus, parse_cpus
from rlctl.envs.host.partition.moving import Choice, Left, Mover
from rlctl.envs.host.partition.platform import HOST, MDEV, Platform
from rlctl.envs.host.partition.record import (
    FOLDER,
    SHARED,
    Stage,
    current_record,
    group_entry,
    plan_entry,
    stage_entry,
)
from rlctl.envs.host.partition.undo import defer_signals, undo_locked

V1_EXCLUSIVE = "cpuset.cpu_exclusive"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for beyond the platform.

    Attributes:
        exclusive: No other group may use the managed CPUs: `cpu_exclusive` in v1, a partition root in v2.
        take: Groups of other programs whose tasks are moved too, with those of the groups below them; as in
            /proc/PID/cgroup, `/` for all.
    """

    exclusive: bool = False
    take: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)


@dataclass(frozen=True, slots=True)
class Applied:
    """What an `apply` did: groups made, tasks moved by the directory that they left, tasks that stayed."""

    made: tuple[Path, ...]
    moved: dict[Path, int]
    left: tuple[Left, ...]


def apply(
    platform: Platform,
    state_dir: Path,
    wish: Wish | None = None,
    *,
    layout: Layout,
    kernel: Kernel,
    proc: Path = Path("/proc"),
    say: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Build a platform's partitions. A step that fails takes all that was done back.

    Raises:
        CgroupBusy: A partition stands already, or something else is in the way.
        CgroupGone: The group that is to hold the partitions is not there.
        CgroupRejected: The kernel does not make the managed CPUs exclusive.
        ConfigError: A group has no usable name.
        HostError: A hierarchy is missing, a controller runs on the same state directory, or the disk is full.
        PermissionMissing: Not root, or no group of this user's.
    """
    wish = wish or Wish()
    with contextlib.ExitStack() as closing:
        journal = Journal.open(state_dir / FOLDER, proc)  # makes the directories
        closing.callback(journal.close)
        closing.callback(StateLock(state_dir).close)
        if current_record(state_dir, proc) is not None:
            raise CgroupBusy(f"{state_dir}: a partition stands already, or was left half built: `rlctl partition undo`")
        site = _Site(platform, wish, layout, kernel)
        site.check()
        try:
            journal.record([plan_entry(site.plan())])
            mover = Mover(kernel, journal, proc, wish.choice)
            made = _Builder(site, journal, mover, say).build()
            journal.record([stage_entry(Stage.STANDING)])
        except (RlctlError, OSError, KeyboardInterrupt):
            with defer_signals():
                journal.close()
                problems = undo_locked(state_dir, kernel, proc).failed
                for line in ("what was done is taken back", *problems):  # afterwards: whoever reads may have left
                    say(line)
            raise
        return Applied(tuple(made), dict(mover.moved), tuple(mover.left.values()))


def plan(platform: Platform, wish: Wish, *, layout: Layout, kernel: Kernel, proc: Path = Path("/proc")) -> Applied:
    """What `apply` would do now: the groups, and where tasks would go or stay. Nothing is changed."""
    site = _Site(platform, wish, layout, kernel)
    site.check()
    mover = Mover(kernel, None, proc, wish.choice)
    site.move(mover)
    return Applied(tuple(site.groups()), mover.moved, tuple(mover.left.values()))


class _Site:
    """The hierarchies and directories of a platform's groups; HostError: a hierarchy is missing, and why.

    Attributes:
        memory: Where clusters have their limits; None without any.
        moving: Hierarchies in which the host's part is made, and tasks are moved.
        managing: Those in which the managed part is made.
    """

    def __init__(self, platform: Platform, wish: Wish, layout: Layout, kernel: Kernel) -> None:
        self.platform, self.wish, self.layout, self.kernel = platform, wish, layout, kernel
        cpuset = layout.mount(Controller.CPUSET)
        if any(one.quota_cpus < len(one.cpus) for one in platform.clusters):
            layout.mount(Controller.CPU)
        limits = any(one.memory_bytes is not None for one in platform.clusters)
        self.memory = layout.mount(Controller.MEMORY) if limits else None
        self.moving = _distinct([cpuset, layout.mounts.get(Controller.CPU, cpuset)])
        used = [layout.mounts[one] for one in USED if one in layout.mounts]
        self.managing = _distinct([*self.moving, *used, *([self.memory] if self.memory else [])])

    def base(self, mount: Mount) -> Path:
        """The directory in a hierarchy that holds both partitions."""
        return mount.path / self.platform.within

    def groups(self) -> Iterable[Path]:
        """Directories to make, parents first."""
        managed = [MDEV, *(f"{MDEV}/{one.name}" for one in self.platform.clusters)]
        for mount in self.managing:
            names = [HOST, *managed] if mount in self.moving else managed
            yield from (self.base(mount) / name for name in names)

    def plan(self) -> dict[str, Any]:
        """Plain data: what `rlctl partition show` and `undo` need."""
        return {
            "mounts": {str(mount.path): str(self.base(mount)) for mount in self.managing},
            "host_cpus": format_cpus(self.platform.host_cpus),
            "mdev_cpus": format_cpus(self.platform.mdev_cpus),
            "clusters": [one.name for one in self.platform.clusters],
            "within": self.platform.within,
            "why": self.platform.why,
            "leave": sorted(self.wish.choice.leave),
            "kernel_threads": self.wish.choice.kernel_threads,
        }

    def move(self, mover: Mover) -> None:
        """Move everything movable to the host's part: tasks of the group that is divided, and those of `take`."""
        for mount in self.moving:
            base = self.base(mount)
            taken = [mount.path / name.strip("/") for name in self.wish.take]
            below = [group for one in taken if one.is_dir() for group in tree(self.kernel, one)]
            others = [group for group in below if not _within(group, (base / HOST, base / MDEV))]
            for source in dict.fromkeys([base, *others]):
                try:
                    mover.sweep(source, base / HOST)
                except CgroupGone:
                    if source == base or source.is_dir():
                        raise
                    # Else the group has ended since it was listed: nothing is left in it to move.

    def check(self) -> None:
        """Refuse what can be seen to fail before anything is touched; HostError, or ConfigError for a group's name."""
        for name in (self.platform.within, *self.wish.take):
            if ".." in Path(name).parts:
                raise ConfigError(f"{name!r} names no control group; write it as in /proc/PID/cgroup")
        for mount in self.moving:
            if not self.base(mount).is_dir():
                raise CgroupGone(f"{self.base(mount)}: no such group to make the partitions in")
        for group in self.groups():
            if group.name in (HOST, MDEV) and group.is_dir():
                way_out = "`rlctl partition undo` with that, or remove it"
                raise CgroupBusy(f"{group} exists already, from another --state or another program: {way_out}")
        for name in self.wish.take:
            if not any((mount.path / name.strip("/")).is_dir() for mount in self.moving):
                raise CgroupGone(f"--take {name}: no such group in any hierarchy of cpu and cpuset")


class _Builder:
    """The steps, in an order that each of the kernels takes."""

    def __init__(self, site: _Site, journal: Journal, mover: Mover, say: Callable[[str], None]) -> None:
        self._site, self._mover, self._say = site, mover, say
        self._theirs = Knobs(journal, site.kernel)
        self._ours = _RecordedKnobs(site.kernel, journal)

    def build(self) -> list[Path]:
        """Make the groups and move the tasks; returns the groups."""
        site, platform = self._site, self._site.platform
        for mount in site.moving:
            self._make_host(mount)
        there = [one for one in (Controller.CPUSET, Controller.CPU) if one in site.layout.mounts]
        paths = {one: site.base(site.layout.mounts[one]) / HOST for one in there}
        host = Group(platform.host_group, paths, site.layout, self._ours)
        self._set_cpuset(host, platform.host_cpus, platform.host_memory_nodes)
        self._say(f"made {platform.host_group} with CPU {format_cpus(platform.host_cpus)}")
        self._make_mdev()
        self._say(f"made {platform.mdev_group} with CPU {format_cpus(platform.mdev_cpus)}")
        site.move(self._mover)
        for source, count in self._mover.moved.items():
            self._say(f"moved {count} tasks out of {shown(str(source))}")
        return self._ours.made

    def _make_host(self, mount: Mount) -> None:
        base, host = self._site.base(mount), self._site.base(mount) / HOST
        self._ours.make_group(host)
        if mount.version == 1:
            if mount == self._site.layout.mounts[Controller.CPUSET]:
                CpusetV1(self._ours, host).inherit()
            return
        # Below the true root of v2 a group with controllers has no tasks of its own ("No Internal Process Constraint").
        if (base / "cgroup.type").exists():
            self._mover.sweep(base, host)
            for left in self._mover.left.values():
                raise CgroupBusy(f"{base}: in v2 all tasks of a divided group have to go: {left.tid}: {left.why}")
        for group in [*reversed(base.parents), base]:
            if group.is_relative_to(mount.path):
                self._share(group, mount)

    def _share(self, group: Path, mount: Mount) -> None:
        """Let the children of a v2 group have the controllers.

        Undo switches off what is switched on here and no more: what others share by then has their limits.
        """
        mounts = self._site.layout.mounts
        names = [str(one) for one in (Controller.CPU, Controller.CPUSET) if mounts.get(one) == mount]
        if mount == self._site.memory:
            names.append("memory")
        file = group / SHARED
        absent = [name for name in names if name not in self._theirs.read(file).split()]
        if absent:
            self._theirs.remember([file], {file: " ".join(f"-{name}" for name in absent)})
            self._theirs.write(file, " ".join(f"+{name}" for name in absent))

    def _make_mdev(self) -> None:
        platform, layout = self._site.platform, self._site.layout
        mdev = self._create(platform.mdev_group, platform.mdev_cpus, platform.mdev_memory_nodes)
        if self._site.wish.exclusive:
            self._make_exclusive(mdev.paths[Controller.CPUSET])
        for cluster in platform.clusters:
            group = self._create(platform.cluster_group(cluster.name), cluster.cpus, cluster.memory_nodes)
            if group.cpu is not None and cluster.quota_cpus < len(cluster.cpus):
                group.cpu.set_quota(Quota.of_cpus(cluster.quota_cpus))
            if cluster.memory_bytes is not None:
                is_v2 = layout.mounts[Controller.MEMORY].version == 2
                limit = group.paths[Controller.MEMORY] / ("memory.max" if is_v2 else "memory.limit_in_bytes")
                self._ours.write(limit, str(cluster.memory_bytes))

    def _create(self, name: str, cpus: frozenset[int], nodes: frozenset[int]) -> Group:
        memory = () if self._site.memory is None else (Controller.MEMORY,)
        group = Group.create(self._site.layout, name, self._ours, memory)
        self._set_cpuset(group, cpus, nodes)
        return group

    def _set_cpuset(self, group: Group, cpus: frozenset[int], nodes: frozenset[int]) -> None:
        if group.cpuset is None:
            raise CgroupError(f"{group.name}: has no cpuset: its parent shares none")
        if nodes:
            self._ours.write(group.paths[Controller.CPUSET] / "cpuset.mems", format_cpus(nodes))
        group.cpuset.set_cpus(cpus)

    def _make_exclusive(self, mdev: Path) -> None:
        """Keep all others off its CPUs.

        v1: no sibling may overlap; the root's tasks still may. v2: the CPUs leave every other group, and the root's.
        """
        partition = mdev / "cpuset.cpus.partition"
        refused = f"the managed CPUs cannot be exclusive{self._rivals(mdev)}"
        try:
            if partition.exists():
                self._ours.poke(partition, "root")
            else:
                self._ours.write(mdev / V1_EXCLUSIVE, "1")
        except RlctlError as error:
            raise CgroupRejected(f"{refused}: {error}") from error
        if partition.exists() and (state := self._ours.read(partition).strip()) != "root":
            raise CgroupRejected(f"{refused}: {partition} says {state!r}")

    def _rivals(self, mdev: Path) -> str:
        """What stands in the way: a parent that is not exclusive itself, other groups that have some of the CPUs."""
        kernel, above = self._site.kernel, mdev.parent / V1_EXCLUSIVE
        if above.exists() and self._ours.read(above).strip() != "1":
            return f" ({mdev.parent} is not)"
        rivals = []
        for other in kernel.subgroups(mdev.parent):
            with contextlib.suppress(OSError, ValueError):
                cpus = parse_cpus(kernel.read(other / "cpuset.cpus"))
                if other != mdev and cpus & self._site.platform.mdev_cpus:
                    rivals.append(other.name)
        return f" ({', '.join(rivals)} has some of them)" if rivals else ""


class _RecordedKnobs(Knobs):
    """Knobs of groups of our own: they are journalled before they are made, and have no originals to put back."""

    def __init__(self, kernel: Kernel, journal: Journal) -> None:
        super().__init__(None, kernel)
        self.made: list[Path] = []
        self._record = journal.record

    def make_group(self, group: Path) -> None:
        """First on disk, then in the kernel, then on disk how to know it again."""
        self._record([group_entry(group)])
        super().make_group(group)
        if (identity := self._identity(group)) is not None:
            self._record([group_entry(group, identity)])
        self.made.append(group)


def _distinct(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    return tuple({mount.path: mount for mount in mounts}.values())


def _within(group: Path, tops: Iterable[Path]) -> bool:
    return any(group.is_relative_to(top) for top in tops)
