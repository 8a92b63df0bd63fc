"""Controllers of cgroup v2. All are bound to the one directory that a group has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupBusy, CgroupError
from rlctl.envs.host.cgroup.both import CpuOfBoth, CpusetOfBoth
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import number, quota_of, table
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight

__all__ = ["CpuV2", "CpusetV2", "FreezerV2"]

_WEIGHTS = {Weight.EQUAL: 100, Weight.MINIMUM: 1}  # the kernel's default and its minimum
_POLL_SECONDS = 0.0005


class CpuV2(CpuOfBoth):
    """`cpu.max`, `cpu.weight`, `cpu.idle`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        mount: The hierarchy's root; ancestors are looked for up to there.
    """

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        super().__init__(
            knobs,
            group,
            weight="cpu.weight",
            burst="cpu.max.burst",
            throttled=("throttled_usec", 1e-6),
            native=_WEIGHTS,
        )
        self._max = group / "cpu.max"
        above = [parent / "cpu.max" for parent in group.parents if mount in parent.parents]
        self._above = [path for path in above if path.exists()]

    @property
    def quota_files(self) -> tuple[Path, ...]:
        """What `set_quota` writes."""
        return (self._max,)

    def quota(self) -> Quota:
        """The group's own quota."""
        return _quota(self._knobs.read(self._max), self._max)

    def ceiling_cpus(self) -> float:
        """The tightest quota of its ancestors, in CPUs; v2 lets a child's be larger, to no effect."""
        return min((_quota(self._knobs.read(path), path).cpus for path in self._above), default=UNLIMITED)

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota; the period stays as it is when there is none."""
        text = "max" if quota.quota_us is None else f"{quota.quota_us} {quota.period_us}"
        self._make_way_for(quota.quota_us)
        self._knobs.write(self._max, text)

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        original = self._knobs.original(self._max)
        return self.quota() if original is None else _quota(original, self._max)

    def subordinates(self) -> Sequence[CpuV2]:
        """None: v2 lets children have any quota and enforces the tightest."""
        return ()


def _quota(content: str, path: Path) -> Quota:
    quota, _, period = content.strip().partition(" ")
    return quota_of(None if quota == "max" else number(quota, path), number(period, path), path)


class CpusetV2(CpusetOfBoth):
    """`cpuset.cpus`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
    """

    def __init__(self, knobs: Knobs, group: Path) -> None:
        super().__init__(knobs, group, "cpuset.cpus.effective")

    def subordinates(self) -> Sequence[CpusetV2]:
        """None: v2 cuts children's CPUs down to the parent's by itself."""
        return ()


class FreezerV2:
    """`cgroup.freeze`, and `cgroup.events` for what came of it.

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
        self._freeze = group / "cgroup.freeze"
        self._events = group / "cgroup.events"
        self._clock, self._sleep = clock, sleep

    @property
    def freezer_files(self) -> tuple[Path, ...]:
        """What `order` writes."""
        return (self._freeze,)

    def ordered(self) -> bool:
        """Whether this group itself was told to freeze."""
        return number(self._knobs.read(self._freeze), self._freeze) == 1

    def frozen(self) -> bool:
        """Whether all its tasks are stopped."""
        events = table(self._knobs.read(self._events), self._events)
        if "frozen" not in events:
            raise CgroupError(f"{self._events}: says nothing about frozen: Linux 5.2 or later is needed")
        return events["frozen"] == 1

    def order(self, frozen: bool) -> None:
        """Tell the group to freeze or thaw."""
        self._knobs.write(self._freeze, str(int(frozen)))

    def settle(self, frozen: bool, timeout_seconds: float) -> None:
        """Wait until it is so; no task of a thawed group is waited for that a frozen ancestor holds."""
        deadline = self._clock() + timeout_seconds
        while not self._knobs.dry_run and self.frozen() != frozen:
            if self._clock() >= deadline:
                if not frozen:
                    return
                raise CgroupBusy(f"{self._events}: not frozen after {timeout_seconds:g} s: a task sleeps in the kernel")
            self._sleep(_POLL_SECONDS)
