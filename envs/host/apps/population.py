"""The applications that are there: groups below BE's, registered or not.

A registered one's is `<pid>:<name>` below BE's group, or below that of a cluster within it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from rlctl.envs.applications import WorkingMode
from rlctl.envs.errors import CgroupBusy, CgroupGone, RlctlError
from rlctl.envs.host.apps.registry import LEAST_PRIORITY, Registration, Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.members import RESTRICTING
from rlctl.envs.host.cgroup.values import cpu_set
from rlctl.envs.host.events import Events

# Applications are placed anew at least so often; who comes and goes is noticed at every tick.
PERIOD_SECONDS = 5.0

# Between two looks for groups that have become empty; one that is removed is noticed at once.
CHECK_SECONDS = 1.0

# Modes of a group that nobody registered: little, that it fits; it has its part of what others leave.
UNANNOUNCED = (WorkingMode(cpus=0.1, threads=1, value=1.0),)

MOST_MEMBERS = 1000

_OURS = re.compile(r"[0-9]+:")
_MEMORY_FILES = ("memory.high", "memory.soft_limit_in_bytes")


@dataclass(slots=True)
class Member:
    """An application that is there.

    Attributes:
        name: `<pid>:<name>`; of one that is not registered, its group's path below BE's.
        modes: From the least CPU time to the most.
        priority: 0 is served first.
        cluster: The cluster whose group holds its group; empty where clusters have no groups.
        registration: None for a group that nobody announced.
        identity: Of its group, which may be another one of that name at the next look.
        memory_bytes: Written last as its memory limit; None before the first, when a predecessor's may be in force.
        limited: It has had a quota of ours.
        deferred: We froze it, or a predecessor that was killed; not its owner.
    """

    name: str
    modes: tuple[WorkingMode, ...]
    priority: int
    group: Group
    cluster: str
    identity: Identity
    registration: Registration | None = None
    memory_bytes: int | None = None
    limited: bool = False
    deferred: bool = False

    @property
    def bound_to(self) -> str:
        """The cluster of a group that nobody registered: whoever made it would look for it elsewhere in vain."""
        return "" if self.registration else self.cluster


class Population:
    """Keeps account of the groups below BE's.

    Args:
        clusters: Names of the groups between it and the applications'; none if there are no such.
        knobs: The originals of every group are journalled when it is first seen, with one fsync.

    Attributes:
        left: Who was found to have gone at the last look, though another of that name may have come since.
    """

    def __init__(
        self,
        parent: Group,
        clusters: Sequence[str],
        registry: Registry,
        knobs: Knobs,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members: dict[str, Member] = {}
        self.left: frozenset[str] = frozenset()
        self._parent = parent
        self._clusters = tuple(clusters)
        self._registry, self._knobs, self._events = registry, knobs, events
        self._clock = clock
        self._check_at = float("-inf")
        self._unsure: frozenset[str] = frozenset()
        self._empty: frozenset[str] = frozenset()
        self._by_path: dict[str, str] = {}
        self._refused: dict[str, set[str]] = {}

    def look(self) -> bool:
        """See who is there now; True when these are others than at the last look."""
        check = self._clock() >= self._check_at
        if check:
            self._check_at = self._clock() + CHECK_SECONDS
        registered = {one.group: one for one in self._registry.read().values()}
        paths = dict(self._application_groups(registered))
        if check:
            self._empty = frozenset(path for path in paths if not self._has_processes(path, registered.get(path)))
        self.left = frozenset(
            name for name, member in self.members.items() if not self._stays(member, paths, registered)
        )
        for name in self.left:
            self._drop(name)
        changed = bool(self.left)
        for path, cluster in paths.items():
            if path not in self._by_path and path not in self._empty and len(self.members) < MOST_MEMBERS:
                changed |= self._take(path, cluster, registered.get(path))
        top = self._parent.name
        astray = [one for one in registered.values() if not one.group.startswith(f"{top}/") and one.runs()]
        for one in astray:
            self.refuse(one.key, f"runs in /{one.group}, not below BE's /{top}: `rlctl app` needs serve's --config")
        here = self.members.keys() | {self._name(path, registered.get(path)) for path in paths}
        here |= {one.key for one in astray}
        self._refused = {name: why for name, why in self._refused.items() if name in here}
        return changed

    def _stays(self, member: Member, paths: Collection[str], registered: Mapping[str, Registration]) -> bool:
        path = member.group.name
        if path not in paths or path in self._empty or registered.get(path) != member.registration:
            return False
        try:
            return self._knobs.kernel.identity(member.group.directories[0]) == member.identity
        except OSError:
            return False

    def move(self, member: Member, cluster: str) -> bool:
        """Move a registered application into another cluster's group: all its threads; whether none is left."""
        registration = member.registration
        if registration is None:
            return False
        old, path = member.group, f"{self._parent.name}/{cluster}/{member.name}"
        target: Group | None = None
        try:
            try:
                target = Group.open(self._parent.layout, path, self._knobs)  # left by a move that was not completed
            except CgroupGone:
                above, unjournalled = f"{self._parent.name}/{cluster}", Knobs(None, self._knobs.kernel)
                target = make_group(self._parent.layout, above, member.name, unjournalled).using(self._knobs)
            self._remember(target, ours=True)
            move_all(old, target)
            self._registry.add(registration := registration.model_copy(update={"group": path}))
            del self._by_path[old.name]
            self._by_path[path] = member.name
            member.group, member.cluster, member.registration = target, cluster, registration
            member.identity, member.memory_bytes, member.limited = target.identity()[0], None, False
            old.remove(0.0)
        except RlctlError as error:
            if target is not None and member.group is old:  # cgroup v1 may have taken it in some hierarchies
                with contextlib.suppress(RlctlError):
                    move_all(target, old)
                    target.remove(0.0)
                    self._knobs.forget(target.directories)
            self.refuse(member.name, f"not all of it moved to {cluster}: {error}")
            return False
        self._knobs.forget(old.directories)
        self._events.tell("application-moved", f"{member.name} is in cluster {cluster} now", logging.INFO)
        return True

    def _application_groups(self, registered: Mapping[str, Registration]) -> Iterator[tuple[str, str]]:
        """Paths of the applications' groups, each with its cluster; one that is just being made waits for a look."""
        directory = self._parent.directories[0]
        above = [(f"{self._parent.name}/{one}", one, directory / one) for one in self._clusters]
        above = above or [(self._parent.name, "", directory)]
        unsure = set()
        for name, cluster, folder in above:
            for child in self._knobs.children(folder):
                path = f"{name}/{child.name}"
                if path not in registered and path not in self._by_path and _OURS.match(child.name):
                    unsure.add(path)
                    if path not in self._unsure:
                        continue
                yield path, cluster
        self._unsure = frozenset(unsure)

    def _has_processes(self, path: str, registration: Registration | None) -> bool:
        """Somebody is in it. Of a registered application that has ended, group and registration are removed."""
        try:
            group = Group.open(self._parent.layout, path, self._knobs)
            if group.has_processes():
                return True
            if registration is not None and not registration.runs():
                group.remove(0.0)
        except CgroupGone:
            pass
        except RlctlError:
            return True
        if registration is not None and not registration.runs():
            self._registry.remove(registration.key)
        return False

    def _take(self, path: str, cluster: str, registration: Registration | None) -> bool:
        name = self._name(path, registration)
        try:
            group = Group.open(self._parent.layout, path, self._knobs)
            self._remember(group, ours=registration is not None)
            identity, *_ = group.identity()
        except CgroupGone:
            return False
        except RlctlError as error:
            self.refuse(name, str(error))
            return False
        modes, priority = (registration.working_modes, registration.priority) if registration else _UNKNOWN
        self.members[name] = member = Member(name, modes, priority, group, cluster, identity, registration)
        # Frozen by a predecessor that was killed, where the journal has it thawed; else by its owner.
        member.deferred = bool(group.freezer and group.freezer.is_ordered() and not group.freezer.was_ordered())
        self._by_path[path] = name
        self._events.tell(
            "application-came", name if registration else f"{name}, which nobody registered", logging.INFO
        )
        return True

    def _name(self, path: str, registration: Registration | None) -> str:
        return registration.key if registration else str(PurePosixPath(path).relative_to(self._parent.name))

    def _remember(self, group: Group, *, ours: bool) -> None:
        """Journal a group's originals. One of ours, or with a copy of the CPUs above, has those that are above it."""
        files = list(group.knob_files(*RESTRICTING))
        if (memory := group.paths.get(CgroupController.MEMORY)) is not None:
            files += [memory / name for name in _MEMORY_FILES if (memory / name).exists()]
        instead = {}
        if group.cpuset is not None and (cpus := group.cpuset.cpus()):
            (own,) = group.cpuset.cpus_files
            above = own.parent.parent / own.name
            original = self._knobs.original(above)
            if original is not None and (ours or cpus == cpu_set(self._knobs.read(above), above)):
                instead[own] = original
        self._knobs.remember(files, instead)

    def _drop(self, name: str) -> None:
        member = self.members.pop(name)
        self._by_path.pop(member.group.name, None)
        self._refused.pop(name, None)
        self._knobs.forget(member.group.directories)
        self._events.tell("application-left", name, logging.INFO)

    def refuse(self, name: str, why: str) -> None:
        """Report each reason once, though it is tried again at every look."""
        if why not in (known := self._refused.setdefault(name, set())):
            known.add(why)
            self._events.tell("application-refused", f"{name}: {why}", logging.ERROR)


_UNKNOWN = UNANNOUNCED, LEAST_PRIORITY


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
