"""Time that the LC's threads stood on a run queue, from /proc/PID/task/TID/schedstat."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.sensors.kernel_file import KernelFile, Rate, missing_because
from rlctl.envs.telemetry import BUSIEST_THREAD, Missing, Reading, Value, Why

# One open file and one read per thread and tick: beyond this the sensor alone would cost as much as all else.
MOST_THREADS = 256


def run_seconds(content: bytes) -> tuple[float, float] | Missing:
    """The first two fields of a schedstat file: time spent on a CPU, and runnable but not running, since its birth."""
    # Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat": time on the CPU, time waiting, both in ns.
    fields = [parse_quantity(one) for one in content.split()[:2]]
    known = [one for one in fields if not isinstance(one, Why)]
    if len(known) < 2:
        why = next((one for one in fields if isinstance(one, Why)), Why.MALFORMED)
        return Missing(why, f"no run delay in {content[:60]!r}")
    return known[0] * 1e-9, known[1] * 1e-9


class RunDelay:
    """`lc_run_delay_ratio`: seconds waited per second, summed over the LC's threads; above 1 when several wait.

    And the busiest thread's share of their CPU time since the previous call.

    A thread born since the previous tick counts from its birth; the last wait of one that ended since is lost. A
    process that joined counts from its second tick, as it may bring a long past along.
    """

    name = "schedstat"
    provides = ("lc_run_delay_ratio", BUSIEST_THREAD)

    def __init__(self, pids: Callable[[], tuple[int, ...] | Missing], proc: Path = Path("/proc")) -> None:
        self._pids = pids
        self._proc = proc
        self._threads: dict[int, dict[int, _Thread]] = {}
        self._total_seconds = 0.0
        self._used: list[float] = []  # CPU time of each thread since the previous call
        self._rate = Rate()

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Wait per second since the previous call, and the busiest thread's share."""
        self._used = []
        total = self._total()
        used_seconds = math.fsum(self._used)
        busiest: Reading = Missing(Why.NO_DATA, "no thread of the LC has used CPU time")
        if isinstance(total, Missing):
            busiest = total
        elif used_seconds > 0.0:
            busiest = Value(max(self._used) / used_seconds)
        return {"lc_run_delay_ratio": self._rate.update(now_seconds, total), BUSIEST_THREAD: busiest}

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
            threads.pop(tid).file.close()
        for tid in tids.difference(threads):
            path = self._proc / str(pid) / "task" / str(tid) / "schedstat"
            threads[tid] = _Thread(KernelFile(path, follow_name=False), None if known is None else (0.0, 0.0))
        return self._add(threads)

    def _add(self, threads: dict[int, _Thread]) -> Missing | None:
        trouble = None
        for tid, thread in list(threads.items()):
            run = thread.since_before()
            if isinstance(run, Missing):
                threads.pop(tid).file.close()
                trouble = run
            else:
                self._used.append(run[0])
                self._total_seconds += run[1]
        return trouble if not threads else None

    def _forget(self, pids: set[int]) -> None:
        for pid in pids:
            for thread in self._threads.pop(pid, {}).values():
                thread.file.close()


@dataclass(slots=True)
class _Thread:
    """One thread's run times, and what they were when last read (None: unknown, so that nothing can be added yet)."""

    file: KernelFile
    before: tuple[float, float] | None

    def since_before(self) -> tuple[float, float] | Missing:
        content = self.file.read()
        now = content if isinstance(content, Missing) else run_seconds(content)
        if isinstance(now, Missing):
            return now
        before, self.before = self.before or now, now
        return max(now[0] - before[0], 0.0), max(now[1] - before[1], 0.0)
