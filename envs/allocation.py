"""What BE may use of the host, and the order of being more or less restricted.

An Allocation is in physical units (CPUs), so that a manager's published step of "one core" or "1000 us" is exact
on any host. `Limits` has the host's range, and a grid of *quota levels* over it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce

from rlctl.envs.errors import ConfigError

UNLIMITED = math.inf
"""A quota of any number of CPUs: `cpu.cfs_quota_us` -1, `cpu.max` "max"."""

LITTLE_CPUS = 0.05
"""BE that uses less is not what the LC waits behind: the kernel's least quota, of 50 groups of BE together."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What BE may use.

    Attributes:
        quota_cpus: CPU time per second of wall clock; `UNLIMITED` lifts the quota.
        cpuset_cpus: Number of CPUs that BE may run on, taken in the host's CPU order (safest first).
        frozen: BE is suspended by the freezer; quota and cpuset stay set beneath it.

    Raises:
        ValueError: A quota that is not positive or is NaN, or a cpuset without a CPU.
    """

    quota_cpus: float
    cpuset_cpus: int
    frozen: bool = False

    def __post_init__(self) -> None:
        if not self.quota_cpus > 0.0:
            raise ValueError(f"a quota of {self.quota_cpus!r} CPUs is not positive")
        if self.cpuset_cpus < 1:
            raise ValueError("a cpuset needs at least one CPU; freeze BE to give it none")

    def at_most(self, other: Allocation) -> bool:
        """True when nothing in this allocation is freer than in the other."""
        return (
            self.quota_cpus <= other.quota_cpus
            and self.cpuset_cpus <= other.cpuset_cpus
            and self.frozen >= other.frozen
        )

    @property
    def usable_cpus(self) -> float:
        """CPUs that BE can keep busy with it."""
        return 0.0 if self.frozen else min(self.quota_cpus, float(self.cpuset_cpus))

    @property
    def numbers(self) -> tuple[float, int, bool]:
        """Its three knobs, as laws take them."""
        return self.quota_cpus, self.cpuset_cpus, self.frozen

    def but(
        self, quota_cpus: float | None = None, cpuset_cpus: int | None = None, frozen: bool | None = None
    ) -> Allocation:
        """A copy with some knobs changed."""
        return replace(
            self,
            quota_cpus=self.quota_cpus if quota_cpus is None else quota_cpus,
            cpuset_cpus=self.cpuset_cpus if cpuset_cpus is None else cpuset_cpus,
            frozen=self.frozen if frozen is None else frozen,
        )

    def __str__(self) -> str:
        quota = "unlimited" if self.quota_cpus == UNLIMITED else f"{self.quota_cpus:.2f} CPU"
        return f"{quota} on {cpus_in_words(self.cpuset_cpus)}" + (", frozen" if self.frozen else "")


def cpus_in_words(number: int) -> str:
    """A number of CPUs for people."""
    return "1 CPU" if number == 1 else f"{number} CPUs"


def most_restrictive(first: Allocation, *others: Allocation) -> Allocation:
    """The greatest lower bound: knob by knob the tighter setting of all of them."""

    def meet(a: Allocation, b: Allocation) -> Allocation:
        return Allocation(min(a.quota_cpus, b.quota_cpus), min(a.cpuset_cpus, b.cpuset_cpus), a.frozen or b.frozen)

    return reduce(meet, others, first)


@dataclass(frozen=True, slots=True)
class Limits:
    """The range of allocations on one host, and a grid of quota levels, for whoever counts in levels.

    Attributes:
        cpus: CPUs that BE could ever be given: the length of its CPU order.
        lc_cpus: CPUs that the LC owns or shares; the managers' "LC cores".
        min_quota_cpus: The smallest quota ever written; PRM's 1000 us of a 100 ms period.
        levels: Quota levels 0..levels; level 0 is `min_quota_cpus`, level `levels` is all CPUs.
        exclusive_cpus: CPUs, the first ones of BE's order, that the LC never runs on.
        least_weight: BE has the kernel's least CPU weight, so that on a CPU that both want it hardly slows the LC.
        can_freeze: BE may be suspended. If not, the smallest quota on one CPU is the tightest hold there is.

    Raises:
        ConfigError: Impossible numbers.
    """

    cpus: int
    lc_cpus: float = 1.0
    min_quota_cpus: float = 0.01
    levels: int = 20
    exclusive_cpus: int = 0
    least_weight: bool = False
    can_freeze: bool = True

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.levels < 1 or not 0.0 < self.min_quota_cpus <= self.cpus or self.lc_cpus <= 0.0:
            raise ConfigError(
                f"impossible limits: {self}: all are above 0, and the smallest quota is no more than the CPUs"
            )
        if not 0 <= self.exclusive_cpus <= self.cpus:
            raise ConfigError(f"impossible limits: {self}: BE has no more CPUs for itself than it has CPUs")

    @property
    def full(self) -> Allocation:
        """The freest allocation: all CPUs, no quota."""
        return Allocation(UNLIMITED, self.cpus)

    @property
    def safe(self) -> Allocation:
        """Frozen, and beneath it the smallest quota on one CPU: what BE gets when nothing is known or all is wrong.

        Where BE may not be frozen it is that quota alone.
        """
        return Allocation(self.min_quota_cpus, 1, frozen=self.can_freeze)

    @property
    def minimum(self) -> Allocation:
        """The smallest running allocation."""
        return Allocation(self.min_quota_cpus, 1)

    @property
    def least_cpus(self) -> float:
        """CPUs of a BE that is at its minimum, on a host without cpusets or in many groups too."""
        return max(self.min_quota_cpus, LITTLE_CPUS)

    def is_least(self, allocation: Allocation) -> bool:
        """Whether BE is frozen, or has no more than its minimum."""
        return allocation.usable_cpus <= self.least_cpus

    def quota_at(self, level: int) -> float:
        """CPUs at a quota level; levels beyond either end are taken as that end."""
        level = min(max(level, 0), self.levels)
        return max(self.min_quota_cpus, self.cpus * level / self.levels)

    def clip(self, allocation: Allocation) -> Allocation:
        """The nearest allocation that this host has; never freer than asked, but for the smallest quota."""
        if allocation.frozen and not self.can_freeze:
            return self.minimum
        quota_fits = self.min_quota_cpus <= allocation.quota_cpus and (
            allocation.quota_cpus <= self.cpus or allocation.quota_cpus == UNLIMITED
        )
        if quota_fits and allocation.cpuset_cpus <= self.cpus:
            return allocation
        most = UNLIMITED if allocation.quota_cpus == UNLIMITED else float(self.cpus)
        return allocation.but(
            quota_cpus=min(max(allocation.quota_cpus, self.min_quota_cpus), most),
            cpuset_cpus=min(allocation.cpuset_cpus, self.cpus),
        )
