"""What a controller of one control group can do, whichever version of cgroups serves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight

__all__ = ["CpuDriver", "CpusetDriver", "FreezerDriver"]


class CpuDriver(Protocol):
    """Quota and weight of one group. Every method raises the CgroupErrors of `Knobs`."""

    @property
    def quota_files(self) -> tuple[Path, ...]:
        """What `set_quota` writes."""
        ...

    def quota(self) -> Quota:
        """The group's own quota."""
        ...

    def ceiling_cpus(self) -> float:
        """The tightest quota of its ancestors, in CPUs; UNLIMITED if they have none."""
        ...

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota; the kernel's checks against parent and children are the caller's business."""
        ...

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        ...

    def subordinates(self) -> Sequence[CpuDriver]:
        """Child groups whose quota the kernel wants below this one's; none in v2."""
        ...

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """What `set_weight` and `set_idle` write."""
        ...

    def weight(self) -> int:
        """cpu.shares or cpu.weight, in the kernel's own number."""
        ...

    def native_weight(self, weight: Weight) -> int:
        """The kernel's number for a weight."""
        ...

    def set_weight(self, weight: Weight | int) -> None:
        """Write a weight; lifts `cpu.idle`, under which the kernel takes none."""
        ...

    def idle(self) -> bool | None:
        """Whether the group runs only when nobody else wants the CPU; None where the kernel cannot."""
        ...

    def set_idle(self, idle: bool) -> None:
        """Set `cpu.idle`; the kernel resets the weight with it."""
        ...

    def throttled_seconds(self) -> float:
        """Time that the group was kept from running by its quota, summed over CPUs, since it was made."""
        ...


class CpusetDriver(Protocol):
    """CPUs of one group. Every method raises the CgroupErrors of `Knobs`."""

    @property
    def cpus_files(self) -> tuple[Path, ...]:
        """What `set_cpus` writes."""
        ...

    def cpus(self) -> frozenset[int]:
        """CPUs as configured; empty means the parent's (v2), or that no task may join (v1)."""
        ...

    def effective(self) -> frozenset[int]:
        """CPUs that the group's tasks may really run on."""
        ...

    def available(self) -> frozenset[int]:
        """CPUs that the group may have: its own and its parent's, who lacks those of a partition beside it (v2)."""
        ...

    def set_cpus(self, cpus: Iterable[int]) -> None:
        """Write the CPUs; see `nesting.fit_cpus` for groups with children."""
        ...

    def originally(self) -> frozenset[int]:
        """The CPUs before our first write to them."""
        ...

    def subordinates(self) -> Sequence[CpusetDriver]:
        """Child groups whose CPUs the kernel wants within this one's; none in v2."""
        ...


class FreezerDriver(Protocol):
    """The freezer of one group. Every method raises the CgroupErrors of `Knobs`."""

    @property
    def freezer_files(self) -> tuple[Path, ...]:
        """What `order` writes."""
        ...

    def ordered(self) -> bool:
        """Whether this group itself, not just an ancestor, was told to freeze."""
        ...

    def frozen(self) -> bool:
        """Whether all its tasks are stopped, by whosever order."""
        ...

    def order(self, frozen: bool) -> None:
        """Tell the group to freeze or thaw, without waiting for it."""
        ...

    def settle(self, frozen: bool, timeout_seconds: float) -> None:
        """Wait until it is so.

        Raises:
            CgroupBusy: Some task has not stopped in time.
        """
        ...
