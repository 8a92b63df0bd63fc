"""Numbers in kernel files, read again and again: as they are, or as a rate; or why there is none."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.telemetry import Missing, Reading, Value, Why

Parse = Callable[[bytes], float | Missing]
"""A number in SI units from a file's content, or why there is none."""

_WHY = {
    errno.EACCES: Why.NO_PERMISSION,
    errno.EPERM: Why.NO_PERMISSION,
    errno.EOPNOTSUPP: Why.NOT_SUPPORTED,  # PSI that is compiled in but switched off
    errno.EINVAL: Why.NOT_SUPPORTED,
    errno.ENODEV: Why.GONE,  # the cgroup behind an open file was removed
    errno.ESRCH: Why.GONE,  # the process behind an open file ended
}


def missing_because(error: OSError, path: Path) -> Missing:
    """The reason in telemetry's words. A file that is absent from a directory that exists is one this kernel lacks."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        why = Why.NOT_SUPPORTED if path.parent.is_dir() else Why.GONE
    else:
        why = _WHY.get(error.errno or 0, Why.NO_DATA)
    return Missing(why, f"{path}: {error.strerror or error}")


class KernelFile:
    """A file of /proc or /sys/fs/cgroup that stays open; `pread` at 0 makes the kernel print it anew.

    An open file of a removed cgroup or process answers ENODEV or ESRCH for ever, whatever takes over its name; it is
    then opened again.

    Args:
        keep_open: False for files whose content is fixed when they are opened. In cgroup.procs of cgroup v1 a
            file that stays open shows the same pids for as long as it is read more often than once a second.
        follow_name: False for files of one process or thread, whose number may be handed out again.
    """

    def __init__(self, path: Path, *, keep_open: bool = True, follow_name: bool = True, most_bytes: int = 4096) -> None:
        self.path = path
        self._keep_open = keep_open
        self._follow_name = follow_name
        self._most_bytes = most_bytes
        self._file: int | None = None

    def read(self) -> bytes | Missing:
        """The content now, or why there is none."""
        reopened = self._file is None
        while True:
            try:
                if self._file is None:
                    self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                content = os.pread(self._file, self._most_bytes, 0)
            except OSError as error:
                self.close()
                if reopened or not self._follow_name:
                    return missing_because(error, self.path)
                reopened = True
                continue
            if not self._keep_open:
                self.close()
            return content

    def close(self) -> None:
        """Close the file; `read` opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


LATE_SECONDS, LOOKS = 0.010, 3
"""Whoever was held up for longer while it read a number does not know of when it is, and reads again, so often."""

BEGAN_ANEW = "the counter or the clock started anew"
T = TypeVar("T")


def read_timed(clock: Callable[[], float], read: Callable[[], T]) -> tuple[T, float, bool]:
    """What was read, the time at which it was so, and whether that is known to LATE_SECONDS."""
    for _ in range(LOOKS):
        began_seconds, found, ended_seconds = clock(), read(), clock()
        if ended_seconds - began_seconds <= LATE_SECONDS:
            return found, ended_seconds, True
    return found, ended_seconds, False


class Rate:
    """Growth per second of a counter that only grows.

    Attributes:
        before: The time and the number of the last call; None where that was missing.

    Args:
        most: The largest rate that physics allows. Ticks are late now and then, so that one interval's growth is
            divided by a shorter time: a rate up to twice `most` is taken as `most`, one beyond that is absurd.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self.before: tuple[float, float] | None = None
        self._good_seconds = -math.inf

    def update(self, now_seconds: float, total: float | Missing, most: float | None = None) -> Reading:
        """The rate since the previous call, missing at the first one and after the counter started anew.

        Args:
            most: The largest rate by now, where that changes.
        """
        reading = self._difference(now_seconds, total, self._most if most is None else most)
        if isinstance(reading, Missing):
            return replace(reading, age_seconds=now_seconds - self._good_seconds)
        self._good_seconds = now_seconds
        return reading

    def _difference(self, now_seconds: float, total: float | Missing, most: float) -> Reading:
        before, self.before = self.before, None
        if isinstance(total, Missing):
            return total
        self.before = now_seconds, total
        if before is None:
            return Missing(Why.NO_DATA, "a rate takes two readings")
        seconds, growth = now_seconds - before[0], total - before[1]
        if not (seconds > 0.0 and growth >= 0.0):  # nor is NaN a counter
            return Missing(Why.NO_DATA, BEGAN_ANEW)
        rate = growth / seconds
        if rate > 2.0 * most:
            return Missing(Why.ABSURD, f"{rate:g} per second, {most:g} is possible")
        return Value(min(rate, most))


def one_number(unit: float, what: str) -> Parse:
    """For a file that holds nothing but one number, in this SI unit."""

    def parse(content: bytes) -> float | Missing:
        number = parse_quantity(content.strip())
        return Missing(number, f"{content[:40]!r} is no {what}") if isinstance(number, Why) else number * unit

    return parse


class Gauge:
    """A number in a kernel file; `most` is the largest growth per second that physics allows, see `Rate`."""

    def __init__(self, path: Path, parse: Parse, most: float = math.inf) -> None:
        self.path = path
        self._file = KernelFile(path)
        self._parse = parse
        self._rate = Rate(most)

    def now(self) -> float | Missing:
        """The number as it is now."""
        content = self._file.read()
        return content if isinstance(content, Missing) else self._parse(content)

    def rate(self, now_seconds: float, most: float | None = None) -> Reading:
        """Its growth per second since the previous call; `most` as of `Rate.update`."""
        return self._rate.update(now_seconds, self.now(), most)

    def timed_rate(self, clock: Callable[[], float], most: float | None = None) -> Reading:
        """The same between the moments at which it was read, whatever held up its reader before and after."""
        total, ended_seconds, known = read_timed(clock, self.now)
        if not known:
            total = Missing(Why.NO_DATA, f"{self.path}: rlctl was held up while it read")
        return self._rate.update(ended_seconds, total, most)

    @property
    def last(self) -> tuple[float, float] | None:
        """The time and the number of the last call of `rate`; None where it was missing."""
        return self._rate.before

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        self._file.close()


G = TypeVar("G", bound=Gauge)


def follow_gauges(gauges: Iterable[G], paths: Sequence[Path], make: Callable[[Path], G]) -> tuple[G, ...]:
    """Gauges of these files from now on: those that there are, and new ones; the others are closed."""
    before = {gauge.path: gauge for gauge in gauges}
    after = tuple(before.pop(path) if path in before else make(path) for path in paths)
    for gauge in before.values():
        gauge.close()
    return after
