"""Tasks in groups: which there are, why one cannot or shall not leave its group, and how the others are moved."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.kernel import Kernel, refusal, refusing
from rlctl.envs.host.cpulist import format_cpus, parse_cpus
from rlctl.envs.host.partition.record import Move, move_entry
from rlctl.envs.host.process import Task, affinity, leader, read_task

# Of looking for tasks that were forked meanwhile: a child of a moved task is in the new group already.
MOST_ROUNDS = 100

# Refusals that no task is to blame for: the group has no CPU, takes no processes, is gone.
_OF_THE_TARGET = (errno.ENOSPC, errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV, errno.EROFS)


REAL_TIME_LEFT = "real-time: a v1 cpu group without cpu.rt_runtime_us takes none"


@dataclass(frozen=True, slots=True)
class Left:
    """A task that stays where it is."""

    tid: int
    name: str
    group: Path
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user says about tasks; `leave` has ids and names of processes that stay, with all their threads."""

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
    """Tasks in a group itself: threads of v1, processes of v2, which moves no thread apart from its process."""
    try:
        return [int(word) for word in kernel.read(listing(group)).split()]
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # a threaded group, whose processes the group above lists
            return []
        raise


def listing(group: Path) -> Path:
    """The file that lists a group's tasks and takes more of them."""
    v1 = group / "tasks"
    return v1 if v1.exists() else group / "cgroup.procs"


def _names(task: Task, proc: Path) -> Iterator[str]:
    """What a user may call it: pids and names of itself and of its process."""
    process = leader(task.tid, proc)
    yield from (str(task.tid), task.name, str(process))
    if process != task.tid and (its := read_task(process, proc)) is not None:
        yield its.name


class Mover:
    """Moves tasks from group to group until no more appear.

    Args:
        journal: Has every task before it is moved; None only counts what would be moved.

    Attributes:
        moved: How many tasks, by the directory that they left.
        left: Tasks that stay, with the reason; each once for each hierarchy.
    """

    def __init__(self, kernel: Kernel, journal: Journal | None, proc: Path, choice: Choice) -> None:
        self.moved: dict[Path, int] = {}
        self.left: dict[tuple[Path, int, int], Left] = {}
        self._kernel, self._journal, self._proc, self._choice = kernel, journal, proc, choice

    def sweep(self, source: Path, target: Path) -> None:
        """Move every task of one group into another, in rounds until there is none but those that stay.

        Raises:
            HostError: The target takes nobody, the journal cannot be written, or tasks appear without end.
        """
        for _ in range(MOST_ROUNDS):
            tasks = [task for task in self._tasks(source) if self._wanted(source, task)]
            if not tasks:
                return
            if self._journal is None:
                self.moved[source] = len(tasks)
                return
            self._journal.record([move_entry(self._entry(task, source), listing(source)) for task in tasks])
            for task in tasks:
                self._move(task, source, target)
        raise HostError(f"{source}: tasks appear faster than they can be moved: end what forks them")

    def _tasks(self, source: Path) -> Iterator[Task]:
        with refusing(listing(source), "read it"):
            numbers = listed(self._kernel, source)
        for number in numbers:
            if (task := read_task(number, self._proc)) is not None:
                yield task

    def _wanted(self, source: Path, task: Task) -> bool:
        if (source, task.tid, task.start) in self.left:
            return False
        if why := self._choice.why_left(task, self._proc):
            self._leave(task, source, why)
            return False
        return True

    def _entry(self, task: Task, source: Path) -> Move:
        """What undo needs: affinity too, but only one that somebody has set, narrower than the group's CPUs."""
        if (source / "cpuset.cpus").exists() or (source / "cpuset.cpus.effective").exists():
            cpus = affinity(task.tid, self._proc)
            if cpus and cpus < _effective(self._kernel, source):
                return Move(task.tid, task.start, source, format_cpus(cpus))
        return Move(task.tid, task.start, source)

    def _move(self, task: Task, source: Path, target: Path) -> None:
        try:
            self._kernel.write(listing(target), str(task.tid))
            self.moved[source] = self.moved.get(source, 0) + 1
        except ProcessLookupError:
            return
        except OSError as error:
            if error.errno in _OF_THE_TARGET:
                raise refusal(error, listing(target), f"move {task.tid} ({task.name})") from error
            self._leave(task, source, _why(error, task, listing(target)))

    def _leave(self, task: Task, source: Path, why: str) -> None:
        self.left[source, task.tid, task.start] = Left(task.tid, task.name, source, why)


def _why(error: OSError, task: Task, file: Path) -> str:
    if error.errno == errno.EINVAL and task.real_time and (file.parent / "cpu.shares").exists():
        return REAL_TIME_LEFT
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"user id {os.geteuid()} may not move it"
    return f"the kernel refuses: {errno.errorcode.get(error.errno or 0, '?')} ({error.strerror})"


def _effective(kernel: Kernel, group: Path) -> frozenset[int]:
    for name in ("cpuset.effective_cpus", "cpuset.cpus.effective"):
        if (group / name).exists():
            return parse_cpus(kernel.read(group / name))
    return frozenset()
