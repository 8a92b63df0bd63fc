"""Which CPUs are managed in a measurement, and their clusters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.decode import format_cpus
from rlctl.envs.host.partition.platform import load_platform
from rlctl.envs.host.partition.record import MDEV
from rlctl.envs.host.topology import SYS, read_topology

CLUSTERINGS = {
    "published": "as many as on the paper's machine, each with an equal part of the CPU time on all CPUs",
    "cores": "one for each core, so that an application stays on it",
    "whole": "one",
}
"""What --platform takes beside a file."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The clusters of CPUs of a measurement; its groups are made `within` a group, in the roots where that is empty."""

    clusters: tuple[CpuCluster, ...]
    within: str = ""

    def __str__(self) -> str:
        """Each cluster's name, CPU time and CPUs."""
        return ", ".join(f"{c.name} {c.quota_cpus:.3g} CPU on {format_cpus(c.cpus)}" for c in self.clusters)

    @property
    def quota_cpus(self) -> float:
        """CPU time of all clusters together."""
        return sum(cluster.quota_cpus for cluster in self.clusters)


def managed_ground(name: str, published_clusters: int, sys: Path = SYS) -> Ground:
    """All CPUs of this host in clusters, or those that a platform description manages.

    Args:
        name: One of CLUSTERINGS, or a platform description: a YAML file or the name of a shipped one.

    Raises:
        ConfigError: There is no such description, or it does not fit this host.
        HostError: sysfs lists no CPUs, or all CPUs are to be managed on a host that is divided.
    """
    if name in CLUSTERINGS and _stands(MDEV):
        raise HostError(f"this host is divided ({MDEV}): name its platform with --platform, or `rlctl partition undo`")
    if name not in CLUSTERINGS:
        platform = load_platform(name, sys=sys)
        within = platform.mdev_group if _stands(platform.mdev_group) else ""
        return Ground(platform.clusters, within)
    topology = read_topology(sys)
    cpus = frozenset(topology)
    if name == "cores":
        cores = sorted({place.core for place in topology.values()}, key=min)
        clusters = [CpuCluster(f"core{min(core)}", core, float(len(core))) for core in cores]
    else:
        count = published_clusters if name == "published" else 1
        clusters = [CpuCluster(f"node{n + 1}", cpus, len(cpus) / count) for n in range(count)]
    return Ground(tuple(clusters))


def _stands(group: str) -> bool:
    """The partition is applied, and its CPUs can be had in it alone."""
    mount = Layout.detect().mounts.get(CgroupController.CPUSET)
    return mount is not None and (mount.path / group).is_dir()
