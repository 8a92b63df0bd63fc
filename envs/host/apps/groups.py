"""Groups of applications: `<pid>:<name>` below BE's group, or below that of a cluster within it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from rlctl.envs.errors import CgroupBusy, CgroupGone, ConfigError, RlctlError
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
    _drain(source.name, source.pids, target.attach)


def home_of(pid: int, layout: Layout, knobs: Knobs) -> tuple[Path, ...]:
    """The directories of the groups that a process is in now; a hierarchy's root counts too."""
    roots = {mount.path for mount in layout.mounts.values()}
    try:
        inside = Group.of_process(layout, pid, knobs).paths.items()
    except ConfigError:  # in none of its own
        return tuple(sorted(roots))
    own = {layout.mounts[controller].path: path for controller, path in inside}
    return tuple(sorted(own.get(root, root) for root in roots))


def return_home(group: Group, home: Iterable[Path], layout: Layout, knobs: Knobs) -> None:
    """Move an application's processes back to where it was taken from; to the root where that is gone."""
    for mount in {mount.path: mount for mount in layout.mounts.values()}.values():
        source = next((folder for folder in group.directories if folder.is_relative_to(mount.path)), None)
        target = next((folder for folder in home if folder.is_relative_to(mount.path)), mount.path)
        if source is not None:
            try:
                _move_folder(source, target, knobs)
            except CgroupGone:
                _move_folder(source, mount.path, knobs)


def _move_folder(source: Path, target: Path, knobs: Knobs) -> None:
    def pids() -> list[int]:
        return [int(word) for word in knobs.read(source / "cgroup.procs").split()]

    _drain(str(source), pids, lambda pid: knobs.poke(target / "cgroup.procs", str(pid)))


def _drain(name: str, pids: Callable[[], Collection[int]], move: Callable[[int], None]) -> None:
    """Move processes until none is left; raises as `move_all`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := pids():
        refused: RlctlError | None = None
        for pid in sorted(left):
            try:
                move(pid)
            except CgroupGone:
                raise
            except RlctlError as error:  # it has ended, most likely
                refused = error
        if time.monotonic() >= deadline and pids():
            raise refused or CgroupBusy(f"{name}: processes come faster than they can be moved")
