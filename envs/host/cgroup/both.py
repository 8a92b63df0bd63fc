"""What the drivers of cgroup v1 and v2 have in common: other file names, the same meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import cpu_set, number, table
from rlctl.envs.host.cpulist import format_cpus
from rlctl.envs.workload import Weight

__all__ = ["CpuOfBoth", "CpusetOfBoth"]


class CpuOfBoth:
    """Weight, `cpu.idle`, and what came of the quota.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        weight: Name of the file with the weight.
        burst: Name of the file with what the group may save up of its quota (Linux 5.14 and later).
        throttled: Key of the throttled time in `cpu.stat`, and its unit in seconds.
        native: The kernel's number for each weight.
    """

    def __init__(
        self,
        knobs: Knobs,
        group: Path,
        *,
        weight: str,
        burst: str,
        throttled: tuple[str, float],
        native: Mapping[Weight, int],
    ) -> None:
        self.group = group
        self._knobs = knobs
        self._burst = group / burst
        self._weight = group / weight
        self._idle = group / "cpu.idle"
        self._has_idle, self._has_burst = self._idle.exists(), self._burst.exists()
        self._throttled, self._native = throttled, native

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """What `set_weight` and `set_idle` write."""
        return (self._weight, self._idle) if self._has_idle else (self._weight,)

    def weight(self) -> int:
        """cpu.shares or cpu.weight."""
        return number(self._knobs.read(self._weight), self._weight)

    def native_weight(self, weight: Weight) -> int:
        """The kernel's number for a weight."""
        return self._native[weight]

    def set_weight(self, weight: Weight | int) -> None:
        """Write cpu.shares (2 to 262144) or cpu.weight (1 to 10000)."""
        native = self._native[weight] if isinstance(weight, Weight) else weight
        if self.idle():
            self.set_idle(False)
        self._knobs.write(self._weight, str(native))

    def idle(self) -> bool | None:
        """cpu.idle; None before Linux 5.15."""
        return number(self._knobs.read(self._idle), self._idle) != 0 if self._has_idle else None

    def set_idle(self, idle: bool) -> None:
        """Write cpu.idle; the weight becomes the kernel's default again when it is lifted."""
        self._knobs.remember([self._idle, self._weight])
        self._knobs.write(self._idle, str(int(idle)))

    def throttled_seconds(self) -> float:
        """Time that the group was kept from running by its quota, summed over CPUs."""
        path, (key, unit_seconds) = self.group / "cpu.stat", self._throttled
        return table(self._knobs.read(path), path).get(key, 0) * unit_seconds

    def _make_way_for(self, quota_us: int | None) -> None:
        """The kernel refuses a quota below the burst that somebody allowed the group."""
        if quota_us is None or not self._has_burst:
            return
        if number(self._knobs.read(self._burst), self._burst) > quota_us:
            self._knobs.write(self._burst, "0")


class CpusetOfBoth:
    """`cpuset.cpus`.

    Args:
        knobs: Reads and writes.
        group: The group's directory.
        effective: Name of the file with the CPUs that the group's tasks may really run on.
    """

    def __init__(self, knobs: Knobs, group: Path, effective: str) -> None:
        self.group = group
        self._knobs = knobs
        self._cpus = group / "cpuset.cpus"
        self._effective = group / effective

    @property
    def cpus_files(self) -> tuple[Path, ...]:
        """What `set_cpus` writes."""
        return (self._cpus,)

    def cpus(self) -> frozenset[int]:
        """CPUs as configured; in v2 empty for the parent's."""
        return self._read(self._cpus)

    def effective(self) -> frozenset[int]:
        """CPUs that the group's tasks may really run on; in v2 the parent's, where the two have none in common."""
        return self._read(self._effective)

    def available(self) -> frozenset[int]:
        """The group's own CPUs and its parent's: v1 refuses others, in v2 they would break up a partition."""
        return self.effective() | self._read(self.group.parent / self._effective.name)

    def set_cpus(self, cpus: Iterable[int]) -> None:
        """Write the CPUs."""
        self._knobs.write(self._cpus, format_cpus(cpus) or "\n")

    def originally(self) -> frozenset[int]:
        """The CPUs before our first write to them."""
        original = self._knobs.original(self._cpus)
        return self.cpus() if original is None else cpu_set(original, self._cpus)

    def _read(self, path: Path) -> frozenset[int]:
        return cpu_set(self._knobs.read(path), path)
