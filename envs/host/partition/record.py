"""What was done for a partition, in a journal of its own beside that of `rlctl serve`: STATE/partition/journal.jsonl.

The journal is the one that `serve` has, with other entries: the plan, the groups that are about to be made, and how far
the work has come. Each is on the disk before its act, so that a kill at any point leaves what `rlctl restore` needs.
Where a task came from is in no journal: the group of the host's part that it is in says so, see `origin`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlctl.envs.host.cgroup.journal import JOURNAL, Entry, boot_id, load, sync_directory
from rlctl.envs.host.cgroup.kernel import Identity

FOLDER = "partition"
SHARED = "cgroup.subtree_control"
UNKNOWN: Identity = (0, 0)
_PLAN, _STAGE, _AFFINITY = Path("plan"), Path("stage"), Path("affinity")

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
        shared: Entries of groups of others in which controllers were switched on.
        affinities: Tasks with CPUs of their own: number, start in clock ticks since boot, CPUs.
        damaged: Numbers of lines that are not as they were written, other than a torn last one.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    mounts: dict[Path, Path] = field(default_factory=dict)
    made: dict[Path, Identity] = field(default_factory=dict)
    shared: list[Entry] = field(default_factory=list)
    affinities: list[tuple[int, int, str]] = field(default_factory=list)
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
        elif entry.path == _AFFINITY:
            tid, start, cpus = entry.original.split()
            record.affinities.append((int(tid), int(start), cpus))
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


def affinity_entry(tid: int, start: int, cpus: str) -> Entry:
    """A task with CPUs of its own is about to leave its group; kernels before 6.2 forget them then."""
    return Entry(_AFFINITY, f"{tid} {start} {cpus}", UNKNOWN)


def origin(group: Path, mount: Path, base: Path) -> Path:
    """Where the tasks of one of our groups came from: the host's part mirrors the groups that were taken.

    Those of `base` itself are in the host's group, those of `db/replica` in `db/replica` below it. A child begins in
    its parent's group, and so goes back where its parent came from.
    """
    host = base / HOST
    home = mount / group.relative_to(host) if group != host and group.is_relative_to(host) else base
    return home if home.is_dir() else base


def remove_record(state_dir: Path) -> None:
    """All is back: there is no partition any more."""
    with contextlib.suppress(FileNotFoundError):
        (state_dir / FOLDER / JOURNAL).unlink()
    sync_directory(state_dir / FOLDER)
