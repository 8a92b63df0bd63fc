"""Writes an Allocation to the BE groups of a live host, and says what is really in force."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import CgroupBusy, CgroupGone, ConfigError, RlctlError
from rlctl.envs.host.cgroup.driver import FreezerDriver
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.nesting import fit_cpus, fit_quota
from rlctl.envs.host.cgroup.quota import PERIOD_US, Quota
from rlctl.envs.workload import Weight

__all__ = ["BeActuator"]

SETTLE_SECONDS = 0.25
"""How long a freeze may take. Measured: 0.4-7 ms, p95 24 ms; longer means a task that sleeps in the kernel."""

HEAD_START_SECONDS = 0.025
"""How long a freeze, p95 24 ms, may take before a tighter quota is written beneath it.

A task must run to reach the point where it stops, and one whose quota has run out does not run before the next period.
All groups together have this time; whether they are frozen or not, the quotas come next.
"""

PERIODS_TO_SETTLE = 2
MOST_THROTTLED_SECONDS = 0.75
"""A throttled task stops only in its next period: so much longer may its freeze take."""

T = TypeVar("T")

_log = logging.getLogger(__name__)

FREEZE, HEAD_START, TIGHTEN_QUOTA, TIGHTEN_CPUS, SETTLE, WIDEN_CPUS, WIDEN_QUOTA, THAW = range(8)
_GROWING = (WIDEN_CPUS, WIDEN_QUOTA, THAW)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one group reads back: its own settings, and what comes of them below its ancestors."""

    quota: Quota | None
    cpus: frozenset[int] | None
    ordered: bool
    ceiling_cpus: float
    effective: frozenset[int]
    frozen: bool
    errors: tuple[RlctlError, ...] = ()

    @property
    def settings(self) -> tuple[Quota | None, frozenset[int] | None, bool]:
        return self.quota, self.cpus, self.ordered


@dataclass(frozen=True, slots=True)
class _Step:
    turn: int
    group: Group
    run: Callable[[], None]


class BeActuator:
    """The BE groups as one budget.

    The quota is divided evenly, each part rounded down, as PRM does. The cpuset is a prefix of the CPU order.
    Restricting comes before growing: freeze, quota, cpuset; then cpuset, quota, thaw. Only settings that read back as
    something else are written, and a group whose restriction failed is not given more in the same call.

    What is in force is reported as the most that BE could use: the sum of the quotas, the shortest prefix of the CPU
    order that holds every CPU of every group, frozen only if all groups are. A host without a controller reports its
    knob as wide open. The quotas' rounding is not reported: a quota that is in force as asked is the quota asked for.

    Args:
        groups: BE's groups, none within another. One that vanishes is left out from then on.
        order: CPUs, the safest for the LC first.
        limits: Range of allocations; `limits.cpus` of the order are used.
        knobs: Reads and writes, whatever the groups were opened with. Originals of quota, cpuset and freezer are
            journalled here and now, with one fsync, so that no tick pays for it.
        lc: Whose weight is "equal"; default the kernel's default weight.
        settle_seconds: How long to wait for a freeze.
        period_us: Period of the quota.

    Raises:
        ConfigError: No groups, groups within groups, or an order that does not fit the limits.
        CgroupGone: None of the groups exists.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        order: Sequence[int],
        limits: Limits,
        knobs: Knobs,
        lc: Group | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        period_us: int = PERIOD_US,
    ) -> None:
        _check(groups, order, limits)
        self.limits = limits
        self.foreign_writes = 0
        self._groups = [group.using(knobs) for group in groups]
        self._order = tuple(order[: limits.cpus])
        self._knobs = knobs
        self._lc = lc
        self._settle_seconds = settle_seconds
        self._period_us = period_us
        self._asked_cpus = UNLIMITED
        self._left: dict[Group, _Seen] = {}
        self._look()
        knobs.remember(path for group in self._groups for path in _files(group))

    def read(self) -> Allocation:
        """What is in force now; a knob that cannot be read counts as wide open.

        Raises:
            CgroupGone: All groups have vanished.
        """
        return self._in_force(self._look())

    def apply(self, allocation: Allocation) -> Allocation:
        """Write what differs, read back, and return what is in force.

        One failed write does not keep the others from being tried.

        Raises:
            CgroupGone: All groups have vanished.
            CgroupError: A write or a reading failed; the first one's error, with a note on the others.
            PermissionMissing: As above.
        """
        target = self.limits.clip(allocation)
        seen = self._look()
        self._note_foreign(seen)
        self._asked_cpus = target.quota_cpus
        steps = self._plan(target, seen)
        errors = self._run(steps)
        self._left = self._look() if steps else seen
        errors += [error for one in self._left.values() for error in one.errors]
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"and {len(errors) - 1} more: {errors[-1]}")
            raise errors[0]
        return self._in_force(self._left)

    def set_weight(self, weight: Weight) -> None:
        """Set the CPU weight of every BE group against the LC's.

        Raises:
            CgroupGone: All groups have vanished.
            CgroupError: A write failed; the others were tried.
        """
        errors = self._run([_Step(FREEZE, group, self._weigh(group, weight)) for group in self._groups])
        if errors:
            raise errors[0]
        if not self._groups:
            raise CgroupGone("all BE groups have vanished")

    def _weigh(self, group: Group, weight: Weight) -> Callable[[], None]:
        def run() -> None:
            if group.cpu is None:
                return
            equal_to = self._lc.cpu if self._lc is not None and weight is Weight.EQUAL else None
            native = group.cpu.native_weight(weight) if equal_to is None else equal_to.weight()
            if group.cpu.weight() != native or group.cpu.idle():
                group.cpu.set_weight(native)

        return run

    def _look(self) -> dict[Group, _Seen]:
        """Read every group; forget those that vanished."""
        seen = {}
        for group in tuple(self._groups):
            try:
                seen[group] = _see(group)
            except CgroupGone as gone:
                self._drop(group, gone)
        if not seen:
            raise CgroupGone("all BE groups have vanished")
        return seen

    def _plan(self, target: Allocation, seen: dict[Group, _Seen]) -> list[_Step]:
        share = self._share(target.quota_cpus, len(seen))
        cpus = frozenset(self._order[: target.cpuset_cpus])
        steps = [step for group, one in seen.items() for step in self._steps(group, one, share, cpus, target.frozen)]
        return sorted(steps, key=lambda step: step.turn)

    def _steps(self, group: Group, seen: _Seen, share: Quota, cpus: frozenset[int], frozen: bool) -> list[_Step]:
        steps = []
        cpu, cpuset, freezer = group.cpu, group.cpuset, group.freezer
        if cpu is not None and seen.quota is not None and not seen.quota.same(share):
            turn = WIDEN_QUOTA if share.cpus > seen.quota.cpus else TIGHTEN_QUOTA
            steps.append(_Step(turn, group, lambda: fit_quota(cpu, share)))
        if cpuset is not None and seen.cpus is not None and seen.cpus != cpus:
            turn = WIDEN_CPUS if seen.cpus and seen.cpus < cpus else TIGHTEN_CPUS
            steps.append(_Step(turn, group, lambda: fit_cpus(cpuset, cpus)))
        if freezer is not None:
            period_seconds = 0.0 if cpu is None or share.quota_us is None else share.period_us * 1e-6
            steps += self._freezer_steps(group, freezer, seen, frozen, period_seconds)
        return steps

    def _freezer_steps(
        self, group: Group, freezer: FreezerDriver, seen: _Seen, frozen: bool, period_seconds: float
    ) -> list[_Step]:
        patience_seconds = self._settle_seconds + min(PERIODS_TO_SETTLE * period_seconds, MOST_THROTTLED_SECONDS)
        if not frozen:
            thaw = _Step(THAW, group, lambda: freezer.order(False))
            settle = _Step(THAW, group, lambda: freezer.settle(False, self._settle_seconds))
            return [thaw, settle] if seen.ordered else []
        steps = [] if seen.ordered else [_Step(FREEZE, group, lambda: freezer.order(True))]
        if not seen.ordered:
            head_start_ends = time.monotonic() + HEAD_START_SECONDS
            steps.append(_Step(HEAD_START, group, lambda: _wait_until(freezer, head_start_ends)))
        if not seen.ordered or not seen.frozen:
            steps.append(_Step(SETTLE, group, lambda: freezer.settle(True, patience_seconds)))
        return steps

    def _run(self, steps: Sequence[_Step]) -> list[RlctlError]:
        errors: list[RlctlError] = []
        failed: set[Group] = set()
        for step in steps:
            if step.group not in self._groups or (step.turn in _GROWING and step.group in failed):
                continue
            try:
                step.run()
            except CgroupGone as gone:
                self._drop(step.group, gone)
            except RlctlError as error:
                errors.append(error)
                failed.add(step.group)
        return errors

    def _in_force(self, seen: dict[Group, _Seen]) -> Allocation:
        highest = [self._prefix(one.effective) for one in seen.values()]
        return Allocation(self._quota_cpus(seen), max(highest), all(one.frozen for one in seen.values()))

    def _quota_cpus(self, seen: dict[Group, _Seen]) -> float:
        share = self._share(self._asked_cpus, len(seen))
        if all(
            one.quota is not None and one.quota.same(share) and share.cpus <= one.ceiling_cpus for one in seen.values()
        ):
            return self._asked_cpus
        own = (UNLIMITED if one.quota is None else one.quota.cpus for one in seen.values())
        return sum(min(cpus, one.ceiling_cpus) for cpus, one in zip(own, seen.values(), strict=True))

    def _prefix(self, effective: frozenset[int]) -> int:
        if not effective or not effective <= frozenset(self._order):
            return len(self._order)
        return 1 + max(self._order.index(cpu) for cpu in effective)

    def _share(self, quota_cpus: float, groups: int) -> Quota:
        return Quota.of_cpus(quota_cpus / groups, self._period_us)

    def _note_foreign(self, seen: dict[Group, _Seen]) -> None:
        """Somebody else writes our knobs: kubelet and systemd reset quotas every so often (koordinator #1734)."""
        for group, one in seen.items():
            if group in self._left and self._left[group].settings != one.settings and not self._knobs.dry_run:
                self.foreign_writes += 1
                _log.warning(
                    "%s: another program changed %s to %s", group.name, self._left[group].settings, one.settings
                )

    def _drop(self, group: Group, gone: CgroupGone) -> None:
        _log.warning("BE group %s has vanished: %s", group.name, gone)
        with contextlib.suppress(ValueError):
            self._groups.remove(group)


def _see(group: Group) -> _Seen:
    """Read one group. What cannot be read is taken for wide open, so that one lost controller stops no freeze."""
    cpu, cpuset, freezer = group.cpu, group.cpuset, group.freezer
    errors: list[RlctlError] = []
    return _Seen(
        quota=_or_open(errors, None, cpu.quota if cpu else None),
        cpus=_or_open(errors, None, cpuset.cpus if cpuset else None),
        ordered=_or_open(errors, False, freezer.ordered if freezer else None),
        ceiling_cpus=_or_open(errors, UNLIMITED, cpu.ceiling_cpus if cpu else None),
        effective=_or_open(errors, frozenset(), cpuset.effective if cpuset else None),
        frozen=_or_open(errors, False, freezer.frozen if freezer else None),
        errors=tuple(errors),
    )


def _wait_until(freezer: FreezerDriver, ends_seconds: float) -> None:
    """Give a freeze time until a moment of the monotonic clock; that it has not happened by then is no failure yet."""
    with contextlib.suppress(CgroupBusy):
        freezer.settle(True, max(ends_seconds - time.monotonic(), 0.0))


def _or_open(errors: list[RlctlError], wide_open: T, read: Callable[[], T] | None) -> T:
    try:
        return wide_open if read is None else read()
    except CgroupGone:
        raise
    except RlctlError as error:
        errors.append(error)
        return wide_open


def _files(group: Group) -> tuple[Path, ...]:
    return (
        *(group.cpu.quota_files if group.cpu else ()),
        *(group.cpuset.cpus_files if group.cpuset else ()),
        *(group.freezer.freezer_files if group.freezer else ()),
    )


def _check(groups: Sequence[Group], order: Sequence[int], limits: Limits) -> None:
    if not groups:
        raise ConfigError("no BE group is named: there is nothing to control")
    if len(set(order)) != len(order) or len(order) < limits.cpus:
        raise ConfigError(f"CPU order {list(order)}: {limits.cpus} different CPUs are needed")
    for group in groups:
        if group.cpu is None and group.cpuset is None and group.freezer is None:
            raise ConfigError(f"BE group {group.name}: no controller of this host can restrict it")
    directories = [(group, path) for group in groups for path in group.directories]
    for inner, path in directories:
        for outer, above in directories:
            if inner is not outer and (path == above or above in path.parents):
                raise ConfigError(f"BE group {inner.name} lies within {outer.name}: name only the outer one")
