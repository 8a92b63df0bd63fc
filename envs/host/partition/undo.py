"""Takes partitions down: every task back to where it came from, kernel files as they were, our groups removed.

Works from the record alone, after a kill at any point and any number of times: each step looks at what is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import tree
from rlctl.envs.host.cgroup.journal import JOURNAL, Journal, StateLock
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, refusal
from rlctl.envs.host.cpulist import parse_cpus
from rlctl.envs.host.partition.moving import listed, listing
from rlctl.envs.host.partition.record import (
    FOLDER,
    SHARED,
    UNKNOWN,
    Move,
    Record,
    Stage,
    read_record,
    remove_record,
    stage_entry,
)
from rlctl.envs.host.process import affinity, leader, read_task

PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_MOST_ANCESTORS = 64


@dataclass(slots=True)
class Undone:
    """What an undo did.

    Attributes:
        moved: Tasks of the record that went back; once for each hierarchy, as in the next two.
        followed: Tasks that began in our groups, and went where their process or parent came from.
        homeless: How many of these found that group gone, and went to the one that held the partitions.
        restored: Kernel files of groups that are not ours.
        failed: What could not be done, one line each; the record stays.
    """

    moved: int = 0
    followed: int = 0
    homeless: int = 0
    removed: list[Path] = field(default_factory=list)
    restored: list[Path] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def ok(self) -> bool:
        """True when nothing is left of the partition."""
        return not self.failed


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Signals that end or interrupt this process do so afterwards: a second Ctrl-C would leave a host divided.

    By handlers and no mask: Python runs them in the main thread, whichever thread the kernel gives the signal to.
    """
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        caught.append(number)

    main = threading.current_thread() is threading.main_thread()
    before = {
        one: signal.signal(one, note)
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if main and signal.getsignal(one) not in (None, signal.SIG_IGN)
    }
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in caught[:1]:
            signal.raise_signal(number)


def undo(
    state_dir: Path,
    *,
    kernel: Kernel,
    proc: Path = Path("/proc"),
    force: bool = False,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Undone:
    """Take down the partition that is recorded, however far it had come.

    Raises:
        HostError: A controller runs on the same state directory.
        PermissionMissing: The record may not be read or written.
    """
    if read_record(state_dir, proc) is None:
        return Undone(note=f"no partition in {state_dir}")
    with contextlib.ExitStack() as closing:
        if not force:
            closing.callback(StateLock(state_dir).close)
        return undo_locked(state_dir, kernel, proc, patience_seconds)


def undo_locked(state_dir: Path, kernel: Kernel, proc: Path, patience_seconds: float = PATIENCE_SECONDS) -> Undone:
    """The same for a caller that has the lock; raises as `undo`, and HostError where the plan's line is damaged."""
    record, undone, path = read_record(state_dir, proc), Undone(), state_dir / FOLDER / JOURNAL
    if record is not None and not record.is_current:
        undone.note = "the partition was of an earlier boot, whose groups are gone"
    elif record is not None:
        if record.made and not record.mounts:
            raise HostError(f"{path}: its plan is damaged: remove our groups by hand, then this file")
        # A full disk hinders nobody from going back.
        with Journal.open(state_dir / FOLDER, proc) as journal, contextlib.suppress(HostError):
            journal.record([stage_entry(Stage.UNDOING)])
        undone.failed += [f"line {n} of {path} is damaged: a task may have lost its group" for n in record.damaged]
        _Demolition(record, kernel, proc, undone).work(patience_seconds)
    if undone.ok:
        remove_record(state_dir)
    else:
        undone.note = f"the record stays at {path}: run it again, or remove that file"
    return undone


class _Demolition:
    """The steps of going back."""

    def __init__(self, record: Record, kernel: Kernel, proc: Path, undone: Undone) -> None:
        self._record, self._kernel, self._proc, self._undone = record, kernel, proc, undone
        # Where nobody ran before, the base itself was made with the partitions: tasks go to the nearest one above.
        self._bases = {
            mount: next(group for group in (base, *base.parents) if group not in record.made)
            for mount, base in record.mounts.items()
        }
        tops = [group for group in record.made if group.parent not in record.made]
        self._tops = [group for group in tops if self._is_ours(group, record.made[group])]
        self._homes: dict[tuple[Path, int, int], Move] = {}
        for move in record.moves:
            self._homes.setdefault((self._mount(move.source), move.tid, move.start), move)

    def work(self, patience_seconds: float) -> None:
        """Take the partition down, step by step.

        A v2 group below the root takes no tasks back while its children have controllers: these go first.
        """
        for group in self._groups():
            with contextlib.suppress(OSError):
                if self._kernel.read(group / "cpuset.cpus.partition").strip() != "member":
                    self._kernel.write(group / "cpuset.cpus.partition", "member")
            with contextlib.suppress(OSError):
                self._switch_off(group, self._kernel.read(group / SHARED).split())
        self._restore_shared()
        deadline = time.monotonic() + patience_seconds
        while groups := list(self._groups()):
            problem = ""
            for group in groups:
                problem = self._empty(group) or self._remove(group) or problem
            if problem and time.monotonic() >= deadline:
                self._undone.failed.append(problem)
                return
            if problem:
                time.sleep(_PAUSE_SECONDS)

    def _restore_shared(self) -> None:
        """Switch off the controllers that `apply` switched on in others' groups, the lowest group first."""
        for entry in reversed(self._record.shared):
            group = entry.path.parent
            try:
                if self._kernel.identity(group) == entry.identity:
                    enabled = self._kernel.read(entry.path).split()
                    names = [word[1:] for word in entry.original.split()]
                    self._switch_off(group, [name for name in names if name in enabled])
                    self._undone.restored.append(entry.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._undone.failed.append(str(refusal(error, entry.path, f"write {entry.original!r}")))

    def _switch_off(self, group: Path, names: list[str]) -> None:
        if names:
            self._kernel.write(group / SHARED, " ".join(f"-{name}" for name in names))

    def _groups(self) -> Iterator[Path]:
        """Everything of ours that is there, with what others made in it; the deepest first."""
        for top in reversed(self._tops):
            for group in tree(self._kernel, top):
                if group.is_dir():
                    yield group

    def _is_ours(self, group: Path, identity: Identity) -> bool:
        """Still the one that we made. Of one that was made just before a kill only the name is known."""
        with contextlib.suppress(OSError):
            return self._kernel.identity(group) == identity or identity == UNKNOWN
        return False

    def _mount(self, path: Path) -> Path:
        inside = [mount for mount in self._bases if path.is_relative_to(mount)]
        return max(inside, key=lambda mount: len(mount.parts), default=path)

    def _empty(self, group: Path) -> str:
        """Move its tasks out; why one would not go."""
        problem = ""
        try:
            numbers = listed(self._kernel, group)
        except OSError as error:
            return "" if error.errno in (errno.ENOENT, errno.ENODEV) else str(refusal(error, listing(group), "read it"))
        for number in numbers:
            problem = self._send_home(number, group) or problem
        return problem

    def _send_home(self, tid: int, group: Path) -> str:
        mount = self._mount(group)
        own, home = self._home(tid, mount)
        target = home.source if home is not None and home.source.is_dir() else self._bases[mount]
        try:
            self._kernel.write(listing(target), str(tid))
        except ProcessLookupError:
            return ""
        except OSError as error:
            return str(refusal(error, listing(target), f"move {tid} back"))
        self._undone.moved += own
        self._undone.followed += not own
        self._undone.homeless += home is not None and target != home.source
        # Kernels before 6.2 forgot a task's affinity when it left its group.
        if own and home is not None and home.cpus and affinity(tid, self._proc) != parse_cpus(home.cpus):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, parse_cpus(home.cpus))
        return ""

    def _home(self, tid: int, mount: Path) -> tuple[bool, Move | None]:
        """The record of a task, and that it is its own; else that of its process, or of the next ancestor with one."""
        task, own = read_task(tid, self._proc), True
        for step in range(_MOST_ANCESTORS):
            if task is None:
                break
            if (home := self._homes.get((mount, task.tid, task.start))) is not None:
                return own, home
            process = leader(task.tid, self._proc)
            following = process if step == 0 and process != task.tid else task.parent
            task, own = read_task(following, self._proc), False
        return False, None

    def _remove(self, group: Path) -> str:
        try:
            self._kernel.remove_group(group)
            self._undone.removed.append(group)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return str(refusal(error, group, "remove it", group=True))
        return ""
