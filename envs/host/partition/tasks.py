"""Tasks as /proc tells of them: what names one for good, and why one cannot or shall not leave its group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.cgroup.cpulist import parse_cpus
from rlctl.envs.host.cgroup.kernel import Kernel

__all__ = ["REAL_TIME_LEFT", "Choice", "Left", "Task", "affinity", "leader", "listed", "listing", "read_task", "tree"]

REAL_TIME_LEFT = "real-time: a v1 cpu group without cpu.rt_runtime_us takes none"

_KERNEL_THREAD, _BOUND = 0x0020_0000, 0x0400_0000  # PF_KTHREAD, PF_NO_SETAFFINITY in include/linux/sched.h
_REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)
_NO_SUCH = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Task:
    """One thread, or a process of one.

    Attributes:
        tid: Its number.
        start: When it began, in clock ticks since boot; numbers are used again, pairs of the two are not.
        name: As `ps` shows it in brackets; any bytes but NUL.
        parent: Process that it is a child of.
        flags: The kernel's flags of it.
        policy: Scheduling policy, as `os.SCHED_*`.
    """

    tid: int
    start: int
    name: str
    parent: int
    flags: int
    policy: int

    @property
    def real_time(self) -> bool:
        """SCHED_FIFO or SCHED_RR."""
        return self.policy in _REAL_TIME

    @property
    def kernel_thread(self) -> bool:
        """It runs kernel code only."""
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def bound(self) -> bool:
        """The kernel tied it to its CPUs: no group but the root takes it."""
        return bool(self.flags & _BOUND)


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


def read_task(tid: int, proc: Path) -> Task | None:
    """A task; None when there is none of this number, or no sense in what is told of it."""
    try:
        stat = (proc / str(tid) / "stat").read_bytes()
        head, _, tail = stat.rpartition(b")")
        fields = tail.split()
        name = head.partition(b"(")[2].decode(errors="replace")
        return Task(tid, int(fields[19]), name, int(fields[1]), int(fields[6]), int(fields[38]))
    except (OSError, ValueError, IndexError):
        return None


def leader(tid: int, proc: Path) -> int:
    """The process that a thread belongs to; itself where nothing is told."""
    return int(_status(tid, proc, "Tgid") or tid)


def affinity(tid: int, proc: Path) -> frozenset[int]:
    """CPUs that a task may run on now; none when it has ended."""
    try:
        return parse_cpus(_status(tid, proc, "Cpus_allowed_list"))
    except ValueError:
        return frozenset()


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


def _status(tid: int, proc: Path, key: str) -> str:
    with contextlib.suppress(*_NO_SUCH, PermissionError):
        for line in (proc / str(tid) / "status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return value.strip()
    return ""
