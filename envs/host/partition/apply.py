"""Builds the partitions: groups first, then everything movable into the host's; or nothing, if a step fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupRejected, RlctlError, shown
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal, StateLock, boot_id
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout, Mount
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.host.cgroup.v1 import CpusetV1
from rlctl.envs.host.cpulist import format_cpus, parse_cpus
from rlctl.envs.host.partition.ledger import FOLDER, Ledger, Stage, read_current
from rlctl.envs.host.partition.moving import Left, Mover
from rlctl.envs.host.partition.platform import HOST, Platform
from rlctl.envs.host.partition.site import Site, Wish
from rlctl.envs.host.partition.undo import signals_waiting, undo_locked

V1_EXCLUSIVE = "cpuset.cpu_exclusive"
V1_LIMIT = "memory.limit_in_bytes"


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
        if read_current(state_dir, proc) is not None:
            raise CgroupBusy(f"{state_dir}: a partition stands already, or was left half built: `rlctl partition undo`")
        site = Site(platform, wish, layout, kernel)
        site.check()
        ledger = closing.enter_context(Ledger(state_dir))
        ledger.begin(boot_id(proc), site.mounts, _described(platform, wish))
        builder = _Builder(site, ledger, Knobs(journal, kernel), Mover(kernel, ledger, proc, wish.choice), say)
        try:
            builder.build()
            ledger.reached(Stage.STANDING)
        except (RlctlError, OSError, KeyboardInterrupt):
            with signals_waiting():
                journal.close()
                problems = undo_locked(state_dir, kernel, proc).failed
                for line in ("what was done is taken back", *problems):  # afterwards: whoever reads may have left
                    say(line)
            raise
        return builder.report()


def plan(platform: Platform, wish: Wish, *, layout: Layout, kernel: Kernel, proc: Path = Path("/proc")) -> Applied:
    """What `apply` would do now: the groups, and where tasks would go or stay. Nothing is changed."""
    site = Site(platform, wish, layout, kernel)
    site.check()
    mover = Mover(kernel, None, proc, wish.choice)
    site.move(mover)
    return Applied(tuple(site.groups()), mover.moved, tuple(mover.left.values()))


class _Builder:
    """The steps, in an order that each of the kernels takes."""

    def __init__(self, site: Site, ledger: Ledger, theirs: Knobs, mover: Mover, say: Callable[[str], None]) -> None:
        self._site, self._theirs, self._mover, self._say = site, theirs, mover, say
        self._ours = _Noting(site.kernel, ledger)

    def build(self) -> None:
        """Make the groups and move the tasks."""
        for mount in self._site.moving:
            self._make_host(mount)
        self._restrict_host()
        self._say(f"made {self._site.platform.host_group} with CPU {format_cpus(self._site.platform.host_cpus)}")
        self._make_mdev()
        self._say(f"made {self._site.platform.mdev_group} with CPU {format_cpus(self._site.platform.mdev_cpus)}")
        self._site.move(self._mover)
        for source, count in self._mover.moved.items():
            self._say(f"moved {count} tasks out of {shown(str(source))}")

    def report(self) -> Applied:
        """The groups made, and the tasks moved and left."""
        return Applied(tuple(self._ours.made), dict(self._mover.moved), tuple(self._mover.left.values()))

    def _make_host(self, mount: Mount) -> None:
        base, host = self._site.base(mount), self._site.base(mount) / HOST
        self._ours.make_group(host)
        if mount.version == 1:
            if mount == self._site.layout.mounts[Controller.CPUSET]:
                CpusetV1(self._ours, host).inherit()
            return
        if (base / "cgroup.type").exists():  # below the true root a group with controllers has no tasks of its own
            self._mover.sweep(base, host)
            if (left := next(iter(self._mover.left.values()), None)) is not None:
                raise CgroupBusy(f"{base}: in v2 all tasks of a divided group have to go: {left.tid}: {left.why}")
        for group in [*reversed(base.parents), base]:
            if group.is_relative_to(mount.path):
                self._share(group, mount)

    def _share(self, group: Path, mount: Mount) -> None:
        """Let the children of a v2 group have the controllers.

        Undo switches off what is switched on here and no more: what others share by then has their limits.
        """
        names = [str(one) for one in (Controller.CPU, Controller.CPUSET) if self._site.layout.mounts.get(one) == mount]
        names += ["memory"] if mount == self._site.memory else []
        file = group / "cgroup.subtree_control"
        enabled = self._theirs.read(file).split()
        if absent := [f"+{name}" for name in names if name not in enabled]:
            self._theirs.remember([file], {file: " ".join(f"-{word[1:]}" for word in absent)})
            self._theirs.write(file, " ".join(absent))

    def _restrict_host(self) -> None:
        platform = self._site.platform
        paths = {
            one: self._site.base(mount) / HOST
            for one in (Controller.CPUSET, Controller.CPU)
            if (mount := self._site.layout.mounts.get(one)) is not None
        }
        host = Group(platform.host_group, paths, self._site.layout, self._ours)
        self._set_cpuset(host, platform.host_cpus, platform.host_memory_nodes)

    def _make_mdev(self) -> None:
        platform = self._site.platform
        mdev = self._create(platform.mdev_group, platform.mdev_cpus, platform.mdev_memory_nodes)
        if self._site.wish.exclusive:
            self._make_exclusive(mdev.paths[Controller.CPUSET])
        for cluster in platform.clusters:
            group = self._create(platform.cluster_group(cluster.name), cluster.cpus, cluster.memory_nodes)
            if group.cpu is not None and cluster.quota_cpus < len(cluster.cpus):
                group.cpu.set_quota(Quota.of_cpus(cluster.quota_cpus))
            if cluster.memory_bytes is not None:
                folder = group.paths[Controller.MEMORY]
                limit = "memory.max" if self._site.layout.mounts[Controller.MEMORY].version == 2 else V1_LIMIT
                self._ours.write(folder / limit, str(cluster.memory_bytes))

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
        """Nobody else may have its CPUs.

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
        """Who stands in the way: a parent that is not exclusive itself, other groups that have some of the CPUs."""
        above = mdev.parent / V1_EXCLUSIVE
        if above.exists() and self._ours.read(above).strip() != "1":
            return f" ({mdev.parent} is not)"
        rivals = []
        for other in self._site.kernel.subgroups(mdev.parent):
            with contextlib.suppress(OSError, ValueError):
                if other != mdev and parse_cpus(self._site.kernel.read(other / "cpuset.cpus")) & (
                    self._site.platform.mdev_cpus
                ):
                    rivals.append(other.name)
        return f" ({', '.join(rivals)} has some of them)" if rivals else ""


class _Noting(Knobs):
    """Whose groups are in the ledger before they are made; their originals are nobody's."""

    def __init__(self, kernel: Kernel, ledger: Ledger) -> None:
        super().__init__(None, kernel)
        self.made: list[Path] = []
        self._ledger = ledger

    def make_group(self, group: Path) -> None:
        """First on disk, then in the kernel, then on disk how to know it again."""
        self._ledger.make(group)
        super().make_group(group)
        if (identity := self._identity(group)) is not None:
            self._ledger.made(group, identity)
        self.made.append(group)


def _described(platform: Platform, wish: Wish) -> dict[str, Any]:
    """Plain data: the platform and the wish, for `rlctl partition show`."""
    return {
        "host_cpus": format_cpus(platform.host_cpus),
        "mdev_cpus": format_cpus(platform.mdev_cpus),
        "clusters": [one.name for one in platform.clusters],
        "within": platform.within,
        "why": platform.why,
        "exclusive": wish.exclusive,
        "take": list(wish.take),
        "leave": sorted(wish.choice.leave),
        "kernel_threads": wish.choice.kernel_threads,
    }
