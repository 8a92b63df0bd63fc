"""The journal: what every kernel file held before our first write to it, safe on disk before that write.

One JSON object per line in STATE/journal.jsonl: a header with the boot id, then one entry per file and group. A last
line that was torn by a crash is ignored, since its file cannot have been written yet. `restore` puts it all back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from rlctl.envs.errors import HostError, PermissionMissing
from rlctl.envs.host.cgroup.kernel import Identity

__all__ = ["STATE_DIR", "Entry", "Journal", "Recorded", "StateLock", "boot_id", "load"]

STATE_DIR = Path("/var/lib/rlctl")
JOURNAL = "journal.jsonl"
LOCK = "lock"
_VERSION = 1

COMPACT_ENTRIES = 1000  # about 150 kB, of 150 groups that came and went


@dataclass(frozen=True, slots=True)
class Entry:
    """The original of one file.

    Attributes:
        path: The kernel file.
        original: Its content, byte for byte (bytes that are no UTF-8 as surrogates).
        identity: Device and inode of the group's directory, to know it from a later group of the same name.
    """

    path: Path
    original: str
    identity: Identity

    def to_line(self) -> str:
        """As a journal line, without the newline."""
        return json.dumps({"path": str(self.path), "original": self.original, "identity": list(self.identity)})

    @classmethod
    def from_line(cls, line: str) -> Entry:
        """From a journal line.

        Raises:
            ValueError: It is no entry.
        """
        try:
            record = json.loads(line)
            device, inode = record["identity"]
            path, original = Path(record["path"]), str(record["original"])
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"no journal entry: {line[:80]!r}") from error
        return cls(path, original, (int(device), int(inode)))


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal file says.

    Attributes:
        boot_id: Boot that it belongs to; empty for a journal without a header.
        entries: In the order in which they were recorded.
        unreadable: Numbers of damaged lines other than the last.
        good_bytes: Length up to the end of the last whole line.
    """

    boot_id: str = ""
    entries: tuple[Entry, ...] = ()
    unreadable: tuple[int, ...] = ()
    good_bytes: int = 0


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's id of this boot.

    Raises:
        HostError: /proc is not mounted.
    """
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise HostError(f"{proc}: no boot id ({error.strerror}): is procfs mounted?") from error


def load(state_dir: Path) -> Recorded:
    """Read a journal; an absent one is empty.

    Raises:
        PermissionMissing: It may not be read.
    """
    try:
        content = (state_dir / JOURNAL).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Recorded()
    except OSError as error:
        raise PermissionMissing(
            f"{state_dir / JOURNAL}: {error.strerror}: run as root, or name another --state"
        ) from None
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    entries, unreadable = [], []
    for number, line in enumerate(lines[1:], start=2):
        try:
            entries.append(Entry.from_line(line))
        except ValueError:
            unreadable.append(number)
    return Recorded(_header(lines), tuple(entries), tuple(unreadable), len(whole))


def _header(lines: Sequence[str]) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        header = json.loads(lines[0]) if lines else None
        if isinstance(header, dict):
            return str(header.get("boot_id", ""))
    return ""


class StateLock:
    """Sole use of a state directory, until closed or until the process ends in whatever way.

    It is a flock: children that are forked without exec share it.

    Args:
        state_dir: Must exist.

    Raises:
        HostError: Another process has it.
        PermissionMissing: The lock file cannot be opened.
    """

    def __init__(self, state_dir: Path) -> None:
        path = state_dir / LOCK
        try:
            self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PermissionMissing(f"{path}: {error.strerror}: run as root, or name another --state") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            self.close()
            raise HostError(f"{state_dir}: in use by a running rlctl (pid {owner}): stop it first") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let another process have it. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


@dataclass(slots=True)
class Journal:
    """An open journal and the lock on its directory. Use `Journal.open`.

    Attributes:
        state_dir: Where it lives.
        entries: Everything recorded, by this process or by one that crashed before it in this boot.
        note: What became of the journal of an earlier boot, if there was one.
    """

    state_dir: Path
    entries: list[Entry] = field(default_factory=list)
    note: str = ""
    _header: str = ""
    _damaged: bool = False
    _lock: StateLock | None = None
    _file: int | None = None

    @classmethod
    def open(cls, state_dir: Path = STATE_DIR, proc: Path = Path("/proc")) -> Journal:
        """Open or begin a journal. Originals from a crashed predecessor stay the originals.

        Raises:
            HostError: A live controller holds the directory, or the disk is full.
            PermissionMissing: The directory cannot be made or written.
        """
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PermissionMissing(f"{state_dir}: {error.strerror}: run as root, or name another --state") from error
        journal = cls(state_dir, _lock=StateLock(state_dir))
        try:
            journal._begin(boot_id(proc))
        except BaseException:
            journal.close()
            raise
        return journal

    def record(self, entries: Sequence[Entry]) -> None:
        """Append entries; they are on the disk when this returns.

        Raises:
            HostError: They could not be stored.
        """
        self._append("".join(f"{entry.to_line()}\n" for entry in entries))
        self.entries.extend(entries)

    def compact(self, needed: Collection[tuple[Path, Identity]]) -> None:
        """Drop entries of groups that are gone, once most of a long journal is about them.

        The new file takes the old one's name when it is on the disk whole; a crash leaves either of the two. A full
        disk leaves the old one, to which nothing is lost.

        A journal with damaged lines stays as it is, for `restore` to tell of them.

        Args:
            needed: File and group of every entry to keep.
        """
        if self._damaged or len(self.entries) < max(COMPACT_ENTRIES, 2 * len(needed)):
            return
        kept = [entry for entry in self.entries if (entry.path, entry.identity) in needed]
        path, fresh = self.state_dir / JOURNAL, self.state_dir / f"{JOURNAL}.new"
        with contextlib.suppress(OSError):
            text = "".join([self._header, *(f"{entry.to_line()}\n" for entry in kept)])
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
            ours, self._file = self._file, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            if ours is not None:
                os.close(ours)
            self.entries = kept
            sync_directory(self.state_dir)

    def close(self) -> None:
        """Give up file and lock; the journal itself stays until `restore` is done with it. Idempotent."""
        file, self._file = self._file, None
        lock, self._lock = self._lock, None
        if file is not None:
            os.close(file)
        if lock is not None:
            lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, boot: str) -> None:
        recorded = load(self.state_dir)
        if recorded.entries and recorded.boot_id != boot:
            self.note = archive(self.state_dir, "obsolete")
        with _storing(self.state_dir / JOURNAL):
            self._file = os.open(self.state_dir / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            fresh = recorded.boot_id != boot
            os.ftruncate(self._file, 0 if fresh else recorded.good_bytes)  # a torn line must not spoil the next one
        self._header = json.dumps({"journal": _VERSION, "boot_id": boot}) + "\n"
        if fresh:
            self._append(self._header)
            sync_directory(self.state_dir)
        else:
            self.entries.extend(recorded.entries)
            self._damaged = bool(recorded.unreadable)

    def _append(self, text: str) -> None:
        if self._file is None:
            raise HostError(f"{self.state_dir / JOURNAL}: is closed")
        with _storing(self.state_dir / JOURNAL):
            data, size_bytes = text.encode(), os.fstat(self._file).st_size
            if os.write(self._file, data) != len(data):
                os.ftruncate(self._file, size_bytes)
                raise OSError(errno.ENOSPC, "the disk is full")
            os.fdatasync(self._file)


@contextlib.contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(f"{path}: cannot store the originals ({error.strerror}): nothing is changed") from error


def archive(state_dir: Path, why: str) -> str:
    """Move the journal out of the way, over an older one of the same kind; returns a line for the operator."""
    kept = state_dir / f"{JOURNAL}.{why}"
    os.replace(state_dir / JOURNAL, kept)
    sync_directory(state_dir)
    return f"kept as {kept}"


def sync_directory(directory: Path) -> None:
    """Make a new or changed name in a directory durable."""
    file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
