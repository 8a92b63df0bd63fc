"""CPUs in use: by the host, by the LC, by BE, by rlctl itself; and whether the LC lives."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rlctl.envs.host.cgroup.kernel import identity_of
from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.sensors.cpu_time import CpuTime
from rlctl.envs.host.sensors.kernel_file import BEGAN_ANEW, G, Gauge, KernelFile, Rate, follow_gauges
from rlctl.envs.telemetry import Missing, Reading, Value, Why

log = logging.getLogger(__name__)

PROCS_BYTES = 1 << 16  # about 8,000 pids
_USAGE_USEC = re.compile(rb"^usage_usec (\d+)$", re.MULTILINE)
_IDLE = ("idle", "iowait")
_NOT_OURS = ("steal", "guest", "guest_nice")  # guest time is already in user time; steal went to another machine


def usage_seconds(content: bytes) -> float | Missing:
    """CPU time in `cpuacct.usage` (v1, one number of ns) or `cpu.stat` (v2, a table), whichever the content is."""
    # Nanoseconds in v1 (cgroup-v1/cpuacct.rst), microseconds in v2 (cgroup-v2.rst, "cpu.stat").
    table = _USAGE_USEC.search(content)
    number, unit_seconds = (table[1], 1e-6) if table else (content.strip(), 1e-9)
    usage = parse_quantity(number)
    if isinstance(usage, Why):
        return Missing(usage, f"no CPU usage in {content[:60]!r}")
    return usage * unit_seconds


def _most_cpus(host_cpus: int | None) -> float:
    """The CPUs that can be busy: those that are online now, unless told, as a virtual machine may get more any time."""
    # Not `os.cpu_count`, which from Python 3.13 on answers what PYTHON_CPU_COUNT says.
    return float(host_cpus or os.sysconf("SC_NPROCESSORS_ONLN"))


RESETS, RESETS_SECONDS = 2, 60.0
"""A counter of BE's may not begin anew so often in so long: `cpuacct.usage` takes a 0 from whoever may write it."""


class BeUsage(Gauge):
    """CPU time of one BE group.

    A group that is gone counts once more with its last rate. One whose counter is set back again and again counts with
    all CPUs there are: then nobody knows what BE uses, and the guard against an overrun has to object.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, usage_seconds)
        self._last: Value | None = None
        self._group = identity_of(path.parent)
        self._resets: deque[float] = deque(maxlen=RESETS)

    def timed_rate(self, clock: Callable[[], float], most: float | None = None) -> Reading:
        """Its growth per second since the previous call."""
        reading = super().timed_rate(clock, most)
        now_seconds = clock()
        if isinstance(reading, Missing):
            if reading.why is Why.GONE and self._last is not None:
                reading, self._last = self._last, None
            elif reading.detail == BEGAN_ANEW:
                self._count_reset(now_seconds)
        elif most is not None:
            self._last = reading
        if most is not None and len(self._resets) == RESETS and now_seconds - self._resets[0] <= RESETS_SECONDS:
            return Value(most)
        return reading

    def _count_reset(self, now_seconds: float) -> None:
        group = identity_of(self.path.parent)
        if group == self._group:
            self._resets.append(now_seconds)
            if len(self._resets) == RESETS:
                log.warning("%s is set back again and again: BE counts as using every CPU", self.path)
        self._group = group  # another group of that name has a counter of its own


class GroupCpus:
    """`lc_cpus` and `be_cpus` from control groups; of `be` one that vanishes counts once more, see `BeUsage`.

    Args:
        clock: Says when a counter was read, monotonic.

    Attributes:
        lc_time: CPU time of the LC, for the windows of others.
    """

    name = "group-cpus"
    provides = ("lc_cpus", "be_cpus")

    def __init__(
        self,
        lc: Path,
        be: Sequence[Path] = (),
        host_cpus: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host_cpus, self._clock = host_cpus, clock
        self.lc_time = CpuTime()
        self._lc, self._be = Gauge(lc, usage_seconds), tuple(BeUsage(path) for path in be)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:  # noqa: ARG002 - it looks at the clock itself
        """Both shares since the previous call, each between the moments at which its counter was read."""
        most = _most_cpus(self._host_cpus)
        lc = self._lc.timed_rate(self._clock, most)
        self.lc_time.add(self._lc.last)
        be = [usage.timed_rate(self._clock, most) for usage in self._be]
        return {"lc_cpus": lc, "be_cpus": _sum(be)}

    def follow(self, lc: Path, be: Sequence[Path]) -> None:
        """Other groups from now on; one that is new counts from this moment. Call it after `read` of the same tick."""

        def begin(gauge: G) -> G:
            gauge.timed_rate(self._clock)
            return gauge

        if lc != self._lc.path:
            self.lc_time = CpuTime()
        (self._lc,) = follow_gauges((self._lc,), (lc,), lambda path: begin(Gauge(path, usage_seconds)))
        self._be = follow_gauges(self._be, be, lambda path: begin(BeUsage(path)))

    def close(self) -> None:
        """Close the groups' files."""
        for usage in (self._lc, *self._be):
            usage.close()


def _sum(readings: Sequence[Reading]) -> Reading:
    """The sum; a group that is gone adds nothing, but any other missing one makes the sum unknown."""
    known = [reading.value for reading in readings if isinstance(reading, Value)]
    missing = [reading for reading in readings if isinstance(reading, Missing)]
    unknown = [reading for reading in missing if reading.why is not Why.GONE] or ([] if known else missing)
    if unknown:
        return unknown[0]
    return Value(sum(known)) if known else Missing(Why.NOT_CONFIGURED, "no BE group")


class HostCpus:
    """`host_cpus` by everything on the host, `controller_cpus` by this very process, `steal_cpus` by other machines.

    Args:
        own_seconds: CPU time of the controller so far; default that of this process.
    """

    name = "host-cpus"
    provides = ("host_cpus", "controller_cpus", "steal_cpus")

    def __init__(
        self,
        times: Callable[[], Any] = psutil.cpu_times,
        own_seconds: Callable[[], float] = time.process_time,
        host_cpus: int | None = None,
    ) -> None:
        self._times = times
        self._own_seconds = own_seconds
        self._host_cpus = host_cpus
        self._rates = {name: Rate() for name in self.provides}

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """CPUs since the previous call. procfs counts in ticks of 10 ms."""
        totals = {**self._host(), "controller_cpus": self._own_seconds()}
        most = _most_cpus(self._host_cpus)
        return {name: rate.update(now_seconds, totals[name], most) for name, rate in self._rates.items()}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _host(self) -> dict[str, float | Missing]:
        try:
            times: Mapping[str, float] = self._times()._asdict()
        except (OSError, psutil.Error, ValueError, TypeError) as error:  # the last for a line that is cut short
            return dict.fromkeys(("host_cpus", "steal_cpus"), Missing(Why.NOT_SUPPORTED, f"CPU times: {error}"))
        busy = sum(seconds for kind, seconds in times.items() if kind not in _IDLE + _NOT_OURS)
        return {"host_cpus": busy, "steal_cpus": times.get("steal", 0.0)}


class LcAlive:
    """`lc_alive`: 1.0 while the LC has a process, in its group or in one below, else 0.0.

    Where the LC is a pod, all its processes are in the groups of its containers. It is read before those that need the
    LC's processes too: the kernel makes the list of a v1 group anew each time.

    Args:
        procs: The LC group's `cgroup.procs`; zombies are not in it.
    """

    name = "lc-alive"
    provides = ("lc_alive",)

    def __init__(self, procs: Path) -> None:
        self._seen: tuple[int, ...] | Missing = ()
        self.follow(procs)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:  # noqa: ARG002 - the protocol's signature
        """Alive or not; a cgroup that is gone has no process, so the LC is dead rather than unknown."""
        content = self._procs.read()
        if isinstance(content, Missing):
            self._seen = content
            return {"lc_alive": Value(0.0) if content.why is Why.GONE else content}
        self._seen = _pids_in(content) or self._below()
        return {"lc_alive": Value(1.0 if self._seen else 0.0)}

    def follow(self, procs: Path) -> None:
        """Look at another group from now on."""
        self._group, self._procs = procs.parent, KernelFile(procs, keep_open=False, most_bytes=PROCS_BYTES)

    def _below(self) -> tuple[int, ...]:
        """The processes in the groups below."""
        found: list[int] = []
        for folder, _, files in os.walk(self._group):  # what vanishes meanwhile is left out
            if folder != str(self._group) and "cgroup.procs" in files:
                content = KernelFile(Path(folder, "cgroup.procs"), keep_open=False, most_bytes=PROCS_BYTES).read()
                found += () if isinstance(content, Missing) else _pids_in(content)
        return tuple(found)

    def pids(self) -> tuple[int, ...] | Missing:
        """The processes as of the last reading."""
        return self._seen

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _pids_in(procs: bytes) -> tuple[int, ...]:
    words = (word for word in procs.split() if word.isdigit() and len(word) < 20)
    return tuple(pid for pid in map(int, words) if pid > 0)  # 0 is a process of another pid namespace


def cpu_seconds_per_request(lc_cpus: Reading, done_rps: Reading) -> Reading:
    """CPU time per completed request, the stand-in for CPI where there is no PMU; as old as the older of the two."""
    for reading in (lc_cpus, done_rps):
        if isinstance(reading, Missing):
            return reading
    assert isinstance(lc_cpus, Value)
    assert isinstance(done_rps, Value)
    if done_rps.value <= 0.0:
        return Missing(Why.NO_DATA, "no request was completed")
    return Value(lc_cpus.value / done_rps.value, max(lc_cpus.age_seconds, done_rps.age_seconds))
