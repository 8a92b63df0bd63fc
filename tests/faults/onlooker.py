"""Watches the knobs of BE from outside: the kernel's files, every few milliseconds, whatever the controller says."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.errors import RlctlError
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
    """

    begun_seconds: float
    ended_seconds: float
    found: Allocation | None
    ordered: bool = False


class Onlooker:
    """A thread that samples one BE group.

    Args:
        layout: Where the hierarchies are.
        name: The group.
        order: CPUs, the safest for the LC first: those that an Allocation counts.
        poll_seconds: Between two samples.

    Attributes:
        samples: All of them, oldest first.
    """

    def __init__(self, layout: Layout, name: str, order: Sequence[int], poll_seconds: float) -> None:
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
        """What BE is allowed now."""
        return self.samples[-1].found

    def close(self) -> None:
        """End it. Idempotent."""
        self._ended.set()
        self._thread.join()
        self._knobs.close()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_seconds):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        begun = time.monotonic()
        found, ordered = self._found()
        return Sample(begun, time.monotonic(), found, ordered)

    def _found(self) -> tuple[Allocation | None, bool]:
        try:
            group = self._group = self._group or Group.open(self._layout, self._name, self._knobs)
            if len(group.directories) < self._whole:  # it is being made, or removed
                self._group = None
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
