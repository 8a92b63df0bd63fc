"""Groups that come and go while the controller runs, as far as the configuration selects them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from rlctl.envs.errors import RlctlError, SensorError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import identity_of
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.locks import Claims
from rlctl.envs.host.events import Events
from rlctl.envs.host.groupsearch import walk
from rlctl.envs.host.latency.waiting import WaitingSource
from rlctl.envs.host.sensors.of_groups import follow_groups
from rlctl.envs.host.sensors.sensor import Sensor

# At least so long between two looks: one per tick at 1 Hz, whose ticks are not exactly a second apart.
LOOK_SECONDS = 0.95

# Looked at in one call, so that no tick waits for all the groups that others may make below one of their own.
GROUPS_AT_ONCE = 2000

# Put under control in one go, some milliseconds each; who calls has other things to do.
MOST_AT_ONCE = 10

CHURN_GROUPS, CHURN_SECONDS = 20, 60.0
"""So many groups that came in so long, of which half are gone, are told: those in between were never seen."""

_RESTRICTING = (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER)

# Who is refused and is no group that could be gone.
_NO_GROUPS = _PERF, _LC = "perf", "the LC"

Selects = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """What of the host's groups is the LC's, and what BE's.

    Attributes:
        lc: The LC's group at the start.
        be_selects: Tell whether a path is BE's.
        lc_selects: Tells whether a path is the LC's; None if nothing but the group of the start can be.
        others: Groups of further LCs, none of which BE may have a part of. They are not followed.
    """

    lc: Group
    be_selects: Sequence[Selects]
    lc_selects: Selects | None = None
    others: Sequence[Group] = ()


class Follower:
    """Keeps actuator and sensors on the groups that there are now.

    A look lists one of the hierarchies that restrict BE, another one each time. A group is made in all of them within
    milliseconds; one that is incomplete at one look is there at the next. What is gone the actuator notices by itself.

    Args:
        claims: Keep other controllers off BE's groups; those of the start are claimed. None where nothing is written.

    Attributes:
        lc: The LC's group as it is now.
    """

    def __init__(
        self,
        layout: Layout,
        knobs: Knobs,
        roles: GroupRoles,
        actuator: BeActuator,
        sensors: Sequence[Sensor],
        events: Events,
        claims: Claims | None = None,
    ) -> None:
        self._layout = layout
        self._knobs = knobs
        self.lc = roles.lc
        self._lc_selects = roles.lc_selects or (lambda _: False)
        self._be_selects = tuple(roles.be_selects)
        self._actuator = actuator
        self._sensors = tuple(sensors)
        self._events = events
        self._claims, self._others = claims, tuple(roles.others)
        self._roots = tuple(dict.fromkeys(layout.mounts[one].path for one in _RESTRICTING if one in layout.mounts))
        self._looks = 0
        self._walk: Iterator[tuple[str, int] | None] | None = None
        self._seen: list[tuple[str, int]] = []
        self._next_seconds = float("-inf")
        self._known = actuator.groups
        self._inodes: dict[str, int] = {}
        self._found: list[str] = []
        self._refused: dict[str, str] = {}
        self._lc_inode = _inode(str(self.lc.directories[0]))
        self._comings: deque[float] = deque(maxlen=CHURN_GROUPS)
        self._learn(self._known)

    def follow(self, now_seconds: float) -> bool:
        """Look, if it is time, or go on with what a look found; True when BE's groups are others than before."""
        lc = self.lc
        if not self._found and (self._walk is not None or now_seconds >= self._next_seconds):
            self._next_seconds = now_seconds + LOOK_SECONDS
            self._look()
        found, self._found = self._found[:MOST_AT_ONCE], self._found[MOST_AT_ONCE:]
        self._tell_churn(self._adopt(found), now_seconds)
        if self._found:  # the sensors once, for all
            return True
        before, self._known = self._known, self._actuator.groups
        if self._known == before and self.lc is lc:
            return False
        self._learn(())
        if self._claims is not None:
            self._claims.keep(self._known)
        try:
            for sensor in self._sensors:
                if isinstance(sensor, WaitingSource):
                    sensor.follow(self.lc)
            follow_groups(self._sensors, self.lc, self._known)
        except SensorError as error:
            self._refuse(_PERF, str(error))
        return self._known != before

    def _tell_churn(self, came: int, now_seconds: float) -> None:
        """Report that most of the groups that came lately are gone: those in between were never seen."""
        self._comings.extend([now_seconds] * min(came, CHURN_GROUPS))
        if len(self._comings) < CHURN_GROUPS or now_seconds - self._comings[0] > CHURN_SECONDS:
            return
        if len(self._actuator.groups) <= CHURN_GROUPS / 2:
            self._comings.clear()
            self._events.tell(
                "be-churn",
                f"{CHURN_GROUPS} groups of BE came within {CHURN_SECONDS:g} s, and most are gone: not all were held in "
                "time; name the group above them as BE",
            )

    def _look(self) -> None:
        root = self._roots[self._looks % len(self._roots)]
        if self._walk is None:
            self._walk, self._seen = walk(root, self._selects), []
        part = list(islice(self._walk, GROUPS_AT_ONCE))
        self._seen += filter(None, part)
        if len(part) == GROUPS_AT_ONCE:
            return  # the next call goes on
        self._walk = None
        self._looks += 1
        controlled = {group.name for group in self._actuator.groups}
        lc_names, fresh = [], []
        for path, inode in self._seen:
            name = path.strip("/")
            if self._lc_selects(path):
                lc_names.append(name)
            elif name not in controlled or self._inodes.get(f"{root}{path}") != inode:
                fresh.append(name)
        self._see_lc(lc_names)
        self._actuator.weigh_above()  # another's group may have come beside BE's, or the LC's elsewhere
        self._found = fresh
        self._forget_gone()

    def _selects(self, path: str) -> bool:
        return self._lc_selects(path) or any(selects(path) for selects in self._be_selects)

    def _adopt(self, names: Iterable[str]) -> int:
        """Take over those that can be BE's; how many came."""
        groups = [group for name in names if (group := self._open_group(name)) is not None]
        if not groups:
            return 0
        controlled = {group.name for group in self._actuator.groups}
        self._learn(groups)
        try:
            self._actuator.adopt(groups)
        except RlctlError as error:
            for group in groups:
                self._refuse(group.name, str(error))
        adopted = {group.name for group in self._actuator.groups}
        for group in groups:
            if group.name in adopted:
                self._refused.pop(group.name, None)
                kind, what = ("group-replaced", "was made anew") if group.name in controlled else _APPEARED
                self._events.tell(kind, f"BE group {group.name} {what}: safe first, then its share", logging.INFO)
        return sum(group.name in adopted for group in groups)

    def _open_group(self, name: str) -> Group | None:
        """The group, unless it cannot be BE's."""
        try:
            group = Group.open(self._layout, name, self._knobs)
        except RlctlError as error:
            self._refuse(name, str(error))
            return None
        if not (group.cpu or group.cpuset or group.freezer):
            return None  # in a hierarchy that restricts nothing; the others are looked at in turn
        files = group.knob_files("quota", "cpus", "frozen")
        if refused := [file for file in files if file.exists() and not os.access(file, os.W_OK)]:
            self._refuse(name, f"{refused[0]} may not be written")
            return None
        for other in (self.lc, *self._others, *(one for one in self._actuator.groups if one.name != name)):
            if group.overlap(other):
                self._refuse(name, f"it overlaps {other.name}: what limits one limits both")
                return None
        try:
            if self._claims is not None:
                self._claims.take(group)
        except RlctlError as error:
            self._refuse(name, str(error))
            return None
        return group

    def _refuse(self, name: str, why: str) -> None:
        """Report it once, though it is tried again at every look."""
        if self._refused.get(name) != why:
            self._refused[name] = why
            self._events.tell("group-refused", f"{name} is not followed: {why}", logging.ERROR)

    def _forget_gone(self) -> None:
        """Keep no name of a group that is in no hierarchy any more: one that comes again is told again."""
        for name in [one for one in self._refused if one not in _NO_GROUPS]:
            if not any(_inode(f"{root}/{name}") for root in self._roots):
                del self._refused[name]

    def _learn(self, groups: Iterable[Group]) -> None:
        """Remember which groups these are, and forget those of old."""
        here = {str(directory) for group in self._actuator.groups for directory in group.directories}
        self._inodes = {directory: inode for directory, inode in self._inodes.items() if directory in here}
        for directory in (str(directory) for group in groups for directory in group.directories):
            self._inodes[directory] = _inode(directory)

    def _see_lc(self, names: Sequence[str]) -> None:
        """Notice that the LC's group is gone or another one; sensors open it again by themselves under its old name."""
        before, self._lc_inode = self._lc_inode, _inode(str(self.lc.directories[0]))
        if self._lc_inode and before != self._lc_inode:
            self._events.tell("lc-appeared", f"the LC's group {self.lc.name} was made anew", logging.INFO)
        elif before and not self._lc_inode:
            self._events.tell("lc-vanished", f"the LC's group {self.lc.name} is gone: no readings, so BE stays safe")
        if self._lc_inode or not names:
            return
        if len(names) > 1:
            self._refuse(_LC, f"{len(names)} groups could be it: {', '.join(sorted(names))}")
            return
        with contextlib.suppress(RlctlError):
            self.lc = self._actuator.lc = Group.open(self._layout, names[0], self._knobs)
            self._lc_inode = _inode(str(self.lc.directories[0]))
            self._events.tell("lc-appeared", f"the LC's group is {self.lc.name} now", logging.INFO)


_APPEARED = "group-appeared", "has appeared"


def _inode(directory: str) -> int:
    identity = identity_of(directory)
    return identity[1] if identity else 0
