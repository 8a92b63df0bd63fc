"""The writes that take one group from what it has to what it may have, each with its turn among those of all groups.

Restricting comes before growing: freeze, quota, cpuset; then cpuset, quota, thaw.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from rlctl.envs.errors import CgroupBusy
from rlctl.envs.host.cgroup.driver import FreezerDriver
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.nesting import fit_cpus, fit_quota
from rlctl.envs.host.cgroup.state import Seen, Settings

__all__ = ["Step", "Turn", "steps_of"]

HEAD_START_SECONDS = 0.025
"""How long a freeze may take before a tighter quota is written beneath it; most need less.

A task must run to reach the point where it stops, and one whose quota has run out does not run before the next period.
All groups together have this time; whether they are frozen or not, the quotas come next.
"""

PERIODS_TO_SETTLE = 2
MOST_THROTTLED_SECONDS = 0.75
"""A throttled task stops only in its next period: so much longer may its freeze take."""


class Turn(IntEnum):
    """When a step is taken: those of all groups in this order."""

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
        """Nothing else comes of such a write than what it has read back itself."""
        return self in _SETTLED

    @property
    def growing(self) -> bool:
        """It gives the group more."""
        return self in _GROWING


_SETTLED = frozenset({Turn.TIGHTEN_WEIGHT, Turn.TIGHTEN_QUOTA, Turn.WIDEN_QUOTA, Turn.WIDEN_WEIGHT})
_GROWING = frozenset({Turn.WIDEN_CPUS, Turn.WIDEN_QUOTA, Turn.WIDEN_WEIGHT, Turn.THAW})


@dataclass(frozen=True, slots=True)
class Step:
    """One write, or the wait for what comes of one.

    Attributes:
        turn: When.
        group: Of which group.
        run: Does it; raises the CgroupErrors of `Knobs`.
    """

    turn: Turn
    group: Group
    run: Callable[[], None]


def steps_of(group: Group, seen: Seen, wanted: Settings, settle_seconds: float) -> list[Step]:
    """What differs, as steps; none where nothing does.

    Args:
        group: The group.
        seen: What it reads back now.
        wanted: What it may have.
        settle_seconds: How long to wait for a freeze.
    """
    if seen.settings == wanted and (seen.frozen or not wanted.frozen):
        return []
    steps = []
    cpu, cpuset, freezer, now = group.cpu, group.cpuset, group.freezer, seen.settings
    quota, cpus, weight = wanted.quota, wanted.cpus, wanted.weight
    if cpu is not None and quota is not None and now.quota is not None and now.quota != quota:
        turn = Turn.WIDEN_QUOTA if quota.cpus > now.quota.cpus else Turn.TIGHTEN_QUOTA
        steps.append(Step(turn, group, lambda: fit_quota(cpu, quota)))
    if cpuset is not None and cpus is not None and now.cpus is not None and now.cpus != cpus:
        turn = Turn.WIDEN_CPUS if now.cpus and now.cpus < cpus else Turn.TIGHTEN_CPUS
        steps.append(Step(turn, group, lambda: fit_cpus(cpuset, cpus)))
    if cpu is not None and weight is not None and now.weight is not None and now.weight != weight:
        turn = Turn.WIDEN_WEIGHT if weight > now.weight else Turn.TIGHTEN_WEIGHT
        steps.append(Step(turn, group, lambda: cpu.set_weight(weight)))
    if freezer is not None and wanted.frozen is not None:
        steps += _freezer_steps(group, freezer, seen, wanted, settle_seconds)
    return steps


def _freezer_steps(
    group: Group, freezer: FreezerDriver, seen: Seen, wanted: Settings, settle_seconds: float
) -> list[Step]:
    quota, ordered = wanted.quota, seen.settings.frozen
    period_seconds = 0.0 if quota is None or quota.quota_us is None else quota.period_us * 1e-6
    patience_seconds = settle_seconds + min(PERIODS_TO_SETTLE * period_seconds, MOST_THROTTLED_SECONDS)
    if not wanted.frozen:
        thaw = Step(Turn.THAW, group, lambda: freezer.order(False))
        settle = Step(Turn.THAW, group, lambda: freezer.settle(False, settle_seconds))
        return [thaw, settle] if ordered else []
    steps = [] if ordered else [Step(Turn.FREEZE, group, lambda: freezer.order(True))]
    if not ordered:
        head_start_ends = time.monotonic() + HEAD_START_SECONDS
        steps.append(Step(Turn.HEAD_START, group, lambda: _wait_until(freezer, head_start_ends)))
    if not ordered or not seen.frozen:
        ends = time.monotonic() + HEAD_START_SECONDS + patience_seconds  # all groups together have this time
        steps.append(Step(Turn.SETTLE, group, lambda: freezer.settle(True, max(ends - time.monotonic(), 0.0))))
    return steps


def _wait_until(freezer: FreezerDriver, ends_seconds: float) -> None:
    """Give a freeze time until a moment of the monotonic clock; that it has not happened by then is no failure yet."""
    with contextlib.suppress(CgroupBusy):
        freezer.settle(True, max(ends_seconds - time.monotonic(), 0.0))
