"""That somebody else wrote a knob, and who: the kernel's word for it where it gives it, else the place in the tree.

fanotify tells the process of every write to a marked file, control groups' included (seen on Linux 6.18 for cgroup v1
and 6.1 for v2). It needs CAP_SYS_ADMIN. Without it inotify tells of the write, and not whose it was: what reads as we
left it is taken for our own. Our own writes show in both; equal events are merged while nobody reads them, so there are
never more in the queue than files and writers, and reading can wait until somebody asks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rlctl.envs.host.cgroup.group import Group

_FAN_CLOEXEC, _FAN_NONBLOCK = 0x1, 0x2
_FAN_MARK_ADD, _FAN_MARK_EVICTABLE = 0x1, 0x200  # the latter since Linux 5.19, see fanotify_mark(2)
_FAN_MODIFY = 0x2
_IN_MODIFY = 0x2
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata, linux/fanotify.h
_NOTICE = struct.Struct("=iIII")  # struct inotify_event, linux/inotify.h
_READ_BYTES = 1 << 14

MOST_WRITERS = 8
"""Remembered of one file."""

_SUSPECTS = (
    (re.compile(r"kubepods"), "kubelet"),
    (re.compile(r"(^|/)(docker|libpod|crio|cri-containerd|nerdctl)\b|libpod_parent"), "the container runtime"),
    (re.compile(r"\.(slice|service|scope)(/|$)"), "systemd"),
)


def suspect(group: str) -> str:
    """The program that manages groups in such a place.

    Args:
        group: Path below the hierarchy's root.

    Returns:
        A name with "probably", or "unknown".
    """
    return next((f"probably {name}" for pattern, name in _SUSPECTS if pattern.search(group)), "unknown")


def _marked(libc: ctypes.CDLL, file: int, path: Path) -> bool:
    flags = _FAN_MARK_ADD | _FAN_MARK_EVICTABLE  # a removed group's inodes must not stay for our sake
    mask = ctypes.c_uint64(_FAN_MODIFY)
    return bool(libc.fanotify_mark(file, flags, mask, _AT_FDCWD, os.fsencode(path)) == 0)


class Witness:
    """Tells which process wrote the knobs of a group. Without the permission it knows of the write, and suspects.

    Args:
        holds: Whether a file reads as we left it; needed without the permission.
    """

    def __init__(self, holds: Callable[[Path], bool] | None = None, proc: Path = Path("/proc")) -> None:
        self._holds, self._proc = holds, proc
        self._file: int | None = None
        self._writers: dict[str, dict[int, str]] = {}  # by file
        self._watched: dict[tuple[int, int], str] = {}  # by device and inode
        self._noticed: dict[int, str] = {}  # by the number of inotify's watch
        self._news = False
        self._named = True  # the kernel names writers

    def watch(self, files: Iterable[Path]) -> None:
        """Begin to watch files; what cannot be watched is not."""
        libc = ctypes.CDLL(None, use_errno=True)
        for path in files:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if self._file is None:
                    self._file = self._begun(libc, path)
                if self._file is None:
                    return
                if self._named and _marked(libc, self._file, path):
                    self._watched[status.st_dev, status.st_ino] = str(path)
                elif not self._named:
                    number = libc.inotify_add_watch(self._file, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY))
                    self._noticed |= {number: str(path)} if number >= 0 else {}

    def writer(self, group: Group, knob: str) -> str:
        """The process that wrote a knob since the last call, or that may have."""
        self._drain()
        files = [str(path) for path in group.knob_files(knob)]
        writers = {pid: name for file in files for pid, name in self._writers.pop(file, {}).items()}
        if writers:
            return " and ".join(f"{name} (pid {pid})" for pid, name in writers.items())
        return suspect(group.name)

    @property
    def file(self) -> int | None:
        """A descriptor that becomes readable when somebody writes to a watched file, we ourselves too."""
        return self._file

    @property
    def watches(self) -> bool:
        """Whether the kernel watches any file for us."""
        return bool(self._watched or self._noticed)

    def anybody(self, *, readable: bool = True) -> bool:
        """Whether somebody else has written since the last call; `writer` still tells who it was.

        Args:
            readable: `file` may have become so; False: it was just seen not to be.
        """
        # Kept apart from the queue, which `writer` empties too: what is written while a tick reads is not overlooked.
        if readable:
            self._drain()
        news, self._news = self._news, False
        return news

    def forget(self, folders: Iterable[Path]) -> None:
        """Groups are gone, with the inodes that were theirs."""
        gone = tuple(f"{folder}/" for folder in folders)
        self._watched = {inode: path for inode, path in self._watched.items() if not path.startswith(gone)}
        self._writers = {path: who for path, who in self._writers.items() if not path.startswith(gone)}
        for number in [number for number, path in self._noticed.items() if path.startswith(gone)]:
            del self._noticed[number]
            if self._file is not None:  # or the inode of a removed group's file would stay for our sake
                ctypes.CDLL(None).inotify_rm_watch(self._file, number)

    def close(self) -> None:
        """Watch no more. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _begun(self, libc: ctypes.CDLL, path: Path) -> int | None:
        """A descriptor of what works on such a file; before Linux 5.19 fanotify takes no such mark."""
        file = libc.fanotify_init(_FAN_CLOEXEC | _FAN_NONBLOCK, os.O_RDONLY | os.O_CLOEXEC)
        if file >= 0 and _marked(libc, file, path):
            return int(file)
        if file >= 0:
            os.close(file)
        self._named = False
        file = -1 if self._holds is None else libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        return int(file) if file >= 0 else None

    def _drain(self) -> None:
        if not self._named:
            changed = {self._noticed[number] for number in self._notices() if number in self._noticed}
            self._news |= any(not self._holds(Path(path)) for path in changed) if self._holds else False
            return
        for inode, pid in self._events():
            if inode in self._watched and pid != os.getpid():
                writers = self._writers.setdefault(self._watched[inode], {})
                writers[pid] = self._name(pid)
                if len(writers) > MOST_WRITERS:  # each of a user's processes may write what is there already
                    del writers[next(iter(writers))]
                self._news = True

    def _events(self) -> Iterator[tuple[tuple[int, int], int]]:
        """File and writer of each write; the kernel hands over an open file with each of them."""
        for data in self._queued():
            offset = 0
            while offset + _EVENT.size <= len(data):
                length, _, _, _, _, file, pid = _EVENT.unpack_from(data, offset)
                offset += max(length, _EVENT.size)
                if file >= 0:
                    status = os.fstat(file)
                    os.close(file)
                    yield (status.st_dev, status.st_ino), pid

    def _notices(self) -> Iterator[int]:
        """The watch of each write."""
        for data in self._queued():
            offset = 0
            while offset + _NOTICE.size <= len(data):
                number, _, _, length = _NOTICE.unpack_from(data, offset)
                offset += _NOTICE.size + length
                yield number

    def _queued(self) -> Iterator[bytes]:
        """What the kernel has for us, whole events each time."""
        while self._file is not None:
            try:
                yield os.read(self._file, _READ_BYTES)
            except OSError:  # nothing more
                return

    def _name(self, pid: int) -> str:
        if pid == 0:
            return "a process of another pid namespace"
        with contextlib.suppress(OSError):
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()  # may be cut amid a letter
        return "a process that has ended"
