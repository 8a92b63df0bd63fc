"""Controllers of cgroup v2. All are bound to the one directory that a group has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupBusy, CgroupError
from rlctl.envs.host.cgroup.cpulist import format_cpus
from rlctl.envs.host.cgroup.driver import Throttled
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import cpu_set, number, quota_of, table
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight

__all__ = ["CpuV2", "CpusetV2", "FreezerV2"]

_WEIGHTS = {Weight.EQUAL: 100, Weight.MINIMUM: 1}  # the kernel's default and its minimum
_POLL_SECONDS = 0.0005


class CpuV2:
    """`cpu.max`, `cpu.weight`, `cpu.idle`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        mount: The hierarchy's root; ancestors are looked for up to there.
    """

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        self.group = group
        self._knobs = knobs
        self._max = group / "cpu.max"
        self._burst = group / "cpu.max.burst"
        self._weight = group / "cpu.weight"
        self._idle = group / "cpu.idle"
        self._has_idle, self._has_burst = self._idle.exists(), self._burst.exists()
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
        if quota.quota_us is not None and self._has_burst and self._burst_exceeds(quota.quota_us):
            self._knobs.write(self._burst, "0")
        self._knobs.write(self._max, text)

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        original = self._knobs.original(self._max)
        return self.quota() if original is None else _quota(original, self._max)

    def subordinates(self) -> Sequence[CpuV2]:
        """None: v2 lets children have any quota and enforces the tightest."""
        return ()

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """What `set_weight` and `set_idle` write."""
        return (self._weight, self._idle) if self._has_idle else (self._weight,)

    def weight(self) -> int:
        """cpu.weight."""
        return number(self._knobs.read(self._weight), self._weight)

    def native_weight(self, weight: Weight) -> int:
        """cpu.weight for a weight."""
        return _WEIGHTS[weight]

    def set_weight(self, weight: Weight | int) -> None:
        """Write cpu.weight (1 to 10000)."""
        native = _WEIGHTS[weight] if isinstance(weight, Weight) else weight
        if self.idle():
            self.set_idle(False)
        self._knobs.write(self._weight, str(native))

    def idle(self) -> bool | None:
        """cpu.idle; None before Linux 5.15."""
        return number(self._knobs.read(self._idle), self._idle) != 0 if self._has_idle else None

    def set_idle(self, idle: bool) -> None:
        """Write cpu.idle; cpu.weight becomes 100 again when it is lifted."""
        self._knobs.remember([self._idle, self._weight])
        self._knobs.write(self._idle, str(int(idle)))

    def throttled(self) -> Throttled:
        """How often the quota ran out."""
        path = self.group / "cpu.stat"
        counts = table(self._knobs.read(path), path)
        return Throttled(
            counts.get("nr_periods", 0), counts.get("nr_throttled", 0), counts.get("throttled_usec", 0) * 1e-6
        )

    def _burst_exceeds(self, quota_us: int) -> bool:
        """The kernel refuses a quota below the burst that somebody allowed the group (Linux >= 5.14)."""
        return number(self._knobs.read(self._burst), self._burst) > quota_us


def _quota(content: str, path: Path) -> Quota:
    quota, _, period = content.strip().partition(" ")
    return quota_of(None if quota == "max" else number(quota, path), number(period, path), path)


class CpusetV2:
    """`cpuset.cpus`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
    """

    def __init__(self, knobs: Knobs, group: Path) -> None:
        self._knobs = knobs
        self._cpus = group / "cpuset.cpus"
        self._effective = group / "cpuset.cpus.effective"

    @property
    def cpus_files(self) -> tuple[Path, ...]:
        """What `set_cpus` writes."""
        return (self._cpus,)

    def cpus(self) -> frozenset[int]:
        """CPUs as configured; empty for the parent's."""
        return cpu_set(self._knobs.read(self._cpus), self._cpus)

    def effective(self) -> frozenset[int]:
        """CPUs that the group's tasks may really run on: the parent's, where the two have none in common."""
        return cpu_set(self._knobs.read(self._effective), self._effective)

    def available(self) -> frozenset[int]:
        """The group's own CPUs and its parent's. To write another would break up the partition that holds it."""
        above = self._effective.parent.parent / self._effective.name
        return self.effective() | cpu_set(self._knobs.read(above), above)

    def set_cpus(self, cpus: Iterable[int]) -> None:
        """Write the CPUs; none for the parent's."""
        self._knobs.write(self._cpus, format_cpus(cpus) or "\n")

    def originally(self) -> frozenset[int]:
        """The CPUs before our first write to them."""
        original = self._knobs.original(self._cpus)
        return self.cpus() if original is None else cpu_set(original, self._cpus)

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
