"""Takes partitions down: every task back to where it came from, kernel files as they were, our groups removed.

Works from the ledger alone, after a kill at any point and any number of times: each step looks at what is there.
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
from rlctl.envs.host.cgroup.journal import StateLock, boot_id
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, refusal
from rlctl.envs.host.cgroup.restore import RestoreReport, restore
from rlctl.envs.host.cpulist import parse_cpus
from rlctl.envs.host.partition.ledger import FOLDER, Ledger, Move, Recorded, Stage, read_ledger
from rlctl.envs.host.partition.moving import listed, listing
from rlctl.envs.host.process import affinity, leader, read_task

PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_MOST_ANCESTORS = 64


@dataclass(slots=True)
class Undone:
    """What an undo did.

    Attributes:
        moved: Tasks of the ledger that went back; once for each hierarchy, as in the next two.
        followed: Tasks that began in our groups, and went where their process or parent came from.
        homeless: How many of these found that group gone, and went to the one that held the partitions.
        knobs: What became of kernel files of groups that are not ours.
        failed: What could not be done, one line each; the ledger stays.
    """

    moved: int = 0
    followed: int = 0
    homeless: int = 0
    removed: list[Path] = field(default_factory=list)
    knobs: RestoreReport = field(default_factory=RestoreReport)
    failed: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def ok(self) -> bool:
        """True when nothing is left of the partition."""
        return not self.failed


@contextlib.contextmanager
def signals_waiting() -> Iterator[None]:
    """Signals that end or interrupt this process do so afterwards: a second Ctrl-C would leave a host divided.

    By handlers and no mask: Python runs them in the main thread, whichever thread the kernel gives the signal to, be it
    that of a progress bar.
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
    """Take down the partition that the ledger tells of, however far it had come.

    Raises:
        HostError: A controller runs on the same state directory.
        PermissionMissing: The ledger may not be read or written.
    """
    if read_ledger(state_dir) is None:
        return Undone(note=f"no partition in {state_dir}")
    with contextlib.ExitStack() as closing:
        if not force:
            closing.callback(StateLock(state_dir).close)
        return undo_locked(state_dir, kernel, proc, patience_seconds)


def undo_locked(state_dir: Path, kernel: Kernel, proc: Path, patience_seconds: float = PATIENCE_SECONDS) -> Undone:
    """The same for one who has the lock.

    Raises:
        PermissionMissing: As `undo`.
        HostError: The ledger's head is damaged.
    """
    recorded, undone = read_ledger(state_dir), Undone()
    with Ledger(state_dir) as ledger:
        if recorded is not None and not recorded.boot_id:
            raise HostError(f"{ledger.path}: its first line is damaged: remove our groups by hand, then this file")
        if recorded is None or recorded.boot_id != boot_id(proc):
            undone.note = "the partition was of an earlier boot, whose groups are gone"
        else:
            with contextlib.suppress(HostError):  # a full disk hinders nobody from going back
                ledger.reached(Stage.UNDOING)
            _Demolition(recorded, kernel, proc, undone).work(patience_seconds, state_dir / FOLDER)
        if undone.ok:
            ledger.remove()
        else:
            undone.note = f"the ledger stays at {ledger.path}: run it again, or remove that file"
    return undone


class _Demolition:
    """The steps of going back."""

    def __init__(self, recorded: Recorded, kernel: Kernel, proc: Path, undone: Undone) -> None:
        self._kernel, self._proc, self._undone = kernel, proc, undone
        # Of each hierarchy the nearest group that is not ours: where nobody ran before, the base itself was made with
        # the partitions.
        self._bases = {
            mount: next(group for group in (base, *base.parents) if group not in recorded.made)
            for mount, base in recorded.mounts.items()
        }
        tops = [group for group in recorded.made if group.parent not in recorded.made]
        self._tops = [group for group in tops if self._is_ours(group, recorded.made[group])]
        self._homes: dict[tuple[Path, int, int], Move] = {}
        for move in recorded.moves:
            self._homes.setdefault((self._mount(move.source), move.tid, move.start), move)
        undone.failed += [
            f"line {n} of the ledger is damaged: a task may have lost its group" for n in recorded.damaged
        ]

    def work(self, patience_seconds: float, journal_dir: Path) -> None:
        """Take the partition down, step by step.

        A v2 group below the root takes no tasks back while its children have controllers: these go first.
        """
        for group in self._groups():
            self._quietly(group / "cpuset.cpus.partition", "member")
            self._release_controllers(group)
        self._undone.knobs = restore(journal_dir, kernel=self._kernel, proc=self._proc)
        self._undone.failed += [f"{one.path}: {one.why}" for one in self._undone.knobs.failed]
        deadline = time.monotonic() + patience_seconds
        while groups := list(self._groups()):
            error = None
            for group in groups:
                error = self._empty(group) or self._remove(group) or error
            if error is not None and time.monotonic() >= deadline:
                self._undone.failed.append(error)
                return
            if error is not None:
                time.sleep(_PAUSE_SECONDS)

    def _groups(self) -> Iterator[Path]:
        """Everything of ours that is there, with what others made in it; the deepest first."""
        for top in reversed(self._tops):
            for group in tree(self._kernel, top):
                if group.is_dir():
                    yield group

    def _is_ours(self, group: Path, identity: Identity | None) -> bool:
        """Still the one that we made. Of one that was made just before a kill nobody knows; it has our name."""
        with contextlib.suppress(OSError):
            return identity is None or self._kernel.identity(group) == identity
        return False

    def _mount(self, path: Path) -> Path:
        return max(
            (mount for mount in self._bases if path.is_relative_to(mount)), key=lambda m: len(m.parts), default=path
        )

    def _release_controllers(self, group: Path) -> None:
        with contextlib.suppress(OSError):
            names = self._kernel.read(group / "cgroup.subtree_control").split()
            if names:
                self._kernel.write(group / "cgroup.subtree_control", " ".join(f"-{name}" for name in names))

    def _quietly(self, file: Path, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._kernel.read(file).strip() != text:
                self._kernel.write(file, text)

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
        if own and home is not None and home.cpus:
            self._give_affinity(tid, home.cpus)
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

    def _give_affinity(self, tid: int, cpus: str) -> None:
        """Kernels before 6.2 forgot it when the task left its group."""
        wanted = parse_cpus(cpus)
        if affinity(tid, self._proc) != wanted:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, wanted)

    def _remove(self, group: Path) -> str:
        try:
            self._kernel.remove_group(group)
            self._undone.removed.append(group)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return str(refusal(error, group, "remove it", group=True))
        return ""
