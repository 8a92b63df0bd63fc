"""What the controller itself costs: measured, bounded, and told when it is more than it should be."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import re
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlctl.config.sections import LimitsSection
from rlctl.envs.errors import printable
from rlctl.envs.telemetry import FEW_SAMPLES, LC_WAITING, Quantile
from rlctl.log.record import Tick

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
REMIND_SECONDS = 3600.0
"""A warning that stays true is repeated this often."""

STARVED_RATIO = 0.3
"""Of the time from tick to tick: who waits so much of it for a CPU is late for want of one."""

LOW_TAIL_RATIO, LOW_TAIL_SECONDS = 0.02, 60.0
"""A tail below so much of the target, for so long, measures something else than what the target is about."""

AHEAD = -10
"""The niceness of a daemon that is asked for none: on a full host a policy's answer else waits for a CPU, and comes too
late."""

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

    RLIMIT_DATA counts what is private and writable, touched or not. Libraries that map a buffer for each CPU of a large
    host may have taken more already, so `ROOM_BYTES` are left in any case. RLIMIT_AS would count every library.
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


@contextlib.contextmanager
def ahead_of_others() -> Iterator[None]:
    """Have this thread, and those it starts, run before others, as rlctl.slice has it; a niceness of its own stays."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, before or AHEAD)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def _memory_bytes(process: Path, field: int) -> int:
    """A field of `/proc/PID/statm`, see proc(5): 1 is what is resident, 5 data and stack, which RLIMIT_DATA counts."""
    return int((process / "statm").read_text().split()[field]) * PAGE_BYTES


def waited_seconds(process: Path = Path("/proc/self")) -> float:
    """How long the thread of the loop was ready to run and had no CPU, since its start; OSError where nobody says."""
    # Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat": the second field, in ns.
    return int((process / "schedstat").read_bytes().split()[1]) * 1e-9


class _HourlyWarnings:
    """Warnings by what they are about; one that stays true is repeated after REMIND_SECONDS."""

    def __init__(self) -> None:
        self._warned_seconds: dict[str, float] = {}

    def warn(self, about: str, now_seconds: float, text: str) -> None:
        """Log the warning, unless the last one about the same is too recent."""
        if now_seconds - self._warned_seconds.get(about, -math.inf) >= REMIND_SECONDS:
            self._warned_seconds[about] = now_seconds
            log.warning("%s", text)


class SelfCheck:
    """A recorder that looks once a minute at what rlctl costs, and warns when that is above its limits.

    In each tick it looks whether rlctl had a CPU: leases that are lost for want of one are told as that.
    """

    def __init__(
        self,
        limits: LimitsSection,
        measure: Callable[[], SelfUsage] = self_usage,
        waited: Callable[[], float] = waited_seconds,
    ) -> None:
        self._limits = limits
        self._measure, self._waited = measure, waited
        self._wait: tuple[float, float, int] | None = None
        self._starved = 0
        self._before: tuple[float, SelfUsage] | None = None
        self._warnings = _HourlyWarnings()

    def write(self, tick: Tick) -> None:
        """Look, when a minute has passed; at the waiting in each tick."""
        now = tick.telemetry.time_seconds
        with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel without schedstat
            self._look_at_wait(tick, now, self._waited())
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

    def _look_at_wait(self, tick: Tick, now: float, waited: float) -> None:
        before, self._wait = self._wait, (now, waited, tick.missed_deadlines)
        if before is None or now <= before[0]:
            return
        seconds, hungry = now - before[0], waited - before[1]
        late = tick.missed_deadlines > before[2] or bool(tick.fallback)
        if late and hungry >= STARVED_RATIO * seconds:
            self._starved += 1
            often = f" ({self._starved} such ticks since the start)" if self._starved > 1 else ""
            why = tick.fallback or "a tick began too late"
            waited_for = f"it waited {hungry:.1f} of {seconds:.1f} s for one{often}, and {why}"
            way_out = "give it CPUWeight=1000, as configs/deploy/rlctl.slice does, or a CPU of its own"
            self._warnings.warn("wait", now, f"rlctl itself is short of CPU: {waited_for}; {way_out}")

    def _judge(self, usage: SelfUsage, cpu_ratio: float, now: float) -> None:
        megabytes, most = usage.resident_bytes / 2**20, self._limits.warn_resident_bytes / 2**20
        if megabytes > most:
            used = f"{megabytes:.0f} MB of memory, limits.warn_resident_bytes is {most:.0f} MB"
            self._warnings.warn("memory", now, f"rlctl itself uses {used}")
        if cpu_ratio > self._limits.warn_cpu_ratio:
            used = f"{cpu_ratio:.2f} CPU, limits.warn_cpu_ratio is {self._limits.warn_cpu_ratio:g}"
            self._warnings.warn("cpu", now, f"rlctl itself uses {used}")


class TailCheck:
    """A recorder that warns of a tail so far below its target that it cannot be what clients see.

    Redis' own figures, for one, leave out the time for which a request waits in the socket: .02 ms where clients see
    1.6 to 3.
    """

    def __init__(self) -> None:
        self._low_since: dict[str, float] = {}
        self._warnings = _HourlyWarnings()

    def write(self, tick: Tick) -> None:
        """Look at each LC's tail."""
        now = tick.telemetry.time_seconds
        for name, lc in tick.telemetry.lcs.items():
            tail = lc.tail_latency_seconds
            if not isinstance(tail, Quantile) or tail.samples < FEW_SAMPLES or LC_WAITING in lc.counters:
                continue
            if tail.value >= LOW_TAIL_RATIO * lc.target_seconds or not lc.has_target:
                self._low_since.pop(name, None)
            elif now - self._low_since.setdefault(name, now) >= LOW_TAIL_SECONDS:
                self._warn(name, tail.value, lc.target_seconds, now)

    def _warn(self, name: str, tail_seconds: float, target_seconds: float, now: float) -> None:
        share = f"{100.0 * tail_seconds / target_seconds:.2g} % of its target of {1e3 * target_seconds:.3g} ms"
        tail = f"the tail of {printable(name or 'the LC')} is {1e3 * tail_seconds:.3g} ms, {share}, for a minute"
        asks = (
            "does lc.latency tell what clients see? A figure of the service's own leaves out what waits in its socket"
        )
        self._warnings.warn(name, now, f"{tail}: {asks}; `kind: tcp` sees that")


log = logging.getLogger(__name__)

MADV_DONTNEED = 4

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[-x]p \S+ \S+ [1-9]\d* +/\S+\.so(\.\S+)?$")
"""A private mapping of a shared library's file that may not be written."""


def release_pages(process: Path = Path("/proc/self")) -> int:
    """Unmap the pages of shared libraries; what is used again comes back from the page cache, without reading a disk.

    Much of what a daemon holds are such pages, most of them touched once at the start, while libraries are loaded. They
    are clean copies of files, so the kernel can do without them at any time; it does so by itself only when memory is
    short.

    Gives the bytes of address space that were looked through; 0 where procfs does not tell.
    """
    try:
        ranges = list(disposable((process / "smaps").read_text()))
    except OSError:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    done = sum(size for begin, size in ranges if madvise(begin, size, MADV_DONTNEED) == 0)
    log.debug("pages of %d MB of libraries were let go", done >> 20)
    return done


def disposable(smaps: str) -> Iterator[tuple[int, int]]:
    """Address and bytes of every mapping that holds nothing but its file: no page was ever written, nor swapped out.

    The linker writes addresses into some pages and then protects them: those look alike but for being counted here.
    """
    begin = end = 0
    private: dict[str, str] = {}
    for line in smaps.splitlines():
        # VmFlags is the last line of each mapping.
        if line.startswith("VmFlags:"):
            if begin and private == {"Anonymous": "0", "Swap": "0"}:
                yield begin, end - begin
            begin, private = 0, {}
        elif found := _MAPPING.match(line):
            begin, end = int(found[1], 16), int(found[2], 16)
        elif line.startswith(("Anonymous:", "Swap:")):
            name, kilobytes, _ = line.split()
            private[name.rstrip(":")] = kilobytes
