"""Which processes the LC has: those in its cgroup, or those it was started with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rlctl.envs.host.sensors.kernel_file import KernelFile
from rlctl.envs.telemetry import Missing

__all__ = ["CgroupMembers", "Members", "ProcessMembers"]

PROCS_BYTES = 1 << 16  # about 8,000 pids


class Members(Protocol):
    """Tells which processes are alive now."""

    def pids(self) -> tuple[int, ...] | Missing:
        """Live process ids; empty when all have ended."""
        ...

    def close(self) -> None:
        """Let go of files. Idempotent."""
        ...


class CgroupMembers:
    """The processes of a cgroup, v1 or v2; zombies are not among them.

    Args:
        procs: Path of its `cgroup.procs`.
    """

    def __init__(self, procs: Path) -> None:
        self._file = KernelFile(procs, keep_open=False, most_bytes=PROCS_BYTES)

    def pids(self) -> tuple[int, ...] | Missing:
        """Live process ids; a pid of 0 (a process of another pid namespace) is left out."""
        content = self._file.read()
        if isinstance(content, Missing):
            return content
        return tuple(int(word) for word in content.split() if word.isdigit() and len(word) < 20 and int(word) > 0)

    def close(self) -> None:
        """Nothing stays open."""
        self._file.close()


class ProcessMembers:
    """Given processes. A pid that the kernel hands out again is not taken for the one that had it before.

    An open /proc/PID/stat belongs to the process and not to the number, so that it needs no start time to compare.

    Args:
        pids: Processes alive now.
        proc: Where procfs is mounted.
    """

    def __init__(self, pids: Sequence[int], proc: Path = Path("/proc")) -> None:
        self._stats = {pid: KernelFile(proc / str(pid) / "stat", follow_name=False) for pid in pids}
        self.pids()

    def pids(self) -> tuple[int, ...]:
        """Those of the given processes that run, sleep or are stopped. Ended ones are forgotten for good."""
        for pid, file in list(self._stats.items()):
            if not _is_alive(file.read()):
                self._stats.pop(pid).close()
        return tuple(self._stats)

    def close(self) -> None:
        """Close all files."""
        for file in self._stats.values():
            file.close()
        self._stats.clear()


def _is_alive(stat: bytes | Missing) -> bool:
    """The state letter follows the name, which stands in parentheses and may hold any character."""
    if isinstance(stat, Missing):
        return False
    state = stat.rpartition(b")")[2].split(maxsplit=1)[:1]
    return bool(state) and state[0] not in (b"Z", b"X", b"x")
