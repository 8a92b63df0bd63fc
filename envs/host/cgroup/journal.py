"""The journal: what every kernel file held before our first write to it, safe on disk before that write.

One JSON object per line in STATE/journal.jsonl, with a checksum like the lines of a tick log. A header has the boot id;
then comes one entry per file and group, or per interface. What follows the last whole line is ignored. That is a line
torn by a crash, whose file cannot have been written yet. It is also the space reserved for later entries, so that a
full disk leaves no new group unrestricted. `restore` puts it all back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.envs.closing import Closing
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.kernel import Identity, identity_of
from rlctl.envs.host.network.interface import is_interface
from rlctl.envs.ticklog import decode_line, encode_line
from rlctl.envs.whole_file import other_writer

STATE_DIR = Path("/var/lib/rlctl")
JOURNAL = "journal.jsonl"
RESTORED, OBSOLETE, UNREADABLE = (f"{JOURNAL}.{why}" for why in ("restored", "obsolete", "unreadable"))
"""Names that it gets when its originals are back, when it is of an earlier boot, and when nothing in it can be read."""
LOCK = "lock"
LOCK_SECONDS = 0.5
"""For so long a watchdog may have it, which holds it while it writes."""

_VERSION = 1

_log = logging.getLogger(__name__)

# Allocated behind the journal's end; less than half of it is made up for. 150 kB hold the originals of 120 groups.
RESERVED_BYTES = 256 << 10

_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR)

# About 180 kB, of 150 groups that came and went.
COMPACT_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """The original of one file.

    Attributes:
        original: Its content, byte for byte (bytes that are no UTF-8 as surrogates).
        identity: Device and inode of the group's directory, to know it from a later group of the same name; for an
            interface `rlctl.envs.host.network.interface.Key`.
    """

    path: Path
    original: str
    identity: Identity

    def to_line(self) -> bytes:
        """As a journal line with its checksum."""
        return encode_line({"path": str(self.path), "original": self.original, "identity": list(self.identity)})

    @classmethod
    def from_line(cls, line: bytes) -> Entry:
        """From a line; ValueError: no entry as it was written: what an accident made must not be put back."""
        record = unsealed_line(line)
        try:
            device, inode = record["identity"]
            path, original = Path(record["path"]), str(record["original"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no journal entry: {line[:80]!r}") from error
        return cls(path, original, (int(device), int(inode)))


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal file says.

    Attributes:
        boot_id: Boot that it belongs to; empty for a journal without a header, or with a damaged one.
        unreadable: Numbers of damaged lines other than the last.
        good_bytes: Length up to the end of the last whole line.
    """

    boot_id: str = ""
    entries: tuple[Entry, ...] = ()
    unreadable: tuple[int, ...] = ()
    good_bytes: int = 0

    def is_of(self, boot: str) -> bool:
        """It belongs to this boot. A damaged header is no hindrance: each entry still names its very group."""
        return self.boot_id == boot or bool(self.entries and not self.boot_id)


def state_error(path: Path, error: OSError) -> RlctlError:
    """The errno of a state directory, or of a file in it, in the user's words; by whichever option it is named."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionMissing(f"{path}: {error.strerror}: run as root, or name another state directory")
    kind = ConfigError if error.errno in _NO_PLACE else HostError
    return kind(f"{path}: {error.strerror}: name another state directory")


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's id of this boot. Raises HostError where /proc is not mounted."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        way_out = ": is procfs mounted?" if error.errno == errno.ENOENT else ""
        raise HostError(f"{proc}: no boot id ({error.strerror}){way_out}") from error


def load(state_dir: Path) -> Recorded:
    """Read a journal; an absent one is empty.

    Raises:
        PermissionMissing: It may not be read.
        ConfigError, HostError: It cannot be.
    """
    try:
        with os.fdopen(open_own(state_dir, JOURNAL, os.O_RDONLY), "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return Recorded()
    except OSError as error:
        raise state_error(state_dir / JOURNAL, error) from None
    # A line that has no end was torn by a crash; the kernel file it is about was not written yet.
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.splitlines()
    entries, boot = [], _header(lines)
    unreadable = [1] if content.strip(b"\0") and not boot else []
    for number, line in enumerate(lines[1:], start=2):
        try:
            entries.append(Entry.from_line(line))
        except ValueError:
            unreadable.append(number)
    return Recorded(boot, tuple(entries), tuple(unreadable), len(whole))


def open_own(state_dir: Path, name: str, flags: int) -> int:
    """Open a regular file of a state directory that nobody else may write to.

    Raises:
        ConfigError: Others may write in the directory, or as `open_regular`: what it says is not believed.
        OSError: As `os.open`.
    """
    # Who can write the journal decides what root writes into kernel files at `restore`.
    if who := other_writer(os.stat(state_dir)):
        raise ConfigError(f"{state_dir}: others may write in it ({who}): chown it to root and chmod go-w")
    return open_regular(state_dir / name, flags)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file, whosever it is; no link is followed and no FIFO waited for.

    Raises:
        ConfigError: It is another kind of file.
        OSError: As `os.open`.
    """
    # A link could lead to any file of root's, and opening a FIFO waits for its other end (open(2), fifo(7)).
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ConfigError(f"{path}: is no regular file: remove it")
    return file


def read_own(path: Path, most_bytes: int) -> bytes:
    """The content of a file of a state directory, which is opened as `open_own` does.

    Raises:
        ConfigError: As `open_own`, or it is a link, or has more bytes than that.
        OSError: As `os.open`; FileNotFoundError where there is none.
    """
    try:
        opened = open_own(path.parent, path.name, os.O_RDONLY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{path}: is a link: remove it") from error
        raise
    with os.fdopen(opened, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ConfigError(f"{path}: has more than {most_bytes} bytes")
    return content


def _header(lines: Sequence[bytes]) -> str:
    with contextlib.suppress(ValueError):
        return str(unsealed_line(lines[0]).get("boot_id", "")) if lines else ""
    return ""


def unsealed_line(line: bytes) -> Mapping[str, Any]:
    """The record in a line. Raises ValueError where the line is none, or not as it was written."""
    record, checked = decode_line(line)
    if not checked:
        raise ValueError(f"no checksum: {line[:80]!r}")
    return record


def append(file: int, data: bytes, at_bytes: int) -> None:
    """Write behind the end of a file; all of it is on the disk when this returns, and nothing of it when it raises."""
    try:
        _write_whole(file, data, at_bytes)
        # Only then may the kernel file be written: after a power failure the original is known.
        os.fdatasync(file)
    except OSError:
        with contextlib.suppress(OSError):  # what is not surely there must not be read as if it were
            os.ftruncate(file, at_bytes)
        raise


def _try_lock(file: int) -> bool:
    # The kernel lets go of it when the last descriptor closes, however the process ends (flock(2)).
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock_file(state_dir: Path, *, writable: bool) -> int:
    try:
        return open_own(state_dir, LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if writable or error.errno != errno.EROFS:
            raise
        return open_own(state_dir, LOCK, os.O_RDONLY)  # a flock needs no more


class StateLock:
    """Sole use of a state directory that exists, until closed or until the process ends.

    It is a flock: children that are forked without exec share it.

    Args:
        writable: The file must take our pid; who puts originals back does without, on a disk that takes nothing now.

    Raises:
        HostError: Another process has it, or the disk is full.
        PermissionMissing, ConfigError: The lock file cannot be opened.
    """

    def __init__(self, state_dir: Path, *, writable: bool = True) -> None:
        path = state_dir / LOCK
        try:
            self._file: int | None = _lock_file(state_dir, writable=writable)
        except OSError as error:
            raise state_error(path, error) from error
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(self._file):
            if time.monotonic() > deadline:
                owner = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
                self.close()
                raise HostError(f"{state_dir}: in use by a running rlctl (pid {owner}): stop it first")
            time.sleep(LOCK_SECONDS / 50.0)
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            if writable:
                self.close()
                raise state_error(path, error) from error

    def close(self) -> None:
        """Let another process have it. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


@dataclass(slots=True)
class Journal(Closing):
    """An open journal and the lock on its directory. Use `Journal.open`.

    Attributes:
        entries: Everything recorded, by this process or by one that crashed before it in this boot.
        unstored: What could not be stored yet: originals that only this process knows.
    """

    state_dir: Path
    entries: list[Entry] = field(default_factory=list)
    unstored: list[Entry] = field(default_factory=list)
    _header: bytes = b""
    _damaged: bool = False
    _undefended: str = ""
    _lock: StateLock | None = None
    _file: int | None = None
    _end_bytes: int = 0
    _reserved_bytes: int = 0

    @classmethod
    def open(cls, state_dir: Path = STATE_DIR, proc: Path = Path("/proc")) -> Journal:
        """Open or begin a journal. Originals from a crashed predecessor stay the originals.

        Raises:
            HostError: A live controller holds the directory, or the disk is full.
            PermissionMissing, ConfigError: The directory cannot be made or written.
        """
        try:
            state_dir.mkdir(0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise state_error(state_dir, error) from error
        journal = cls(state_dir, _lock=StateLock(state_dir))
        try:
            journal._begin(boot_id(proc))
        except BaseException:
            journal.close()
            raise
        return journal

    def record(self, entries: Sequence[Entry], *, in_memory: bool = False) -> None:
        """Append entries, and those that are unstored yet; they are on the disk when this returns.

        Args:
            in_memory: Keep what cannot be stored in memory, for another try, rather than raise.

        Raises:
            HostError: They could not be stored.
        """
        # Those that wait come first: the file keeps the order of the first writes.
        pending = [*self.unstored, *entries]
        try:
            self._append(b"".join(entry.to_line() for entry in pending), in_memory=in_memory)
        except HostError as error:
            if not in_memory:
                raise
            if not self.unstored:
                _log.error("%s; originals are in memory only: `rlctl restore` after a crash will not know them", error)
            self.unstored = pending
            return
        if self.unstored:
            _log.info("%s: all originals are stored again", self.state_dir / JOURNAL)
        self.entries.extend(pending)
        self.unstored = []

    def defend(self) -> None:
        """Write it anew, from memory, where its name leads to another file or to none.

        Not where `restore` has set it aside: then the originals are back, and the lease says so.
        """
        if self._file is None:
            return
        # By device and inode: another file may have the name by now.
        status = os.fstat(self._file)
        places = (identity_of(self.state_dir / name) for name in (JOURNAL, RESTORED))
        if (status.st_dev, status.st_ino) in places:
            return
        path, why = self.state_dir / JOURNAL, ""
        try:
            self.state_dir.mkdir(0o755, parents=True, exist_ok=True)
            if identity_of(self.state_dir / LOCK) is None:  # the directory has been moved, and the lock with it
                moved, self._lock = self._lock, StateLock(self.state_dir)
                if moved is not None:
                    moved.close()
            self._rewrite([*self.entries, *self.unstored])
            self.unstored = []
            sync_directory(self.state_dir)
        except (OSError, RlctlError) as error:
            why = str(error)
        if why != self._undefended or not why:
            _log.error(
                "%s was removed or replaced: %s",
                path,
                f"originals are in memory only: {why}" if why else "it is written anew",
            )
        self._undefended = why

    def compact(self, needed: Collection[tuple[Path, Identity]]) -> None:
        """Drop entries of groups that are gone, once most of a long journal is about them.

        The new file takes the old one's name when it is on the disk whole; a crash leaves either of the two. A full
        disk, or a state directory that is no longer ours alone, leaves the old one, to which nothing is lost.

        A journal with damaged lines stays as it is, for `restore` to tell of them.

        Args:
            needed: File and group of every entry to keep.
        """
        if self._damaged or len(self.entries) < max(COMPACT_ENTRIES, 2 * len(needed)):
            return
        with contextlib.suppress(OSError, RlctlError):
            self._rewrite(
                [entry for entry in self.entries if is_interface(entry.path) or (entry.path, entry.identity) in needed]
            )
            sync_directory(self.state_dir)

    def drop(self, entries: Collection[Entry]) -> None:
        """Forget what was put back, and is nobody's but its own since; what cannot be stored stays."""
        if entries and not self._damaged:
            with contextlib.suppress(OSError, RlctlError):
                self._rewrite([entry for entry in self.entries if entry not in entries])
                sync_directory(self.state_dir)

    def close(self) -> None:
        """Give up file and lock; the journal itself stays until `restore` is done with it. Idempotent."""
        file, self._file = self._file, None
        lock, self._lock = self._lock, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._end_bytes)
            os.close(file)
        if lock is not None:
            lock.close()

    def _begin(self, boot: str) -> None:
        recorded, path = load(self.state_dir), self.state_dir / JOURNAL
        fresh = not recorded.is_of(boot)
        # What follows the last whole line is written over.
        self._end_bytes = 0 if fresh else recorded.good_bytes
        self._header = encode_line({"journal": _VERSION, "boot_id": boot})
        with _storing(path):
            if fresh and recorded.entries:
                aside = archive(self.state_dir, OBSOLETE)
                _log.info("%s is of an earlier boot, whose settings are gone: %s", path, aside)
            elif fresh and recorded.unreadable:
                aside = archive(self.state_dir, UNREADABLE)
                _log.error("%s cannot be read (%s): if it had originals, what is there now counts as them", path, aside)
            self._file = open_own(self.state_dir, JOURNAL, os.O_WRONLY | os.O_CREAT)
            if fresh:
                os.ftruncate(self._file, 0)
        if fresh:
            self._append(self._header)
            with _storing(path):
                sync_directory(self.state_dir)
        else:
            self.entries.extend(recorded.entries)
            self._damaged = bool(recorded.unreadable)
            self._reserve()

    def _append(self, data: bytes, *, in_memory: bool = False) -> None:
        # Behind the last whole line, over what is reserved or was torn.
        if self._file is None:
            raise HostError(f"{self.state_dir / JOURNAL}: is closed")
        with _storing(self.state_dir / JOURNAL, in_memory=in_memory):
            try:
                append(self._file, data, self._end_bytes)
            except OSError:
                self._reserved_bytes = self._end_bytes
                raise
        self._end_bytes += len(data)
        self._reserve()

    def _reserve(self) -> None:
        """Have the file system set space aside for what comes next; one that cannot may be full by then."""
        if self._file is not None and self._reserved_bytes - self._end_bytes < RESERVED_BYTES // 2:
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._file, self._end_bytes, RESERVED_BYTES)
                self._reserved_bytes = self._end_bytes + RESERVED_BYTES

    def _rewrite(self, entries: list[Entry]) -> None:
        """Another file in the journal's place; open before it is there, as no descriptor may be left to open it."""
        fresh = self.state_dir / f"{JOURNAL}.new"
        data = b"".join([self._header, *(entry.to_line() for entry in entries)])
        with contextlib.ExitStack() as failing:
            file = open_own(self.state_dir, fresh.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            failing.callback(fresh.unlink, missing_ok=True)
            failing.callback(os.close, file)
            _write_whole(file, data, 0)
            # The content before the name: a crash in between leaves the old journal, whole (rename(2), fsync(2)).
            os.fsync(file)
            os.replace(fresh, self.state_dir / JOURNAL)
            failing.pop_all()
        ours, self._file = self._file, file
        if ours is not None:
            os.close(ours)
        self.entries, self._end_bytes, self._reserved_bytes = entries, len(data), 0
        self._reserve()


def _write_whole(file: int, data: bytes, at_bytes: int) -> None:
    if os.pwrite(file, data, at_bytes) != len(data):
        raise OSError(errno.ENOSPC, "the disk is full")


@contextlib.contextmanager
def _storing(path: Path, *, in_memory: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # With `in_memory` BE is restricted all the same, and the originals wait in memory.
        effect = "" if in_memory else ": nothing is changed"
        raise HostError(f"{path}: cannot store the originals ({error.strerror}){effect}") from error


def archive(state_dir: Path, name: str) -> str:
    """Move the journal out of the way, over an older one of that name; returns a line for the operator."""
    aside = state_dir / name
    os.replace(state_dir / JOURNAL, aside)
    with contextlib.suppress(OSError):  # after a power failure it is of an earlier boot in any case
        sync_directory(state_dir)
    return f"kept as {aside}"


def sync_directory(directory: Path) -> None:
    """Make a new or changed name in a directory durable."""
    # fsync of a file says nothing of its name (fsync(2), "NOTES").
    file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
