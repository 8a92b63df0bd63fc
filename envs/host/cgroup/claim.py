"""One controller for each BE group: two of them, each with a state directory of its own, would fight over its knobs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity, identity_of, refusing
from rlctl.envs.host.cgroup.members import RESTRICTING
from rlctl.envs.host.decode import text_of


class Claims:
    """Groups that no other rlctl controls meanwhile, until closed or until the process ends.

    A claim is a flock on a knob of the group in each hierarchy. Every process sees it, whatever its state directory,
    and only who may write the knob can take it.

    """

    def __init__(self) -> None:
        self._held: dict[Identity, int] = {}

    def take(self, group: Group) -> None:
        """Claim a group; one that is claimed already stays so.

        Raises:
            HostError: Another process has it.
            CgroupGone: It was removed.
            PermissionMissing: Its knobs may not be written.
        """
        for knob in {file.parent: file for file in group.knob_files(*RESTRICTING)}.values():
            with refusing(knob, "open it"):
                file = os.open(knob, os.O_RDWR | os.O_CLOEXEC)
            status = os.fstat(file)
            key = status.st_dev, status.st_ino
            if key in self._held:
                os.close(file)
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                owner = _owner(status) or "unknown"
                raise HostError(
                    f"BE group {group.name} is controlled by a running rlctl (pid {owner}): "
                    "stop it first, or name other groups"
                ) from None
            self._held[key] = file

    def keep(self, groups: Iterable[Group]) -> None:
        """Let go of all groups but these."""
        remaining = {key for group in groups for file in group.knob_files(*RESTRICTING) if (key := identity_of(file))}
        for key in self._held.keys() - remaining:
            os.close(self._held.pop(key))

    def close(self) -> None:
        """Let go of all groups. Idempotent."""
        self.keep(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _owner(status: os.stat_result) -> str:
    """The pid that the kernel names for a lock on this file; empty if it names none."""
    # A row of /proc/locks: number, FLOCK, kind, mode, pid, major:minor:inode, range (proc(5)).
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in text_of(Path("/proc/locks")).splitlines())
    return next((row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == file), "")
