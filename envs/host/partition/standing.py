"""Whether the groups of a platform stand, for those who place work in them."""

from __future__ import annotations

from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.partition.platform import Platform

__all__ = ["applied", "missing"]


def applied(platform: Platform, layout: Layout, knobs: Knobs) -> bool:
    """Whether the managed device and every cluster of it have their groups with their CPUs.

    Args:
        platform: What should stand.
        layout: Where the hierarchies are.
        knobs: Reads.
    """
    return not missing(platform, layout, knobs)


def missing(platform: Platform, layout: Layout, knobs: Knobs) -> str:
    """What is not as the platform says, one line with the way out; empty when all stands.

    Args:
        platform: What should stand.
        layout: Where the hierarchies are.
        knobs: Reads.
    """
    wanted = {platform.mdev_group: platform.mdev_cpus}
    wanted |= {platform.cluster_group(one.name): one.cpus for one in platform.clusters}
    for name, cpus in wanted.items():
        try:
            cpuset = Group.open(layout, name, knobs).cpuset
            if cpuset is None or cpuset.cpus() != cpus:
                return f"{name} has other CPUs than the platform says: `rlctl partition undo`, then `apply`"
        except CgroupGone as error:
            return f"{error}; `rlctl partition apply` makes the groups"
        except RlctlError as error:
            return str(error)
    return ""
