"""The ledger of a partition: which groups were made and which tasks were moved from where, on disk before the act.

STATE/partition/ledger.jsonl beside a journal of its own for the originals of kernel files: that of `rlctl serve` is put
back whenever a controller ends, and a partition outlives many controllers. Lines are sealed as the journal's are. The
file is there from before the first group is made until the last one is removed, so a kill at any point leaves what
`rlctl restore` needs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.journal import (
    append,
    boot_id,
    open_regular,
    refused,
    sealed_line,
    sync_directory,
    unsealed_line,
)
from rlctl.envs.host.cgroup.kernel import Identity

FOLDER = "partition"
LEDGER = "ledger.jsonl"


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
class Recorded:
    """What a ledger says.

    Attributes:
        mounts: Roots of the hierarchies in which groups were made, each with the directory that holds both partitions.
        made: Directories in the order in which they were made; with their identity, unless the process was killed
            between the two.
        damaged: Numbers of lines that are not as they were written, other than a torn last one.
    """

    boot_id: str = ""
    description: Mapping[str, Any] = field(default_factory=dict)
    mounts: dict[Path, Path] = field(default_factory=dict)
    made: dict[Path, Identity | None] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    stage: Stage = Stage.BUILDING
    damaged: list[int] = field(default_factory=list)


def read_ledger(state_dir: Path) -> Recorded | None:
    """The ledger of a state directory, None without one yet; PermissionMissing, ConfigError: it cannot be read."""
    path = state_dir / FOLDER / LEDGER
    try:
        # Whose it is does not matter: a user may divide what was delegated to them, and root undo it.
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refused(path, error) from error
    recorded = Recorded()
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            _take(recorded, unsealed_line(line))
        except (ValueError, LookupError, TypeError, AttributeError):
            recorded.damaged.append(number)
    return recorded if recorded.boot_id or recorded.damaged else None


def read_current(state_dir: Path, proc: Path = Path("/proc")) -> Recorded | None:
    """The same, but None as well for a ledger of an earlier boot, whose groups are gone with it."""
    recorded = read_ledger(state_dir)
    return recorded if recorded is not None and recorded.boot_id in ("", boot_id(proc)) else None


def _take(recorded: Recorded, record: Mapping[str, Any]) -> None:
    """Add one line's record."""
    match record["is"]:
        case "ledger":
            recorded.mounts = {Path(mount): Path(base) for mount, base in record["mounts"].items()}
            recorded.boot_id, recorded.description = str(record["boot_id"]), record["description"]
        case "make":
            recorded.made[Path(record["group"])] = None
        case "made":
            device, inode = record["identity"]
            recorded.made[Path(record["group"])] = int(device), int(inode)
        case "move":
            recorded.moves.append(
                Move(int(record["tid"]), int(record["start"]), Path(record["from"]), str(record["cpus"]))
            )
        case "stage":
            recorded.stage = Stage(record["stage"])


class Ledger:
    """An open ledger, to which lines are appended; PermissionMissing, ConfigError: it cannot be opened."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FOLDER / LEDGER
        try:
            self._file = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise refused(self.path, error) from error
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self._end_bytes = content.rfind(b"\n") + 1  # a torn line is written over

    def begin(self, boot_id: str, mounts: Mapping[Path, Path], description: Mapping[str, Any]) -> None:
        """Empty the ledger and write its first line; HostError, here and below: the disk is full or broken."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
        self._end_bytes = 0
        plain = {str(mount): str(base) for mount, base in mounts.items()}
        self._append([{"is": "ledger", "boot_id": boot_id, "mounts": plain, "description": dict(description)}])
        sync_directory(self.path.parent)
        sync_directory(self.path.parent.parent)

    def make(self, group: Path) -> None:
        """A group is about to be made."""
        self._append([{"is": "make", "group": str(group)}])

    def made(self, group: Path, identity: Identity) -> None:
        """It was, and this is how to know it again."""
        self._append([{"is": "made", "group": str(group), "identity": list(identity)}])

    def move(self, moves: Iterable[Move]) -> None:
        """Tasks are about to be moved; all with one write to the disk."""
        self._append(
            [
                {"is": "move", "tid": one.tid, "start": one.start, "from": str(one.source), "cpus": one.cpus}
                for one in moves
            ]
        )

    def reached(self, stage: Stage) -> None:
        """Note that a stage begins."""
        self._append([{"is": "stage", "stage": stage}])

    def remove(self) -> None:
        """All is back: there is no partition any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        data = b"".join(map(sealed_line, records))
        try:
            append(self._file, data, self._end_bytes)
        except OSError as error:
            raise HostError(f"{self.path}: cannot store what is about to be done ({error.strerror})") from error
        self._end_bytes += len(data)
