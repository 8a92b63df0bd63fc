"""What `perf stat -I` prints, line by line, as frames: one interval's counts of every event and cgroup.

JSON (`-j`, perf 6.0 and later) and CSV (`-x;`, the only format of perf 5.15) give the same fields. Keys that are not
known are passed over, lines that say nothing are dropped, and "no number" stays apart by its cause.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from rlctl.envs.host.decode import json_or_none, parse_quantity
from rlctl.envs.telemetry import Why

MOST_LINE_BYTES = 4096  # real ones are below 400
_PMU = re.compile(r"^\w+/([^,/]+).*/\w*$")  # cpu_core/cycles/, as hybrid CPUs print it
_NO_NUMBER = {"<not supported>": Why.NOT_SUPPORTED, "<not counted>": Why.NOT_COUNTED}


@dataclass(frozen=True, slots=True)
class PerfLine:
    """One event of one cgroup in one interval.

    Attributes:
        stamp_seconds: End of the interval, since perf started.
        count: How often, or for how many seconds (task-clock), it was counted; or why not. Already scaled up by perf
            when it was multiplexed.
        running_ratio: Share of the interval in which the counter really ran.
    """

    stamp_seconds: float
    group: str
    event: str
    count: float | Why
    running_ratio: float


@dataclass(frozen=True, slots=True)
class Count:
    """An event's count over an interval, summed over the PMUs of a hybrid CPU."""

    count: float | Why
    running_ratio: float = 1.0

    def __add__(self, other: Count) -> Count:
        """The sum; where only one side is a number it is that, as a task that did not run there counted nothing."""
        if isinstance(self.count, Why) or isinstance(other.count, Why):
            return self if isinstance(other.count, Why) else other
        return Count(self.count + other.count, min(self.running_ratio, other.running_ratio))


@dataclass(frozen=True, slots=True)
class PerfInterval:
    """One interval of perf."""

    stamp_seconds: float
    seconds: float
    counts: dict[tuple[str, str], Count] = field(default_factory=dict)


def parse_line(line: bytes) -> PerfLine | None:
    """One line of `perf stat -I -j` or `-x;` with cgroups; None for a comment, a metric, and whatever is no count."""
    if len(line) > MOST_LINE_BYTES:
        return None
    text = line.decode(errors="replace").strip()
    fields = json_or_none(text) if text.startswith("{") else _from_csv(text)
    if not isinstance(fields, dict):
        return None
    stamp, running = parse_quantity(fields.get("interval")), parse_quantity(fields.get("pcnt-running"))
    event, group, raw = fields.get("event"), fields.get("cgroup"), fields.get("counter-value")
    if isinstance(stamp, Why) or not (isinstance(event, str) and isinstance(group, str) and isinstance(raw, str)):
        return None
    count: float | Why = _NO_NUMBER.get(raw.strip()) or parse_quantity(raw)
    if fields.get("unit") == "msec" and not isinstance(count, Why):
        count *= 1e-3
    return PerfLine(stamp, group, _plain(event), count, 1.0 if isinstance(running, Why) else running / 100.0)


_KEYS = ("interval", "counter-value", "unit", "event", "cgroup", "event-runtime", "pcnt-running")


def _from_csv(text: str) -> dict[str, str] | None:
    """perf-stat(1), "CSV FORMAT"; the cgroup stands behind the event, which the manual leaves out (measured)."""
    cells = text.split(";")
    return dict(zip(_KEYS, cells, strict=False)) if len(cells) >= len(_KEYS) else None


def _plain(event: str) -> str:
    if "/" in event and (pmu := _PMU.match(event)):
        return pmu[1]
    return event.partition(":")[0]


class FrameAssembler:
    """Puts lines together to frames, however the pipe cuts them.

    A frame is complete when every expected event has been seen, or when the next interval begins. So the counts of one
    frame, and its CPI, are always of the same interval.
    """

    def __init__(self, expected: Collection[tuple[str, str]]) -> None:
        self._expected = frozenset(expected)
        self._partial = b""
        self._frame: PerfInterval | None = None
        self._closed_seconds = 0.0

    def feed(self, data: bytes) -> list[PerfInterval]:
        """Take what the pipe gave; returns the frames that it completed, oldest first."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MOST_LINE_BYTES:
            self._partial = b""
        done: list[PerfInterval] = []
        for line in lines:
            parsed = parse_line(line)
            if parsed is not None and (parsed.group, parsed.event) in self._expected:
                done += self._add(parsed)
        return done

    def _add(self, line: PerfLine) -> list[PerfInterval]:
        done: list[PerfInterval] = []
        if self._frame is not None and line.stamp_seconds > self._frame.stamp_seconds:
            done.append(self._close(self._frame))
        if line.stamp_seconds <= self._closed_seconds:
            return done
        if self._frame is None:
            self._frame = PerfInterval(line.stamp_seconds, line.stamp_seconds - self._closed_seconds)
        counts, key = self._frame.counts, (line.group, line.event)
        count = Count(line.count, line.running_ratio)
        counts[key] = counts[key] + count if key in counts else count
        if len(counts) == len(self._expected):
            done.append(self._close(self._frame))
        return done

    def _close(self, frame: PerfInterval) -> PerfInterval:
        self._frame, self._closed_seconds = None, frame.stamp_seconds
        return frame
