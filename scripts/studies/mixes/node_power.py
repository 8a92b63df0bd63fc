"""What the whole machine draws, as its power supply or board controller measures it.

Both ways are slow (an ACPI method, a child that speaks IPMI), so a thread of its own asks every few seconds and a tick
takes the newest answer with its age.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlctl.envs.host.decode import first_line, measured
from rlctl.envs.host.sensors.kernel_file import missing_because
from rlctl.envs.telemetry import Missing, Reading, Value, Why

INTERVAL_SECONDS = 5.0
STALE_SECONDS = 30.0
TIMEOUT_SECONDS = 10.0  # of one ipmitool: a board controller answers within a second, unless it hangs
IPMITOOL = ("ipmitool", "dcmi", "power", "reading")

_WATTS = re.compile(r"Instantaneous power reading:\s+(\d{1,6}) Watts")

Source = Callable[[], float | Missing]
"""Watts now; may take its time, in a thread of its own."""


class NodePower:
    """`node_watts`, read in the background."""

    name = "node-power"
    provides = ("node_watts",)

    def __init__(
        self, source: Source, interval_seconds: float = INTERVAL_SECONDS, cancel: Callable[[], None] = lambda: None
    ) -> None:
        self._source, self._interval_seconds, self._cancel = source, interval_seconds, cancel
        self._latest: tuple[float | Missing, float] = Missing(Why.NO_DATA, "no answer yet"), time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlctl-power", daemon=True)
        self._thread.start()

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The newest answer; one that is too old is missing."""
        watts, seconds = self._latest
        age_seconds = max(now_seconds - seconds, 0.0)
        if isinstance(watts, Missing):
            return {"node_watts": watts}
        if age_seconds > STALE_SECONDS:
            return {"node_watts": Missing(Why.STALE, f"no answer for {age_seconds:.0f} s", age_seconds)}
        return {"node_watts": Value(watts, age_seconds)}

    def close(self) -> None:
        """End the thread, and a question that is under way. Idempotent."""
        self._stop.set()
        self._cancel()
        self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._latest = self._source(), time.monotonic()
            except Exception as error:  # noqa: BLE001 - whatever a board says, the thread must live
                self._latest = Missing(Why.MALFORMED, f"node power: {error}"), time.monotonic()
            self._stop.wait(self._interval_seconds)


class IpmiPower:
    """Asks the board controller by `ipmitool` or the like, which is ended when it takes too long, and by `cancel`."""

    def __init__(self, command: Sequence[str] = IPMITOOL, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._command, self._timeout_seconds = command, timeout_seconds
        self._child: subprocess.Popen[str] | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def __call__(self) -> float | Missing:
        """Watts now."""
        with self._lock:
            if self._cancelled:
                return Missing(Why.NO_DATA, "cancelled")
            try:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    env={**os.environ, "LC_ALL": "C"},
                )
            except OSError as error:
                return Missing(Why.NOT_SUPPORTED, f"{self._command[0]}: {error.strerror}")
        with self._child as child:
            try:
                output, _ = child.communicate(timeout=self._timeout_seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                return Missing(Why.NO_DATA, f"{self._command[0]}: no answer in {self._timeout_seconds:g} s")
        return ipmi_watts(output)

    def cancel(self) -> None:
        """End a child that runs, and start no other."""
        with self._lock:
            self._cancelled = True
            if self._child is not None:
                with contextlib.suppress(OSError):
                    self._child.kill()


def ipmi_watts(output: str) -> float | Missing:
    """The power in what `ipmitool dcmi power reading` prints."""
    match = _WATTS.search(output)
    if match:
        return float(match[1])
    reason = first_line(output)
    refused = "permission" in reason.lower() or "could not open device" in reason.lower()
    return Missing(Why.NO_PERMISSION if refused else Why.NOT_SUPPORTED, f"ipmitool: {reason}")


def meter_file(sys: Path = Path("/sys")) -> Path | None:
    """The ACPI power meter. Other hwmon power readings are those of a graphics card, a package or a single rail."""
    for name in sorted((sys / "class/hwmon").glob("hwmon*/name")):
        with contextlib.suppress(OSError):
            if name.read_text().strip() == "power_meter":
                files = (name.parent / "power1_average", name.parent / "device/power1_average")
                return next((file for file in files if file.exists()), None)
    return None


def hwmon_watts(file: Path) -> float | Missing:
    """The power that a hwmon file tells in microwatts."""
    try:
        micro = measured(file.read_text().strip())
    except OSError as error:
        return missing_because(error, file)
    return Missing(micro, f"{file} holds no power") if isinstance(micro, Why) else micro * 1e-6


def power_source(
    sys: Path = Path("/sys"), dev: Path = Path("/dev"), tool: str = IPMITOOL[0]
) -> tuple[Source, Callable[[], None]] | Missing:
    """How to ask this machine, and how to end a question; or why there is no way."""
    meter = meter_file(sys)
    if meter is not None:
        return lambda: hwmon_watts(meter), lambda: None
    if not any((dev / node).exists() for node in ("ipmi0", "ipmi/0", "ipmidev/0")):
        return Missing(
            Why.NOT_SUPPORTED, f"no ACPI power meter, and no {dev / 'ipmi0'} (modprobe ipmi_si ipmi_devintf)"
        )
    path = shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        return Missing(Why.NOT_SUPPORTED, f"{dev / 'ipmi0'} is there, {tool} is not installed")
    ipmi = IpmiPower((path, *IPMITOOL[1:]))
    return ipmi, ipmi.cancel
