"""Writes an Allocation to the BE groups of a live host, and says what is really in force."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupGone, ConfigError, RlctlError
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver
from rlctl.envs.host.cgroup.emergency import EmergencyPlan, emergency_plan
from rlctl.envs.host.cgroup.group import KNOBS, Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.members import RESTRICTING, Division, Members
from rlctl.envs.host.cgroup.ownership import Ownership
from rlctl.envs.host.cgroup.settings import GroupReading, PlanOutcome, Settings, WriteStep, carry_out, in_words, plan
from rlctl.envs.host.cgroup.v1 import CpusetV1
from rlctl.envs.host.cgroup.values import PERIOD_US, Quota, cpu_set
from rlctl.envs.host.cgroup.weights import effective_share, set_above
from rlctl.envs.workload import Weight

log = logging.getLogger(__name__)

# How long a freeze is waited for: far longer than it takes, unless a task sleeps in the kernel or gets no CPU.
SETTLE_SECONDS = 0.25

LATE = "is freezing, and one task has not stopped yet: it sleeps in the kernel or gets no CPU; no action needed"


class BeActuator:
    """The BE groups as one budget, which `Division` divides among them.

    Restricting comes before growing, see `settings`. Only settings that read back as something else are written, and a
    group whose restriction failed is not given more in the same call. What another program wrote is `Ownership`'s
    business; it can only restrict further. A group that runs elsewhere than on its CPUs is frozen. So is one that was
    removed from the hierarchy of a controller (v1) while BE may not have all of what that restricts. A host without a
    controller reports its knob as wide open. Once all groups have vanished every method raises CgroupGone.

    Args:
        groups: BE's groups, none within another. One that vanishes is left out from then on.
        order: CPUs, the safest for the LC first.
        limits: Range of allocations; `limits.cpus` of the order are used.
        knobs: Reads and writes, whatever the groups were opened with. Originals of quota, cpuset and freezer are
            journalled here and now, with one fsync, so that no tick pays for it. From then on groups are restricted
            even while the journal takes nothing.
        lc: The LC's group: its weight is "equal" (default the kernel's), and BE's is compared with it, see `weights`.
        ownership: Notices and answers what other programs write, and takes the events.

    Attributes:
        lc: As given; may be exchanged when another group takes its place.
        outweighed: Why the weight that was set for BE does not count against the LC's, and what to set; empty where it
            does.

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
        self._knobs = knobs
        self.lc = lc
        self.outweighed = ""
        self._settle_seconds = settle_seconds
        self._period_us = period_us
        self._order = tuple(order[: limits.cpus])
        self._division = Division(self._order, limits, period_us)
        self._weight: Weight | None = None
        self._reported_ceilings: set[tuple[Path, str]] = set()
        self._members = Members(knobs, self.ownership)
        self._members.take(groups)
        self._members.require_any()
        # From here on BE must not stay free because a disk is full: see `Knobs.in_memory`.
        knobs.in_memory = True

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups under control now."""
        return self._members.groups

    @property
    def order(self) -> tuple[int, ...]:
        """CPUs that BE may get, the safest for the LC first; without those that are offline, where v1 refuses them."""
        return self._division.order

    @property
    def controls(self) -> frozenset[str]:
        """Those of `KNOBS` that every group has."""
        return frozenset(knob for knob in KNOBS if all(getattr(group, knob) for group in self.groups))

    def read(self) -> Allocation:
        """What is in force now; a knob that cannot be read counts as wide open."""
        return self._in_force(self._members.look(self.groups))

    def plan(self, allocation: Allocation) -> list[WriteStep]:
        """The steps that `apply` would take now; nothing is written."""
        seen = self._members.look(self.groups)
        target = self.limits.clip(allocation)
        share = self._division.share(target.quota_cpus, len(seen))
        return plan(seen, self._targets(target, share, seen), self._settle_seconds)

    def apply(self, allocation: Allocation, *, new_tick: bool = True) -> Allocation:
        """Write what differs, read back, and return what is in force.

        One failed write does not keep the others from being tried. A freeze that takes longer than it is waited for is
        no failure: an event tells of it, and what is returned is not frozen.

        Args:
            new_tick: A tick has passed since the last call, as other programs' claims count them.

        Raises:
            CgroupGone: All groups have vanished.
            CgroupError: A write or a reading failed; the first one's error, with a note on the others.
            PermissionMissing: As above.
        """
        # Read, notice what others wrote, plan, write, read back.
        target = self.limits.clip(allocation)
        # Originals that no disk took are tried again at each tick.
        self._knobs.store()
        if new_tick:
            self.ownership.begin_tick()
            self._order_online()
        seen = self._members.look(self.groups)
        self._members.notice_others(
            seen, lambda group: self._division.safe_part(group, self._members.known[group], seen)
        )
        self._division.wanted_cpus = target.quota_cpus
        share = self._division.share(target.quota_cpus, len(seen))
        wanted = self._targets(target, share, seen)
        # A quota above an ancestor's has no effect: told once, or the operator looks for it in vain.
        self._report_ceilings(share, seen, wanted)
        steps = plan(seen, wanted, self._settle_seconds)
        outcome = carry_out(steps)
        # What counts is what the kernel says afterwards, not what was written.
        seen = self._read_back(seen, wanted, steps, outcome)
        _raise_first(outcome, [error for now in seen.values() for error in now.errors])
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
        # A group that was made anew has its predecessor's name and none of its limits.
        names = {group.name for group in groups}
        for old in [group for group in self.groups if group.name in names]:
            self._members.forget(old)
        # Journalled before anything is written: a kill in between leaves originals on the disk.
        fresh = self._members.take(groups)
        seen = self._members.look(fresh) if fresh else {}
        share = self._division.share(self.limits.min_quota_cpus, max(len(self.groups), 1))
        wanted = self._targets(self.limits.safe, share, seen)
        steps = plan(seen, wanted, self._settle_seconds)
        outcome = carry_out(steps)
        self._read_back(seen, wanted, steps, outcome)
        _raise_first(outcome, self._weigh([group for group in self.groups if group.name in names]))
        self.weigh_above()

    def set_weight(self, weight: Weight) -> None:
        """Set the CPU weight of every BE group against the LC's, and keep it so from now on.

        EQUAL is set whatever a group had; under the others one that has less, `cpu.idle`, keeps it.

        Raises:
            CgroupGone: All groups have vanished.
            CgroupError: A write failed, or there is no cpu.idle; the other groups were tried.
        """
        self._weight = weight
        _raise_first(PlanOutcome(), self._weigh(self.groups))
        self._members.require_any()
        self.weigh_above()

    @property
    def least_weight(self) -> bool:
        """Whether BE has the least weight there is, where it counts against the LC."""
        return self._weight is not None and self._weight.is_least and not self.outweighed

    def effective_share(self) -> float | None:
        """BE's share of a CPU that it and the LC both want, by their weights; None where that cannot be told.

        Of knobs that write nothing: the share that the weight would give it.
        """
        planned = self._weight if self._knobs.dry_run else None
        with contextlib.suppress(RlctlError):
            return effective_share(self.groups, self.lc, self._knobs, planned) if self.lc is not None else None
        return None

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
                for file in group.knob_files(*RESTRICTING):
                    self._knobs.rewrite(file)
                    written += 1
        return written

    def emergency_plan(self) -> EmergencyPlan:
        """The writes that take the groups of now to the safe allocation, for a process that knows no drivers.

        Raises:
            HostError: A group vanished meanwhile, or originals could not be journalled.
        """
        return emergency_plan(self.groups, self._division.order, self.limits, self._knobs, self._period_us)

    def weigh_above(self) -> None:
        """Have BE's weight count against the LC's, as far as that can be; told once where it cannot."""
        if self.lc is None or self._weight is None:
            return
        try:
            why = set_above(self.groups, self.lc, self._weight, self._knobs)
        except RlctlError as error:
            why = str(error)
        # The same reason is told once, not at every regrouping.
        if why and why != self.outweighed:
            log.warning("BE's CPU weight is void: %s", why)
        self.outweighed = why

    def _weigh(self, groups: Iterable[Group]) -> list[RlctlError]:
        """Give groups the weight that is wanted; the errors of those that do not have it now."""
        errors: list[RlctlError] = []
        lc = self.lc.cpu if self.lc is not None and self._weight is Weight.EQUAL else None
        for group in groups:
            # Weights are relative: "equal" is what the LC has, whatever that is (cgroup-v2.rst, "Weights").
            if (cpu := group.cpu) is None or self._weight is None or group not in self._members.known:
                continue
            try:
                native = cpu.weights[self._weight] if lc is None else lc.weight()
                native = self._set_weight(group, cpu, native)
            except CgroupGone as gone:
                self._members.drop(group, gone)
            except RlctlError as error:
                errors.append(error)
            else:
                member = self._members.known[group]
                member.weight = None if self._knobs.dry_run else native
                if member.left:  # what we wrote ourselves is no other program's
                    member.left = replace(member.left, weight=native)
        return errors

    def _set_weight(self, group: Group, cpu: CpuDriver, native: int) -> int:
        """Write a group's weight where it has another; the weight that it then has."""
        before = IDLE if cpu.idle() else cpu.weight()
        # Who asks for a low weight makes nobody freer than it was: an operator's cpu.idle stays, but not our own.
        if before == native or (before == IDLE and cpu.was_idle() and self._weight is not Weight.EQUAL):
            return before
        cpu.set_weight(native)
        if not self._knobs.dry_run:
            log.info("BE group %s: CPU weight %s, was %s", group.name, in_words(native), in_words(before))
        return native

    def _order_online(self) -> None:
        """Leave out what v1 took out of all groups as it went offline, and refuses until those above have it again."""
        order = self._order
        v1 = [group.cpuset for group in self.groups if isinstance(group.cpuset, CpusetV1)]
        try:
            for path in {cpuset.group.parent / cpuset.effective_file for cpuset in v1}:
                there = cpu_set(self._knobs.read(path), path)
                order = tuple(cpu for cpu in order if cpu in there)
        except RlctlError:  # a group vanished: the next look sees to it
            return
        if order and order != self.order:
            log.warning("the CPUs that BE may get are %s from now on", in_words(frozenset(order)))
            self._division.order = order
            for member in self._members.known.values():
                if member.left and member.left.cpus:  # the kernel took them, and no other program
                    member.left = replace(member.left, cpus=member.left.cpus & frozenset(order))

    def _targets(self, target: Allocation, share: Quota, seen: Mapping[Group, GroupReading]) -> dict[Group, Settings]:
        """What each group may have: its part of the target, within what other programs claim."""
        wanted = {}
        for group, now in seen.items():
            member = self._members.known[group]
            own = self.ownership.bound(group, self._division.part(target, share, group, member, now))
            # In v2 a group has its parent's CPUs when the two have none in common (cgroup-v2.rst, "cpuset.cpus"):
            # frozen it runs on none of them.
            outside = own.cpus and now.settings.cpus == own.cpus and not now.effective <= own.cpus
            if group.freezer and (outside or self._division.escapes(member, target)):
                own = replace(own, frozen=True)
            wanted[group] = own
        return wanted

    def _read_back(
        self,
        seen: dict[Group, GroupReading],
        wanted: Mapping[Group, Settings],
        steps: Sequence[WriteStep],
        outcome: PlanOutcome,
    ) -> dict[Group, GroupReading]:
        """What the groups have after some steps; remembers it, to know what other programs write from now on."""
        known, failed = self._members.known, outcome.failed_groups
        for group, gone in outcome.gone.items():
            self._members.drop(group, gone)
        # A quota or a weight is in force when its file reads back; of CPUs and freezes only the kernel's answer counts.
        unsure = {step.group for step in steps if not step.turn.settled or self._knobs.dry_run} | failed
        unsure |= self._reduced_groups() - seen.keys()  # what is left of one that was whole at the last look
        written = {step.group for step in steps if not seen[step.group].errors} - unsure
        seen |= {group: replace(seen[group], settings=wanted[group]) for group in written}
        if unsure:
            seen |= self._members.look(group for group in self.groups if group in unsure)
        seen = {group: now for group, now in seen.items() if group in known}
        for group, now in seen.items():
            late = group in outcome.late  # and so was not given more, whatever was wanted
            whole = group in wanted and not late and group not in failed
            known[group].left = wanted[group] if whole else now.settings
            if late and not known[group].late:
                self.ownership.events.tell("freeze-late", f"{group.name} {LATE}")
            known[group].late = late
        self._members.let_go()
        return seen

    def _in_force(self, seen: Mapping[Group, GroupReading]) -> Allocation:
        return self._division.in_force(seen, self._reduced_groups())

    def _reduced_groups(self) -> set[Group]:
        return {group for group, member in self._members.known.items() if member.lost is not None}

    def _report_ceilings(
        self, share: Quota, seen: Mapping[Group, GroupReading], wanted: Mapping[Group, Settings]
    ) -> None:
        """Report once that a group above is tighter than what BE could have; siblings are reported together."""
        # The tightest quota on the way to the root is enforced, and CPUs are those that all above have too.
        for group, now in seen.items():
            quota, cpus = wanted[group].quota, wanted[group].cpus
            if quota is not None and now.ceiling_cpus < share.cpus:
                self._report_ceiling(group, "quota", f"{now.ceiling_cpus:.4g} CPU")
            if cpus and now.effective and now.settings.cpus == cpus and now.effective != cpus:
                self._report_ceiling(group, "cpus", in_words(now.effective))

    def _report_ceiling(self, group: Group, knob: str, value: str) -> None:
        key = group.knob_files(knob)[0].parent.parent, f"{knob} {value}"
        if key not in self._reported_ceilings:
            self._reported_ceilings.add(key)
            self.ownership.events.tell(
                "tighter-parent", f"{group.name}: {key[1]} is in force, set above it in {key[0]}"
            )


def _raise_first(outcome: PlanOutcome, more: Sequence[RlctlError]) -> None:
    errors = [*(error for _, error in outcome.failed), *more]
    if errors:
        if len(errors) > 1:
            errors[0].add_note(f"and {len(errors) - 1} more: {errors[-1]}")
        raise errors[0]


def _check(groups: Sequence[Group], order: Sequence[int], limits: Limits) -> None:
    if not groups:
        raise ConfigError("no BE group is named: there is nothing to control")
    if len(set(order)) != len(order) or len(order) < limits.cpus:
        raise ConfigError(f"CPU order {list(order)}: {limits.cpus} different CPUs are needed")
    for group in groups:
        if group.cpu is None and group.cpuset is None and group.freezer is None:
            way_out = "on cgroup v1 set CPUAccounting=yes for a unit, or name another group"
            raise ConfigError(f"BE group {group.name} is in no hierarchy of cpu, cpuset or freezer: {way_out}")
    _check_apart(groups)


def _check_apart(groups: Sequence[Group]) -> None:
    # One budget would be divided twice: what limits the outer group limits the inner one as well.
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
