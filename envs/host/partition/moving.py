"""Tasks in groups: which there are, why one cannot or shall not leave its group, and how the others are moved."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.kernel import Kernel, refusal, refusing
from rlctl.envs.host.partition.record import listed, listing
from rlctl.envs.host.process import Task, leader, read_task

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
        process = read_task(leader(task.tid, proc), proc) if self.leave else None
        names = {str(one.tid) for one in (task, process) if one} | {one.name for one in (task, process) if one}
        return "left by your --leave" if self.leave & names else ""


def tasks_in(kernel: Kernel, group: Path, proc: Path) -> list[Task]:
    """The tasks that a group lists and /proc knows; none where it cannot be read."""
    with contextlib.suppress(OSError):
        return [task for tid in listed(kernel, group) if (task := read_task(tid, proc)) is not None]
    return []


class Mover:
    """Moves tasks from group to group until no more appear.

    Attributes:
        prepare: Called with a group before tasks leave it; None only counts what would be moved.
        moved: How many tasks, by the directory that they left.
        left: Tasks that stay, with the reason; each once for each hierarchy.
    """

    def __init__(self, kernel: Kernel, proc: Path, choice: Choice) -> None:
        self.prepare: Callable[[Path], None] | None = None
        self.moved: dict[Path, int] = {}
        self.left: dict[tuple[Path, int, int], Left] = {}
        self._kernel, self._proc, self._choice = kernel, proc, choice

    def sweep(self, source: Path, target: Path) -> None:
        """Move every task of one group into another, in rounds until there is none but those that stay.

        Raises:
            HostError: The target takes nobody, the journal cannot be written, or tasks appear without end.
        """
        for _ in range(MOST_ROUNDS):
            with refusing(listing(source), "read it"):
                numbers = listed(self._kernel, source)
            tasks = [read_task(tid, self._proc) for tid in numbers]
            movable = [task for task in tasks if task is not None and self._is_movable(source, task)]
            if not movable:
                return
            if self.prepare is None:
                self.moved[source] = len(movable)
                return
            self.prepare(source)
            for task in movable:
                self._move(task, source, target)
        raise HostError(f"{source}: tasks appear faster than they can be moved: end what forks them")

    def _is_movable(self, source: Path, task: Task) -> bool:
        if (source, task.tid, task.start) in self.left:
            return False
        if why := self._choice.why_left(task, self._proc):
            self._leave(task, source, why)
        return not why

    def _move(self, task: Task, source: Path, target: Path) -> None:
        try:
            self._kernel.write(listing(target), str(task.tid))
            self.moved[source] = self.moved.get(source, 0) + 1
        except ProcessLookupError:
            return
        except OSError as error:
            if error.errno in _OF_THE_TARGET:
                raise refusal(error, listing(target), f"move {task.tid} ({task.name})") from error
            self._leave(task, source, _why(error, task, target))

    def _leave(self, task: Task, source: Path, why: str) -> None:
        self.left[source, task.tid, task.start] = Left(task.tid, task.name, source, why)


def _why(error: OSError, task: Task, target: Path) -> str:
    if error.errno == errno.EINVAL and task.real_time and (target / "cpu.shares").exists():
        return REAL_TIME_LEFT
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"user id {os.geteuid()} may not move it"
    return f"the kernel refuses: {errno.errorcode.get(error.errno or 0, '?')} ({error.strerror})"
