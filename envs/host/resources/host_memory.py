"""What memory the host has left, and how much of the time somebody on it waits for some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rlctl.envs.host.sensors.kernel_file import Gauge
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.telemetry import Missing, Reading, Value, Why

_AVAILABLE = re.compile(rb"^MemAvailable: +(\d{1,15}) kB$", re.MULTILINE)


class HostMemorySensor:
    """`memory_available_bytes`, and `host_memory_pressure_ratio` (PSI "some") for an LC without a cgroup2 group."""

    name = "host-memory"
    provides = ("memory_available_bytes", "host_memory_pressure_ratio")

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._available = Gauge(proc / "meminfo", _available_bytes)
        self._pressure = Gauge(proc / "pressure/memory", some_seconds, 1.0)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Bytes now, and the share of the time since the previous call in [0, 1]."""
        available, pressure = self._available.now(), self._pressure.rate(now_seconds)
        if isinstance(pressure, Missing) and pressure.why is Why.GONE:  # no /proc/pressure at all
            reason = f"{self._pressure.path}: this kernel measures none (boot with psi=1)"
            pressure = Missing(Why.NOT_SUPPORTED, reason, pressure.age_seconds)
        return {
            "memory_available_bytes": available if isinstance(available, Missing) else Value(available),
            "host_memory_pressure_ratio": pressure,
        }

    def close(self) -> None:
        """Close the kernel's files."""
        self._available.close()
        self._pressure.close()


def _available_bytes(meminfo: bytes) -> float | Missing:
    match = _AVAILABLE.search(meminfo)
    return (
        int(match[1]) * 1024.0 if match else Missing(Why.NOT_SUPPORTED, "/proc/meminfo does not tell what is available")
    )
