"""Builds the partitions: groups first, then everything movable into the host's; or nothing, if a step fails."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupGone, CgroupRejected, ConfigError, RlctlError, printable
from rlctl.envs.host.cgroup.group import USED, Group, tree
from rlctl.envs.host.cgroup.journal import Journal, StateLock
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout, Mount
from rlctl.envs.host.cgroup.v1 import CpusetV1
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.host.decode import format_cpus, parse_cpus
from rlctl.envs.host.partition import record
from rlctl.envs.host.partition.moving import Choice, Left, Mover
from rlctl.envs.host.partition.platform import Platform
from rlctl.envs.host.partition.record import FOLDER, HOST, MDEV, SHARED, Stage, undo_locked

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
    with contextlib.ExitStack() as closing:
        journal = closing.enter_context(Journal.open(state_dir / FOLDER, proc))  # makes the directories
        closing.callback(StateLock(state_dir).close)
        if record.current_record(state_dir, proc) is not None:
            raise CgroupBusy(f"{state_dir}: a partition stands already, or was left half built: `rlctl partition undo`")
        work = _Division(platform, wish or Wish(), layout, kernel, proc)
        work.check()
        try:
            journal.record([record.plan_entry(work.plan())])
            work.build(journal, say)
            journal.record([record.stage_entry(Stage.STANDING)])
        except (RlctlError, OSError, KeyboardInterrupt):
            with defer_signals():
                journal.close()
                problems = undo_locked(state_dir, kernel, proc).failed
                for line in ("what was done is taken back", *problems):  # afterwards: whoever reads may have left
                    say(line)
            raise
        return Applied(tuple(work.made), dict(work.mover.moved), tuple(work.mover.left.values()))


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Signals that end or interrupt this process do so afterwards: a second Ctrl-C would leave a host divided."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def plan(platform: Platform, wish: Wish, *, layout: Layout, kernel: Kernel, proc: Path = Path("/proc")) -> Applied:
    """What `apply` would do now: the groups, and where tasks would go or stay. Nothing is changed."""
    work = _Division(platform, wish, layout, kernel, proc)
    work.check()
    work.move()
    targets = dict.fromkeys([*work.groups(), *map(work.target, work.mover.moved)])
    return Applied(tuple(targets), work.mover.moved, tuple(work.mover.left.values()))


class _Division(Knobs):
    """The steps, in an order that each of the kernels takes, and the knobs of our own groups.

    These are journalled before they are made, and have no originals to put back. HostError: a hierarchy is missing.

    Attributes:
        memory: Where clusters have their limits; None without any.
        moving: Hierarchies in which the host's part is made, and tasks are moved.
        managing: Those in which the managed part is made.
    """

    def __init__(self, platform: Platform, wish: Wish, layout: Layout, kernel: Kernel, proc: Path) -> None:
        super().__init__(None, kernel)
        self.platform, self.wish, self.layout, self.made = platform, wish, layout, list[Path]()
        self.mover = Mover(kernel, proc, wish.choice)
        cpuset = layout.mount(CgroupController.CPUSET)
        if any(one.quota_cpus < len(one.cpus) for one in platform.clusters):
            layout.mount(CgroupController.CPU)
        limits = any(one.memory_bytes is not None for one in platform.clusters)
        self.memory = layout.mount(CgroupController.MEMORY) if limits else None
        self.moving = tuple(dict.fromkeys([cpuset, layout.mounts.get(CgroupController.CPU, cpuset)]))
        used = [layout.mounts[one] for one in USED if one in layout.mounts]
        every = [*self.moving, *used, *([self.memory] if self.memory else [])]
        self.managing = tuple({mount.path: mount for mount in every}.values())

    def base(self, mount: Mount) -> Path:
        """The directory in a hierarchy that holds both partitions."""
        return mount.path / self.platform.within

    def target(self, source: Path) -> Path:
        """Where a group's tasks go: the host's group, and for groups that were taken one of the same name below it."""
        mount = next(one for one in self.moving if source.is_relative_to(one.path))
        host = self.base(mount) / HOST
        return host if source == self.base(mount) else host / source.relative_to(mount.path)

    def groups(self) -> Iterator[Path]:
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

    def move(self) -> None:
        """Move everything movable to the host's part: tasks of the group that is divided, and those of `take`."""
        for mount in self.moving:
            base = self.base(mount)
            taken = [mount.path / name.strip("/") for name in self.wish.take]
            below = [group for one in taken if one.is_dir() for group in tree(self.kernel, one)]
            ours = (base / HOST, base / MDEV)
            others = [group for group in below if not any(group.is_relative_to(top) for top in ours)]
            for source in dict.fromkeys([base, *others]):
                try:
                    self._move_from(source)
                except CgroupGone:
                    if source == base or source.is_dir():
                        raise
                    # Else the group has ended since it was listed: nothing is left in it to move.

    def _move_from(self, source: Path) -> None:
        """Move a group's tasks into the host's part; CgroupBusy where one has to go and stays."""
        target = self.target(source)
        self.mover.sweep(source, target)
        # Below the true root of v2 a group with controllers has no tasks of its own ("No Internal Process Constraint").
        if target.parent == source and (source / "cgroup.type").exists():
            for left in self.mover.left.values():
                raise CgroupBusy(f"{source}: in v2 all tasks of a divided group have to go: {left.tid}: {left.why}")

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

    def build(self, journal: Journal, say: Callable[[str], None]) -> None:
        """Make the groups and move the tasks."""
        self._record, theirs, platform = journal.record, Knobs(journal, self.kernel), self.platform
        self.mover.prepare = self._prepare
        for mount in self.moving:
            self._make_host(mount, theirs)
        there = [one for one in (CgroupController.CPUSET, CgroupController.CPU) if one in self.layout.mounts]
        paths = {one: self.base(self.layout.mounts[one]) / HOST for one in there}
        host = Group(platform.host_group, paths, self.layout, self)
        self._set_cpuset(host, platform.host_cpus, platform.host_memory_nodes)
        self._make_mdev()
        for group, cpus in ((platform.host_group, platform.host_cpus), (platform.mdev_group, platform.mdev_cpus)):
            say(f"made {group} with CPU {format_cpus(cpus)}")
        self.move()
        for source, count in self.mover.moved.items():
            say(f"moved {count} tasks out of {printable(str(source))}")

    def make_group(self, group: Path) -> None:
        """First on disk, then in the kernel, then on disk how to know it again."""
        self._record([record.group_entry(group)])
        super().make_group(group)
        self._record([record.group_entry(group, self.kernel.identity(group))])
        self.made.append(group)
        if (group / "cpuset.effective_mems").exists():  # v1 gives a new group neither CPUs nor memory
            CpusetV1(self, group).inherit()

    def _prepare(self, source: Path) -> None:
        """Make the group that tasks go to, before they leave theirs."""
        target = self.target(source)
        for group in (*reversed(target.parents), target):
            if any(above.name == HOST for above in group.parents) and not group.is_dir():
                self.make_group(group)

    def _make_host(self, mount: Mount, theirs: Knobs) -> None:
        base, host = self.base(mount), self.base(mount) / HOST
        self.make_group(host)
        if mount.version == 1:
            return
        if nested := (base / "cgroup.type").exists():
            self._move_from(base)
        mounts = self.layout.mounts
        names = [str(one) for one in (CgroupController.CPU, CgroupController.CPUSET) if mounts.get(one) == mount]
        names += ["memory"] if mount == self.memory else []
        for group in [*reversed(base.parents), base]:
            if group.is_relative_to(mount.path):
                file = group / SHARED
                # Undo leaves them on, since others may have limits by then, but where a group takes no task back so.
                knobs = theirs if nested and group == base else self
                if absent := [name for name in names if name not in self.read(file).split()]:
                    knobs.remember([file], {file: " ".join(f"-{name}" for name in absent)})
                    knobs.write(file, " ".join(f"+{name}" for name in absent))

    def _make_mdev(self) -> None:
        platform, layout = self.platform, self.layout
        mdev = self._create(platform.mdev_group, platform.mdev_cpus, platform.mdev_memory_nodes)
        if self.wish.exclusive:
            self._make_exclusive(mdev.paths[CgroupController.CPUSET])
        for cluster in platform.clusters:
            group = self._create(platform.cluster_group(cluster.name), cluster.cpus, cluster.memory_nodes)
            if group.cpu is not None and cluster.quota_cpus < len(cluster.cpus):
                group.cpu.set_quota(Quota.of_cpus(cluster.quota_cpus))
            if cluster.memory_bytes is not None:
                is_v2 = layout.mounts[CgroupController.MEMORY].version == 2
                limit = group.paths[CgroupController.MEMORY] / ("memory.max" if is_v2 else "memory.limit_in_bytes")
                self.write(limit, str(cluster.memory_bytes))

    def _create(self, name: str, cpus: frozenset[int], nodes: frozenset[int]) -> Group:
        memory = () if self.memory is None else (CgroupController.MEMORY,)
        group = Group.create(self.layout, name, self, memory)
        self._set_cpuset(group, cpus, nodes)
        return group

    def _set_cpuset(self, group: Group, cpus: frozenset[int], nodes: frozenset[int]) -> None:
        if group.cpuset is None:
            raise CgroupError(f"{group.name}: has no cpuset: its parent shares none")
        if nodes:
            self.write(group.paths[CgroupController.CPUSET] / "cpuset.mems", format_cpus(nodes))
        group.cpuset.set_cpus(cpus)

    def _make_exclusive(self, mdev: Path) -> None:
        """Keep all others off its CPUs.

        v1: no sibling may overlap; the root's tasks still may. v2: the CPUs leave every other group, and the root's.
        """
        partition = mdev / "cpuset.cpus.partition"
        refused = f"the managed CPUs cannot be exclusive{self._rivals(mdev)}"
        try:
            if partition.exists():
                self.poke(partition, "root")
            else:
                self.write(mdev / V1_EXCLUSIVE, "1")
        except RlctlError as error:
            raise CgroupRejected(f"{refused}: {error}") from error
        if partition.exists() and (state := self.read(partition).strip()) != "root":
            raise CgroupRejected(f"{refused}: {partition} says {state!r}")

    def _rivals(self, mdev: Path) -> str:
        """What stands in the way: a parent that is not exclusive itself, other groups that have some of the CPUs."""
        above, managed, rivals = mdev.parent / V1_EXCLUSIVE, self.platform.mdev_cpus, []
        if above.exists() and self.read(above).strip() != "1":
            return f" ({mdev.parent} is not)"
        for other in self.kernel.subgroups(mdev.parent):
            with contextlib.suppress(OSError, ValueError):
                if other != mdev and parse_cpus(self.kernel.read(other / "cpuset.cpus")) & managed:
                    rivals.append(other.name)
        return f" ({', '.join(rivals)} has some of them)" if rivals else ""
