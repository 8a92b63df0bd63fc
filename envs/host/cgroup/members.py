"""The BE groups under control: which they are, what our last write left in them, and what became of those now gone.

And how BE's budget is divided among them, and what the parts in force add up to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.ownership import Ownership
from rlctl.envs.host.cgroup.settings import GroupReading, Settings, ceiling_cpus, see
from rlctl.envs.host.cgroup.values import Quota

# The knobs that hold BE back; their originals are journalled before the first tick.
RESTRICTING = ("quota", "cpus", "frozen")


@dataclass(slots=True)
class GroupMember:
    """What is remembered of one group.

    Attributes:
        identity: Tells the group from a later one of its name.
        weight: CPU weight that we gave it, in the kernel's number; None while its weight is not ours.
        left: Its settings as our last write left them. What differs from them later, another program wrote.
        lost: Those of RESTRICTING that went when the group was removed from a v1 hierarchy; None for a whole group.
        late: Some task had not stopped yet when the group's freeze was last waited for.
        texts, seen: What its files held at the last look, and what that meant.
    """

    identity: tuple[Identity, ...]
    weight: int | None = None
    left: Settings | None = None
    lost: frozenset[str] | None = None
    late: bool = False
    texts: tuple[str, ...] = ()
    seen: GroupReading | None = None


class Members:
    """The groups under control, by the order in which they came.

    Methods raise CgroupGone when none is left, and HostError when originals cannot be journalled.

    Args:
        knobs: Reads and writes, whatever the groups were opened with.
        ownership: Learns which groups come and go, and what other programs wrote.
    """

    def __init__(self, knobs: Knobs, ownership: Ownership) -> None:
        self.known: dict[Group, GroupMember] = {}
        self._knobs = knobs
        self._ownership = ownership
        self._removed: list[Path] = []

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups under control now."""
        return tuple(self.known)

    def require_any(self) -> None:
        """Refuse to go on without any group. Raises CgroupGone where none is left."""
        if not self.known:
            raise CgroupGone("all BE groups have vanished: has the best-effort work ended?")

    def take(self, groups: Iterable[Group]) -> list[Group]:
        """Put those groups under control that exist; their originals are journalled first, with one fsync."""
        # The identity first: a group that takes the name between the two is then noticed as another one.
        fresh: dict[Group, GroupMember] = {}
        for group in (group.using(self._knobs) for group in groups):
            with contextlib.suppress(CgroupGone):
                fresh[group] = GroupMember(group.identity())
        while True:
            try:
                self._knobs.remember(path for group in fresh for path in group.knob_files(*RESTRICTING))
                break
            except CgroupGone:  # one that went meanwhile must not cost the others their places
                left = {group: member for group, member in fresh.items() if group.exists()}
                if len(left) == len(fresh):
                    raise
                fresh = left
        self.known |= fresh
        for group in fresh:
            self._ownership.watch(group)
        return list(fresh)

    def forget(self, group: Group) -> None:
        """Let a group go; its files are closed by the next `let_go`."""
        self.known.pop(group, None)
        self._ownership.forget(group)
        self._removed += group.directories

    def let_go(self) -> None:
        """Close the files of forgotten groups and drop their originals; at once, as that looks at all originals."""
        # Once for all groups that went in a tick: each call walks through all originals.
        removed, self._removed = self._removed, []
        if removed:
            self._knobs.forget(removed)

    def drop(self, group: Group, why: RlctlError) -> Group | None:
        """Go on without a group that vanished.

        Returns:
            The group in those v1 hierarchies that still have it, now under control in its place; None if none has.
        """
        if group not in self.known:
            return None
        # v1 only: in v2 a group is in one hierarchy, and gone from all controllers at once.
        rest, before = group.rest(), self.known[group]
        self.forget(group)
        if not (taken := self.take([rest] if rest else [])):
            self._ownership.events.tell("group-vanished", f"BE group {group.name} is left out: {why}")
            return None
        (rest,) = taken
        lost = frozenset(knob for knob in RESTRICTING if group.knob_files(knob) and not rest.knob_files(knob))
        member = self.known[rest]
        member.lost = lost | (before.lost or frozenset())
        member.weight = before.weight if rest.cpu else None
        what = f"without {' and '.join(sorted(lost))} from now on"
        self._ownership.events.tell("group-reduced", f"BE group {group.name} was removed from a hierarchy: {what}")
        return rest

    def look(self, groups: Iterable[Group]) -> dict[Group, GroupReading]:
        """Read groups; one that vanished is dropped, and what is left of it is read in its place."""
        # Siblings share their ancestors' quotas: read once for all.
        seen: dict[Group, GroupReading] = {}
        ceilings: dict[str, float] = {}
        for group in groups:
            try:
                seen[group] = self._see(group, ceilings)
            except CgroupGone as gone:
                if rest := self.drop(group, gone):
                    seen |= self.look([rest])
        self.require_any()
        return seen

    def _see(self, group: Group, ceilings: dict[str, float]) -> GroupReading:
        """Read one group; files that hold what they held at the last look mean the same, which spares most of it."""
        member = self.known[group]
        weighed, before = member.weight is not None, member.seen
        # Most ticks change nothing: equal texts mean equal settings, and parsing costs more than reading.
        texts = self._knobs.texts(files := group.setting_files(weighed=weighed))
        with contextlib.suppress(RlctlError):  # of the ceiling: it is what `see` says of it
            if before and texts == member.texts and ceiling_cpus(group, ceilings) == before.ceiling_cpus:
                return before
        with self._knobs.answer_from(dict(zip(files, texts, strict=False))):
            now = see(group, weighed=weighed, ceilings=ceilings)
        member.texts, member.seen = texts, now if texts and not now.errors else None
        return now

    def notice_others(self, seen: dict[Group, GroupReading], safe_part: Callable[[Group], Settings]) -> None:
        """Find what differs from what we left: another program wrote it, or another group has taken the name.

        Args:
            seen: What each group reads back; one that vanishes meanwhile is taken out.
            safe_part: What rlctl's own watchdog writes to a group.
        """
        for group, member in tuple(self.known.items()):
            # What we wrote last is the only memory of who wrote: the kernel keeps none.
            left, now = member.left, seen[group].settings
            if left is None or self._knobs.dry_run or not left.changes(now):
                continue
            safe = safe_part(group)
            if not safe.changes(now):
                continue
            try:
                if self._is_replaced(group, member):
                    self._ownership.events.tell("group-replaced", f"BE group {group.name} was removed and made anew")
                else:
                    self._ownership.compare(group, left, now, safe)
            except RlctlError as error:  # it vanished at this moment, or its originals cannot be journalled
                self.drop(group, error)
                del seen[group]
        self.require_any()

    def _is_replaced(self, group: Group, member: GroupMember) -> bool:
        """Whether another group has taken the name; it is ours from now on, with its own originals journalled."""
        identity = group.identity()
        if identity == member.identity:
            return False
        self._ownership.forget(group)
        member.identity = identity
        self._knobs.remember(group.knob_files(*RESTRICTING))
        self._ownership.watch(group)
        return True


ROUNDED = 1.001
"""Quotas that differ by less are one."""


class Division:
    """Settings of single groups from an allocation for all, and back; `wanted_cpus` is the quota last wanted."""

    def __init__(self, order: Sequence[int], limits: Limits, period_us: int) -> None:
        self.order = tuple(order)
        self.limits = limits
        self.wanted_cpus = UNLIMITED
        self._period_us = period_us

    def share(self, quota_cpus: float, groups: int) -> Quota:
        """One group's quota, of so many groups."""
        # Evenly, as PRM divides the budget among its tasks.
        return Quota.of_cpus(quota_cpus / groups, self._period_us)

    def part(self, target: Allocation, share: Quota, group: Group, member: GroupMember, seen: GroupReading) -> Settings:
        """A group's part of the target, below its ancestors."""
        # The quota of all CPUs throttles all the same: at 10-ms periods BE lost 9 % of its time by it (measured, with a
        # process on each CPU). There is none where the cpuset holds BE to these CPUs.
        if group.cpuset and self._is_whole(target.quota_cpus):
            share = Quota(None)
        # No part above the ancestors' quota: v1 refuses it with EINVAL, and with it every larger allocation
        # (Documentation/scheduler/sched-bwc.rst, "Hierarchical considerations").
        quota = share
        if seen.ceiling_cpus < share.cpus < UNLIMITED:
            quota = Quota.of_cpus(seen.ceiling_cpus, self._period_us)
        # CPUs: a prefix of the order, the safest for the LC first, see `rlctl.envs.host.topology`.
        return Settings(
            quota if group.cpu else None,
            frozenset(self.order[: target.cpuset_cpus]) if group.cpuset else None,
            target.frozen if group.freezer else None,
            member.weight,
        )

    def safe_part(self, group: Group, member: GroupMember, seen: Mapping[Group, GroupReading]) -> Settings:
        """What rlctl's own watchdog leaves in a group when this process hangs: no other program's claim."""
        safe, now = self.limits.safe, seen[group].settings
        part = self.part(safe, self.share(safe.quota_cpus, len(seen)), group, member, seen[group])
        if now.quota is not None and now.quota.cpus <= safe.quota_cpus:  # shared out when BE had other groups
            part = replace(part, quota=now.quota)
        return part

    def escapes(self, member: GroupMember, target: Allocation) -> bool:
        """Whether a group has lost the controller that would hold it to the target: only a freeze is left then."""
        lost, full = member.lost or (), self.limits.cpus
        return ("quota" in lost and target.quota_cpus < full) or ("cpus" in lost and target.cpuset_cpus < full)

    def in_force(self, seen: Mapping[Group, GroupReading], reduced: Collection[Group]) -> Allocation:
        """The most that BE could use: the sum of the quotas, the CPUs of any group, frozen only if all groups are.

        Args:
            reduced: Groups that lost a controller; such a one does not count while it is frozen.
        """
        counted = [now for group, now in seen.items() if not (now.frozen and group in reduced)]
        if not counted:
            return self.limits.safe
        # Where groups differ, the report errs on the side of more: no guard may take BE for tighter than it is.
        highest = max(self._prefix(now.effective) for now in counted)
        return Allocation(self._quota_cpus(counted, len(seen)), highest, all(now.frozen for now in counted))

    def _is_whole(self, quota_cpus: float) -> bool:
        return quota_cpus >= self.limits.cpus

    def _quota_cpus(self, seen: Sequence[GroupReading], groups: int) -> float:
        """The sum of the quotas; one that is in force as wanted is the quota wanted, without its rounding.

        But for so many groups that each has the kernel's least quota, and they more together than is wanted.
        """
        share, none = self.share(self.wanted_cpus, groups), Quota(None)
        as_wanted = [share, none] if self._is_whole(self.wanted_cpus) else [share]
        if all(now.settings.quota in as_wanted and share.cpus <= now.ceiling_cpus for now in seen):
            least = groups * share.cpus
            runs = not all(now.frozen for now in seen)
            return least if runs and least > ROUNDED * self.wanted_cpus else self.wanted_cpus
        own = (UNLIMITED if now.settings.quota is None else now.settings.quota.cpus for now in seen)
        return sum(min(cpus, now.ceiling_cpus) for cpus, now in zip(own, seen, strict=True))

    def _prefix(self, effective: frozenset[int]) -> int:
        """Length of the shortest prefix of the CPU order that holds some CPUs."""
        if not effective or not effective <= frozenset(self.order):
            return self.limits.cpus
        return 1 + max(self.order.index(cpu) for cpu in effective)
