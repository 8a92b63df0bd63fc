"""Writes an Allocation to the BE groups of a live host, and says what is really in force."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import CgroupGone, ConfigError, RlctlError
from rlctl.envs.host.cgroup.emergency import EmergencyPlan, emergency_plan
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.ownership import Ownership
from rlctl.envs.host.cgroup.quota import PERIOD_US, Quota
from rlctl.envs.host.cgroup.state import Seen, Settings, in_words, see
from rlctl.envs.host.cgroup.steps import Step, Turn, steps_of
from rlctl.envs.workload import Weight

__all__ = ["BeActuator"]

SETTLE_SECONDS = 0.25
"""How long a freeze may take: far longer than it does, unless a task sleeps in the kernel."""

_RESTRICTING = ("quota", "cpus", "frozen")


class BeActuator:
    """The BE groups as one budget.

    The quota is divided evenly, each part rounded down, as PRM does. The cpuset is a prefix of the CPU order.
    Restricting comes before growing, see `steps`. Only settings that read back as something else are written, and a
    group whose restriction failed is not given more in the same call. What another program wrote is `ownership`'s
    business; it can only restrict further. A group that runs elsewhere than on its CPUs is frozen: in v2 it has its
    parent's when the parent has none of them. So is one that was removed from the hierarchy of a controller (v1) while
    BE may not have all of what that restricts. No part exceeds the quota of a group's ancestors: v1 would refuse it,
    and with it every larger allocation.

    What is in force is reported as the most that BE could use: the sum of the quotas, the shortest prefix of the CPU
    order that holds every CPU of every group, frozen only if all groups are. A host without a controller reports its
    knob as wide open. The quotas' rounding is not reported: a quota that is in force as asked is the quota asked for.

    Args:
        groups: BE's groups, none within another. One that vanishes is left out from then on.
        order: CPUs, the safest for the LC first.
        limits: Range of allocations; `limits.cpus` of the order are used.
        knobs: Reads and writes, whatever the groups were opened with. Originals of quota, cpuset and freezer are
            journalled here and now, with one fsync, so that no tick pays for it. From then on groups are restricted
            even while the journal takes nothing.
        lc: Whose weight is "equal"; default the kernel's default weight.
        settle_seconds: How long to wait for a freeze.
        period_us: Period of the quota.
        ownership: Notices and answers what other programs write, and takes the events.

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
        ownership: Ownership | None = None,
    ) -> None:
        _check(groups, order, limits)
        self.limits = limits
        self.ownership = ownership or Ownership()
        self._order = tuple(order[: limits.cpus])
        self._knobs = knobs
        self._lc = lc
        self._settle_seconds = settle_seconds
        self._period_us = period_us
        self._asked_cpus = UNLIMITED
        self._asked_weight: Weight | None = None
        self._identities: dict[Group, tuple[Identity, ...]] = {}
        self._weights: dict[Group, int] = {}
        self._left: dict[Group, Settings] = {}
        self._lost: dict[Group, frozenset[str]] = {}  # what a group was restricted by and is no more
        self._gone: list[Path] = []
        self._told_ceilings: set[tuple[Path, str]] = set()
        self._take(groups)
        if not self._identities:
            raise CgroupGone("all BE groups have vanished: has the best-effort work ended?")
        knobs.hold = True

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups under control now."""
        return tuple(self._identities)

    def controls(self, name: str) -> bool:
        """Whether a group of that name is under control."""
        return any(group.name == name for group in self._identities)

    def read(self) -> Allocation:
        """What is in force now; a knob that cannot be read counts as wide open.

        Raises:
            CgroupGone: All groups have vanished.
        """
        return self._in_force(self._look(self.groups))

    def apply(self, allocation: Allocation) -> Allocation:
        """Write what differs, read back, and return what is in force.

        One failed write does not keep the others from being tried.

        Raises:
            CgroupGone: All groups have vanished.
            CgroupError: A write or a reading failed; the first one's error, with a note on the others.
            PermissionMissing: As above.
        """
        target = self.limits.clip(allocation)
        self._knobs.store()
        self.ownership.begin_tick()
        seen = self._look(self.groups)
        self._compare(seen)
        self._asked_cpus = target.quota_cpus
        wanted = self._wanted(target, self._share(target.quota_cpus, len(seen)), seen)
        self._tell_ceilings(seen, wanted)
        seen, errors = self._carry_out(seen, wanted)
        errors += [error for one in seen.values() for error in one.errors]
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"and {len(errors) - 1} more: {errors[-1]}")
            raise errors[0]
        return self._in_force(seen)

    def adopt(self, groups: Sequence[Group]) -> None:
        """Take further groups under control: journalled, then put into the safe allocation; `apply` gives them a share.

        Args:
            groups: None within another or within one that is under control. One whose name is under control already
                takes its place.

        Raises:
            HostError: Their originals could not be journalled; they then are not under control.
            RlctlError: They are under control, but not all is safe yet; the next `apply` tries again.
        """
        names = {group.name for group in groups}
        for old in [group for group in self.groups if group.name in names]:
            self._forget(old)
        fresh = self._take(groups)
        seen = self._look(fresh) if fresh else {}
        least = Quota.of_cpus(self.limits.min_quota_cpus / max(len(self.groups), 1), self._period_us)
        _, errors = self._carry_out(seen, self._wanted(self.limits.safe, least, seen))
        if self._asked_weight is not None:
            errors += self._run([Step(Turn.TIGHTEN_WEIGHT, group, self._weigh(group)) for group in fresh])[0]
        if errors:
            raise errors[0]

    def set_weight(self, weight: Weight) -> None:
        """Set the CPU weight of every BE group against the LC's, and keep it so from now on.

        Raises:
            CgroupGone: All groups have vanished.
            CgroupError: A write failed; the others were tried.
        """
        self._asked_weight = weight
        errors, _ = self._run([Step(Turn.TIGHTEN_WEIGHT, group, self._weigh(group)) for group in self.groups])
        if errors:
            raise errors[0]
        if not self._identities:
            raise CgroupGone("all BE groups have vanished: has the best-effort work ended?")

    def rehearse(self) -> int:
        """Write to every knob the value that it has: `apply` writes only what differs, and must be able to then.

        Returns:
            How many files; those of groups that vanish meanwhile are left out.

        Raises:
            CgroupError: A file does not take it.
            PermissionMissing: A file may not be written.
        """
        written = 0
        for group in self.groups:
            with contextlib.suppress(CgroupGone):
                for file in group.knob_files(*_RESTRICTING):
                    self._knobs.rewrite(file)
                    written += 1
        return written

    def emergency_plan(self) -> EmergencyPlan:
        """What takes the groups of now to the safe allocation, for a process that knows no drivers.

        Raises:
            HostError: A group vanished meanwhile, or originals could not be journalled.
        """
        return emergency_plan(self.groups, self._order, self.limits, self._knobs, self._period_us)

    def _weigh(self, group: Group) -> Callable[[], None]:
        def run() -> None:
            cpu, weight = group.cpu, self._asked_weight
            if cpu is None or weight is None:
                return
            equal_to = self._lc.cpu if self._lc is not None and weight is Weight.EQUAL else None
            native = cpu.native_weight(weight) if equal_to is None else equal_to.weight()
            if cpu.weight() != native or cpu.idle():
                cpu.set_weight(native)
            self._weights[group] = native
            if group in self._left:  # ours, not another program's
                self._left[group] = replace(self._left[group], weight=native)

        return run

    def _take(self, groups: Iterable[Group]) -> list[Group]:
        """Journal the groups that exist, with one fsync; from then on they are under control."""
        fresh: dict[Group, tuple[Identity, ...]] = {}
        for group in (group.using(self._knobs) for group in groups):
            with contextlib.suppress(CgroupGone):
                fresh[group] = group.identity()
        self._knobs.remember(path for group in fresh for path in group.knob_files(*_RESTRICTING))
        self._identities |= fresh
        for group in fresh:
            self.ownership.watch(group)
        return list(fresh)

    def _look(self, groups: Iterable[Group]) -> dict[Group, Seen]:
        """Read groups; forget those that vanished."""
        seen: dict[Group, Seen] = {}
        ceilings: dict[Path, float] = {}
        for group in groups:
            try:
                seen[group] = see(group, weighed=group in self._weights, ceilings=ceilings)
            except CgroupGone as gone:
                if rest := self._drop(group, gone):
                    seen |= self._look([rest])
        if not self._identities:
            raise CgroupGone("all BE groups have vanished: has the best-effort work ended?")
        return seen

    def _compare(self, seen: dict[Group, Seen]) -> None:
        """Whatever differs from what we left was written by somebody else, or belongs to another group of that name."""
        for group, left in tuple(self._left.items()):
            found = seen[group].settings
            if self._knobs.dry_run or not left.changes(found) or self._is_safe(group, seen):
                continue
            try:
                if self._replaced(group):
                    self.ownership.events.tell("group-replaced", f"BE group {group.name} was removed and made anew")
                else:
                    self.ownership.compare(group, left, found)
            except RlctlError as error:  # it vanished at this moment, or its originals cannot be journalled
                self._drop(group, error)
                del seen[group]
        if not self._identities:
            raise CgroupGone("all BE groups have vanished: has the best-effort work ended?")

    def _is_safe(self, group: Group, seen: Mapping[Group, Seen]) -> bool:
        """It is as our own watchdog leaves it, when this process hung for a while: nobody else's claim."""
        safe, found = self.limits.safe, seen[group].settings
        own = self._own(safe, self._share(safe.quota_cpus, len(seen)), group, seen[group])
        if found.quota is not None and found.quota.cpus <= safe.quota_cpus:  # shared out when BE had other groups
            own = replace(own, quota=found.quota)
        return not own.changes(found)

    def _replaced(self, group: Group) -> bool:
        """Another group has taken the name and is ours from now on; its own originals are journalled."""
        before, now = self._identities[group], group.identity()
        if now == before:
            return False
        self.ownership.forget(group)
        self._identities[group] = now
        self._knobs.remember(group.knob_files(*_RESTRICTING))
        self.ownership.watch(group)
        return True

    def _own(self, target: Allocation, share: Quota, group: Group, one: Seen) -> Settings:
        """A group's part of the target, below its ancestors."""
        quota = share
        if one.ceiling_cpus < share.cpus < UNLIMITED:
            quota = Quota.of_cpus(one.ceiling_cpus, self._period_us)
        return Settings(
            quota if group.cpu else None,
            frozenset(self._order[: target.cpuset_cpus]) if group.cpuset else None,
            target.frozen if group.freezer else None,
            self._weights.get(group),
        )

    def _wanted(self, target: Allocation, share: Quota, seen: Mapping[Group, Seen]) -> dict[Group, Settings]:
        """What each group may have: its part of the target, below its ancestors and what other programs claim."""
        wanted = {}
        for group, one in seen.items():
            wanted[group] = own = self.ownership.bound(group, self._own(target, share, group, one))
            outside = own.cpus and one.settings.cpus == own.cpus and not one.effective <= own.cpus
            if group.freezer and (outside or self._exceeds(group, target)):
                wanted[group] = replace(own, frozen=True)
        return wanted

    def _exceeds(self, group: Group, target: Allocation) -> bool:
        """Nothing holds the group to the target any more."""
        lost, full = self._lost.get(group, frozenset()), self.limits
        return ("quota" in lost and target.quota_cpus < full.cpus) or (
            "cpus" in lost and target.cpuset_cpus < full.cpus
        )

    def _carry_out(
        self, seen: dict[Group, Seen], wanted: Mapping[Group, Settings]
    ) -> tuple[dict[Group, Seen], list[RlctlError]]:
        """Write what differs; what is there afterwards, and what went wrong."""
        steps = [
            step for group, one in seen.items() for step in steps_of(group, one, wanted[group], self._settle_seconds)
        ]
        errors, failed = self._run(sorted(steps, key=lambda step: step.turn))
        unsure = {step.group for step in steps if not step.turn.settled or self._knobs.dry_run} | failed
        unsure |= self._lost.keys() - seen.keys()  # what is left of a group that was whole when it was last looked at
        written = {step.group for step in steps if not seen[step.group].errors} - unsure
        seen |= {group: replace(seen[group], settings=wanted[group]) for group in written}
        if unsure:
            seen |= self._look(group for group in self.groups if group in unsure)
        seen = {group: one for group, one in seen.items() if group in self._identities}
        for group, one in seen.items():
            self._left[group] = wanted[group] if group in wanted.keys() - failed else one.settings
        self._let_go()
        return seen, errors

    def _run(self, steps: Sequence[Step]) -> tuple[list[RlctlError], set[Group]]:
        """Take steps in their order; the errors, and the groups that they befell."""
        errors: list[RlctlError] = []
        failed: set[Group] = set()
        for step in steps:
            if step.group not in self._identities or (step.turn.growing and step.group in failed):
                continue
            try:
                step.run()
            except CgroupGone as gone:
                self._drop(step.group, gone)
            except RlctlError as error:
                errors.append(error)
                failed.add(step.group)
        return errors, failed

    def _in_force(self, seen: Mapping[Group, Seen]) -> Allocation:
        """Of groups that only their freeze restricts none counts while it is in force."""
        held = [one for group, one in seen.items() if not (one.frozen and group in self._lost)]
        if not held:
            return self.limits.safe
        highest = max(self._prefix(one.effective) for one in held)
        return Allocation(self._quota_cpus(held, len(seen)), highest, all(one.frozen for one in held))

    def _quota_cpus(self, seen: Sequence[Seen], groups: int) -> float:
        share = self._share(self._asked_cpus, groups)
        if all(one.settings.quota == share and share.cpus <= one.ceiling_cpus for one in seen):
            return self._asked_cpus
        own = (UNLIMITED if one.settings.quota is None else one.settings.quota.cpus for one in seen)
        return sum(min(cpus, one.ceiling_cpus) for cpus, one in zip(own, seen, strict=True))

    def _prefix(self, effective: frozenset[int]) -> int:
        if not effective or not effective <= frozenset(self._order):
            return len(self._order)
        return 1 + max(self._order.index(cpu) for cpu in effective)

    def _share(self, quota_cpus: float, groups: int) -> Quota:
        return Quota.of_cpus(quota_cpus / groups, self._period_us)

    def _tell_ceilings(self, seen: Mapping[Group, Seen], wanted: Mapping[Group, Settings]) -> None:
        """Say once that a group above is tighter than what BE could have; siblings are told of together."""
        for group, one in seen.items():
            quota, cpus = wanted[group].quota, wanted[group].cpus
            if quota is not None and one.ceiling_cpus < self._share(self._asked_cpus, len(seen)).cpus:
                self._tell_ceiling(group, "quota", f"{one.ceiling_cpus:.4g} CPU")
            if cpus and one.effective and one.settings.cpus == cpus and one.effective != cpus:
                self._tell_ceiling(group, "cpus", in_words(one.effective))

    def _tell_ceiling(self, group: Group, knob: str, value: str) -> None:
        key = group.knob_files(knob)[0].parent.parent, f"{knob} {value}"
        if key not in self._told_ceilings:
            self._told_ceilings.add(key)
            self.ownership.events.tell(
                "tighter-parent", f"{group.name}: {key[1]} is in force, set above it in {key[0]}"
            )

    def _drop(self, group: Group, why: RlctlError) -> Group | None:
        """Go on without a group, or with what is left of it, which is returned."""
        if group not in self._identities:
            return None
        left, weight, lost = group.rest(), self._weights.get(group), self._lost.get(group, frozenset())
        self._forget(group)
        if not (taken := self._take([left] if left else [])):
            self.ownership.events.tell("group-vanished", f"BE group {group.name} is left out: {why}")
            return None
        (rest,) = taken
        gone = {knob for knob in _RESTRICTING if group.knob_files(knob) and not rest.knob_files(knob)}
        self._lost[rest] = lost | gone
        if weight is not None and rest.cpu:
            self._weights[rest] = weight
        what = f"without {' and '.join(sorted(gone))} from now on"
        self.ownership.events.tell("group-reduced", f"BE group {group.name} was removed from a hierarchy: {what}")
        return rest

    def _forget(self, group: Group) -> None:
        for known in (self._identities, self._weights, self._left, self._lost):
            known.pop(group, None)
        self.ownership.forget(group)
        self._gone += group.directories

    def _let_go(self) -> None:
        """Forget files and originals of groups that are gone; together, as it takes a look at all that are kept."""
        gone, self._gone = self._gone, []
        if gone:
            self._knobs.forget(gone)


def _check(groups: Sequence[Group], order: Sequence[int], limits: Limits) -> None:
    if not groups:
        raise ConfigError("no BE group is named: there is nothing to control")
    if len(set(order)) != len(order) or len(order) < limits.cpus:
        raise ConfigError(f"CPU order {list(order)}: {limits.cpus} different CPUs are needed")
    for group in groups:
        if group.cpu is None and group.cpuset is None and group.freezer is None:
            raise ConfigError(f"BE group {group.name}: no controller of this host can restrict it")
    _check_apart(groups)


def _check_apart(groups: Sequence[Group]) -> None:
    owners: dict[Path, Group] = {}
    for group in groups:
        for path in group.directories:
            if path in owners:
                raise ConfigError(f"BE group {group.name} is named twice")
            owners[path] = group
    for path, inner in owners.items():
        for above in path.parents:
            if above in owners:
                raise ConfigError(f"BE group {inner.name} lies within {owners[above].name}: name only the outer one")
