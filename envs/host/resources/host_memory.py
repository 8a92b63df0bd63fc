"""What memory the host has left, and how much of the time somebody on it waits for some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rlctl.envs.host.sensors.kernel_file import KernelFile, Rate
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.telemetry import Missing, Reading, Value, Why

__all__ = ["HostMemory"]

_AVAILABLE = re.compile(rb"^MemAvailable: +(\d{1,15}) kB$", re.MULTILINE)


class HostMemory:
    """`memory_available_bytes`, and `host_memory_pressure_ratio` (PSI "some"): for an LC without a cgroup2 group.

    Args:
        proc: Where procfs is mounted.
    """

    name = "host-memory"
    provides = ("memory_available_bytes", "host_memory_pressure_ratio")

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = KernelFile(proc / "meminfo")
        self._pressure = KernelFile(proc / "pressure/memory")
        self._rate = Rate(1.0)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Bytes now, and the share of the time since the previous call in [0, 1]."""
        pressure = self._pressure.read()
        stalled = pressure if isinstance(pressure, Missing) else some_seconds(pressure)
        if isinstance(stalled, Missing) and stalled.why is Why.GONE:  # no /proc/pressure at all
            stalled = Missing(Why.NOT_SUPPORTED, f"{self._pressure.path}: this kernel measures none (boot with psi=1)")
        return {
            "memory_available_bytes": self._available(),
            "host_memory_pressure_ratio": self._rate.update(now_seconds, stalled),
        }

    def close(self) -> None:
        """Close the files."""
        self._meminfo.close()
        self._pressure.close()

    def _available(self) -> Reading:
        content = self._meminfo.read()
        if isinstance(content, Missing):
            return content
        found = _AVAILABLE.search(content)
        if found is None:
            return Missing(Why.NOT_SUPPORTED, f"{self._meminfo.path} does not tell what is available")
        return Value(int(found[1]) * 1024.0)
