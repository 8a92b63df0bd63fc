"""Writes to BE groups as data: planned for all groups, put in order, carried out in one place.

Restricting comes before growing, in the order of `Turn`. What stops or confines BE must not
wait behind a write that gives it more, and must not be undone by one that fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.host.cgroup.state import GroupReading, Knob, Settings, in_words

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
