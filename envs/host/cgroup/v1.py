"""Controllers of cgroup v1. Each is bound to one group's directory in its own hierarchy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupRejected
from rlctl.envs.host.cgroup.cpulist import format_cpus
from rlctl.envs.host.cgroup.driver import Throttled
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import child_groups, cpu_set, number, quota_of, table
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight

__all__ = ["CpuV1", "CpusetV1", "FreezerV1"]

_SHARES = {Weight.EQUAL: 1024, Weight.MINIMUM: 2}  # the kernel's default and its minimum
_POLL_SECONDS = 0.0005


class CpuV1:
    """`cpu.cfs_*`, `cpu.shares`, `cpu.idle`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        mount: The hierarchy's root; ancestors are looked for up to there.
    """

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        self.group = group
        self._knobs = knobs
        self._mount = mount
        self._quota = group / "cpu.cfs_quota_us"
        self._period = group / "cpu.cfs_period_us"
        self._burst = group / "cpu.cfs_burst_us"
        self._shares = group / "cpu.shares"
        self._idle = group / "cpu.idle"
        self._has_idle, self._has_burst = self._idle.exists(), self._burst.exists()
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
        if quota.quota_us is not None and self._has_burst and self._burst_exceeds(quota.quota_us):
            self._knobs.write(self._burst, "0")
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

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """What `set_weight` and `set_idle` write."""
        return (self._shares, self._idle) if self._has_idle else (self._shares,)

    def weight(self) -> int:
        """cpu.shares."""
        return number(self._knobs.read(self._shares), self._shares)

    def native_weight(self, weight: Weight) -> int:
        """cpu.shares for a weight."""
        return _SHARES[weight]

    def set_weight(self, weight: Weight | int) -> None:
        """Write cpu.shares (2 to 262144)."""
        native = _SHARES[weight] if isinstance(weight, Weight) else weight
        if self.idle():
            self.set_idle(False)
        self._knobs.write(self._shares, str(native))

    def idle(self) -> bool | None:
        """cpu.idle; None before Linux 5.15."""
        return number(self._knobs.read(self._idle), self._idle) != 0 if self._has_idle else None

    def set_idle(self, idle: bool) -> None:
        """Write cpu.idle; cpu.shares becomes 1024 again when it is lifted."""
        self._knobs.remember([self._idle, self._shares])
        self._knobs.write(self._idle, str(int(idle)))

    def throttled(self) -> Throttled:
        """How often the quota ran out."""
        path = self.group / "cpu.stat"
        counts = table(self._knobs.read(path), path)
        return Throttled(
            counts.get("nr_periods", 0), counts.get("nr_throttled", 0), counts.get("throttled_time", 0) * 1e-9
        )

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

    def _burst_exceeds(self, quota_us: int) -> bool:
        """The kernel refuses a quota below the burst that somebody allowed the group (Linux >= 5.14)."""
        return number(self._knobs.read(self._burst), self._burst) > quota_us


def _number_of(quota: Quota) -> int:
    return -1 if quota.quota_us is None else quota.quota_us


def _quota(quota: str, period: str, path: Path) -> Quota:
    quota_us = number(quota, path)
    return quota_of(quota_us if quota_us >= 0 else None, number(period, path), path)


class CpusetV1:
    """`cpuset.cpus` and `cpuset.mems`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
    """

    def __init__(self, knobs: Knobs, group: Path) -> None:
        self.group = group
        self._knobs = knobs
        self._cpus = group / "cpuset.cpus"
        self._mems = group / "cpuset.mems"
        self._effective = group / "cpuset.effective_cpus"

    @property
    def cpus_files(self) -> tuple[Path, ...]:
        """What `set_cpus` writes."""
        return (self._cpus,)

    def cpus(self) -> frozenset[int]:
        """CPUs as configured."""
        return cpu_set(self._knobs.read(self._cpus), self._cpus)

    def effective(self) -> frozenset[int]:
        """CPUs that the group's tasks may really run on."""
        return cpu_set(self._knobs.read(self._effective), self._effective)

    def available(self) -> frozenset[int]:
        """The group's own CPUs and its parent's; the kernel refuses others."""
        above = self.group.parent / self._effective.name
        return self.effective() | cpu_set(self._knobs.read(above), above)

    def set_cpus(self, cpus: Iterable[int]) -> None:
        """Write the CPUs."""
        self._knobs.write(self._cpus, format_cpus(cpus) or "\n")

    def originally(self) -> frozenset[int]:
        """The CPUs before our first write to them."""
        original = self._knobs.original(self._cpus)
        return self.cpus() if original is None else cpu_set(original, self._cpus)

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
