"""What stands: the groups with what they may have and how many run there, and what was left outside."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupGone
from rlctl.envs.host.cgroup.group import Group, tree
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.partition.moving import REAL_TIME_LEFT, Choice, Left, tasks_in
from rlctl.envs.host.partition.record import HOST, MDEV

LATE = "refused when it was to move, or came later"


@dataclass(frozen=True, slots=True)
class Row:
    """One group of a partition.

    Attributes:
        group: Its path below the hierarchies' roots.
        cpus, memory_nodes: What its tasks may use, as the kernel lists it; empty where it cannot be read.
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


def rows(plan: Mapping[str, Any], layout: Layout, kernel: Kernel) -> list[Row]:
    """The groups that stand, parents first; those that are gone are left out."""
    standing = []
    for name in (HOST, MDEV, *(f"{MDEV}/{name}" for name in plan["clusters"])):
        with contextlib.suppress(CgroupGone):
            standing.append(_row(Group.open(layout, Path(plan["within"], name), Knobs(None, kernel)), kernel))
    return standing


def tasks_outside(
    mounts: Mapping[Path, Path], layout: Layout, kernel: Kernel, choice: Choice, proc: Path
) -> tuple[list[Left], list[tuple[Path, int]]]:
    """Tasks outside of both partitions, in the hierarchies that restrict.

    Returns:
        Tasks beside the partitions, each with its reason; and other programs' groups with the number of their tasks.
    """
    wanted = {
        layout.mounts[one].path for one in (CgroupController.CPUSET, CgroupController.CPU) if one in layout.mounts
    }
    left: list[Left] = []
    others: list[tuple[Path, int]] = []
    for mount, base in mounts.items():
        if mount not in wanted:
            continue
        for task in tasks_in(kernel, base, proc):
            stays = REAL_TIME_LEFT if task.real_time and (base / "cpu.shares").exists() else LATE
            left.append(Left(task.tid, task.name, base, choice.why_left(task, proc) or stays))
        ours = {*tree(kernel, base / HOST), *tree(kernel, base / MDEV), mount, base}
        counts = ((group, len(tasks_in(kernel, group, proc))) for group in tree(kernel, mount) if group not in ours)
        others += [(group, count) for group, count in counts if count]
    return left, others


def _row(group: Group, kernel: Kernel) -> Row:
    cpuset, memory = (group.paths.get(one) for one in (CgroupController.CPUSET, CgroupController.MEMORY))
    limit = _text(kernel, memory, "memory.max", "memory.limit_in_bytes")
    lists = (_text(kernel, one, "cgroup.procs") for one in tree(kernel, group.directories[0]))
    return Row(
        group=group.name,
        cpus=_text(kernel, cpuset, "cpuset.cpus.effective", "cpuset.effective_cpus"),
        memory_nodes=_text(kernel, cpuset, "cpuset.mems"),
        quota_cpus=group.cpu.quota().cpus if group.cpu else UNLIMITED,
        # What v1 shows without a limit is more than any machine has.
        memory_bytes=int(limit) if limit.isdecimal() and int(limit) < 1 << 62 else None,
        exclusive=_text(kernel, cpuset, "cpuset.cpus.partition", "cpuset.cpu_exclusive") in ("root", "1"),
        processes=sum(len(text.split()) for text in lists),
    )


def _text(kernel: Kernel, group: Path | None, *names: str) -> str:
    """The content of a group's first of these files that can be read; empty where none can."""
    for file in [group / name for name in names] if group else []:
        with contextlib.suppress(OSError):
            return kernel.read(file).strip()
    return ""
