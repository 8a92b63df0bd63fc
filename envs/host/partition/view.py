"""What stands: the groups with what they may have and how many run there, and who was left outside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.group import Group, tree
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.envs.host.cpulist import format_cpus
from rlctl.envs.host.partition.moving import REAL_TIME_LEFT, Choice, Left, listed
from rlctl.envs.host.partition.platform import HOST, MDEV, Platform
from rlctl.envs.host.process import read_task

UNREADABLE = "?"
LATE = "refused when it was to move, or came later"


@dataclass(frozen=True, slots=True)
class Row:
    """One group of a partition.

    Attributes:
        group: Its path below the hierarchies' roots.
        cpus: CPUs that its tasks may run on, as the kernel lists them.
        memory_nodes: Memory nodes, as the kernel lists them; empty for the parent's.
        quota_cpus: CPU seconds per second; infinite without a quota.
        memory_bytes: Limit; None without one.
    """

    group: str
    cpus: str
    memory_nodes: str
    quota_cpus: float
    memory_bytes: int | None
    exclusive: bool
    processes: int


def rows(description: Mapping[str, Any], layout: Layout, kernel: Kernel) -> list[Row]:
    """The groups that stand, parents first; those that are gone are left out."""
    names = [HOST, MDEV, *(f"{MDEV}/{name}" for name in description["clusters"])]
    paths = [str(Path(description["within"], name)) for name in names]
    standing = []
    for path in paths:
        with contextlib.suppress(CgroupGone):
            standing.append(_row(Group.open(layout, path, Knobs(None, kernel)), kernel))
    return standing


def missing(platform: Platform, layout: Layout, knobs: Knobs) -> str:
    """What is not as the platform says, one line with the way out; empty when all stands."""
    clusters = (platform.cluster_group(one.name) for one in platform.clusters)
    for name in (platform.host_group, platform.mdev_group, *clusters):
        try:
            cpuset = Group.open(layout, name, knobs).cpuset
            cpus = cpuset.cpus() if cpuset else frozenset()
            # Of the managed device BE has fewer just now where a controller, or its watchdog, leaves it fewer.
            managed = bool(cpus) and cpus <= platform.mdev_cpus
            if not (cpus == platform.host_cpus if name == platform.host_group else managed):
                return f"{name} has other CPUs than the platform says: `rlctl partition undo`, then `apply`"
        except CgroupGone as error:
            return f"{error}; `rlctl partition apply` makes the groups"
        except RlctlError as error:
            return str(error)
    return ""


def left_behind(
    mounts: Mapping[Path, Path], layout: Layout, kernel: Kernel, choice: Choice, proc: Path
) -> tuple[list[Left], list[tuple[Path, int]]]:
    """Tasks outside of both partitions, in the hierarchies that restrict.

    Returns:
        Tasks beside the partitions, each with its reason; and other programs' groups with the number of their tasks.
    """
    wanted = {layout.mounts[one].path for one in (Controller.CPUSET, Controller.CPU) if one in layout.mounts}
    left: list[Left] = []
    groups: list[tuple[Path, int]] = []
    for mount, base in mounts.items():
        if mount not in wanted:
            continue
        for tid in _listed(kernel, base):
            if (task := read_task(tid, proc)) is not None:
                stays = REAL_TIME_LEFT if task.real_time and (base / "cpu.shares").exists() else LATE
                left.append(Left(tid, task.name, base, choice.why_left(task, proc) or stays))
        groups += _foreign(kernel, mount, base)
    return left, groups


def _foreign(kernel: Kernel, mount: Path, base: Path) -> Iterator[tuple[Path, int]]:
    ours = (base / HOST, base / MDEV)
    for group in tree(kernel, mount):
        strange = group not in (mount, base) and not any(group.is_relative_to(one) for one in ours)
        if strange and (count := len(_listed(kernel, group))):
            yield group, count


def _listed(kernel: Kernel, group: Path) -> Sequence[int]:
    with contextlib.suppress(OSError):
        return listed(kernel, group)
    return ()


def _row(group: Group, kernel: Kernel) -> Row:
    cpuset = group.paths.get(Controller.CPUSET)
    cpus, quota = UNREADABLE, UNLIMITED
    with contextlib.suppress(RlctlError):
        cpus = format_cpus(group.cpuset.effective()) if group.cpuset else cpus
    with contextlib.suppress(RlctlError):
        quota = group.cpu.quota().cpus if group.cpu else quota
    return Row(
        group.name,
        cpus,
        _text(kernel, cpuset, "cpuset.mems"),
        quota,
        _memory(kernel, group.paths.get(Controller.MEMORY)),
        _text(kernel, cpuset, "cpuset.cpus.partition") == "root"
        or _text(kernel, cpuset, "cpuset.cpu_exclusive") == "1",
        sum(len(_text(kernel, one, "cgroup.procs").split()) for one in tree(kernel, group.directories[0])),
    )


def _memory(kernel: Kernel, folder: Path | None) -> int | None:
    """The limit; what v1 shows without one is more than any machine has."""
    if folder is None:
        return None
    text = _text(kernel, folder, "memory.max") or _text(kernel, folder, "memory.limit_in_bytes")
    return int(text) if text.isdecimal() and int(text) < 1 << 62 else None


def _text(kernel: Kernel, folder: Path | None, name: str) -> str:
    if folder is not None:
        with contextlib.suppress(OSError):
            return kernel.read(folder / name).strip()
    return ""
