"""Pressure stall information of control groups: the share of time in which a task waited for a resource."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.sensors.kernel_file import KernelFile, Rate
from rlctl.envs.telemetry import Missing, Reading, Value, Why

__all__ = ["Psi", "some_seconds"]

_SOME_TOTAL = re.compile(rb"^some .*\btotal=(\d{1,20})$", re.MULTILINE)  # us, a 64-bit counter
_NAMES = {"cpu": "{}_pressure_ratio", "memory": "{}_memory_pressure_ratio", "io": "{}_io_pressure_ratio"}


def some_seconds(content: bytes) -> float | Missing:
    """Time in which at least one task was stalled, since the group was made, from a `*.pressure` file."""
    match = _SOME_TOTAL.search(content)
    if match is None:
        return Missing(Why.MALFORMED, f"no pressure total in {content[:60]!r}")
    return int(match[1]) * 1e-6


@dataclass(frozen=True, slots=True)
class _Gauge:
    file: KernelFile
    rate: Rate

    def read(self, now_seconds: float) -> Reading:
        content = self.file.read()
        return self.rate.update(now_seconds, content if isinstance(content, Missing) else some_seconds(content))


class Psi:
    """`lc_pressure_ratio`, `be_pressure_ratio`, and the memory and io ones as counters.

    The kernel brings a group's totals up to date when they are read, so that a reading is not two seconds old as
    PSI's own averages are. PSI of several groups cannot be added: of several BE groups the most pressed counts.

    Args:
        lc: The LC's directory under the cgroup2 mount (on a hybrid host a plain directory there is enough).
        be: The BE groups' directories.
    """

    name = "psi"
    provides = tuple(name.format(role) for role in ("lc", "be") for name in _NAMES.values())

    def __init__(self, lc: Path, be: Sequence[Path] = ()) -> None:
        self._gauges: dict[str, tuple[_Gauge, ...]] = {}
        self.follow(lc, be)

    def follow(self, lc: Path, be: Sequence[Path]) -> None:
        """Other groups from now on; one that is new counts from its second reading."""
        before = {gauge.file.path: gauge for gauges in self._gauges.values() for gauge in gauges}
        for role, groups in (("lc", (lc,)), ("be", be)):
            for resource, name in _NAMES.items():
                files = [group / f"{resource}.pressure" for group in groups]
                self._gauges[name.format(role)] = tuple(
                    before.pop(file) if file in before else _Gauge(KernelFile(file), Rate(1.0)) for file in files
                )
        for gauge in before.values():
            gauge.file.close()

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Shares of the time since the previous call, in [0, 1]."""
        return {name: _worst([g.read(now_seconds) for g in gauges]) for name, gauges in self._gauges.items()}

    def close(self) -> None:
        """Close all files."""
        for gauges in self._gauges.values():
            for gauge in gauges:
                gauge.file.close()


def _worst(readings: Sequence[Reading]) -> Reading:
    known = [reading for reading in readings if isinstance(reading, Value)]
    if known:
        return max(known, key=lambda reading: reading.value)
    return readings[0] if readings else Missing(Why.NOT_CONFIGURED, "no BE group")
