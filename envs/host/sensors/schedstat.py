"""Time that the LC's threads stood on a run queue, from /proc/PID/task/TID/schedstat."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.sensors.kernel_file import Gauge, Rate, missing_because
from rlctl.envs.telemetry import Missing, Reading, Why

# One open file and one read per thread and tick: beyond this the sensor alone would cost as much as all else.
MOST_THREADS = 256


def run_delay_seconds(content: bytes) -> float | Missing:
    """The second field of a schedstat file: ns spent runnable but not running, since the thread was born."""
    # Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat": time on the CPU, time waiting, both in ns.
    fields = content.split()
    delay = parse_quantity(fields[1]) if len(fields) >= 2 else Why.MALFORMED
    if isinstance(delay, Why):
        return Missing(delay, f"no run delay in {content[:60]!r}")
    return delay * 1e-9


class RunDelay:
    """`lc_run_delay_ratio`: seconds waited per second, summed over the LC's threads; above 1 when several wait.

    A thread born since the previous tick counts from its birth; the last wait of one that ended since is lost. A
    process that joined counts from its second tick, as it may bring a long past along.
    """

    name = "schedstat"
    provides = ("lc_run_delay_ratio",)

    def __init__(self, pids: Callable[[], tuple[int, ...] | Missing], proc: Path = Path("/proc")) -> None:
        self._pids = pids
        self._proc = proc
        self._threads: dict[int, dict[int, _Thread]] = {}
        self._total_seconds = 0.0
        self._rate = Rate()

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Wait per second since the previous call."""
        return {"lc_run_delay_ratio": self._rate.update(now_seconds, self._total())}

    def close(self) -> None:
        """Close the kernel's files."""
        self._forget(set(self._threads))

    def _total(self) -> float | Missing:
        """A counter of its own, which only grows however threads come and go."""
        pids = self._pids()
        if isinstance(pids, Missing):
            return pids
        self._forget(set(self._threads).difference(pids))
        for trouble in [self._visit(pid) for pid in pids]:
            if trouble is not None and trouble.why is not Why.GONE:  # one that just ended spoils nothing
                return trouble
        return self._total_seconds if self._threads else Missing(Why.GONE, "the LC has no process")

    def _visit(self, pid: int) -> Missing | None:
        """Add what the threads of one process waited since the previous visit."""
        known = self._threads.get(pid)
        try:
            tids = {int(name) for name in os.listdir(self._proc / str(pid) / "task")}
        except (OSError, ValueError) as error:
            self._forget({pid})
            return missing_because(error, self._proc / str(pid) / "task") if isinstance(error, OSError) else None
        if sum(map(len, self._threads.values())) + len(tids.difference(known or ())) > MOST_THREADS:
            return Missing(Why.NOT_SUPPORTED, f"the LC has more than {MOST_THREADS} threads: use lc_pressure_ratio")
        threads = self._threads.setdefault(pid, {})
        for tid in set(threads).difference(tids):
            threads.pop(tid).delay.close()
        for tid in tids.difference(threads):
            path = self._proc / str(pid) / "task" / str(tid) / "schedstat"
            threads[tid] = _Thread(Gauge(path, run_delay_seconds, follow_name=False), None if known is None else 0.0)
        return self._add(threads)

    def _add(self, threads: dict[int, _Thread]) -> Missing | None:
        trouble = None
        for tid, thread in list(threads.items()):
            waited = thread.waited_seconds()
            if isinstance(waited, Missing):
                threads.pop(tid).delay.close()
                trouble = waited
            else:
                self._total_seconds += waited
        return trouble if not threads else None

    def _forget(self, pids: set[int]) -> None:
        for pid in pids:
            for thread in self._threads.pop(pid, {}).values():
                thread.delay.close()


@dataclass(slots=True)
class _Thread:
    """One thread's run delay, and what it was when last read (None: unknown, so that nothing can be added yet)."""

    delay: Gauge
    before_seconds: float | None

    def waited_seconds(self) -> float | Missing:
        delay = self.delay.now()
        if isinstance(delay, Missing):
            return delay
        before, self.before_seconds = self.before_seconds, delay
        return 0.0 if before is None else max(delay - before, 0.0)
