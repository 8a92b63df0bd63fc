"""What was done for a partition, in a journal of its own beside that of `rlctl serve`: STATE/partition/journal.jsonl.

The journal is the one that `serve` has, with other entries: the plan, the groups that are about to be made, and how far
the work has come. Each is on the disk before its act, so that a kill at any point leaves what `rlctl restore` needs.
Where a task came from is in no journal: the group of the host's part that it is in says so, see `origin`.

`undo` takes a partition down: every task back to where it came from, our groups removed. It works from the record and
the groups alone, after a kill at any point and any number of times.
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import tree
from rlctl.envs.host.cgroup.journal import JOURNAL, Entry, Journal, StateLock, boot_id, load, sync_directory
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, refusal
from rlctl.envs.host.cgroup.restore import put_back

FOLDER = "partition"
SHARED = "cgroup.subtree_control"
UNKNOWN: Identity = (0, 0)
_PLAN, _STAGE = Path("plan"), Path("stage")

# Names of the two groups. They stand side by side in the hierarchy's root and not in one group of ours: a cgroup-v2
# partition root has to be the child of one (before Linux 6.7), and a v1 cpuset can be exclusive only if its parent is.
HOST, MDEV = "rlctl-host", "rlctl-mdev"


class Stage(StrEnum):
    """How far a partition has come."""

    BUILDING = "building"
    STANDING = "standing"
    UNDOING = "undoing"


@dataclass(slots=True)
class Record:
    """What a partition's journal says.

    Attributes:
        plan: The platform and the options, for `rlctl partition show`; empty where that line is damaged.
        mounts: Roots of the hierarchies in which groups were made, each with the directory that holds both partitions.
        made: Directories in the order in which they were made; `UNKNOWN` if the process was killed amid it.
        shared: The entry of a divided group below the root of v2, in which controllers were switched on.
        damaged: Numbers of lines that are not as they were written, other than a torn last one.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    mounts: dict[Path, Path] = field(default_factory=dict)
    made: dict[Path, Identity] = field(default_factory=dict)
    shared: list[Entry] = field(default_factory=list)
    stage: Stage = Stage.BUILDING
    damaged: tuple[int, ...] = ()
    is_current: bool = True


def read_record(state_dir: Path, proc: Path = Path("/proc")) -> Record | None:
    """The record in a state directory, None without one; PermissionMissing, ConfigError: it cannot be read."""
    journal = load(state_dir / FOLDER)
    if not journal.entries and not journal.unreadable:
        return None
    record = Record(damaged=journal.unreadable, is_current=journal.is_of(boot_id(proc)))
    for entry in journal.entries:
        if entry.path == _PLAN:
            record.plan = json.loads(entry.original)
            record.mounts = {Path(mount): Path(base) for mount, base in record.plan["mounts"].items()}
        elif entry.path == _STAGE:
            record.stage = Stage(entry.original)
        elif entry.path.name == SHARED:
            record.shared.append(entry)
        else:
            record.made[entry.path] = entry.identity
    return record


def current_record(state_dir: Path, proc: Path = Path("/proc")) -> Record | None:
    """The same, but None as well for a partition of an earlier boot, whose groups are gone with it."""
    record = read_record(state_dir, proc)
    return record if record is not None and record.is_current else None


def plan_entry(plan: Mapping[str, Any]) -> Entry:
    """The first entry: what is to be made."""
    return Entry(_PLAN, json.dumps(plan), UNKNOWN)


def stage_entry(stage: Stage) -> Entry:
    """An entry that says which stage has begun."""
    return Entry(_STAGE, stage.value, UNKNOWN)


def group_entry(group: Path, identity: Identity = UNKNOWN) -> Entry:
    """A group is about to be made, or was, and has this identity."""
    return Entry(group, "", identity)


def origin(group: Path, mount: Path, base: Path) -> Path:
    """Where the tasks of one of our groups came from: the host's part mirrors the groups that were taken.

    Those of `base` itself are in the host's group, those of `db/replica` in `db/replica` below it. A child begins in
    its parent's group, and so goes back where its parent came from.
    """
    host = base / HOST
    home = mount / group.relative_to(host) if group != host and group.is_relative_to(host) else base
    return home if home.is_dir() else base


def listing(group: Path) -> Path:
    """The file that lists a group's tasks and takes more: threads of v1, processes of v2, which moves none apart."""
    v1 = group / "tasks"
    return v1 if v1.exists() else group / "cgroup.procs"


def listed(kernel: Kernel, group: Path) -> Sequence[int]:
    """Tasks in a group itself; a threaded one of v2 lists none, as those are the processes of the group above."""
    try:
        return [int(word) for word in kernel.read(listing(group)).split()]
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise


def remove_record(state_dir: Path) -> None:
    """All is back: there is no partition any more."""
    with contextlib.suppress(FileNotFoundError):
        (state_dir / FOLDER / JOURNAL).unlink()
    sync_directory(state_dir / FOLDER)


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
