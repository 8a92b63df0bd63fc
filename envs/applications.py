"""Vocabulary of many best-effort applications on one host: working modes, clusters, and who runs how and where.

The terms are BarbequeRTRM's. An application declares its working modes (AWMs), the platform its clusters. An allocator
picks one mode and one cluster for each application, within BE's budget. A placement is a share of that budget: it
restricts one application further, and never widens what the shield left to BE as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rlctl.envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkingMode:
    """One of an application's working modes: what it asks for, and what that is worth.

    Attributes:
        cpus: CPU time per second of wall clock.
        value: Worth to the user, 0 to 1; the highest mode of an application is normally 1.
        memory_bytes: Memory that it asks for; 0 asks for none in particular.

    Raises:
        ConfigError: Impossible numbers.
    """

    cpus: float
    threads: int
    value: float
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.cpus > 0.0 or self.threads < 1 or not 0.0 <= self.value <= 1.0 or self.memory_bytes < 0:
            raise ConfigError(
                f"impossible working mode: {self}: it takes CPU time, a thread, a value from 0 to 1, memory from 0 on"
            )


@dataclass(frozen=True, slots=True)
class Application:
    """A best-effort application as the allocator sees it.

    Attributes:
        name: Unique on the host: `<pid>:<name>` once it runs.
        modes: At least one, from the least CPU time to the most.
        priority: 0 is served first; the next priority gets what is left.
        gap_percent: How far it says it is from its goal, in percent of the goal; 0 if it says nothing.
        current: Where it runs now; None when it is new or deferred.
        since_seconds: How long it has run, or has been deferred, without a break; at 0 it takes no part in turns.
        bound_to: The only cluster that it may run on, by name; empty for any.

    Raises:
        ConfigError: No mode, modes out of order, or a current mode that it does not have.
    """

    name: str
    modes: tuple[WorkingMode, ...]
    priority: int = 0
    gap_percent: float = 0.0
    current: Placement | None = None
    since_seconds: float = 0.0
    bound_to: str = ""

    def __post_init__(self) -> None:
        if not self.modes or self.priority < 0:
            raise ConfigError(f"application {self.name!r} needs at least one working mode and a priority of 0 or more")
        if any(less.cpus > more.cpus for less, more in pairwise(self.modes)):
            raise ConfigError(f"application {self.name!r}: working modes go from the least CPU time to the most")
        if self.current is not None and not 0 <= self.current.mode < len(self.modes):
            raise ConfigError(f"application {self.name!r} has no working mode {self.current.mode}")

    def may_run_on(self, cluster: str) -> bool:
        """Whether nothing binds it to another cluster."""
        return self.bound_to in ("", cluster)


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """CPUs that belong together: a NUMA node, the CPUs of one last-level cache, or what a platform file says.

    Attributes:
        name: As in the platform description, and of its control group.
        quota_cpus: CPU time that applications may have of it; at most its number of CPUs.
        memory_nodes: Memory nodes of its applications; empty leaves them as they are.
        memory_bytes: Memory for its applications; None sets no limit.

    Raises:
        ConfigError: No CPU, or more quota than CPUs.
    """

    name: str
    cpus: frozenset[int]
    quota_cpus: float
    memory_nodes: frozenset[int] = frozenset()
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.cpus or not 0.0 < self.quota_cpus <= len(self.cpus):
            raise ConfigError(
                f"impossible cluster: {self}: it takes a CPU, and a quota above 0 of no more than its CPUs"
            )


@dataclass(frozen=True, slots=True)
class Placement:
    """How one application runs: the triple of application, working mode and cluster, less the application.

    Attributes:
        cpus: CPU time that it gets: its mode's, or less where the budget is smaller than the least of all modes.
    """

    mode: int
    cluster: str
    cpus: float
