"""Groups of applications: `<pid>:<name>` below BE's group, or below that of a cluster within it."""

from __future__ import annotations

import time

from rlctl.envs.errors import CgroupBusy, CgroupGone, RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout

# BE's group where nobody names another.
PARENT = "rlctl-be"

# For an application that forks while it is moved; a tick must not wait longer, and the next one tries again.
PATIENCE_SECONDS = 0.1


def make_group(layout: Layout, parent: str, name: str, knobs: Knobs) -> Group:
    """A group for an application, in every hierarchy that can hold it to something.

    Args:
        parent: Path of the group above, which is made too if it is not there.
        knobs: Reads and writes; without a journal, as nothing of a new group has to be put back.

    Raises:
        CgroupBusy: It is there already, or the group above holds processes of its own (v2).
        PermissionMissing: Not root.
    """
    above, memory = parent.strip("/"), layout.mounts.get(CgroupController.MEMORY)
    try:
        Group.open(layout, above, knobs)
    except CgroupGone:
        Group.create(layout, above, knobs, also=(CgroupController.MEMORY,))
    # Nothing is made on the way where the group above has no part: nobody would know to remove it.
    holds_memory = memory is not None and (memory.path / above).is_dir()
    return Group.create(layout, f"{above}/{name}", knobs, also=(CgroupController.MEMORY,) if holds_memory else ())


def move_all(source: Group, target: Group) -> None:
    """Move every process of a group, with all its threads, until none is left.

    Raises:
        CgroupBusy: Some are still there: they come faster than they can be moved.
        CgroupError: The other group does not take one.
        CgroupGone: One of the groups vanished.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := source.pids():
        refused: RlctlError | None = None
        for pid in sorted(left):
            try:
                target.attach(pid)
            except CgroupGone:
                raise
            except RlctlError as error:  # it has ended, most likely
                refused = error
        if time.monotonic() >= deadline and source.pids():
            raise refused or CgroupBusy(f"{source.name}: processes come faster than they can be moved")
