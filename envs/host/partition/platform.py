"""The platform description: which CPUs the host keeps, which are managed, and the clusters among the managed ones.

The terms are BarbequeRTRM's. The *host* partition runs everything that is not managed, the *managed device* (mdev) only
what rlctl places there. Clusters divide the managed device along its caches and memory. A description is a YAML file
(`configs/platform/*.yaml`) or is discovered from /sys; `rlctl partition apply` turns it into control groups.

    host:
      cpus: 0,4,8,12
      memory_nodes: 0
    mdev:
      cpus: 1-3,5-7,9-11,13-15
      memory_nodes: 1-3
      clusters:                  # without: one cluster `all` of all managed CPUs
        node1:
          cpus: 1,5,9,13
          memory_nodes: 3
          quota_percent: 100     # CPU time, of each of its CPUs
          memory_mb: 6000        # 1 MB is 2**20 bytes; without: no limit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.decode import format_cpus, parse_cpus
from rlctl.envs.host.partition.record import HOST, MDEV
from rlctl.envs.host.topology import SYS, CpuPlace, memory_nodes, numa_nodes, read_topology
from rlctl.envs.yaml_edge import Strict, load_yaml, shipped_or_own, validate

# Name of the cluster when the managed device is not divided.
WHOLE = "all"

# Of so many cores one is the host's, when nobody says more.
HOST_SHARE = 8


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform that fits this host.

    Attributes:
        host_memory_nodes: Its memory nodes; empty leaves them as they are, likewise for the managed device.
        mdev_cpus: CPUs of what rlctl manages; none of the host's.
        mdev_memory_nodes: Memory nodes of what rlctl manages.
        clusters: Parts of the managed device without a CPU in common; at least one.
        within: The group below which both partitions are; empty for the root of the hierarchies.
        why: Where the description comes from, one line.
    """

    host_cpus: frozenset[int]
    mdev_cpus: frozenset[int]
    clusters: tuple[CpuCluster, ...]
    host_memory_nodes: frozenset[int] = frozenset()
    mdev_memory_nodes: frozenset[int] = frozenset()
    within: str = ""
    why: str = ""

    @property
    def host_group(self) -> str:
        """Path of the host partition's group below the hierarchies' roots."""
        return str(Path(self.within, HOST))

    @property
    def mdev_group(self) -> str:
        """Path of the managed device's group: the parent of all that is managed."""
        return str(Path(self.within, MDEV))

    def cluster_group(self, name: str) -> str:
        """Path of a cluster's group: the parent of the applications placed there."""
        return str(Path(self.mdev_group, name))


def load_platform(
    file: str | Path | None = None, *, within: str = "", cpus: frozenset[int] | None = None, sys: Path = SYS
) -> Platform:
    """A platform description that fits this host.

    Args:
        file: A YAML file, or the name of a shipped one; None discovers.
        within: Group below which the partitions are to stand; empty for the root.
        cpus: That group's CPUs; None for all that are online.

    Raises:
        ConfigError: There is no such file, or it is wrong or does not fit the host: with its line.
        HostError: This host cannot be divided, or sysfs tells nothing.
    """
    if file is None:
        return discover_platform(within=within, cpus=cpus, sys=sys)
    path = shipped_or_own(file, "platform", "platform")
    data, lines = load_yaml(path)
    description = validate(PlatformFile, data, path, lines)
    for key, problem in _problems(description, frozenset(_topology(cpus, sys)), memory_nodes(sys)):
        above = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in lines), ())
        raise ConfigError(f"{'.'.join(key)}: {problem}", path, lines.get(above))
    whole = {WHOLE: _Cluster(cpus=description.mdev.cpus)}
    clusters = [one.cluster(name) for name, one in (description.mdev.clusters or whole).items()]
    host, mdev = description.host, description.mdev
    nodes = host.memory_nodes, mdev.memory_nodes
    return Platform(host.cpus, mdev.cpus, tuple(clusters), *nodes, within=within, why=f"as {path} says")


def discover_platform(*, within: str = "", cpus: frozenset[int] | None = None, sys: Path = SYS) -> Platform:
    """The platform as the topology suggests it.

    Clusters are the NUMA nodes; of one node the groups of CPUs that share a last-level cache; of one cache all. The
    host keeps one core in eight, the first ones, whole where there is a second core: a hardware thread beside a managed
    one would slow it. They all come from the first cluster, where the kernel booted and most interrupts go.

    Raises:
        HostError: There is one CPU only, or sysfs lists none.
    """
    topology = _topology(cpus, sys)
    if len(topology) < 2:
        raise HostError("one CPU cannot be divided: a partition needs two")
    groups, kind = _groups(topology, sys)
    host, whole = _host_cpus(topology)
    left = {name: cpus - host for name, cpus in groups.items() if cpus - host}
    nodes = {f"node{number}": frozenset({number}) & memory_nodes(sys) for number in numa_nodes(sys)}
    clusters = tuple(
        CpuCluster(name, cpus, float(len(cpus)), nodes.get(name, frozenset())) for name, cpus in left.items()
    )
    parts = "; ".join(f"{one.name}: CPU {format_cpus(one.cpus)}" for one in clusters)
    why = f"discovered: {kind}; the host keeps CPU {format_cpus(host)} ({whole}); clusters: {parts}"
    return Platform(host, frozenset(topology) - host, clusters, within=within, why=why)


def _topology(cpus: frozenset[int] | None, sys: Path) -> Mapping[int, CpuPlace]:
    """What is to be divided, as if there were no other CPUs."""
    places = read_topology(sys)
    ours = frozenset(places) if cpus is None else cpus & places.keys()
    return {
        cpu: CpuPlace(cpu, *(shared & ours for shared in (place.core, place.cache, place.node, place.package)))
        for cpu, place in places.items()
        if cpu in ours
    }


def _groups(topology: Mapping[int, CpuPlace], sys: Path) -> tuple[dict[str, frozenset[int]], str]:
    """CPUs by the name of their cluster, and what the clusters are."""
    nodes = {f"node{number}": cpus & topology.keys() for number, cpus in sorted(numa_nodes(sys).items())}
    nodes = {name: cpus for name, cpus in nodes.items() if cpus}
    if len(nodes) > 1 and frozenset().union(*nodes.values()) == topology.keys():
        return nodes, f"{len(nodes)} NUMA nodes"
    caches = sorted({place.cache for place in topology.values()}, key=min)
    if len(caches) > 1:
        return {f"cache{number}": cpus for number, cpus in enumerate(caches)}, f"{len(caches)} last-level caches"
    return {WHOLE: frozenset(topology)}, f"{len(topology)} CPUs that share one last-level cache"


def _host_cpus(topology: Mapping[int, CpuPlace]) -> tuple[frozenset[int], str]:
    """The host's CPUs and the reason."""
    places = sorted(topology.values(), key=CpuPlace.fill)
    cores = list(dict.fromkeys(place.core for place in places))
    if len(cores) == 1:
        return frozenset({places[0].cpu}), "a thread of the only core, which both partitions share"
    count = max(1, len(cores) // HOST_SHARE)
    return frozenset().union(*cores[:count]), f"{count} of {len(cores)} cores"


def _numbers(value: object) -> object:
    """`0-3,6`, a number, or a list of numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    return parse_cpus(value.replace(" ", "")) if isinstance(value, str) else value


_Numbers = Annotated[frozenset[Annotated[int, Field(ge=0)]], BeforeValidator(_numbers)]
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class _Part(Strict):
    """A part of the host.

    Attributes:
        cpus: Its CPUs, as `0-3,6` or a list.
        memory_nodes: Its memory nodes, likewise; none leaves them as they are.
    """

    cpus: Annotated[_Numbers, Field(min_length=1)]
    memory_nodes: _Numbers = frozenset()


class _Cluster(_Part):
    """A cluster of the managed part."""

    quota_percent: float = Field(default=100.0, gt=0.0, le=100.0)
    """CPU time, of each of its CPUs."""
    memory_mb: int | None = Field(default=None, gt=0)
    """The most memory of what runs in it."""

    def cluster(self, name: str) -> CpuCluster:
        limit = None if self.memory_mb is None else self.memory_mb << 20
        return CpuCluster(name, self.cpus, len(self.cpus) * self.quota_percent / 100.0, self.memory_nodes, limit)


class _Mdev(_Part):
    """The managed part."""

    clusters: dict[_Name, _Cluster] | None = Field(default=None, min_length=1)
    """By name; without, there is one, `all`."""


class PlatformFile(Strict):
    """A host in two parts.

    Attributes:
        host: For everything that runs there.
        mdev: For what rlctl places in it.
    """

    host: _Part
    mdev: _Mdev


def _problems(
    description: PlatformFile, there: frozenset[int], nodes: frozenset[int]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not fit together, or not to this host: the key, and what is wrong."""
    host, mdev, clusters = description.host, description.mdev, description.mdev.clusters or {}
    parts: dict[tuple[str, ...], _Part] = {("host",): host, ("mdev",): mdev}
    parts |= {("mdev", "clusters", name): one for name, one in clusters.items()}
    for key, part in parts.items():
        if absent := part.cpus - there:
            yield (*key, "cpus"), f"there is no CPU {format_cpus(absent)} online here, only {format_cpus(there)}"
        if absent := part.memory_nodes - nodes:
            yield (*key, "memory_nodes"), f"there is no memory node {format_cpus(absent)}, only {format_cpus(nodes)}"
    if shared := host.cpus & mdev.cpus:
        yield ("mdev", "cpus"), f"CPU {format_cpus(shared)} is the host's already; a CPU has one partition"
    taken: dict[int, str] = {}
    for name, one in clusters.items():
        for kind, own, all_of_it in (
            ("cpus", one.cpus, mdev.cpus),
            ("memory_nodes", one.memory_nodes, mdev.memory_nodes or one.memory_nodes),
        ):
            if outside := own - all_of_it:
                what = "CPU" if kind == "cpus" else "memory node"
                text = f"{what} {format_cpus(outside)} is outside mdev, which has {format_cpus(all_of_it)}"
                yield ("mdev", "clusters", name, kind), text
        if shared := one.cpus & taken.keys():
            text = f"CPU {format_cpus(shared)} is cluster {taken[min(shared)]}'s already"
            yield ("mdev", "clusters", name, "cpus"), text
        taken |= dict.fromkeys(one.cpus, name)
