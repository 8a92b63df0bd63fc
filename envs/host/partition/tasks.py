"""Tasks in groups: which there are, and why one cannot or shall not leave its group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.process import Task, leader, read_task

__all__ = ["REAL_TIME_LEFT", "Choice", "Left", "listed", "listing", "tree"]

REAL_TIME_LEFT = "real-time: a v1 cpu group without cpu.rt_runtime_us takes none"


@dataclass(frozen=True, slots=True)
class Left:
    """A task that stays where it is.

    Attributes:
        tid: Its number.
        name: As in `Task`.
        group: Directory of its group.
        why: One line.
    """

    tid: int
    name: str
    group: Path
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user says about tasks.

    Attributes:
        leave: Process ids and names of those that stay, with all their threads.
        kernel_threads: Move those kernel threads that are not bound to CPUs.
    """

    leave: frozenset[str] = frozenset()
    kernel_threads: bool = False

    def why_left(self, task: Task, proc: Path) -> str:
        """Why a task is not to be moved; empty when it is."""
        if task.bound:
            return "kernel thread, bound to its CPUs" if task.kernel_thread else "bound to its CPUs by the kernel"
        if task.kernel_thread and not self.kernel_threads:
            return "kernel thread; --kernel-threads takes it along"
        if self.leave and not self.leave.isdisjoint(_names(task, proc)):
            return "left by your --leave"
        return ""


def listed(kernel: Kernel, group: Path) -> Sequence[int]:
    """Tasks in a group itself: threads of v1, processes of v2, which moves no thread apart from its process.

    Raises:
        OSError: As `Kernel.read`.
    """
    return [int(word) for word in kernel.read(listing(group)).split()]


def listing(group: Path) -> Path:
    """The file that lists a group's tasks and takes more of them."""
    v1 = group / "tasks"
    return v1 if v1.exists() else group / "cgroup.procs"


def tree(kernel: Kernel, group: Path) -> Iterator[Path]:
    """A group and all below it, the deepest first; nothing of one that is gone."""
    with contextlib.suppress(OSError):
        for child in kernel.subgroups(group):
            yield from tree(kernel, child)
    yield group


def _names(task: Task, proc: Path) -> Iterator[str]:
    """What a user may call it: pids and names of itself and of its process."""
    process = leader(task.tid, proc)
    yield from (str(task.tid), task.name, str(process))
    if process != task.tid and (found := read_task(process, proc)) is not None:
        yield found.name
