"""Controllers of cgroup v1. Each is bound to one group's directory in its own hierarchy.

A v1 kernel wants every child's CPUs within its parent's, and every child's quota/period below its parent's, at each
moment: EBUSY or EINVAL otherwise (cgroup-v1/cpusets.rst; sched-bwc.rst, "Hierarchical considerations"; koordinator
#2047 tells how a controller gets stuck there). So what is within BE's group is fitted along with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupGone, CgroupRejected
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver, CpusetDriver, FreezerDriver
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.values import Quota, cpu_set, number, quota_of
from rlctl.envs.workload import Weight

MOST_FAMILY = 1000
"""Groups within one of BE's that are looked at in one walk, which takes a third of a second then."""

# A child that was made between listing and writing is met by the next attempt.
ATTEMPTS = 3
_PAUSE_SECONDS = 0.001

_Write = tuple[Path, str]


class CpuV1(CpuDriver):
    """Quota and weight by `cpu.cfs_*`, `cpu.shares` and `cpu.idle`."""

    quota_file = "cpu.cfs_quota_us"
    weight_file = "cpu.shares"
    burst_file = "cpu.cfs_burst_us"
    # The kernel's default, its minimum, and what stands for cpu.idle.
    weights = {Weight.EQUAL: 1024, Weight.MINIMUM: 2, Weight.IDLE: IDLE}  # noqa: RUF012

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        super().__init__(knobs, group, mount)
        self._period = group / "cpu.cfs_period_us"
        self.quota_files += (self._period,)
        # By group below: what it would have without us, and what `fit` gave it.
        self._fitted: dict[Path, tuple[Quota, Quota]] = {}

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota. Raises CgroupRejected where an ancestor has less, or a child more."""
        before, ways = self._ways(quota)
        for way in ways[:-1]:
            with contextlib.suppress(CgroupRejected):
                return self._write(way)
        try:
            return self._write(ways[-1])
        except CgroupRejected:
            if len(ways) > 1:
                with contextlib.suppress(CgroupError):
                    self._write([(self._period, str(before.period_us)), (self._quota, _text(before))])
            raise

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        quota, period = self._knobs.original(self._quota), self._knobs.original(self._period)
        return self.quota() if quota is None or period is None else _quota(quota, period, self._quota)

    def family(self) -> Sequence[CpuV1]:
        """This group and those below it, each behind the one that it is in."""
        return _walk(self, self.of_group)

    def fit(self, quota: Quota) -> None:
        """Set the quota and keep descendants' below it: each gets its original quota or this one, whichever is less."""
        if not self._knobs.children(self.group):
            return self.set_quota(quota)
        return _attempt(lambda: self._fit_family(quota))

    def _fit_family(self, quota: Quota) -> None:
        # BE's own group first: as a rule no group within it has a quota, and then none needs to be looked at. Of the
        # orders of writes only the one that gives BE no more in between.
        try:
            self._write(self._ways(quota)[1][0])
        except CgroupRejected:
            self._lower_below(quota)
            self.set_quota(quota)
        # Those that we lowered before may have more again.
        changed = self._knobs.groups_changed_below(self._quota)
        for group in changed:
            self._fit_below(self.of_group(group), quota)
        self._fitted = {group: one for group, one in self._fitted.items() if group in changed}

    def _fit_below(self, child: CpuV1, quota: Quota) -> None:
        """Give a descendant its original, or what somebody has set since, such as its share; this where it is less."""
        with contextlib.suppress(CgroupGone):
            now = child.quota_or_none()
            own, ours = self._fitted.get(child.group) or (child.originally(), now)
            own = own if now.same(ours) else now
            fitting = own if own.cpus <= quota.cpus or own.quota_us is None else quota
            if not now.same(fitting):
                child.set_quota(fitting)
            self._fitted[child.group] = own, fitting

    def _lower_below(self, quota: Quota) -> None:
        """Lower the quotas of descendants that are above this one, children before their parents."""
        below = _of_bearable_size(self.family())[1:]
        high = [child for child in below if quota.cpus < child.quota_or_none().cpus < UNLIMITED]
        self._knobs.remember((file for child in high for file in child.quota_files), skip_gone=True)
        for child in reversed(high):
            self._fit_below(child, quota)

    def _ways(self, after: Quota) -> tuple[Quota, list[list[_Write]]]:
        """The quota now, and the orders of writes that lead to another one, to be tried in turn."""
        # All originals with one fsync, before the first of the writes.
        self._knobs.remember(self.quota_files)
        before = self.quota_or_none()
        self._make_way_for(after.quota_us)
        period, quota = (self._period, str(after.period_us)), (self._quota, _text(after))
        if after.quota_us is None or after.period_us == before.period_us:
            return before, [[quota]]
        # v1 cannot take quota and period at once, and the share that stands between the two writes must be legal too
        # (Documentation/scheduler/sched-bwc.rst, "Hierarchical considerations"). The order with the smaller share in
        # between comes first: BE may have less for a moment, but not more.
        ways = [[period, quota], [quota, period]]
        if before.quota_us is not None and before.quota_us * before.period_us > after.quota_us * after.period_us:
            ways.reverse()
        # Where neither order is legal: no quota at all fits below every parent and above every child.
        return before, [*ways, [(self._quota, "-1"), period, quota]]

    def _write(self, writes: Sequence[_Write]) -> None:
        for path, text in writes:
            self._knobs.write(path, text)

    def _quota_in(self, group: Path) -> Quota:
        quota, period = group / self._quota.name, group / self._period.name
        return _quota(self._knobs.read(quota), self._knobs.read(period), quota)


def _text(quota: Quota) -> str:
    return "-1" if quota.quota_us is None else str(quota.quota_us)


def _quota(quota: str, period: str, path: Path) -> Quota:
    quota_us = number(quota, path)
    return quota_of(quota_us if quota_us >= 0 else None, number(period, path), path)


@dataclass(frozen=True, slots=True)
class _Subset:
    """The CPUs of one group: its driver, those that it has now, and what is to be put back in the end."""

    driver: CpusetV1
    now: frozenset[int]
    original: str


class CpusetV1(CpusetDriver):
    """CPUs and memory nodes by `cpuset.cpus` and `cpuset.mems`."""

    effective_file = "cpuset.effective_cpus"

    def family(self) -> Sequence[CpusetV1]:
        """This group and those below it, each behind the one that it is in."""
        return _walk(self, lambda group: CpusetV1(self._knobs, group))

    def fit(self, cpus: frozenset[int]) -> None:
        """Set the CPUs and keep descendants within them, see `CpusetDriver.fit`."""
        if not self._knobs.children(self.group):
            return self.set_cpus(cpus)
        return _attempt(lambda: self._fit_family(cpus))

    def originals_below(self) -> dict[Path, str]:
        """What is to be put back into the CPUs of each descendant."""
        subsets = list(self._subsets(self.family()).values())[1:]
        return {subset.driver._cpus: subset.original for subset in subsets}

    def _fit_family(self, cpus: frozenset[int]) -> None:
        subsets = self._subsets(_of_bearable_size(self.family()))
        # Ahead of all writes: which CPUs are a copy cannot be told once this group has others.
        originals = {subset.driver._cpus: subset.original for subset in list(subsets.values())[1:]}
        self._knobs.remember(originals, originals, skip_gone=True)
        wanted = {self.group: cpus}
        for group, subset in list(subsets.items())[1:]:
            most = wanted[group.parent]
            wanted[group] = (cpu_set(subset.original, subset.driver._cpus) & most) or most
        # From the top down each gets what it is to have beside what it has; then, from the bottom up, that alone. A
        # group without children is in nobody's way and goes there at once.
        parents = {group.parent for group in subsets}
        for group, subset in subsets.items():
            if not wanted[group] <= subset.now:
                meanwhile = subset.now | wanted[group] if group in parents else wanted[group]
                self._set_if_there(subset.driver, meanwhile)
        for group, subset in reversed(subsets.items()):
            with contextlib.suppress(CgroupGone):
                if subset.driver.cpus() == wanted[group]:
                    continue
            self._set_if_there(subset.driver, wanted[group])

    def _set_if_there(self, driver: CpusetV1, cpus: frozenset[int]) -> None:
        try:
            driver.set_cpus(cpus)
        except CgroupGone:
            if driver is self:
                raise

    def _subsets(self, family: Sequence[CpusetV1]) -> dict[Path, _Subset]:
        """What this group and its descendants have, by group and parents first; without those that have no CPUs.

        A runtime gives a group that it makes the CPUs of the one above. Where those were restricted by then, the copy
        is no original: that of the group above is.
        """
        subsets = {self.group: _Subset(self, self.cpus(), self._knobs.original(self._cpus) or "")}
        for child in family[1:]:
            if (above := subsets.get(child.group.parent)) is None:
                continue
            with contextlib.suppress(CgroupGone):
                if (text := self._knobs.read(child._cpus)).strip():
                    now = cpu_set(text, child._cpus)
                    copied = above.original.strip() and now == above.now
                    original = self._knobs.original(child._cpus) or (above.original if copied else text)
                    subsets[child.group] = _Subset(child, now, original)
        return subsets

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

    def is_ordered(self) -> bool:
        """Whether this group itself has the order to freeze."""
        # freezer.state shows FROZEN for an ancestor's order too (cgroup-v1/freezer-subsystem.rst).
        return self._knobs.read(self.state_path).strip() == "1"

    def frozen(self) -> bool:
        """Whether all its tasks are stopped; not yet while FREEZING."""
        state = self._knobs.read(self._order).strip()
        if state not in ("THAWED", "FREEZING", "FROZEN"):
            raise CgroupError(f"{self._order}: {state!r} is no freezer state")
        return state == "FROZEN"


D = TypeVar("D", CpuV1, CpusetV1)


def _walk(first: D, driver_of: Callable[[Path], D]) -> list[D]:
    """The drivers of a group and of those below it, each behind the one that it is in; no more than can be borne."""
    # Not by recursion, and each group once: whoever owns BE's group decides how deep it goes.
    found = [first]
    for driver in found:
        found += map(driver_of, driver._knobs.children(driver.group))
        if len(found) - 1 > MOST_FAMILY:
            break
    return found[: MOST_FAMILY + 2]


def _of_bearable_size(family: Sequence[D]) -> Sequence[D]:
    """The family, unless it is cut off. Raises CgroupError, since no tick has the time for more."""
    if len(family) - 1 > MOST_FAMILY:  # but for the group itself
        raise CgroupError(
            f"{family[0].group}: more than {MOST_FAMILY} control groups are in it, too many for one tick: "
            "run less best-effort work in it, or name groups below it"
        )
    return family


def _attempt(fit: Callable[[], None]) -> None:
    """Fit a group and its descendants; more than once, for they may be others by then."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return fit()
        except (CgroupBusy, CgroupRejected):
            if attempt == ATTEMPTS:
                raise
        time.sleep(_PAUSE_SECONDS)
    return None
