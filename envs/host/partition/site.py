"""Where the groups of a platform come to stand, and what the user wishes beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.envs.errors import CgroupBusy, CgroupGone, ConfigError
from rlctl.envs.host.cgroup.group import USED, tree
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.layout import Controller, Layout, Mount
from rlctl.envs.host.partition.moving import Choice, Mover
from rlctl.envs.host.partition.platform import HOST, MDEV, Platform


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


class Site:
    """The hierarchies and directories of a platform's groups.

    Attributes:
        memory: Where clusters have their limits; None without any.
        moving: Hierarchies in which the host's part is made, and tasks are moved.
        managing: Those in which the managed part is made.

    Raises:
        HostError: A hierarchy that the platform needs is missing, and why.
    """

    def __init__(self, platform: Platform, wish: Wish, layout: Layout, kernel: Kernel) -> None:
        self.platform, self.wish, self.layout, self.kernel = platform, wish, layout, kernel
        limits = any(one.memory_bytes is not None for one in platform.clusters)
        cpuset = layout.mount(Controller.CPUSET)
        if any(one.quota_cpus < len(one.cpus) for one in platform.clusters):
            layout.mount(Controller.CPU)
        self.memory = layout.mount(Controller.MEMORY) if limits else None
        cpu = layout.mounts.get(Controller.CPU, cpuset)
        self.moving: Sequence[Mount] = tuple({mount.path: mount for mount in (cpuset, cpu)}.values())
        wanted = [layout.mounts[one] for one in USED if one in layout.mounts]
        wanted += [self.memory] if self.memory else []
        self.managing: Sequence[Mount] = tuple({mount.path: mount for mount in (*self.moving, *wanted)}.values())

    @property
    def mounts(self) -> dict[Path, Path]:
        """Hierarchies, with the directory in each that holds both partitions."""
        return {mount.path: self.base(mount) for mount in self.managing}

    def base(self, mount: Mount) -> Path:
        """The directory in a hierarchy that holds both partitions."""
        return mount.path / self.platform.within

    def groups(self) -> Iterable[Path]:
        """Directories to make, parents first."""
        for mount in self.managing:
            names = [MDEV, *(f"{MDEV}/{one.name}" for one in self.platform.clusters)]
            yield from (self.base(mount) / name for name in ([HOST] if mount in self.moving else []) + names)

    def move(self, mover: Mover) -> None:
        """Everything movable to the host's part."""
        for mount in self.moving:
            for source in self._sources(mount):
                try:
                    mover.sweep(source, self.base(mount) / HOST)
                except CgroupGone:
                    if source == self.base(mount) or source.is_dir():
                        raise
                    # else it has ended since it was listed: nothing is left in it to move

    def _sources(self, mount: Mount) -> list[Path]:
        """Groups whose tasks are moved: that which holds the partitions, and those which the user names."""
        named = (mount.path / name.strip("/") for name in self.wish.take)
        ours = tuple(self.base(mount) / name for name in (HOST, MDEV))
        below = [group for name in named if name.is_dir() for group in tree(self.kernel, name)]
        taken = [group for group in below if not any(group.is_relative_to(one) for one in ours)]
        return list(dict.fromkeys([self.base(mount), *taken]))

    def check(self) -> None:
        """Refuse what can be seen to fail before anything is touched.

        Raises:
            HostError: It cannot be done here.
            ConfigError: A group has no usable name.
        """
        for name in (self.platform.within, *self.wish.take):
            if ".." in Path(name).parts:
                raise ConfigError(f"{name!r} names no control group; write it as in /proc/PID/cgroup")
        for mount in self.moving:
            if not self.base(mount).is_dir():
                raise CgroupGone(f"{self.base(mount)}: no such group to make the partitions in")
        for group in self.groups():
            if group.name in (HOST, MDEV) and group.is_dir():
                raise CgroupBusy(
                    f"{group} exists already, from another --state or another program: "
                    f"`rlctl partition undo` with that, or remove it"
                )
        for name in self.wish.take:
            if not any((mount.path / name.strip("/")).is_dir() for mount in self.moving):
                raise CgroupGone(f"--take {name}: no such group in any hierarchy of cpu and cpuset")
