"""What the controller itself costs: measured, bounded, and told when it is more than it should be."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlctl.config.sections import LimitsSection
from rlctl.log.record import Tick

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
REMIND_SECONDS = 3600.0
"""A warning that stays true is repeated this often."""

ROOM_BYTES = 128 << 20

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class SelfUsage:
    """What this process has used, all threads since the start; not its children, which their cgroup counts."""

    cpu_seconds: float
    resident_bytes: int
    open_files: int


def self_usage(process: Path = Path("/proc/self")) -> SelfUsage:
    """Measure what a process has used by its directory in procfs; OSError where that is not mounted."""
    return SelfUsage(time.process_time(), _memory_bytes(process, 1), len(os.listdir(process / "fd")))


@contextlib.contextmanager
def bounded_memory(most_bytes: int) -> Iterator[None]:
    """Have the kernel refuse this process, and children started within, memory beyond a bound; never raises a bound.

    RLIMIT_DATA counts what is private and writable, touched or not: libraries that map a buffer for each CPU of a
    large host may have taken more already, so `ROOM_BYTES` are left in any case. RLIMIT_AS would count every library.
    """
    # A leak ends in a MemoryError in this process, not in the OOM killer choosing the LC.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        taken_bytes = _memory_bytes(Path("/proc/self"), 5)
    except OSError:
        # Without procfs nothing is known of the memory in use.
        taken_bytes = 0
    room_bytes = max(most_bytes, taken_bytes + ROOM_BYTES)
    bounds = [bound for bound in (room_bytes, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _memory_bytes(process: Path, field: int) -> int:
    """A field of `/proc/PID/statm`, see proc(5): 1 is what is resident, 5 data and stack, which RLIMIT_DATA counts."""
    return int((process / "statm").read_text().split()[field]) * PAGE_BYTES


class SelfCheck:
    """A recorder that looks once a minute at what rlctl costs, and warns when that is above its limits."""

    def __init__(self, limits: LimitsSection, measure: Callable[[], SelfUsage] = self_usage) -> None:
        self._limits = limits
        self._measure = measure
        self._before: tuple[float, SelfUsage] | None = None
        self._warned_seconds: dict[str, float] = {}

    def write(self, tick: Tick) -> None:
        """Look, when a minute has passed."""
        now = tick.telemetry.time_seconds
        if self._before is not None and 0.0 <= now - self._before[0] < CHECK_SECONDS:
            return
        try:
            usage = self._measure()
        except OSError:
            # Out of descriptors; the sensors report that.
            return
        # A rate takes two looks: CPU seconds used, by the seconds between them.
        if self._before is not None:
            self._judge(usage, (usage.cpu_seconds - self._before[1].cpu_seconds) / (now - self._before[0]), now)
        self._before = (now, usage)

    def _judge(self, usage: SelfUsage, cpu_ratio: float, now: float) -> None:
        megabytes, most = usage.resident_bytes / 2**20, self._limits.warn_resident_bytes / 2**20
        if megabytes > most:
            self._warn("memory", f"{megabytes:.0f} MB of memory, limits.warn_resident_bytes is {most:.0f} MB", now)
        if cpu_ratio > self._limits.warn_cpu_ratio:
            self._warn("cpu", f"{cpu_ratio:.2f} CPU, limits.warn_cpu_ratio is {self._limits.warn_cpu_ratio:g}", now)

    def _warn(self, what: str, usage: str, now: float) -> None:
        if now - self._warned_seconds.get(what, -math.inf) >= REMIND_SECONDS:
            self._warned_seconds[what] = now
            log.warning("rlctl itself uses %s", usage)
