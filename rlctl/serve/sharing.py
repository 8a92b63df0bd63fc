"""Divides BE's budget among the applications: whoever sets the budget, the allocator says who gets how much of it.

What BE may have as a whole stands in BE's own group, and is not written here. Applications are groups below that one,
so nothing that goes wrong here can make BE freer than the verdict: at worst the division is an old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rlctl.agents.allocator import allocate, stretch_placements
from rlctl.envs.allocation import Allocation
from rlctl.envs.applications import Application, CpuCluster, Placement
from rlctl.envs.errors import CgroupGone, ConfigError, RlctlError
from rlctl.envs.host.apps.population import PERIOD_SECONDS, Member, Population
from rlctl.envs.host.apps.registry import Registry, mode_line
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.cgroup.settings import Turn, WriteStep, carry_out, see
from rlctl.envs.host.cgroup.values import PERIOD_US, Quota
from rlctl.envs.host.events import Events
from rlctl.envs.host.resources.memory import set_memory

WORTH_WRITING_RATIO = 0.05
"""A smaller change of its CPU time alone is not told to an application: a policy moves the budget every tick."""

LEAST_CPUS = 1e-3
"""The least that the kernel takes as a quota, for a deferred application that no hierarchy can freeze."""


@dataclass(frozen=True, slots=True)
class SharingRules:
    """How a budget is shared.

    Attributes:
        leftover: `share` gives what the allocator leaves to those that are placed, `idle` leaves it.
        period_seconds: They are placed anew at least so often, though nothing has changed.
        quota_period_us: Period of the quotas that are written, in microseconds.
    """

    leftover: str = "share"
    period_seconds: float = PERIOD_SECONDS
    quota_period_us: int = PERIOD_US


class Sharing:
    """The applications below one group, and their shares of its budget.

    Call `share` once per tick, after the budget was written to the group. Applications register themselves, see
    `rlctl.envs.host.apps.launch`; a child group that nobody registered is an application of one mode. What each of them
    may have is written to its group: quota, CPUs of its cluster, memory, and the freezer for one that is deferred.

    Args:
        clusters: At least one. Where the group has a child group for each, applications live in these and are moved
            between them. Else they all live in the group itself and are told apart by their cpusets.
        parent: BE's group. Its quota and CPUs bound all shares, whatever `share` is told.
        knobs: Reads and writes. With a journal, `restore` puts back every child group's originals.
        clock: Monotonic seconds, for periods and for how long an application has run.

    Raises:
        ConfigError: No cluster.
    """

    def __init__(
        self,
        clusters: Sequence[CpuCluster],
        parent: Group,
        knobs: Knobs,
        *,
        registry: Registry | None = None,
        rules: SharingRules | None = None,
        events: Events | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not clusters:
            raise ConfigError("a budget is shared among the applications of at least one cluster")
        # None stands for a deferred application.
        self.shares: Mapping[str, Placement | None] = {}
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._parent, self._knobs = parent.using(knobs), knobs
        self._registry = registry or Registry()
        self._events = events or Events()
        self._groups = _cluster_groups(clusters, self._parent, knobs)
        self._population = Population(
            self._parent, tuple(self._groups), self._registry, knobs, self._events, clock=clock
        )  # fmt: skip
        self._rules = rules or SharingRules()
        self._clock = clock
        self._placed: dict[str, Placement] = {}
        # Time since which each application has run, or has been deferred.
        self._since: dict[str, float] = {}
        self._written: dict[str, Placement] = {}
        self._settled: object = None
        self._next_seconds = float("-inf")
        self._regrouped = False

    @property
    def applications(self) -> tuple[Application, ...]:
        """Who is there, as last seen, each with the placement in force."""
        now = self._clock()
        return tuple(
            Application(name, one.modes, one.priority, 0.0, self._placed.get(name), now - since, one.bound_to)
            for name, one in self._population.members.items()
            for since in (self._since.get(name, now),)
        )

    def look(self) -> None:
        """See who came and who left, and journal newcomers' originals before anybody touches them."""
        if self._population.look():
            self._regrouped = True
            # A newcomer may ask for the same as the one that left: ask the allocator anew.
            if self._population.left:
                self._settled = None
            names = self._population.members.keys() - self._population.left
            self._placed = {name: one for name, one in self._placed.items() if name in names}
            since = {name: one for name, one in self._since.items() if name in names}
            self._since = dict.fromkeys(self._population.members, self._clock()) | since
            self._written = {name: one for name, one in self._written.items() if name in names}

    def share(self, budget: Allocation) -> Mapping[str, Placement]:
        """Divide a budget that is in force, as far as it or the applications are others than at the last call.

        While it is frozen nobody runs, and all stays as it is. An application without a placement is deferred, which is
        to say frozen until there is room.
        """
        self.look()
        # Freezing acts on BE's own group and reaches all below it: there is nothing to divide.
        if not budget.frozen:
            self._place(*self._room(budget))
            self._carry_out()
            self._write_modes()
        self.shares = {name: self._placed.get(name) for name in self._population.members}
        return dict(self._placed)

    def pop_regrouped(self) -> bool:
        """Whether other child groups are there, or have quotas, than at the last call: what the watchdog must know."""
        regrouped, self._regrouped = self._regrouped, False
        return regrouped

    def _room(self, budget: Allocation) -> tuple[float, tuple[CpuCluster, ...]]:
        """What there is to divide: CPU time, and the clusters as far as BE may have their CPUs."""
        parent = self._parent
        # The kernel holds a group to the least quota on its path: to divide more would promise what nobody gets.
        ceiling = min(parent.cpu.quota().cpus, parent.cpu.ceiling_cpus()) if parent.cpu else budget.quota_cpus
        allowed = parent.cpuset.effective() if parent.cpuset else None
        clusters = []
        for cluster in self._clusters.values():
            if cpus := cluster.cpus if allowed is None else cluster.cpus & allowed:
                group = self._groups.get(cluster.name)
                own = group.cpu.quota().cpus if group and group.cpu else cluster.quota_cpus
                quota = min(cluster.quota_cpus, float(len(cpus)), own)
                clusters.append(replace(cluster, cpus=cpus, quota_cpus=quota))
        total = sum(cluster.quota_cpus for cluster in clusters)
        return min(budget.quota_cpus, ceiling, total), tuple(clusters)

    def _place(self, cpus: float, clusters: tuple[CpuCluster, ...]) -> None:
        """Ask the allocator, if anything is other than when it was last asked."""
        applications = self.applications
        question = cpus, clusters, [(one.name, one.modes, one.priority) for one in applications]
        if question == self._settled and self._clock() < self._next_seconds:
            return
        placed: Mapping[str, Placement] = {}
        if clusters and applications:
            placed = allocate(applications, clusters, cpus)
            if self._rules.leftover == "share":
                placed = stretch_placements(placed, applications, clusters, cpus)
        now = self._clock()
        self._since |= {one.name: now for one in applications if (one.name in placed) != (one.name in self._placed)}
        self._placed = dict(placed)
        self._settled, self._next_seconds = question, now + self._rules.period_seconds

    def _carry_out(self) -> None:
        """Write what differs: what restricts comes first, and nobody is thawed before all is as it should be."""
        self._move()
        members, steps = self._population.members, list[WriteStep]()
        for name, member in members.items():
            try:
                steps += self._steps(member, self._placed.get(name))
            except CgroupGone:
                # The group has gone; the next look drops it.
                continue
            except RlctlError as error:
                self._population.refuse(name, str(error))
        # Restrict before widening: at no moment do the shares add up to more than the budget.
        outcome = carry_out(sorted((step for step in steps if step.turn is not Turn.THAW), key=lambda step: step.turn))
        for name, placement in self._placed.items():
            self._limit_memory(members[name], placement)
        # Not where a restriction failed: that application stays frozen until it holds.
        thaws = [step for step in steps if step.turn is Turn.THAW and step.group not in outcome.failed_groups]
        for step, failure in (*outcome.failed, *carry_out(thaws).failed):
            name = next(name for name, member in members.items() if member.group == step.group)
            self._population.refuse(name, str(failure))

    def _move(self) -> None:
        for name, placement in tuple(self._placed.items()):
            member = self._population.members[name]
            if not member.cluster or member.cluster == placement.cluster:
                continue
            if self._population.move(member, placement.cluster):
                self._regrouped = True
            else:
                self._placed[name] = replace(placement, cluster=member.cluster)

    def _steps(self, member: Member, placement: Placement | None) -> list[WriteStep]:
        """Writes to an application's group that take it to its placement; to none: it is frozen, or hardly runs."""
        group, seen = member.group, see(member.group, weighed=False, ceilings={})
        now = seen.settings
        if placement is None and group.freezer:
            if now.frozen:
                return []
            member.deferred = True
            return [WriteStep(Turn.FREEZE, group, "frozen", True)]
        member.deferred = member.deferred and bool(now.frozen)
        steps = []
        if group.cpu and now.quota is not None:
            most = min(placement.cpus if placement else LEAST_CPUS, group.cpu.originally().cpus)
            quota = Quota.of_cpus(most, self._rules.quota_period_us)
            self._regrouped |= not member.limited
            member.limited = True
            if now.quota != quota:
                turn = Turn.WIDEN_QUOTA if quota.cpus > now.quota.cpus else Turn.TIGHTEN_QUOTA
                steps.append(WriteStep(turn, group, "quota", quota))
        if placement and group.cpuset:
            cluster = self._clusters[placement.cluster].cpus & group.cpuset.available()
            if cluster and seen.effective != (cpus := (cluster & group.cpuset.originally()) or cluster):
                steps.append(WriteStep(Turn.TIGHTEN_CPUS, group, "cpus", cpus))
        if member.deferred:  # not where its owner froze it
            steps.append(WriteStep(Turn.THAW, group, "frozen", False))
        return steps

    def _limit_memory(self, member: Member, placement: Placement) -> None:
        """Slow down and reclaim beyond it, never kill: a mode is a wish, and the next one may have more."""
        wanted_bytes = member.modes[placement.mode].memory_bytes
        if wanted_bytes == member.memory_bytes:
            return
        if not wanted_bytes and (member.registration is None or CgroupController.MEMORY not in member.group.paths):
            # Its memory was never limited, so there is nothing to lift.
            return
        # Set before the write: a refused write is not repeated until the mode changes.
        member.memory_bytes = wanted_bytes
        try:
            set_memory(member.group, self._knobs, "high", wanted_bytes or None)
        except CgroupGone:
            pass
        except RlctlError as error:
            self._population.refuse(member.name, str(error))

    def _write_modes(self) -> None:
        """Tell applications that run what has changed for them."""
        for name, placement in self._placed.items():
            member = self._population.members[name]
            if name in self._written and not _is_worth_writing(self._written[name], placement):
                continue
            self._written[name] = placement
            self._tell(member, placement)

    def close(self) -> None:
        """Tell applications their largest modes: nobody divides any more, and what was told last would stand."""
        for member in self._population.members.values():
            self._tell(member, Placement(len(member.modes) - 1, member.cluster, member.modes[-1].cpus))

    def _tell(self, member: Member, placement: Placement) -> None:
        if member.registration:
            self._registry.write_mode(member.name, mode_line(placement, member.modes[placement.mode]))


def _cluster_groups(clusters: Sequence[CpuCluster], parent: Group, knobs: Knobs) -> dict[str, Group]:
    """The clusters' groups below the parent; none unless there is one for each."""
    try:
        found = {one.name: Group.open(parent.layout, f"{parent.name}/{one.name}", knobs) for one in clusters}
    except CgroupGone:
        return {}
    return found


def _is_worth_writing(told: Placement, now: Placement) -> bool:
    return told.mode != now.mode or abs(told.cpus - now.cpus) > WORTH_WRITING_RATIO * told.cpus
