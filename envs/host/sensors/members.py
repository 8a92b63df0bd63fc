"""Which processes the LC has: those in its cgroup."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rlctl.envs.host.sensors.kernel_file import KernelFile
from rlctl.envs.telemetry import Missing

__all__ = ["CgroupMembers", "Members"]

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
