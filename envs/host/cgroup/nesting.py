"""Quotas and CPUs of groups that have children: room grows from the top and shrinks from the bottom."""

from __future__ import annotations

import contextlib
import time

from rlctl.envs.errors import CgroupBusy, CgroupGone, CgroupRejected
from rlctl.envs.host.cgroup.driver import CpuDriver, CpusetDriver
from rlctl.envs.host.cgroup.quota import Quota

__all__ = ["fit_cpus", "fit_quota"]

# A child that was made between listing and writing is met by the next attempt.
ATTEMPTS = 3

_PAUSE_SECONDS = 0.001


def fit_cpus(group: CpusetDriver, cpus: frozenset[int]) -> None:
    """Set a group's CPUs and keep its descendants within them.

    A descendant gets what it had originally, as far as that is within `cpus`, or else all of them; one that was never
    in the way is left alone.

    Raises:
        CgroupBusy: Descendants come faster than they can be moved, or an exclusive sibling holds the CPUs.
        CgroupError: The kernel refused it for another reason.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if group.subordinates():
                return _fit_cpus_of_family(group, cpus)
            return group.set_cpus(cpus)
        except (CgroupBusy, CgroupRejected):
            if not _may_try_again(attempt, group):
                raise
    return None


def fit_quota(group: CpuDriver, quota: Quota) -> None:
    """Set a group's quota and keep its descendants' below it.

    A descendant gets its original quota or this one, whichever is less.

    Raises:
        CgroupRejected: The parent's quota is less.
        CgroupError: The kernel refused it for another reason.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if group.subordinates():
                return _fit_quota_of_family(group, quota, quota)
            return group.set_quota(quota)
        except (CgroupBusy, CgroupRejected):
            if not _may_try_again(attempt, group):
                raise
    return None


# A v1 kernel wants every child's CPUs within its parent's, and every child's quota/period below its parent's, at each
# moment: EBUSY or EINVAL otherwise (cgroup-v1/cpusets.rst; sched-bwc.rst, "Hierarchical considerations"; koordinator
# #2047 tells how a controller gets stuck there). v2 groups have no subordinates in this sense.


def _fit_cpus_of_family(group: CpusetDriver, cpus: frozenset[int]) -> None:
    before, children = group.cpus(), group.subordinates()
    if children and not cpus <= before:
        group.set_cpus(before | cpus)
    for child in children:
        with contextlib.suppress(CgroupGone):
            if child.cpus():
                _fit_cpus_of_family(child, (child.originally() & cpus) or cpus)
    if group.cpus() != cpus:
        group.set_cpus(cpus)


def _fit_quota_of_family(group: CpuDriver, quota: Quota, ceiling: Quota) -> None:
    children = group.subordinates()
    if not children:
        group.set_quota(quota)
        return
    if quota.cpus > group.quota().cpus:
        group.set_quota(quota)
    for child in children:
        with contextlib.suppress(CgroupGone):
            original = child.originally()
            fitting = original if original.cpus <= ceiling.cpus or original.quota_us is None else ceiling
            _fit_quota_of_family(child, fitting, min(fitting, ceiling, key=lambda quota: quota.cpus))
    if not group.quota().same(quota):
        group.set_quota(quota)


def _may_try_again(attempt: int, group: CpuDriver | CpusetDriver) -> bool:
    if attempt == ATTEMPTS or not group.subordinates():
        return False
    time.sleep(_PAUSE_SECONDS)
    return True
