"""Controllers of cgroup v1. Each is bound to one group's directory in its own hierarchy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupRejected
from rlctl.envs.host.cgroup.both import CpuOfBoth, CpusetOfBoth
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import child_groups, number, quota_of
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight

__all__ = ["CpuV1", "CpusetV1", "FreezerV1"]

_SHARES = {Weight.EQUAL: 1024, Weight.MINIMUM: 2}  # the kernel's default and its minimum
_POLL_SECONDS = 0.0005


class CpuV1(CpuOfBoth):
    """`cpu.cfs_*`, `cpu.shares`, `cpu.idle`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        mount: The hierarchy's root; ancestors are looked for up to there.
    """

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        super().__init__(
            knobs,
            group,
            weight="cpu.shares",
            burst="cpu.cfs_burst_us",
            throttled=("throttled_time", 1e-9),
            native=_SHARES,
        )
        self._mount = mount
        self._quota = group / "cpu.cfs_quota_us"
        self._period = group / "cpu.cfs_period_us"
        above = [parent for parent in group.parents if mount in parent.parents]
        self._above = [CpuV1(knobs, parent, parent.parent) for parent in above]

    @property
    def quota_files(self) -> tuple[Path, ...]:
        """What `set_quota` writes."""
        return self._quota, self._period

    def quota(self) -> Quota:
        """The group's own quota."""
        return _quota(self._knobs.read(self._quota), self._knobs.read(self._period), self._quota)

    def ceiling_cpus(self) -> float:
        """The tightest quota of its ancestors, in CPUs."""
        return min((parent.quota().cpus for parent in self._above), default=UNLIMITED)

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota.

        v1 has no way to write quota and period at once, and every value on the way must be legal too. The order with
        the smaller share in between comes first, since BE may have less for a moment but not more.
        """
        self._knobs.remember(self.quota_files)
        before = self.quota()
        self._make_way_for(quota.quota_us)
        for order in self._orders(before, quota):
            with contextlib.suppress(CgroupRejected):
                return self._write_all(order)
        return self._lift_and_set(before, quota)

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        quota, period = self._knobs.original(self._quota), self._knobs.original(self._period)
        return self.quota() if quota is None or period is None else _quota(quota, period, self._quota)

    def subordinates(self) -> Sequence[CpuV1]:
        """All child groups: the kernel wants quota/period of each below this one's."""
        return [CpuV1(self._knobs, child, self._mount) for child in child_groups(self._knobs, self.group)]

    def _orders(self, before: Quota, after: Quota) -> list[list[tuple[Path, int]]]:
        if after.quota_us is None:
            return [[(self._quota, -1)]]
        quota, period = (self._quota, after.quota_us), (self._period, after.period_us)
        if before.period_us == after.period_us:
            return [[quota]]
        if before.quota_us is None or before.quota_us / after.period_us <= after.quota_us / before.period_us:
            return [[period, quota], [quota, period]]
        return [[quota, period], [period, quota]]

    def _lift_and_set(self, before: Quota, after: Quota) -> None:
        """Where neither order is legal: no quota fits below every parent and above every child."""
        period, quota = (self._period, after.period_us), (self._quota, _number_of(after))
        try:
            self._write_all([(self._quota, -1), period, quota])
        except CgroupRejected:
            with contextlib.suppress(CgroupError):
                self._write_all([(self._period, before.period_us), (self._quota, _number_of(before))])
            raise

    def _write_all(self, values: Sequence[tuple[Path, int]]) -> None:
        for path, value in values:
            self._knobs.write(path, str(value))


def _number_of(quota: Quota) -> int:
    return -1 if quota.quota_us is None else quota.quota_us


def _quota(quota: str, period: str, path: Path) -> Quota:
    quota_us = number(quota, path)
    return quota_of(quota_us if quota_us >= 0 else None, number(period, path), path)


class CpusetV1(CpusetOfBoth):
    """`cpuset.cpus` and `cpuset.mems`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
    """

    def __init__(self, knobs: Knobs, group: Path) -> None:
        super().__init__(knobs, group, "cpuset.effective_cpus")
        self._mems = group / "cpuset.mems"

    def subordinates(self) -> Sequence[CpusetV1]:
        """All child groups: the kernel wants the CPUs of each within this one's."""
        return [CpusetV1(self._knobs, child) for child in child_groups(self._knobs, self.group)]

    def inherit(self) -> None:
        """Give a new group its parent's CPUs and memory nodes; without both no task can join."""
        for path, source in (
            (self._mems, "cpuset.effective_mems"),
            (self._cpus, "cpuset.effective_cpus"),
        ):
            if not self._knobs.read(path).strip():
                self._knobs.write(path, self._knobs.read(self.group.parent / source).strip())


class FreezerV1:
    """`freezer.state`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
    """

    def __init__(
        self,
        knobs: Knobs,
        group: Path,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._knobs = knobs
        self._state = group / "freezer.state"
        self._own = group / "freezer.self_freezing"
        self._clock, self._sleep = clock, sleep

    @property
    def freezer_files(self) -> tuple[Path, ...]:
        """What `order` writes."""
        return (self._state,)

    def ordered(self) -> bool:
        """Whether this group itself was told to freeze."""
        return self._knobs.read(self._own).strip() == "1"

    def frozen(self) -> bool:
        """Whether all its tasks are stopped; not yet while FREEZING."""
        state = self._knobs.read(self._state).strip()
        if state not in ("THAWED", "FREEZING", "FROZEN"):
            raise CgroupError(f"{self._state}: {state!r} is no freezer state")
        return state == "FROZEN"

    def order(self, frozen: bool) -> None:
        """Tell the group to freeze or thaw."""
        self._knobs.write(self._state, "FROZEN" if frozen else "THAWED")

    def settle(self, frozen: bool, timeout_seconds: float) -> None:
        """Wait until it is so. Thawing is done when it is written, though an ancestor may keep the group frozen.

        The order is repeated while FREEZING, for tasks that were forked or moved in meanwhile.
        """
        deadline = self._clock() + timeout_seconds
        while frozen and not self._knobs.dry_run and not self.frozen():
            if self._clock() >= deadline:
                raise CgroupBusy(
                    f"{self._state}: still FREEZING after {timeout_seconds:g} s: a task sleeps in the kernel"
                )
            self._sleep(_POLL_SECONDS)
            self.order(True)
