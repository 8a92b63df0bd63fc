"""Takes partitions down: every task back to where it came from, kernel files as they were, our groups removed.

Works from the record and the groups alone, after a kill at any point and any number of times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import tree
from rlctl.envs.host.cgroup.journal import JOURNAL, Journal, StateLock
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, refusal
from rlctl.envs.host.cgroup.restore import put_back
from rlctl.envs.host.cpulist import parse_cpus
from rlctl.envs.host.partition.moving import listed, listing
from rlctl.envs.host.partition.record import (
    FOLDER,
    SHARED,
    UNKNOWN,
    Record,
    Stage,
    origin,
    read_record,
    remove_record,
    stage_entry,
)
from rlctl.envs.host.process import affinity, read_task

PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.005


@dataclass(slots=True)
class Undone:
    """What an undo did.

    Attributes:
        moved: Tasks that went back, those that began in our groups among them; once for each hierarchy.
        restored: Kernel files of groups that are not ours.
        failed: What could not be done, one line each; the record stays.
    """

    moved: int = 0
    removed: list[Path] = field(default_factory=list)
    restored: list[Path] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def ok(self) -> bool:
        """True when nothing is left of the partition."""
        return not self.failed

    def __str__(self) -> str:
        if not self.removed and not self.moved and self.note:
            return self.note
        return f"{self.moved} tasks moved back; {len(self.removed)} groups removed"

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return {"ok": self.ok, **asdict(self)}


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Signals that end or interrupt this process do so afterwards: a second Ctrl-C would leave a host divided."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        HostError: A controller runs on the same state directory, or the plan's line is damaged.
        PermissionMissing: The record may not be read or written.
    """
    if read_record(state_dir, proc) is None:
        return Undone(note=f"no partition in {state_dir}")
    with contextlib.ExitStack() as closing:
        if not force:
            closing.callback(StateLock(state_dir).close)
        return undo_locked(state_dir, kernel, proc, patience_seconds)


def undo_locked(state_dir: Path, kernel: Kernel, proc: Path, patience_seconds: float = PATIENCE_SECONDS) -> Undone:
    """The same for a caller that has the lock."""
    record, undone, path = read_record(state_dir, proc), Undone(), state_dir / FOLDER / JOURNAL
    if record is not None and not record.is_current:
        undone.note = "the partition was of an earlier boot, whose groups are gone"
    elif record is not None:
        if record.made and not record.mounts:
            raise HostError(f"{path}: its plan is damaged: remove our groups by hand, then this file")
        # A full disk hinders nobody from going back.
        with Journal.open(state_dir / FOLDER, proc) as journal, contextlib.suppress(HostError):
            journal.record([stage_entry(Stage.UNDOING)])
        undone.failed += [f"line {n} of {path} is damaged: a group may be left" for n in record.damaged]
        _take_down(record, kernel, undone, state_dir, patience_seconds)
        _give_affinities(record, proc)
    if undone.ok:
        remove_record(state_dir)
    else:
        undone.note = f"the record stays at {path}: run it again, or remove that file"
    return undone


def _take_down(record: Record, kernel: Kernel, undone: Undone, state_dir: Path, patience_seconds: float) -> None:
    """Step by step: a v2 group below the root takes no tasks back while its children have controllers."""
    tops = [group for group in record.made if group.parent not in record.made]
    ours = [group for group in tops if _is_ours(kernel, group, record.made[group])]
    for group in _groups(kernel, ours):
        with contextlib.suppress(OSError):
            if kernel.read(group / "cpuset.cpus.partition").strip() != "member":
                kernel.write(group / "cpuset.cpus.partition", "member")
        with contextlib.suppress(OSError):
            if names := kernel.read(group / SHARED).split():
                kernel.write(group / SHARED, " ".join(f"-{name}" for name in names))
    shared = put_back(record.shared, state_dir, kernel, patience_seconds)
    undone.restored += shared.restored
    undone.failed += [f"{one.path}: {one.why}" for one in shared.failed]
    deadline = time.monotonic() + patience_seconds
    while groups := list(_groups(kernel, ours)):
        problem = ""
        for group in groups:
            problem = _empty(group, _home(group, record), kernel, undone) or problem
        if problem and time.monotonic() >= deadline:
            undone.failed.append(problem)
            return
        if problem:
            time.sleep(_PAUSE_SECONDS)


def _groups(kernel: Kernel, tops: list[Path]) -> list[Path]:
    """Everything of ours that is there, with what others made in it; the deepest first."""
    return [group for top in reversed(tops) for group in tree(kernel, top) if group.is_dir()]


def _is_ours(kernel: Kernel, group: Path, identity: Identity) -> bool:
    """Still the one that we made. Of one that was made just before a kill only the name is known."""
    with contextlib.suppress(OSError):
        return identity in (kernel.identity(group), UNKNOWN)
    return False


def _home(group: Path, record: Record) -> Path:
    """Where a group's tasks go; where the base was made with the partitions, to the nearest group above it."""
    inside = [mount for mount in record.mounts if group.is_relative_to(mount)]
    mount = max(inside, key=lambda one: len(one.parts), default=group.parent)
    base = record.mounts.get(mount, mount)
    return origin(group, mount, next(one for one in (base, *base.parents) if one not in record.made))


def _empty(group: Path, home: Path, kernel: Kernel, undone: Undone) -> str:
    """Move a group's tasks out and remove it; what stands in the way, empty if nothing."""
    doing, path = "read it", listing(group)
    problem = ""
    try:
        for tid in listed(kernel, group):
            doing, path = f"move {tid} back", listing(home)
            try:
                kernel.write(path, str(tid))
                undone.moved += 1
            except ProcessLookupError:
                continue
            except OSError as error:
                problem = str(refusal(error, path, doing))
        doing, path = "remove it", group
        kernel.remove_group(group)
        undone.removed.append(group)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            problem = problem or str(refusal(error, path, doing, group=path == group))
    return problem


def _give_affinities(record: Record, proc: Path) -> None:
    """Kernels before 6.2 forgot a task's affinity when it left its group."""
    for tid, start, cpus in record.affinities:
        task = read_task(tid, proc)
        if task is not None and task.start == start and affinity(tid, proc) != parse_cpus(cpus):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, parse_cpus(cpus))
