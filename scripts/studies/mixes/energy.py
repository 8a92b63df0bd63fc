"""Energy of a run: RAPL counts packages and memory; else a power meter or a board controller has the whole machine."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Self

from rlctl.envs.host.resources.powercap import Energy, rapl_zones
from rlctl.envs.telemetry import Missing, Reading, Value, Why

INTERVAL_SECONDS = 1.0
"""Between two readings of a power meter; a board controller has none newer."""
TIMEOUT_SECONDS = 10.0  # of one ipmitool: a board controller answers within a second, unless it hangs
IPMITOOL = ("ipmitool", "dcmi", "power", "reading")
_WATTS = re.compile(r"Instantaneous power reading:\s+(\d{1,6}) Watts")

Source = Callable[[], float | None]
"""Watts now; None when there is no answer."""


class EnergyMeter:
    """Energy of spans of time, in joules: by RAPL, else the mean of what a power meter said meanwhile."""

    def __init__(self, source: Source | None = None) -> None:
        self._rapl = Energy(rapl_zones())
        self._begun_seconds, self._before = time.monotonic(), self._rapl.joules()
        self._answers: list[tuple[float, float]] = []  # when, and watts
        self._stop = threading.Event()
        self._source = source or power_source()
        if isinstance(self._before, Missing) and self._source is not None:
            threading.Thread(target=self._sample, args=(self._source,), daemon=True).start()

    def begin(self) -> None:
        """Begin a span of time."""
        self._begun_seconds, self._before = time.monotonic(), self._rapl.joules()
        self._answers.clear()

    def end(self) -> Reading:
        """Energy in joules since `begin`, or why it is not known."""
        now, seconds = self._rapl.joules(), time.monotonic() - self._begun_seconds
        if not isinstance(now, Missing) and not isinstance(self._before, Missing):
            return Value(now - self._before)
        why = now.detail if isinstance(now, Missing) else "RAPL ended amid the run"
        if self._source is None:
            return Missing(Why.NOT_SUPPORTED, f"{why}; no ACPI power meter, and no ipmitool with /dev/ipmi0")
        watts = [watts for when, watts in self._answers if when >= self._begun_seconds]
        if not watts:
            return Missing(Why.NO_DATA, f"the power meter gave no reading within {seconds:.1f} s: measure longer runs")
        return Value(fmean(watts) * seconds)

    def _sample(self, source: Source) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            if (watts := source()) is not None:
                self._answers.append((time.monotonic(), watts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._rapl.close()


def power_source(sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> Source | None:
    """How to ask this machine: its ACPI power meter, else its board controller; None for no way."""
    # Other hwmon power readings are those of a graphics card, a package or a single rail.
    for name in sorted((sys / "class/hwmon").glob("hwmon*/name")):
        file = name.parent / "power1_average"
        if name.read_text().strip() == "power_meter" and file.exists():
            return lambda: float(file.read_text()) * 1e-6
    return ipmi_watts if (dev / "ipmi0").exists() else None


def ipmi_watts(command: tuple[str, ...] = IPMITOOL, timeout_seconds: float = TIMEOUT_SECONDS) -> float | None:
    """The power that a board controller tells; None where it does not."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _WATTS.search(said)
    return float(match[1]) if match else None
