"""The groups of LC and BE that a configuration names, found and kept apart, and who divides BE among applications."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.config import sources as source
from rlctl.config.sections import ApplicationsSection
from rlctl.config.serve import ServeConfig
from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import CgroupError, CgroupGone, ConfigError, HostError, RlctlError
from rlctl.envs.host.apps.registry import Registry
from rlctl.envs.host.cgroup.group import KNOBS, Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.discovery import discover, selects
from rlctl.envs.host.events import Events
from rlctl.envs.host.partition.platform import Platform, load_platform
from rlctl.envs.host.topology import cpu_order, isolated_cpus, read_topology
from rlctl.serve.sharing import Sharing, SharingRules

log = logging.getLogger(__name__)

_MEANS = {"cpu": "held to a quota", "cpuset": "confined to CPUs", "freezer": "suspended"}
_LEFT = {"cpu": "the quota", "cpuset": "the cpuset", "freezer": "the freezer"}


@dataclass(frozen=True, slots=True)
class BeGroup:
    """The groups of best-effort work.

    Attributes:
        workloads: As configured, or the one group whose child groups are the applications.
        platform: The platform whose managed device that group is; None if it is a group like others.
    """

    workloads: tuple[source.Workload, ...]
    platform: Platform | None = None


@dataclass(frozen=True, slots=True)
class Workloads:
    """What a configuration's LC and BE are on this host now: the LCs' groups by name, the main one first, and BE's."""

    config: ServeConfig
    layout: Layout
    best_effort: BeGroup
    lcs: dict[str, Group]
    each_be: Sequence[tuple[source.Workload, Sequence[Group]]]

    @classmethod
    def find(cls, config: ServeConfig, layout: Layout, knobs: Knobs, *, make: bool) -> Workloads:
        """Find all groups; with `make` the applications' group is made where it is not there.

        Raises:
            ConfigError: A workload cannot be what is named, or LC and BE overlap.
            HostError: A workload does not run.
        """
        lcs = {name: _one_group(section.workload, layout, knobs) for name, section in config.lcs.items()}
        best_effort = be_group(config, layout, make=make)
        each_be = [(workload, groups_of(workload, layout, knobs)) for workload in best_effort.workloads]
        found = cls(config, layout, best_effort, lcs, each_be)
        raise_if_overlapping(lcs.values(), found.be)
        return found

    @property
    def be(self) -> list[Group]:
        """All groups of BE."""
        return [group for _, groups in self.each_be for group in groups]

    @property
    def lc(self) -> Group:
        """The main LC's group."""
        return next(iter(self.lcs.values()))

    def lc_cpus(self) -> tuple[tuple[int, ...], bool]:
        """The CPUs of all LCs, each once, and whether each one's are known; where not, a warning says so."""
        known = {name: self.cpus_of(name) for name in self.config.lcs}
        for name in (name for name, cpus in known.items() if not cpus):
            log.warning(
                "LC %s: its CPUs are not known, without a cpuset and a process: taken for one that may be any of BE's, "
                "and nothing that is learned of the host is kept; set its cpus", name
            )  # fmt: skip
        return tuple(dict.fromkeys(cpu for cpus in known.values() for cpu in cpus)), all(known.values())

    def cpus_of(self, lc: str) -> tuple[int, ...]:
        """The CPUs of one LC: as configured, of its cpuset, or what its processes may run on; none if it has none."""
        if configured := self.config.lcs[lc].cpus:
            return tuple(configured)
        # Services of systemd have no cpuset unless their units say AllowedCPUs=.
        group = self.lcs[lc]
        # A cpuset holds the threads too, which may be pinned to less than it (CPUAffinity=, taskset).
        with contextlib.suppress(CgroupError):  # a threaded group
            if pinned := group.affinity():
                return tuple(sorted(pinned))
        return tuple(sorted(group.cpuset.effective() if group.cpuset else ()))

    def be_cpus(self, lc_cpus: Iterable[int]) -> tuple[int, ...]:
        """CPUs that BE may get, the safest for the LCs first."""
        configured, platform = self.config.be.cpus, self.best_effort.platform
        # Isolated CPUs (isolcpus) are somebody's on purpose: BE gets them only where there are no others.
        reach = (platform and platform.mdev_cpus) or within_reach(self.be) or frozenset(read_topology())
        return tuple(configured or cpu_order(lc_cpus, reach - isolated_cpus() or reach))

    def lc_selects(self) -> Callable[[str], bool] | None:
        """How the main LC's group is known when it is made anew; None if it cannot be."""
        name, section = next(iter(self.config.lcs.items()))
        return selects(section.workload, [self.lcs[name].name], self.layout, self.config.tick_seconds)

    def be_selects(self) -> list[Callable[[str], bool]]:
        """How BE's groups are known that come later; none if none can."""
        found = [
            selects(workload, [group.name for group in groups], self.layout, self.config.tick_seconds)
            for workload, groups in self.each_be
        ]
        return [one for one in found if one is not None]


def raise_if_overlapping(lcs: Collection[Group], be: Sequence[Group]) -> None:
    """Refuse a BE that holds an LC or rlctl itself, or lies within an LC; ConfigError: it does."""
    for lc, group in itertools.product(lcs, be):
        # The kernel's limits of a group count for everything below it (Documentation/admin-guide/cgroup-v2.rst).
        both = group.overlap(lc)
        if both:
            raise ConfigError(
                f"BE group {both[0]} and LC group {both[1]} overlap: what limits one limits both; name others"
            )
    lc_pids = frozenset[int]().union(*map(_pids, lcs)) - {0}  # of another namespace
    for group, pids in zip(be, map(_pids, be), strict=True):
        if os.getpid() in pids:
            raise ConfigError(f"BE group {group.name} holds rlctl itself, which it would freeze: start BE as a unit")
        # In v1 a process may be in its slice's group, where its service has none of its own.
        if shared := lc_pids & pids:
            raise ConfigError(f"BE group {group.name} holds process {min(shared)} of an LC: name another group")


def _pids(group: Group) -> frozenset[int]:
    """A group's processes; none where it does not tell, for it is threaded or gone."""
    with contextlib.suppress(CgroupError):
        return group.pids()
    return frozenset()


def groups_of(workload: source.Workload, layout: Layout, knobs: Knobs) -> list[Group]:
    """Every group of a workload, each seen through all hierarchies that it is in; HostError where it does not run."""
    if isinstance(workload, source.PidWorkload):
        return [Group.of_process(layout, workload.pid, knobs)]
    return [Group.open(layout, name, knobs) for name in discover(workload, layout)]


def why_uncontrolled(group: Group, layout: Layout) -> str:
    """What BE cannot be restricted by because a group lacks it, in one line with the way out; empty if nothing."""
    lost = [knob for knob in KNOBS if getattr(group, knob) is None]
    left = [_LEFT[knob] for knob in KNOBS if knob not in lost]
    # Without any controller the start fails with an error of its own.
    if not lost or not left:
        return ""
    none = " and ".join(f"no {knob}" for knob in reversed(lost))
    cannot = " or ".join(_MEANS[knob] for knob in reversed(lost))
    rest = f"{left[0]} is all there is" if len(left) == 1 else f"{' and '.join(left)} are all there is"
    way = ", ".join(_way_out(knob, group, layout) for knob in reversed(lost))
    name = group.name if group.name.startswith("process ") else f"/{group.name.strip('/')}"
    return f"BE group {name} has {none} group: BE cannot be {cannot}; {rest} ({way}, to allow it)"


def within_reach(be: Iterable[Group]) -> frozenset[int] | None:
    """CPUs that every BE group may have; None if there are no such.

    Others are a partition's or beyond its parent's limit. To write them gains nothing, and breaks up the partition.
    """
    reach = [group.cpuset.available() for group in be if group.cpuset]
    return frozenset.intersection(*reach) or None if reach else None


def _way_out(knob: str, group: Group, layout: Layout) -> str:
    controller = CgroupController(knob)
    if controller not in layout.mounts:
        return f"this host has to mount cgroup {knob}"
    mount, other = layout.mounts[controller], next(iter(group.paths))
    folder = mount.path / group.paths[other].relative_to(layout.mounts[other].path)
    # The parent decides which controllers its children have.
    if mount.version == 2 and folder.is_dir():
        return f"write +{knob} to {folder.parent / 'cgroup.subtree_control'}"
    return f"make {folder} with BE's processes in it"


def _one_group(workload: source.Workload, layout: Layout, knobs: Knobs) -> Group:
    groups = groups_of(workload, layout, knobs)
    if len(groups) > 1:
        raise ConfigError(f"lc.workload names {len(groups)} groups, among them {groups[0].name}; name one")
    return groups[0]


def be_group(config: ServeConfig, layout: Layout, *, make: bool) -> BeGroup:
    """Find BE's groups; with `make` the applications' group is made when it is not there.

    Raises:
        ConfigError: The platform is wrong or does not fit this host.
        HostError: Its partitions do not stand or cannot be shared out, or its group is not there and not made.
    """
    section, knobs = config.be.applications, Knobs(None)
    if section is None:
        return BeGroup(config.be.workloads or ())
    if (platform := platform_of(section, layout, knobs)) is not None:
        _check_shareable(platform, layout, knobs)
        return BeGroup((source.CgroupWorkload(kind="cgroup", path=f"/{platform.mdev_group}"),), platform)
    try:
        Group.open(layout, section.group, knobs)
    except CgroupGone as error:
        if not make:
            way_out = "a start without --dry-run makes it, and `rlctl app run`"
            raise HostError(f"be.applications: group {section.group} is not there yet; {way_out}") from error
        Group.create(layout, section.group, knobs, also=(CgroupController.MEMORY,))
    return BeGroup((source.CgroupWorkload(kind="cgroup", path=section.group),))


def platform_of(section: ApplicationsSection, layout: Layout, knobs: Knobs) -> Platform | None:
    """The platform whose partitions BE's applications run in; None for none.

    Raises:
        ConfigError: The platform is wrong or does not fit this host.
        HostError: Its partitions do not stand: whoever made a group there would hold it to nothing.
    """
    if section.platform is None:
        return None
    platform = load_platform(section.platform_source)
    if lacks := lacking_partitions(platform, layout, knobs):
        raise HostError(f"be.applications.platform: {lacks}")
    return platform


def lacking_partitions(platform: Platform, layout: Layout, knobs: Knobs) -> str:
    """What is not as the platform says, one line with the way out; empty when all stands."""
    clusters = (platform.cluster_group(one.name) for one in platform.clusters)
    for name in (platform.host_group, platform.mdev_group, *clusters):
        try:
            cpuset = Group.open(layout, name, knobs).cpuset
            cpus = cpuset.cpus() if cpuset else frozenset()
        except CgroupGone as error:
            return f"{error}; `rlctl partition apply` makes the groups"
        except RlctlError as error:
            return str(error)
        # Of the managed device BE has fewer just now where a controller, or its watchdog, leaves it fewer.
        is_managed = bool(cpus) and cpus <= platform.mdev_cpus
        if not (cpus == platform.host_cpus if name == platform.host_group else is_managed):
            return f"{name} has other CPUs than the platform says: `rlctl partition undo`, then `apply`"
    return ""


def build_sharing(
    config: ServeConfig, be: BeGroup, parent: Group, order: Sequence[int], knobs: Knobs, events: Events
) -> Sharing | None:
    """What divides BE's budget among its applications; None where BE has none."""
    section = config.be.applications
    if section is None:
        return None
    whole = CpuCluster("all", frozenset(order), float(len(order)))
    return Sharing(
        be.platform.clusters if be.platform else (whole,),
        parent,
        knobs,
        registry=Registry(section.directory),
        rules=SharingRules(section.leftover, section.period_seconds, round(config.quota_period_milliseconds * 1e3)),
        events=events,
    )


def _check_shareable(platform: Platform, layout: Layout, knobs: Knobs) -> None:
    """Clusters that are exclusive cannot all be confined to the CPUs that the shield leaves to BE."""
    if len(platform.clusters) < 2:
        return
    for one in platform.clusters:
        folder = Group.open(layout, platform.cluster_group(one.name), knobs).paths.get(CgroupController.CPUSET, Path())
        flag = folder / "cpuset.cpu_exclusive"
        if flag.exists() and knobs.read(flag).strip() == "1":
            raise HostError(
                f"{folder} is exclusive, and so BE could not be confined to fewer CPUs: "
                "`rlctl partition undo`, then `apply` without --exclusive"
            )
