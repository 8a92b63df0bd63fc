"""How BE's budget is divided among its groups, and what the parts in force add up to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.members import GroupMember
from rlctl.envs.host.cgroup.settings import GroupReading, Settings
from rlctl.envs.host.cgroup.values import Quota

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
            return len(self.order)
        return 1 + max(self.order.index(cpu) for cpu in effective)
