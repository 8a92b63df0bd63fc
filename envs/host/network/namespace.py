"""Network namespaces: that of a process, held open, and what is to be done within it."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from rlctl.envs.closing import Closing
from rlctl.envs.errors import PermissionMissing, SensorError
from rlctl.envs.host.decode import text_of
from rlctl.envs.host.process import PROC

_NAMED = Path("/run/netns")  # where ip-netns(8) keeps those that need no process
_INITIAL_GROUPS = 0xEFFF_FFFB  # PROC_CGROUP_INIT_INO in linux/proc_ns.h
_CAP_SYS_PTRACE = 19  # linux/capability.h
_CLONE_NEWNET = 0x4000_0000  # linux/sched.h

T = TypeVar("T")


class NetworkNamespace(Closing):
    """A network namespace, which stays in existence until closed. Use `of_process` or `find`.

    Attributes:
        inode: The kernel's number of it, for as long as it exists.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.inode = os.fstat(file).st_ino

    @classmethod
    def of_process(cls, pid: int, proc: Path = PROC) -> Self:
        """That of a process. Raises SensorError where it has gone or may not be looked at."""
        try:
            return cls(os.open(proc / str(pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise SensorError(f"network namespace of process {pid}: {error.strerror}") from error

    @classmethod
    def of_host(cls, pid: int | None = None) -> Self:
        """That of the first process: a container may share the host's processes, and have a network of its own.

        It is this process's own where that one may not be looked at.

        Args:
            pid: A process whose namespace counts as the host's. Raises SensorError where it has gone.
        """
        if pid is not None:
            return cls.of_process(pid)
        try:
            return cls.of_process(1)
        except SensorError:
            return cls.of_process(os.getpid())

    @classmethod
    def find(cls, inode: int, proc: Path = PROC) -> Self | None:
        """The namespace of that number; None if no process is in it any more and it has no name.

        Raises:
            PermissionMissing: Some processes may not be looked at.
        """
        denied = False
        for path in _places(proc):
            try:
                if os.stat(path).st_ino != inode:
                    continue
                found = cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                denied |= isinstance(error, PermissionError)
                continue
            if found.inode == inode:
                return found
            found.close()
        # Whoever may look at all that there is below it passes over what is beyond a container.
        if denied and not has_capability(_CAP_SYS_PTRACE, proc):
            raise PermissionMissing("an interface's network namespace is not found: it takes CAP_SYS_PTRACE")
        return None

    def run(self, call: Callable[[], T]) -> T:
        """Call something within it, in a thread of its own where this one is in another; raises what that raises.

        Raises:
            PermissionMissing: This process may not enter it (CAP_SYS_ADMIN).
        """
        if os.stat(PROC / "thread-self/ns/net").st_ino == self.inode:
            return call()

        def enter() -> T:
            try:
                move_thread(self._file)
            except OSError as error:
                way_out = f"({error.strerror}): it takes CAP_SYS_ADMIN"
                raise PermissionMissing(f"another network namespace cannot be entered {way_out}") from error
            return call()

        # Only the calling thread moves, and the sockets that it makes stay there (setns(2)).
        with ThreadPoolExecutor(1, "rlctl-network") as thread:
            return thread.submit(enter).result()

    def close(self) -> None:
        """Let go of it. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def move_thread(file: int | None) -> None:
    """Move the calling thread for good into the network namespace of a descriptor, or for None into a fresh one.

    Raises:
        OSError: The kernel's errno.
    """
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.unshare(_CLONE_NEWNET) if file is None else library.setns(file, _CLONE_NEWNET)
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sees_all_groups(proc: Path = PROC) -> bool:
    """Whether this process is in the initial namespace of control groups; a container may have one of its own.

    The kernel counts a rule's levels from that one's root, and so finds no group outside it.
    """
    return os.stat(proc / "self/ns/cgroup").st_ino == _INITIAL_GROUPS


def has_capability(number: int, proc: Path = PROC) -> bool:
    """Whether this process has a capability, by its number."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", text_of(proc / "self/status"), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> number & 1)


def _places(proc: Path) -> Iterator[Path]:
    """Files that stand for network namespaces."""
    yield proc / "self/ns/net"
    yield from (proc / name / "ns/net" for name in os.listdir(proc) if name.isdecimal())
    if _NAMED.is_dir():
        yield from _NAMED.iterdir()
