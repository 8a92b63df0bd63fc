"""The settings of a BE group: how they are read, compared and put into words, and the writes that lead to others.

Writes are data: planned for all groups, put in order, carried out in one place. Restricting comes before growing, in
the order of `Turn`. What stops or confines BE must not wait behind a write that gives it more, and must not be undone
by one that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeVar

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.host.decode import format_cpus

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


# How long a freeze may take before a tighter quota is written beneath it; most need less.
# A task must run to reach the point where it stops, and one whose quota has run out does not run before the next
# period. All groups together have this time; whether they are frozen or not, the quotas come next.
HEAD_START_SECONDS = 0.025

PERIODS_TO_SETTLE = 2
# A throttled task stops only in its next period: so much longer may its freeze take.
MOST_THROTTLED_SECONDS = 0.75


class Turn(IntEnum):
    """When a step is taken: the steps of all groups in this order."""

    FREEZE = 0
    HEAD_START = 1
    TIGHTEN_WEIGHT = 2
    TIGHTEN_QUOTA = 3
    TIGHTEN_CPUS = 4
    SETTLE = 5
    WIDEN_CPUS = 6
    WIDEN_QUOTA = 7
    WIDEN_WEIGHT = 8
    THAW = 9

    @property
    def settled(self) -> bool:
        """What the write itself has read back is all that comes of it; no tasks have to stop or move."""
        return self in _SETTLED

    @property
    def growing(self) -> bool:
        """It gives the group more."""
        return self >= Turn.WIDEN_CPUS


_SETTLED = frozenset({Turn.TIGHTEN_WEIGHT, Turn.TIGHTEN_QUOTA, Turn.WIDEN_QUOTA, Turn.WIDEN_WEIGHT})


@dataclass(frozen=True, slots=True)
class WriteStep:
    """One write to a group, or the wait for what comes of it.

    Attributes:
        turn: Its place among the steps of all groups.
        knob: `quota`, `cpus`, `frozen` or `weight`, as in `Settings`.
        value: What is written, or waited for.
        seconds: Longest wait: from the first step of the plan, or of a thaw from its own write.
    """

    turn: Turn
    group: Group
    knob: str
    value: Knob
    seconds: float = 0.0

    def __str__(self) -> str:
        match self.turn:
            case Turn.FREEZE:
                return f"freeze {self.group.name}"
            case Turn.HEAD_START | Turn.SETTLE:
                return f"wait up to {self.seconds:g} s for {self.group.name} to stand still"
            case Turn.THAW:
                return f"thaw {self.group.name}"
        return f"set {self.knob} of {self.group.name} to {in_words(self.value)}"


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """What became of a plan.

    Attributes:
        failed: Steps, and why.
        late: Groups with tasks that are yet to stop; the order to freeze is in force.
        gone: Groups that vanished meanwhile, and how that showed.
    """

    failed: list[tuple[WriteStep, RlctlError]] = field(default_factory=list)
    late: list[Group] = field(default_factory=list)
    gone: dict[Group, CgroupGone] = field(default_factory=dict)

    @property
    def failed_groups(self) -> set[Group]:
        """Groups that do not have all that they should."""
        return {step.group for step, _ in self.failed}


def plan(
    seen: Mapping[Group, GroupReading], wanted: Mapping[Group, Settings], settle_seconds: float
) -> list[WriteStep]:
    """The steps that take every group from what it has to what it may have, in the order of their turns."""
    # Sorting keeps the order of equals: within a turn the groups have theirs.
    steps = [step for group, now in seen.items() for step in _steps_of(group, now, wanted[group], settle_seconds)]
    return sorted(steps, key=lambda step: step.turn)


def carry_out(steps: Iterable[WriteStep]) -> PlanOutcome:
    """Take steps in their order; one that fails does not keep the others from being tried.

    A group whose restriction failed or is yet to come is not given more, and one that vanished is left alone.
    """
    # All waits share one clock: forty slow groups must not add up to forty waits.
    outcome, begun_seconds = PlanOutcome(), time.monotonic()
    for step in steps:
        group = step.group
        if group in outcome.gone or (step.turn.growing and group in outcome.failed_groups.union(outcome.late)):
            continue
        try:
            match step.value:
                case Quota() as quota if group.cpu:
                    group.cpu.fit(quota)
                case frozenset() as cpus if group.cpuset:
                    group.cpuset.fit(cpus)
                case bool():
                    if not _freeze_or_thaw(step, begun_seconds):
                        outcome.late.append(group)
                case int() as weight if group.cpu:
                    group.cpu.set_weight(weight)
        except CgroupGone as error:
            outcome.gone[group] = error
        except RlctlError as error:
            outcome.failed.append((step, error))
    return outcome


def _freeze_or_thaw(step: WriteStep, begun_seconds: float) -> bool:
    """False where the group is frozen later than it was waited for."""
    if (freezer := step.group.freezer) is None:
        return True
    # What other groups waited for has passed for this one too.
    left_seconds = max(begun_seconds + step.seconds - time.monotonic(), 0.0)
    match step.turn:
        case Turn.FREEZE:
            freezer.order(True)
        case Turn.HEAD_START:
            freezer.settle(True, left_seconds)
        case Turn.SETTLE:
            return freezer.settle(True, left_seconds)
        case _:
            freezer.order(False)
            freezer.settle(False, step.seconds)
    return True


def _steps_of(group: Group, seen: GroupReading, wanted: Settings, settle_seconds: float) -> list[WriteStep]:
    now, steps = seen.settings, list[WriteStep]()
    if now == wanted and (seen.frozen or not wanted.frozen):
        return steps
    # What cannot be read may be wide open: it is tightened. What is wanted of a group is what it has a driver for.
    if wanted.quota is not None and now.quota != wanted.quota:
        turn = Turn.WIDEN_QUOTA if now.quota and wanted.quota.cpus > now.quota.cpus else Turn.TIGHTEN_QUOTA
        steps.append(WriteStep(turn, group, "quota", wanted.quota))
    # CPUs that are exchanged for others, and an empty set (wide open), tighten: they may take some away.
    if wanted.cpus is not None and now.cpus != wanted.cpus:
        turn = Turn.WIDEN_CPUS if now.cpus and now.cpus < wanted.cpus else Turn.TIGHTEN_CPUS
        steps.append(WriteStep(turn, group, "cpus", wanted.cpus))
    if now.weight is not None and wanted.weight is not None and now.weight != wanted.weight:
        turn = Turn.WIDEN_WEIGHT if wanted.weight > now.weight else Turn.TIGHTEN_WEIGHT
        steps.append(WriteStep(turn, group, "weight", wanted.weight))
    if wanted.frozen is not None:
        steps += _freezer_steps(group, seen, wanted, settle_seconds)
    return steps


def _freezer_steps(group: Group, seen: GroupReading, wanted: Settings, settle_seconds: float) -> list[WriteStep]:
    quota, ordered = wanted.quota, seen.settings.frozen
    if not wanted.frozen:
        return [WriteStep(Turn.THAW, group, "frozen", False, settle_seconds)] if ordered else []
    steps = []
    if not ordered:
        steps.append(WriteStep(Turn.FREEZE, group, "frozen", True))
        steps.append(WriteStep(Turn.HEAD_START, group, "frozen", True, HEAD_START_SECONDS))
        # A task that has used up its quota stops when the next period refills it (sched-bwc.rst, "Management").
        period_seconds = 0.0 if quota is None or quota.quota_us is None else quota.period_us * 1e-6
        throttled_seconds = min(PERIODS_TO_SETTLE * period_seconds, MOST_THROTTLED_SECONDS)
        seconds = HEAD_START_SECONDS + settle_seconds + throttled_seconds
        steps.append(WriteStep(Turn.SETTLE, group, "frozen", True, seconds))
    elif not seen.frozen:  # it was waited for already, and a tick has more to do than to wait
        steps.append(WriteStep(Turn.SETTLE, group, "frozen", True, HEAD_START_SECONDS))
    return steps
