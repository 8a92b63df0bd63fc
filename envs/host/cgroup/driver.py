"""The controllers of a control group, as cgroup v2 has them; what differs in cgroup v1 stands in `v1`.

A driver is bound to the directory of one group. Its methods raise the errors of `Knobs`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupError, CgroupGone, PermissionMissing
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.values import Quota, cpu_set, number, quota_of, table
from rlctl.envs.host.decode import format_cpus
from rlctl.envs.workload import Weight

_POLL_SECONDS = 0.0005

# As a weight: `cpu.idle`, under which a group runs only when nobody else wants the CPU.
IDLE = 0


class CpuDriver:
    """Quota and weight of one group, by `cpu.max`, `cpu.weight` and `cpu.idle`.

    Ancestors are looked for up to `mount`, the hierarchy's root.

    Attributes:
        quota_file: Name of the file with the quota.
        burst_file: Name of the file with what the group may save up of its quota (Linux 5.14 and later).
        weights: The kernel's number for each weight; IDLE is written to another file.
        parent: The group's parent directory, whose quota and those above it are the ceiling.
        quota_files, weight_files: What `set_quota`, `set_weight` and `set_idle` write; the burst belongs to the quota.
    """

    # Children may have any quota: the tightest on the way up is enforced (cgroup-v2.rst, "Limits").

    quota_files: tuple[Path, ...]
    weight_files: tuple[Path, ...]
    quota_file: ClassVar[str] = "cpu.max"
    weight_file: ClassVar[str] = "cpu.weight"
    burst_file: ClassVar[str] = "cpu.max.burst"
    # The kernel's default, its minimum, and what stands for cpu.idle.
    weights: ClassVar[Mapping[Weight, int]] = {Weight.EQUAL: 100, Weight.MINIMUM: 1, Weight.IDLE: IDLE}

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        self.group = group
        self.parent = str(group.parent)
        self._knobs, self._mount = knobs, mount
        self._quota = group / self.quota_file
        self._burst = group / self.burst_file
        self._weight = group / self.weight_file
        self._idle = group / "cpu.idle"
        self._has_idle, self._has_burst = self._idle.exists(), self._burst.exists()
        self.weight_files = (self._weight, self._idle) if self._has_idle else (self._weight,)
        self.quota_files = (self._quota, self._burst) if self._has_burst else (self._quota,)

    @cached_property
    def _above(self) -> tuple[Path, ...]:
        # Of BE's own group alone: to look at the ancestors of all that is below it takes the square of the depth.
        above = itertools.takewhile(lambda parent: parent != self._mount, self.group.parents)
        return tuple(parent for parent in above if (parent / self._quota.name).exists())

    def of_group(self, group: Path) -> Self:
        """The driver of another group of the same hierarchy."""
        return type(self)(self._knobs, group, self._mount)

    def quota(self) -> Quota:
        """The group's own quota."""
        return self._quota_in(self.group)

    def _quota_in(self, group: Path) -> Quota:
        """The own quota of this group or of one above it."""
        path = group / self._quota.name
        return _quota(self._knobs.read(path), path)

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        original = self._knobs.original(self._quota)
        return self.quota() if original is None else _quota(original, self._quota)

    def ceiling_cpus(self) -> float:
        """The tightest quota of its ancestors, in CPUs; UNLIMITED if they have none. In v2 it alone is in force."""
        return min((self._quota_in(parent).cpus for parent in self._above), default=UNLIMITED)

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota, see `fit` for one with children; without one the period stays as it is."""
        # One write for both, so that no mixture is ever in force (cgroup-v2.rst, "cpu.max").
        text = "max" if quota.quota_us is None else f"{quota.quota_us} {quota.period_us}"
        self._make_way_for(quota.quota_us)
        self._knobs.write(self._quota, text)

    def family(self) -> Sequence[CpuDriver]:
        """This group and those below whose quota the kernel wants below this one's; in v2 this group alone."""
        return (self,)

    def fit(self, quota: Quota) -> None:
        """Set the quota and keep descendants' below it: each gets its original quota or this one, whichever is less."""
        self.set_quota(quota)

    def burst_us(self) -> int:
        """CPU time that the group may save up of its quota, to use it beyond the quota later."""
        return number(self._knobs.read(self._burst), self._burst) if self._has_burst else 0

    def quota_or_none(self) -> Quota:
        """The group's own quota; one that cannot be read may be none, and is no reason to write none."""
        return or_if_unreadable(Quota(None), self.quota)

    def weight(self) -> int:
        """The number in cpu.shares or cpu.weight."""
        return number(self._knobs.read(self._weight), self._weight)

    def set_weight(self, weight: Weight | int) -> None:
        """Write cpu.shares (2 to 262144) or cpu.weight (1 to 10000), which lifts cpu.idle; or write that, for IDLE.

        Raises:
            CgroupError: IDLE, and the kernel has no cpu.idle; or as `Knobs.write` does.
        """
        native = self.weights[weight] if isinstance(weight, Weight) else weight
        if native == IDLE:
            if not self._has_idle:
                raise CgroupError(f"{self.group} has no cpu.idle, which came with Linux 5.15")
            return self.set_idle(True)
        # An idle group takes no weight: EINVAL from sched_group_set_shares in kernel/sched/fair.c.
        if self.idle():
            self.set_idle(False)
        return self._knobs.write(self._weight, str(native))

    def restore_weight(self) -> None:
        """Write the weight that the group had before our first write to it; nothing where we never wrote one."""
        if self.was_idle():
            return self.set_idle(True) if not self.idle() else None
        original = self._knobs.original(self._weight)
        if original is not None and (self.idle() or number(original, self._weight) != self.weight()):
            self.set_weight(number(original, self._weight))
        return None

    def idle(self) -> bool | None:
        """Whether the group runs only when nobody else wants the CPU; None before Linux 5.15."""
        return number(self._knobs.read(self._idle), self._idle) != 0 if self._has_idle else None

    def was_idle(self) -> bool | None:
        """Whether it was so before our first write; None before Linux 5.15."""
        original = self._knobs.original(self._idle)
        return self.idle() if original is None else number(original, self._idle) != 0

    def set_idle(self, idle: bool) -> None:
        """Write cpu.idle; the kernel sets the weight to its default when it is lifted."""
        # Both originals before the first write, since it changes both files.
        self._knobs.remember([self._idle, self._weight])
        self._knobs.write(self._idle, str(int(idle)))

    def _make_way_for(self, quota_us: int | None) -> None:
        # With a burst the group is freer than its quota says, and a quota below it is refused: tg_set_cfs_bandwidth in
        # kernel/sched/core.c wants burst <= quota.
        if quota_us is not None and or_if_unreadable(1, self.burst_us):
            self._knobs.write(self._burst, "0")


class CpusetDriver:
    """CPUs of one group, by `cpuset.cpus`.

    Attributes:
        effective_file, effective_path: Name and path of the file with the CPUs that its tasks may really run on.
        cpus_files: What `set_cpus` writes.
    """

    # The kernel cuts children's CPUs down to the parent's by itself (cgroup-v2.rst, "cpuset.cpus").

    effective_file: ClassVar[str] = "cpuset.cpus.effective"

    def __init__(self, knobs: Knobs, group: Path) -> None:
        self.group = group
        self._knobs = knobs
        self._cpus, self.effective_path = group / "cpuset.cpus", group / self.effective_file
        self.cpus_files = (self._cpus,)

    def family(self) -> Sequence[CpusetDriver]:
        """This group and those below whose CPUs the kernel wants within this one's; in v2 this group alone."""
        return (self,)

    def cpus(self) -> frozenset[int]:
        """CPUs as configured; empty means the parent's (v2), or that no task may join (v1)."""
        return self._read(self._cpus)

    def originally(self) -> frozenset[int]:
        """The CPUs as configured before our first write."""
        original = self._knobs.original(self._cpus)
        return self.cpus() if original is None else cpu_set(original, self._cpus)

    def effective(self) -> frozenset[int]:
        """CPUs that the group's tasks may really run on; in v2 the parent's, where the two have none in common."""
        return self._read(self.effective_path)

    def available(self) -> frozenset[int]:
        """CPUs that the group may have: its own and its parent's, which lacks those of a partition beside it (v2)."""
        return self.effective() | self._read(self.group.parent / self.effective_file)

    def set_cpus(self, cpus: Iterable[int]) -> None:
        """Write the CPUs; see `fit` for groups with children."""
        # A write of no bytes never reaches the kernel, so an empty list is a newline.
        self._knobs.write(self._cpus, format_cpus(cpus) or "\n")

    def fit(self, cpus: frozenset[int]) -> None:
        """Set the CPUs and keep descendants within them.

        A descendant gets what it had originally, as far as that is within `cpus`, or else all of them; one that was
        never in the way is left alone.
        """
        self.set_cpus(cpus)

    def originals_below(self) -> dict[Path, str]:
        """What is to be put back into the CPUs of each descendant that is ever written to; in v2 none is."""
        return {}

    def _read(self, path: Path) -> frozenset[int]:
        return cpu_set(self._knobs.read(path), path)


class FreezerDriver:
    """The freezer of one group.

    `cgroup.freeze` takes the order, `cgroup.events` tells what came of it (cgroup-v2.rst, "cgroup.freeze").

    Attributes:
        order_file, state_file: Names of the file that is written, and of the one that tells what came of it.
        orders: What is written to thaw and to freeze.
        waits_for_thaw: Whether the kernel tells when a thaw is complete.
        freezer_files: What `order` writes.
        state_path: The state file's path.
    """

    order_file: ClassVar[str] = "cgroup.freeze"
    state_file: ClassVar[str] = "cgroup.events"
    orders: ClassVar[tuple[str, str]] = "0", "1"
    waits_for_thaw: ClassVar[bool] = True

    def __init__(self, knobs: Knobs, group: Path) -> None:
        self._knobs = knobs
        self._order, self.state_path = group / self.order_file, group / self.state_file
        self.freezer_files = (self._order,)

    def is_ordered(self) -> bool:
        """Whether this group itself, not just an ancestor, has the order to freeze."""
        return number(self._knobs.read(self._order), self._order) == 1

    def was_ordered(self) -> bool:
        """Whether it had the order before our first write."""
        return (self._knobs.original(self._order) or "").strip() == self.orders[True]

    def frozen(self) -> bool:
        """Whether all its tasks are stopped, by whosever order."""
        events = table(self._knobs.read(self.state_path), self.state_path)
        if "frozen" not in events:
            raise CgroupError(f"{self.state_path}: says nothing about frozen: Linux 5.2 or later is needed")
        return events["frozen"] == 1

    def order(self, frozen: bool) -> None:
        """Tell the group to freeze or thaw, without waiting for it."""
        self._knobs.write(self._order, self.orders[frozen])

    def settle(self, frozen: bool, timeout_seconds: float) -> bool:
        """Wait until the order is carried out, and so long at most; whether it is.

        It may take seconds: a task that sleeps in the kernel, or gets no CPU beside a busy LC, has yet to reach the
        point where it stops. It gets no further than there. And a frozen ancestor holds a group that was thawed.
        """
        if self._knobs.dry_run or not (frozen or self.waits_for_thaw):
            return True
        # Polled: neither version tells of it in a way that one can wait for in so short a time.
        deadline = time.monotonic() + timeout_seconds
        while self.frozen() != frozen:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
            if not self.waits_for_thaw:
                # v1 stays FREEZING when tasks were forked or moved in meanwhile, until the order is repeated:
                # Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, "FREEZING".
                self.order(frozen)
        return True


T = TypeVar("T")


def _quota(content: str, path: Path) -> Quota:
    if (text := content.strip()) != " ".join(content.split()):  # as no kernel prints it: nobody knows what is in force
        raise CgroupError(f"{path}: {text[:60]!r} is no quota and period")
    quota, _, period = text.partition(" ")
    return quota_of(None if quota == "max" else number(quota, path), number(period, path), path)


def or_if_unreadable(otherwise: T, read: Callable[[], T]) -> T:
    """A reading, or something else where the file cannot be read; CgroupGone: the group was removed."""
    try:
        return read()
    except CgroupGone:
        raise
    except (CgroupError, PermissionMissing):
        return otherwise
