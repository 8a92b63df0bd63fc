"""BE as applications: its group, its clusters, and who divides its budget, from a serve configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.config.serve import ServeConfig
from rlctl.config.sources import CgroupWorkload, Workload
from rlctl.envs.applications import Cluster
from rlctl.envs.errors import CgroupGone, HostError
from rlctl.envs.host.apps.registry import Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.envs.host.events import Events
from rlctl.envs.host.partition.platform import Platform, load_platform
from rlctl.envs.host.partition.view import missing
from rlctl.serve.sharing import Sharing


@dataclass(frozen=True, slots=True)
class BeGroup:
    """The groups of best-effort work.

    Attributes:
        workloads: As configured, or the one group whose child groups are the applications.
        platform: The platform whose managed device that group is; None if it is a group like others.
    """

    workloads: tuple[Workload, ...]
    platform: Platform | None = None

    @property
    def reach(self) -> frozenset[int] | None:
        """CPUs that BE may have at most; None leaves that to its groups."""
        return self.platform.mdev_cpus if self.platform else None


def be_group(config: ServeConfig, layout: Layout, *, make: bool) -> BeGroup:
    """Find BE's groups; with `make` the applications' group is made when it is not there.

    Raises:
        ConfigError: The platform is wrong or does not fit this host.
        HostError: Its partitions do not stand or cannot be shared out, or its group is not there and not made.
    """
    section, knobs = config.be.applications, Knobs(None)
    if section is None:
        return BeGroup(config.be.workloads or ())
    if section.platform is not None:
        platform = load_platform(section.platform_source)
        if lacks := missing(platform, layout, knobs):
            raise HostError(f"be.applications.platform: {lacks}")
        _shared(platform, layout, knobs)
        return BeGroup((CgroupWorkload(kind="cgroup", path=f"/{platform.mdev_group}"),), platform)
    try:
        Group.open(layout, section.group, knobs)
    except CgroupGone as error:
        if not make:
            way_out = "a start without --dry-run makes it, and `rlctl app run`"
            raise HostError(f"be.applications: group {section.group} is not there yet; {way_out}") from error
        Group.create(layout, section.group, knobs, also=(Controller.MEMORY,))
    return BeGroup((CgroupWorkload(kind="cgroup", path=section.group),))


def build_sharing(
    config: ServeConfig, be: BeGroup, parent: Group, order: Sequence[int], knobs: Knobs, events: Events
) -> Sharing | None:
    """What divides BE's budget among its applications; None where BE has none.

    Args:
        parent: The group that holds the applications.
        order: CPUs that BE may be given.
        events: Takes a line for each application that comes or goes.
    """
    section = config.be.applications
    if section is None:
        return None
    whole = Cluster("all", frozenset(order), float(len(order)))
    return Sharing(
        be.platform.clusters if be.platform else (whole,),
        parent,
        knobs,
        registry=Registry(section.directory),
        socket=section.socket,
        leftover=section.leftover,
        period_seconds=section.period_seconds,
        quota_period_us=round(config.quota_period_milliseconds * 1e3),
        events=events,
    )


def _shared(platform: Platform, layout: Layout, knobs: Knobs) -> None:
    """Clusters that are exclusive cannot all be confined to the CPUs that the shield leaves to BE."""
    if len(platform.clusters) < 2:
        return
    for one in platform.clusters:
        folder = Group.open(layout, platform.cluster_group(one.name), knobs).paths.get(Controller.CPUSET, Path())
        flag = folder / "cpuset.cpu_exclusive"
        if flag.exists() and knobs.read(flag).strip() == "1":
            raise HostError(
                f"{folder} is exclusive, and so BE could not be confined to fewer CPUs: "
                "`rlctl partition undo`, then `apply` without --exclusive"
            )
