"""The settings of one BE group: how they are read, compared and put into words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.host.cpulist import format_cpus

Knob = Quota | frozenset[int] | bool | int
"""A value of one of a group's knobs."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """A group's own knobs; None for one that it lacks, that cannot be read, or that is not ours.

    Attributes:
        quota: CPU time; two lifted quotas are equal.
        cpus: As configured; empty is wide open.
        frozen: Has the order to freeze, itself and not just an ancestor.
        weight: In the kernel's number, or IDLE. Ours only once we have set it.
    """

    quota: Quota | None = None
    cpus: frozenset[int] | None = None
    frozen: bool | None = None
    weight: int | None = None

    def changes(self, after: Settings) -> dict[str, tuple[Knob, Knob]]:
        """Knobs that have another value in `after`, with both values."""
        if self == after:
            return {}
        pairs = {name: (getattr(self, name), getattr(after, name)) for name in self.__slots__}
        return {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None and a != b}


@dataclass(frozen=True, slots=True)
class GroupReading:
    """What one group reads back.

    Attributes:
        ceiling_cpus: The tightest quota of its ancestors.
        effective: CPUs that its tasks may really run on.
        errors: Readings that failed; what cannot be read is taken for wide open.
    """

    settings: Settings
    ceiling_cpus: float
    effective: frozenset[int]
    frozen: bool
    errors: tuple[RlctlError, ...] = ()


def tighter(ours: Knob, theirs: Knob) -> Knob:
    """The meet of two values of one knob; never freer than ours."""
    # A burst would let a group use more than the tighter of the two quotas.
    if isinstance(ours, Quota) and isinstance(theirs, Quota):
        return replace(theirs, burst_us=0) if theirs.cpus < ours.cpus else ours
    if isinstance(ours, frozenset) and isinstance(theirs, frozenset):
        # CPUs of theirs that are none of ours are no restriction but an escape.
        return (ours & theirs) or ours
    if isinstance(ours, bool) and isinstance(theirs, bool):
        return ours or theirs
    if isinstance(ours, int) and isinstance(theirs, int):
        return min(ours, theirs)
    return ours


def in_words(value: Knob) -> str:
    """A knob's value for the log."""
    match value:
        case Quota():
            burst = f" and a burst of {value.burst_us} us" if value.burst_us else ""
            return "unlimited" if value.quota_us is None else f"{value.cpus:.4g} CPU{burst}"
        case frozenset():
            return format_cpus(value) or "all"
        case bool():
            return "frozen" if value else "thawed"
    return "idle" if value == IDLE else str(value)


def see(group: Group, *, weighed: bool, ceilings: dict[str, float]) -> GroupReading:
    """Read one group, `Group.setting_files` and the ceiling; what cannot be read is taken for wide open.

    Args:
        ceilings: Ceilings by parent directory, for siblings to share; is added to.

    Raises:
        CgroupGone: It was removed.
    """
    # What cannot be read counts as wide open, so that one lost controller stops no freeze.
    cpu, cpuset, freezer = group.cpu, group.cpuset, group.freezer
    errors: list[RlctlError] = []
    settings = Settings(
        _or(errors, None, lambda: _quota(cpu)) if cpu else None,
        _or(errors, None, cpuset.cpus) if cpuset else None,
        _or(errors, None, freezer.is_ordered) if freezer else None,
        _or(errors, None, lambda: IDLE if cpu.idle() else cpu.weight()) if cpu and weighed else None,
    )
    return GroupReading(
        settings,
        _or(errors, UNLIMITED, lambda: ceiling_cpus(group, ceilings)),
        _or(errors, frozenset(), cpuset.effective) if cpuset else frozenset(),
        _or(errors, False, freezer.frozen) if freezer else False,
        tuple(errors),
    )


def _or(errors: list[RlctlError], wide_open: T, read: Callable[[], T]) -> T:
    try:
        return read()
    except CgroupGone:
        raise
    except RlctlError as error:
        errors.append(error)
        return wide_open


def _quota(cpu: CpuDriver) -> Quota:
    # A lifted quota's period means nothing, and must not make two of them differ.
    quota = cpu.quota()
    if quota.quota_us is None:
        return _LIFTED
    return replace(quota, burst_us=burst_us) if (burst_us := cpu.burst_us()) else quota


_LIFTED = Quota(None)


def ceiling_cpus(group: Group, ceilings: dict[str, float]) -> float:
    """The tightest quota of a group's ancestors, see `see`. Raises as `Knobs.read` does."""
    if (cpu := group.cpu) is None:
        return UNLIMITED
    # Siblings share their ancestors: each parent is read once a tick, however many groups there are.
    if cpu.parent not in ceilings:
        ceilings[cpu.parent] = cpu.ceiling_cpus()
    return ceilings[cpu.parent]
