"""A kernel that does as it is told, and something else as well: a fork, a refusal, the end of its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from rlctl.envs.host.cgroup.kernel import Identity, Kernel, KernelFiles


class Meddling:
    """The kernel beneath, with something that happens before its n-th change or beside each.

    Args:
        before: Called with the number of the change, its path and what is written.
    """

    def __init__(self, kernel: Kernel, before: Callable[[int, Path, str], None]) -> None:
        self._changes = 0
        self._kernel, self._before = kernel, before

    def read(self, path: Path) -> str:
        """The content of a file now."""
        return self._kernel.read(path)

    def write(self, path: Path, text: str) -> None:
        """Write a file, which is a change."""
        self._change(path, text)
        self._kernel.write(path, text)

    def identity(self, group: Path) -> Identity:
        """Device and inode of a group."""
        return self._kernel.identity(group)

    def make_group(self, group: Path) -> None:
        """Make a group, which is two changes."""
        self._change(group)
        self._kernel.make_group(group)
        self._change(group)

    def remove_group(self, group: Path) -> None:
        """Remove a group, which is a change."""
        self._change(group)
        self._kernel.remove_group(group)

    def subgroups(self, group: Path) -> tuple[Path, ...]:
        """The groups below a group."""
        return self._kernel.subgroups(group)

    def close(self) -> None:
        """Leave the kernel beneath open."""

    def _change(self, path: Path, text: str = "") -> None:
        self._changes += 1
        self._before(self._changes, path, text)


def dying(step: int) -> Meddling:
    """The real kernel for a process that is to end by SIGKILL before its n-th change."""

    def kill(change: int, _path: Path, _text: str) -> None:
        if change == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return Meddling(KernelFiles(), kill)
