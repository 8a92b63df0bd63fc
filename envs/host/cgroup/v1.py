"""Controllers of cgroup v1. Each is bound to one group's directory in its own hierarchy."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupError, CgroupRejected
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver, CpusetDriver, FreezerDriver
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import child_groups, number, quota_of
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight


class CpuV1(CpuDriver):
    """Quota and weight by `cpu.cfs_*`, `cpu.shares` and `cpu.idle`; ancestors are looked for up to `mount`."""

    weight_file = "cpu.shares"
    burst_file = "cpu.cfs_burst_us"
    throttled = "throttled_time", 1e-9
    # The kernel's default, its minimum, and what stands for cpu.idle.
    weights = {Weight.EQUAL: 1024, Weight.MINIMUM: 2, Weight.IDLE: IDLE}  # noqa: RUF012

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        super().__init__(knobs, group)
        self._mount = mount
        self._quota = group / "cpu.cfs_quota_us"
        self._period = group / "cpu.cfs_period_us"
        self.quota_files = (self._quota, *self._burst_files, self._period)
        above = [parent for parent in group.parents if mount in parent.parents]
        self._above = [CpuV1(knobs, parent, parent.parent) for parent in above]

    def quota(self) -> Quota:
        """The group's own quota."""
        return _quota(self._knobs.read(self._quota), self._knobs.read(self._period), self._quota)

    def ceiling_cpus(self) -> float:
        """The tightest quota of its ancestors, in CPUs."""
        return min((parent.quota().cpus for parent in self._above), default=UNLIMITED)

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota. Raises CgroupRejected where an ancestor has less, or a child more."""
        # All originals with one fsync, before the first of the writes.
        self._knobs.remember(self.quota_files)
        before = self._quota_or_none()
        self._make_way_for(quota.quota_us)
        if quota.quota_us is None or quota.period_us == before.period_us:
            self._knobs.write(self._quota, _text(quota))
        else:
            self._set_with_period(before, quota, quota.quota_us)

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        quota, period = self._knobs.original(self._quota), self._knobs.original(self._period)
        return self.quota() if quota is None or period is None else _quota(quota, period, self._quota)

    def subordinates(self) -> Sequence[CpuV1]:
        """All child groups: the kernel wants quota/period of each below this one's."""
        return [CpuV1(self._knobs, child, self._mount) for child in child_groups(self._knobs, self.group)]

    def _set_with_period(self, before: Quota, after: Quota, after_us: int) -> None:
        # v1 cannot take quota and period at once, and the share that stands between the two writes must be legal too
        # (Documentation/scheduler/sched-bwc.rst, "Hierarchical considerations"). The order with the smaller share in
        # between comes first: BE may have less for a moment, but not more.
        period, quota = (self._period, str(after.period_us)), (self._quota, _text(after))
        orders = [[period, quota], [quota, period]]
        if before.quota_us is not None and before.quota_us * before.period_us > after_us * after.period_us:
            orders.reverse()
        for order in orders:
            with contextlib.suppress(CgroupRejected):
                for path, text in order:
                    self._knobs.write(path, text)
                return
        # Where neither order is legal: no quota at all fits below every parent and above every child.
        try:
            for path, text in ((self._quota, "-1"), period, quota):
                self._knobs.write(path, text)
        except CgroupRejected:
            with contextlib.suppress(CgroupError):
                for path, text in ((self._period, str(before.period_us)), (self._quota, _text(before))):
                    self._knobs.write(path, text)
            raise


def _text(quota: Quota) -> str:
    return "-1" if quota.quota_us is None else str(quota.quota_us)


def _quota(quota: str, period: str, path: Path) -> Quota:
    quota_us = number(quota, path)
    return quota_of(quota_us if quota_us >= 0 else None, number(period, path), path)


class CpusetV1(CpusetDriver):
    """CPUs and memory nodes by `cpuset.cpus` and `cpuset.mems`."""

    effective_file = "cpuset.effective_cpus"

    def subordinates(self) -> Sequence[CpusetV1]:
        """All child groups: the kernel wants the CPUs of each within this one's."""
        return [CpusetV1(self._knobs, child) for child in child_groups(self._knobs, self.group)]

    def inherit(self) -> None:
        """Give a new group its parent's CPUs and memory nodes."""
        # A new v1 cpuset has neither, and takes no task without both: ENOSPC from cpuset_can_attach in
        # kernel/cgroup/cpuset.c.
        for path, source in (
            (self.group / "cpuset.mems", "cpuset.effective_mems"),
            (self._cpus, "cpuset.effective_cpus"),
        ):
            if not self._knobs.read(path).strip():
                self._knobs.write(path, self._knobs.read(self.group.parent / source).strip())


class FreezerV1(FreezerDriver):
    """Freezing and thawing by `freezer.state`."""

    order_file, state_file = "freezer.state", "freezer.self_freezing"
    orders = "THAWED", "FROZEN"
    waits_for_thaw = False

    def ordered(self) -> bool:
        """Whether this group itself has the order to freeze."""
        # freezer.state shows FROZEN for an ancestor's order too (cgroup-v1/freezer-subsystem.rst).
        return self._knobs.read(self.state_path).strip() == "1"

    def frozen(self) -> bool:
        """Whether all its tasks are stopped; not yet while FREEZING."""
        state = self._knobs.read(self._order).strip()
        if state not in ("THAWED", "FREEZING", "FROZEN"):
            raise CgroupError(f"{self._order}: {state!r} is no freezer state")
        return state == "FROZEN"
