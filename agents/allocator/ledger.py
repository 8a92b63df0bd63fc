"""What is left of BE's budget and of each cluster while applications are placed."""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.agents.allocator.contributions import CPU_SATURATION, HAIR, MEMORY_SATURATION, Room, Stock, fair_part
from rlctl.envs.applications import Cluster, WorkingMode
from rlctl.envs.errors import ConfigError


class Ledger:
    """Free CPU time and memory by cluster, and the rest of the budget; ConfigError: two clusters of one name."""

    def __init__(self, clusters: Sequence[Cluster], budget_cpus: float) -> None:
        self._clusters = {cluster.name: cluster for cluster in sorted(clusters, key=lambda cluster: cluster.name)}
        if len(self._clusters) < len(clusters):
            raise ConfigError("two clusters have one name; names in a platform are unique")
        self._budget_cpus = budget_cpus
        self._free_cpus = {name: cluster.quota_cpus for name, cluster in self._clusters.items()}
        self._free_bytes = {
            name: cluster.memory_bytes for name, cluster in self._clusters.items() if cluster.memory_bytes is not None
        }

    def available_cpus(self, cluster: str) -> float:
        """What one more application could take of a cluster within the budget."""
        return min(self._free_cpus[cluster], self._budget_cpus)

    def shares(self, applications: int) -> tuple[float, float]:
        """CPUs, and bytes where memory is limited, that are left for each of so many applications."""
        cpus = min(sum(self._free_cpus.values()), self._budget_cpus)
        return cpus / applications, sum(self._free_bytes.values()) / applications

    def rooms(self, shares: tuple[float, float]) -> list[Room]:
        """What is left of each cluster, by name, where an application's fair share is the given one."""
        return [
            Room(name, self._cpus(cluster, shares[0]), self._memory(cluster, shares[1]))
            for name, cluster in self._clusters.items()
        ]

    def fits(self, mode: WorkingMode, cluster: str) -> bool:
        """Whether there is enough left of a cluster and of the budget."""
        return mode.cpus <= self.available_cpus(cluster) + HAIR and self.holds(mode, cluster)

    def holds(self, mode: WorkingMode, cluster: str) -> bool:
        """Whether there is enough memory left."""
        return mode.memory_bytes <= self._free_bytes.get(cluster, mode.memory_bytes)

    def take(self, mode: WorkingMode, cluster: str) -> float:
        """Book a mode; returns its CPU time, or what there is of it."""
        cpus = min(mode.cpus, self.available_cpus(cluster))
        self._free_cpus[cluster] -= cpus
        self._budget_cpus -= cpus
        if cluster in self._free_bytes:
            self._free_bytes[cluster] -= mode.memory_bytes
        return cpus

    def _cpus(self, cluster: Cluster, share: float) -> Stock:
        available = self.available_cpus(cluster.name)
        part = fair_part(available, share)
        return Stock(cluster.quota_cpus, self._free_cpus[cluster.name], available, part, CPU_SATURATION)

    def _memory(self, cluster: Cluster, share: float) -> Stock | None:
        if cluster.memory_bytes is None:
            return None
        free = self._free_bytes[cluster.name]
        return Stock(cluster.memory_bytes, free, free, fair_part(free, share), MEMORY_SATURATION)
