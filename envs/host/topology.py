"""The order in which BE gets CPUs: those first whose use the LC feels least.

What two CPUs share decides how much one feels the other. From the most intimate to the least:

| BE on | shares with the LC | so BE gets it |
| --- | --- | --- |
| another socket or NUMA node | the interconnect and power | first |
| the same socket, another node | the package's power and mesh | |
| the same node, another last-level cache (AMD's core complexes) | memory bandwidth | |
| the same last-level cache | cache, memory bandwidth | |
| the SMT sibling of an LC CPU | the core's execution units and private caches | last but one |
| an LC CPU | the CPU time itself | last |

Source: Heracles (ISCA 2015) never lets BE share a core with the LC. On a two-core machine p95 was 0.2 to 0.6 ms with BE
on the other CPU, and hundreds of milliseconds on the LC's own.

Within a rank, nodes, caches and cores are filled one after the other, and both threads of a core before the next core.
So whole cores stay free for others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.decode import format_cpus, parse_cpus, text_of

SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Where one online CPU sits.

    Attributes:
        core: CPUs of its physical core, itself among them.
        cache: CPUs that share its last-level cache; where the kernel tells of no cache, its package.
        node: CPUs of its NUMA node; where the kernel knows no nodes, its package.
        package: CPUs of its socket; where the kernel tells of none, all CPUs.
    """

    cpu: int
    core: frozenset[int]
    cache: frozenset[int]
    node: frozenset[int]
    package: frozenset[int]

    def intimacy(self, lc_cpus: frozenset[int]) -> tuple[bool, ...]:
        """What it shares with the LC, the worst to share first; sorts as safest first."""
        shared = (self.core, self.cache, self.node, self.package)
        return (self.cpu in lc_cpus, *(not lc_cpus.isdisjoint(cpus) for cpus in shared))

    def fill(self) -> tuple[int, ...]:
        """Its turn among equals."""
        return (min(self.package), min(self.node), min(self.cache), min(self.core), self.cpu)


def cpu_order(lc_cpus: Iterable[int], candidates: Iterable[int] | None = None, sys: Path = SYS) -> tuple[int, ...]:
    """CPUs for BE, safest for the LC first.

    Args:
        lc_cpus: CPUs that the LC runs on; offline ones are ignored, as nothing runs there.

    Returns:
        Every candidate once.

    Raises:
        ConfigError: A candidate is offline or absent, or there is none.
        HostError: sysfs does not list any CPU.
    """
    topology = read_topology(sys)
    wanted = frozenset(topology if candidates is None else candidates)
    if not wanted:
        raise ConfigError("no CPUs for BE: list at least one")
    if absent := wanted - topology.keys():
        raise ConfigError(f"CPU {format_cpus(absent)} is offline or absent; online are {format_cpus(topology)}")
    lc = frozenset(lc_cpus) & topology.keys()
    places = (topology[cpu] for cpu in wanted)
    return tuple(place.cpu for place in sorted(places, key=lambda place: (place.intimacy(lc), place.fill())))


def isolated_cpus(sys: Path = SYS) -> frozenset[int]:
    """CPUs that were set aside at boot (`isolcpus=`): nobody runs there who was not put there on purpose."""
    return read_list(sys / "devices/system/cpu/isolated")


def read_topology(sys: Path = SYS) -> Mapping[int, CpuPlace]:
    """Every online CPU with its place. Raises HostError where sysfs does not list any CPU."""
    folder = sys / "devices/system/cpu"
    online = read_list(folder / "online") or _present(folder)
    if not online:
        raise HostError(f"{folder}: lists no CPU; is sysfs mounted?")
    nodes = [cpus & online for cpus in numa_nodes(sys).values()]
    packages: dict[str, set[int]] = {}
    for cpu in sorted(online):
        packages.setdefault(text_of(folder / f"cpu{cpu}/topology/physical_package_id"), set()).add(cpu)
    sockets = [frozenset(cpus) for cpus in packages.values()]
    return {cpu: _place(folder, cpu, online, nodes, package) for package in sockets for cpu in package}


def numa_nodes(sys: Path = SYS) -> Mapping[int, frozenset[int]]:
    """CPUs of every NUMA node by its number; none where the kernel knows no nodes."""
    folders = (re.fullmatch(r"node(\d+)", path.name) for path in (sys / "devices/system/node").glob("node*"))
    numbers = sorted(int(name[1]) for name in folders if name)
    return {number: read_list(sys / f"devices/system/node/node{number}/cpulist") for number in numbers}


def memory_nodes(sys: Path = SYS) -> frozenset[int]:
    """Nodes that have memory; a kernel that knows no nodes has all of it in node 0."""
    folder = sys / "devices/system/node"
    return read_list(folder / "has_memory") or read_list(folder / "online") or frozenset({0})


def _place(
    folder: Path, cpu: int, online: frozenset[int], nodes: list[frozenset[int]], package: frozenset[int]
) -> CpuPlace:
    itself = frozenset({cpu})
    core = read_list(folder / f"cpu{cpu}/topology/thread_siblings_list") & online | itself
    cache = _last_level_cache(folder / f"cpu{cpu}/cache") & online
    node = next((node for node in nodes if cpu in node), package)
    return CpuPlace(cpu, core, cache | itself if cache else package, node, package)


def _last_level_cache(folder: Path) -> frozenset[int]:
    """CPUs that share the cache of the highest level; empty if the kernel tells of none (many virtual machines)."""
    by_level = {text_of(index / "level"): read_list(index / "shared_cpu_list") for index in folder.glob("index*")}
    return by_level[max(by_level)] if by_level else frozenset()


def _present(folder: Path) -> frozenset[int]:
    names = (re.fullmatch(r"cpu(\d+)", path.name) for path in folder.glob("cpu*"))
    return frozenset(int(name[1]) for name in names if name)


def read_list(path: Path) -> frozenset[int]:
    """A kernel list; empty when the file is absent or odd."""
    try:
        return parse_cpus(text_of(path))
    except ValueError:
        return frozenset()


def exclusive_cpus(order: Sequence[int], lc_cpus: Collection[int]) -> int:
    """How many CPUs at the beginning of BE's order the LC never runs on: so many BE can have without meeting it."""
    return next((place for place, cpu in enumerate(order) if cpu in lc_cpus), len(order))


def require_online(field: str, cpus: Iterable[int], sys: Path = SYS) -> None:
    """Refuse CPUs that are not there, before anything is touched; ConfigError names the field that asks for them."""
    online = read_list(sys / "devices/system/cpu/online")
    absent = frozenset(cpus) - online
    if absent and online:
        verb = "is" if len(absent) == 1 else "are"
        raise ConfigError(f"{field}: {format_cpus(absent)} {verb} not online ({format_cpus(online)})")
