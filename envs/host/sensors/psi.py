"""Pressure stall information of control groups: the share of time in which a task waited for a resource.

Between two ticks it tells whether the LC waits for CPUs: by the kernel's own word, or else by its counter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlctl.envs.host.sensors.kernel_file import Gauge, follow_gauges
from rlctl.envs.telemetry import Missing, Reading, Value, Why

_SOME_TOTAL = re.compile(rb"^some .*\btotal=(\d{1,20})$", re.MULTILINE)  # us, a 64-bit counter
_NAMES = {"cpu": "{}_pressure_ratio", "memory": "{}_memory_pressure_ratio", "io": "{}_io_pressure_ratio"}


IN_TURN = 25
"""With more BE groups than that, memory and io are read in turn, so many at each call. No guard uses them, and three
files of each of a hundred groups take a fifth of a tick."""


def some_seconds(content: bytes) -> float | Missing:
    """Time in which at least one task was stalled, since the group was made, from a `*.pressure` file."""
    # Documentation/accounting/psi.rst, "some": at least one task stood still for want of the resource.
    match = _SOME_TOTAL.search(content)
    if match is None:
        return Missing(Why.MALFORMED, f"no pressure total in {content[:60]!r}")
    return int(match[1]) * 1e-6


class Psi:
    """`lc_pressure_ratio`, `be_pressure_ratio`, and the memory and io ones as counters.

    The kernel brings a group's totals up to date when they are read, so that a reading is not two seconds old as
    PSI's own averages are. PSI of several groups cannot be added: of several BE groups the most pressed counts, of many
    by what was read of each last, see `IN_TURN`.

    Args:
        lc: The LC's directory under the cgroup2 mount (on a hybrid host a plain directory there is enough).
    """

    name = "psi"
    provides = tuple(name.format(role) for role in ("lc", "be") for name in _NAMES.values())

    def __init__(self, lc: Path, be: Sequence[Path] = ()) -> None:
        self._gauges: dict[str, tuple[Gauge, ...]] = dict.fromkeys(self.provides, ())
        self._calls = 0
        self._last: dict[Path, tuple[float, Reading]] = {}  # of those that are read in turn, and when
        self.follow(lc, be)

    def follow(self, lc: Path, be: Sequence[Path]) -> None:
        """Other groups from now on; one that is new counts from its second reading."""
        self._last.clear()
        for role, groups in (("lc", (lc,)), ("be", be)):
            for resource, name in _NAMES.items():
                files = [group / f"{resource}.pressure" for group in groups]
                gauges = self._gauges[name.format(role)]
                # A ratio of time: nobody waits for more than a second per second.
                self._gauges[name.format(role)] = follow_gauges(
                    gauges, files, lambda file: Gauge(file, some_seconds, 1.0)
                )

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Shares of the time since the previous call, in [0, 1]; what is read in turn, since its previous turn."""
        self._calls += 1
        return {name: _worst(self._shares(name, gauges, now_seconds)) for name, gauges in self._gauges.items()}

    def _shares(self, name: str, gauges: Sequence[Gauge], now_seconds: float) -> list[Reading]:
        turns = -(-len(gauges) // IN_TURN)
        if turns <= 1 or name == "be_pressure_ratio":
            return [gauge.rate(now_seconds) for gauge in gauges]
        for gauge in gauges[self._calls % turns :: turns]:
            self._last[gauge.path] = now_seconds, gauge.rate(now_seconds)
        last = [self._last[gauge.path] for gauge in gauges if gauge.path in self._last]
        return [replace(one, age_seconds=one.age_seconds + now_seconds - at) for at, one in last]

    @property
    def lc_file(self) -> Path:
        """The file with the LC's waiting for CPUs."""
        return self._gauges["lc_pressure_ratio"][0].path

    def lc_waited_seconds(self) -> float | Missing:
        """So long a task of the LC has waited for a CPU since its group was made; no rate is disturbed by the look."""
        return self._gauges["lc_pressure_ratio"][0].now()

    def close(self) -> None:
        """Close the kernel's files."""
        for gauge in (gauge for gauges in self._gauges.values() for gauge in gauges):
            gauge.close()


def _worst(readings: Sequence[Reading]) -> Reading:
    known = [reading for reading in readings if isinstance(reading, Value)]
    if known:
        return max(known, key=lambda reading: reading.value)
    return readings[0] if readings else Missing(Why.NOT_CONFIGURED, "no BE group")


WAITED_SECONDS, WINDOW_SECONDS = 0.2, 0.5
"""An LC that wants more than its half of a CPU waits half of the time (docs/measured/simulator.md, 1). Half a second is
the shortest window for which the kernel takes a trigger (kernel/sched/psi.c, WINDOW_MIN_US)."""

READ_SECONDS = 0.05
"""As often as the kernel itself sees whether to pull a trigger of that window (UPDATES_PER_WINDOW)."""

UNPRIVILEGED = "the kernel takes no window below two seconds without CAP_SYS_RESOURCE"


class PsiTrigger:
    """A descriptor with POLLPRI when some task has waited for so long, at most once a window.

    Attributes:
        why: Why there is none; empty where there is.
    """

    def __init__(self, path: Path) -> None:
        self.why = ""
        self.file: int | None = None
        try:
            self.file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # Documentation/accounting/psi.rst: microseconds; the byte at the end is taken for the string's own.
            os.write(self.file, b"some %d %d\0" % (WAITED_SECONDS * 1e6, WINDOW_SECONDS * 1e6))
        except OSError as error:
            self.close()
            refused = error.errno in (errno.EINVAL, errno.EPERM)
            self.why = UNPRIVILEGED if refused else f"{path}: {error.strerror or error}"

    def close(self) -> None:
        """The kernel forgets the trigger. Idempotent."""
        file, self.file = self.file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


class LcWaits:
    """Whether a task of the LC has waited for WAITED_SECONDS of the last WINDOW_SECONDS.

    Args:
        psi: Reads the LC's counter, and follows its group.
    """

    def __init__(self, psi: Psi) -> None:
        self._psi = psi
        self.trigger = PsiTrigger(psi.lc_file)
        self._seen: deque[tuple[float, float]] = deque()

    def high(self, now_seconds: float, *, told: bool) -> bool:
        """Whether it has, once for each such wait.

        Args:
            told: The trigger has been pulled.
        """
        if self.trigger.file is not None:
            return told
        if self._seen and now_seconds - self._seen[-1][0] < READ_SECONDS:
            return False
        waited = self._psi.lc_waited_seconds()
        if isinstance(waited, Missing):
            self._seen.clear()
            return False
        while self._seen and self._seen[0][0] < now_seconds - WINDOW_SECONDS:
            self._seen.popleft()
        self._seen.append((now_seconds, waited))
        high = waited - self._seen[0][1] >= WAITED_SECONDS
        if high:
            self._seen.clear()
        return high
