"""What was done for a partition, in a journal of its own beside that of `rlctl serve`: STATE/partition/journal.jsonl.

The journal is the one that `serve` has, with other entries: the groups that are about to be made, the tasks that are
about to leave their groups, and how far the work has come. Each is on the disk before its act, so that a kill at any
point leaves what `rlctl restore` needs. It is there until the last group is removed; a partition outlives controllers.
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
UNKNOWN: Identity = (0, 0)
_PLAN, _STAGE = Path("plan"), Path("stage")
SHARED = "cgroup.subtree_control"


class Stage(StrEnum):
    """How far a partition has come."""

    BUILDING = "building"
    STANDING = "standing"
    UNDOING = "undoing"


@dataclass(frozen=True, slots=True)
class Move:
    """A task that is about to leave its group.

    Attributes:
        start: When it began, in clock ticks since boot: with `tid` it names one task and no later one.
        cpus: Its own affinity, as the kernel lists it, where that is narrower than its group's CPUs; else empty.
            Kernels before 6.2 forget it when the group changes.
    """

    tid: int
    start: int
    source: Path
    cpus: str = ""


@dataclass(slots=True)
class Record:
    """What a partition's journal says.

    Attributes:
        plan: The platform and the options, for `rlctl partition show`; empty where that line is damaged.
        mounts: Roots of the hierarchies in which groups were made, each with the directory that holds both partitions.
        made: Directories in the order in which they were made; `UNKNOWN` if the process was killed amid it.
        shared: Entries of groups of others in which controllers were switched on.
        damaged: Numbers of lines that are not as they were written, other than a torn last one.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    mounts: dict[Path, Path] = field(default_factory=dict)
    made: dict[Path, Identity] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
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
        elif entry.path.name in ("tasks", "cgroup.procs"):
            tid, start, *cpus = entry.original.split()
            record.moves.append(Move(int(tid), int(start), entry.path.parent, *cpus))
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


def move_entry(move: Move, listing: Path) -> Entry:
    """A task is about to leave the group with this list of tasks."""
    return Entry(listing, f"{move.tid} {move.start} {move.cpus}".strip(), UNKNOWN)


def remove_record(state_dir: Path) -> None:
    """All is back: there is no partition any more."""
    with contextlib.suppress(FileNotFoundError):
        (state_dir / FOLDER / JOURNAL).unlink()
    sync_directory(state_dir / FOLDER)
