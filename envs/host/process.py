"""Processes and threads as /proc shows them: what names one for good, what it is, and where it belongs.

The testbed's keeper (`rlctl.envs.testbed.leftovers`) reads /proc by itself: it runs without this package.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import HostError

PROC = Path("/proc")

_KERNEL_THREAD, _BOUND = 0x0020_0000, 0x0400_0000  # PF_KTHREAD, PF_NO_SETAFFINITY in include/linux/sched.h
_REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)


@dataclass(frozen=True, slots=True)
class Task:
    """One thread, or a process of one.

    Attributes:
        start: When it began, in clock ticks since boot; numbers are used again, pairs of the two are not.
        name: As `ps` shows it in brackets; any bytes but NUL.
        state: One letter; `Z` has ended and waits for its parent.
    """

    tid: int
    start: int
    name: str
    state: str
    parent: int
    flags: int
    policy: int

    @property
    def alive(self) -> bool:
        """False for one that has ended, reaped or not."""
        return self.state not in "ZX"

    @property
    def real_time(self) -> bool:
        """Whether it runs under SCHED_FIFO or SCHED_RR."""
        return self.policy in _REAL_TIME

    @property
    def kernel_thread(self) -> bool:
        """It runs kernel code only."""
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def bound(self) -> bool:
        """The kernel tied it to its CPUs: no group but the root takes it."""
        return bool(self.flags & _BOUND)


def read_task(tid: int, proc: Path = PROC) -> Task | None:
    """A task; None when there is none of this number, or its file makes no sense."""
    try:
        head, _, tail = (proc / str(tid) / "stat").read_bytes().rpartition(b")")  # a name may hold any character
        fields = tail.split()  # from the state on, which is field 3 of proc(5)
        name, state = head.partition(b"(")[2].decode(errors="replace"), fields[0].decode(errors="replace")
        return Task(tid, int(fields[19]), name, state, int(fields[1]), int(fields[6]), int(fields[38]))
    except (OSError, ValueError, IndexError):
        return None


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """When a process was started, in the kernel's clock ticks since boot; None if it is not there or has ended.

    With its pid it tells a process from a later one of that number.
    """
    task = read_task(pid, proc)
    return task.start if task is not None and task.alive else None


def age_seconds(pid: int, proc: Path = PROC) -> float:
    """For how long a process has run; NaN if it is not there or has ended."""
    began = start_time(pid, proc)
    now_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
    return math.nan if began is None else now_seconds - began / os.sysconf("SC_CLK_TCK")


def leader(tid: int, proc: Path = PROC) -> int:
    """The process that a thread belongs to; itself where /proc has no answer."""
    return int(_status(tid, proc, "Tgid") or tid)


def has_pending_kill(pid: int, proc: Path = PROC) -> bool:
    """Whether a process got SIGKILL and has not died of it yet."""
    masks = (_status(pid, proc, key) for key in ("SigPnd", "ShdPnd"))  # hexadecimal, one bit a signal
    with contextlib.suppress(ValueError):
        return any(int(mask or "0", 16) >> (signal.SIGKILL - 1) & 1 for mask in masks)
    return False


def memberships(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The groups of a process: path below the hierarchy's root by v1 controller, "" standing for cgroup2."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise HostError(f"process {pid}: {error.strerror}: has it ended?") from error
    groups: dict[str, str] = {}
    for line in lines:  # `4:cpu,cpuacct:/x` in v1, `0::/x` in v2
        _, _, rest = line.partition(":")
        controllers, _, where = rest.partition(":")
        groups |= dict.fromkeys(controllers.split(","), where)
    return groups


def _status(tid: int, proc: Path, key: str) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in (proc / str(tid) / "status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return value.strip()
    return ""
