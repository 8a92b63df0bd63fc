"""Watches BE from outside, every few milliseconds: its knobs, and the CPU time of its processes wherever they are."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.errors import RlctlError, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout


@dataclass(frozen=True, slots=True)
class Sample:
    """What BE was allowed at a moment.

    Attributes:
        begun_seconds, ended_seconds: Monotonic time before and after reading.
        found: The most that BE could use; frozen only when all its tasks had stopped. None: there was no group.
        ordered: It was told to freeze: a task that has not stopped yet runs no further instruction of its own.
        used_seconds: CPU time of BE's processes so far, also of those that have ended or left their groups.
        waited_seconds: Time for which the service's processes were ready to run and had no CPU.
    """

    begun_seconds: float
    ended_seconds: float
    found: Allocation | None
    ordered: bool = False
    used_seconds: float = 0.0
    waited_seconds: float = 0.0


class Onlooker:
    """A thread that samples one BE group.

    Args:
        layout: Where the hierarchies are.
        name: The group.
        order: CPUs, the safest for the LC first: those that an Allocation counts.
        poll_seconds: Between two samples.
        pids: BE's processes, in its groups or not.
        service_pids: The controller's and the watchdog's.

    Attributes:
        samples: All of them, oldest first.
        hold_up: Called before each sample; a run against a broken onlooker sets it.
        error: What ended the thread; empty while it lives.
    """

    def __init__(
        self, layout: Layout, name: str, order: Sequence[int], poll_seconds: float,
        pids: Callable[[], Iterable[int]], service_pids: Callable[[], Iterable[int]],
    ) -> None:  # fmt: skip
        self._pids, self._service_pids = pids, service_pids
        self._used_seconds, self._waited_seconds = dict[int, float](), dict[int, float]()
        self.hold_up: Callable[[], object] = lambda: None
        self.error = ""
        self._poll_seconds = poll_seconds
        self._layout, self._name, self._order = layout, name, tuple(order)
        self._knobs = Knobs(None)
        self._group: Group | None = Group.open(layout, name, self._knobs)
        self._whole = len(self._group.directories)
        self.samples: list[Sample] = [self._sample()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onlooker", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> Allocation | None:
        """What BE is allowed now; TestbedError: nobody looks any more."""
        if self.error:
            raise TestbedError(f"the onlooker has failed: {self.error}")
        return self.samples[-1].found

    def close(self) -> None:
        """End it. Idempotent."""
        self._ended.set()
        self._thread.join()
        self._knobs.close()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._poll_seconds):
                self.hold_up()
                self.samples.append(self._sample())
        except Exception as error:  # noqa: BLE001 - a case that nobody watched has not passed
            self.error = repr(error)

    def _sample(self) -> Sample:
        begun = time.monotonic()
        found, ordered = self._found()
        used = _sum_up(self._pids(), 0, self._used_seconds)
        waited = _sum_up(self._service_pids(), 1, self._waited_seconds)
        return Sample(begun, time.monotonic(), found, ordered, used, waited)

    def _found(self) -> tuple[Allocation | None, bool]:
        try:
            group = self._group = self._group or Group.open(self._layout, self._name, self._knobs)
            if len(group.directories) < self._whole:
                self._group = None
                if not group.has_processes():  # it is being made, or removed
                    return None, False
            quota = group.cpu.quota().cpus if group.cpu else UNLIMITED
            effective = group.cpuset.effective() if group.cpuset else frozenset[int]()
            ordered = group.freezer is not None and group.freezer.is_ordered()
            frozen = group.freezer is not None and group.freezer.frozen()
        except RlctlError:  # removed while it was looked at
            self._group = None
            return None, False
        return Allocation(quota, self._prefix(effective), frozen), ordered

    def _prefix(self, effective: frozenset[int]) -> int:
        if not effective or not effective <= frozenset(self._order):
            return len(self._order)
        return 1 + max(self._order.index(cpu) for cpu in effective)


def _sum_up(pids: Iterable[int], place: int, seen_seconds: dict[int, float]) -> float:
    """A field of the processes' schedstat, those that have ended as they were last seen."""
    # Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat": time on the CPU and time waiting for it, in ns.
    for pid in pids:
        with contextlib.suppress(OSError):
            seen_seconds[pid] = int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[place]) * 1e-9
    return sum(seen_seconds.values())
