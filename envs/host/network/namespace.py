"""Network namespaces: that of a process, held open, and what is to be done within it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from rlctl.envs.errors import PermissionMissing, SensorError

PROC = Path("/proc")
_NAMED = Path("/run/netns")  # where ip-netns(8) keeps those that need no process
_CLONE_NEWNET = 0x4000_0000  # linux/sched.h

T = TypeVar("T")


class NetworkNamespace:
    """A network namespace, which stays in existence until closed. Use `of_process` or `find`.

    Attributes:
        inode: The kernel's number of it, for as long as it exists.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.inode = os.fstat(file).st_ino

    @classmethod
    def of_process(cls, pid: int | None, proc: Path = PROC) -> Self:
        """That of a process; of this thread for None.

        Raises:
            SensorError: The process has gone, or may not be looked at.
        """
        path = proc / ("thread-self" if pid is None else str(pid)) / "ns/net"
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise SensorError(f"network namespace of process {pid}: {error.strerror}") from error

    @classmethod
    def find(cls, inode: int, proc: Path = PROC) -> Self | None:
        """The namespace of that number; None if no process is in it any more and it has no name."""
        for path in _places(proc):
            try:
                if os.stat(path).st_ino != inode:
                    continue
                found = cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                continue
            if found.inode == inode:
                return found
            found.close()
        return None

    def run(self, call: Callable[[], T]) -> T:
        """Call something within it, in a thread of its own where this one is in another; raises what that raises.

        Raises:
            PermissionMissing: This process may not enter it (CAP_SYS_ADMIN).
        """
        if os.stat(PROC / "thread-self/ns/net").st_ino == self.inode:
            return call()

        def enter() -> T:
            enter_namespace(self._file)
            return call()

        # Only the calling thread moves, and the sockets that it makes stay there (setns(2)).
        with ThreadPoolExecutor(1, "rlctl-network") as thread:
            return thread.submit(enter).result()

    def close(self) -> None:
        """Let go of it. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def enter_namespace(file: int) -> None:
    """Move the calling thread into the network namespace of a descriptor, for good.

    Raises:
        PermissionMissing: It may not.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(file, _CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise PermissionMissing(f"another network namespace cannot be entered ({reason}): it takes CAP_SYS_ADMIN")


def _places(proc: Path) -> Iterator[Path]:
    """Files that stand for network namespaces."""
    yield proc / "self/ns/net"
    yield from (proc / name / "ns/net" for name in os.listdir(proc) if name.isdecimal())
    if _NAMED.is_dir():
        yield from _NAMED.iterdir()
