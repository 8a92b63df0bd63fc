"""That another program wrote to a knob of BE, from the kernel, between two ticks.

inotify tells of every write to a watched file, control groups' included (seen on Linux 6.18 for cgroup v1 and 6.1 for
v2), and takes no capability. It does not tell whose the write was: what reads as we left it is taken for our own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_IN_MODIFY = 0x2
_NOTICE = struct.Struct("=iIII")  # struct inotify_event, linux/inotify.h
_READ_BYTES = 1 << 14


class Witness:
    """Tells that another program wrote to a knob.

    Args:
        holds: Whether a file reads as we left it.

    Attributes:
        file: A descriptor that becomes readable when anybody writes to a watched file, we ourselves too; None where
            nothing can be watched.
    """

    def __init__(self, holds: Callable[[Path], bool]) -> None:
        self._holds = holds
        self._libc = ctypes.CDLL(None)
        self._paths: dict[int, str] = {}  # by the number of inotify's watch
        # Through ctypes: Python's library has no inotify, and a dependency for three calls would be one too many.
        number = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.file: int | None = number if number >= 0 else None

    def watch(self, files: Iterable[Path]) -> None:
        """Begin to watch files; what cannot be watched is not."""
        for path in files if self.file is not None else ():
            number = self._libc.inotify_add_watch(self.file, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY))
            if number >= 0:
                self._paths[number] = str(path)

    @property
    def watches(self) -> bool:
        """Whether the kernel watches any file for us."""
        return bool(self._paths)

    def anybody(self, *, readable: bool = True) -> bool:
        """Whether another program has written since the last call, and what it wrote still stands.

        Args:
            readable: `file` may have become so; False: it was just seen not to be.
        """
        # Equal notices are merged while nobody reads them: the queue is never longer than the files are many.
        # Our own writes are among the notices; they read as we left them.
        changed = {self._paths[number] for number in self._notices() if number in self._paths} if readable else ()
        return any(not self._holds(Path(path)) for path in changed)

    def forget(self, folders: Iterable[Path]) -> None:
        """Groups are gone, with the inodes that were theirs."""
        gone = tuple(f"{folder}/" for folder in folders)
        for number in [number for number, path in self._paths.items() if path.startswith(gone)]:
            del self._paths[number]
            if self.file is not None:  # or the inode of a removed group's file would stay for our sake
                self._libc.inotify_rm_watch(self.file, number)

    def close(self) -> None:
        """Watch no more. Idempotent."""
        file, self.file = self.file, None
        if file is not None:
            os.close(file)

    def _notices(self) -> Iterator[int]:
        """The watch of each write, whole events as the kernel hands them over."""
        with contextlib.suppress(OSError):  # nothing more
            while self.file is not None:
                data, offset = os.read(self.file, _READ_BYTES), 0
                while offset + _NOTICE.size <= len(data):
                    number, _, _, length = _NOTICE.unpack_from(data, offset)
                    offset += _NOTICE.size + length
                    yield number
