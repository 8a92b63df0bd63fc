"""Quiet times of an LC: whether it is idle, and over how many windows few requests are judged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from rlctl.envs.telemetry import (
    FEW_IN_LONG,
    FEW_SAMPLES,
    GROWN_SECONDS,
    LC_IDLE,
    Missing,
    Quantile,
    Reading,
    Value,
    Why,
    number,
)

IDLE_CPUS = 0.01
"""CPU use of an LC that serves nothing: housekeeping."""

SERVING_CPUS = 0.1
"""An LC that uses more serves somebody whom its source does not see: over a UNIX socket, or QUIC."""

WAITS = ("lc_pressure_ratio", "lc_io_pressure_ratio", "lc_memory_pressure_ratio", "lc_run_delay_ratio")
"""What an LC waits for that hangs on BE: it shows neither use nor requests, and is not idle."""

IDLE_WAIT_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class _Window:
    end_seconds: float
    seconds: float
    samples: int


class QuietTimes:
    """Follows the windows of one LC, tick by tick."""

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque()
        self._last_seconds: float | None = None

    def explain(self, now_seconds: float, readings: dict[str, Reading]) -> None:
        """Add `LC_IDLE` where the source does not tell, and let a window of few requests grow over those before it.

        The latency stays that of the newest window: of few requests it is the worst. What grows is the number of
        requests and the time that it stands on: the windows before it in a row, idle ones too. Where those are
        `GROWN_SECONDS` long, `FEW_IN_LONG` says so.
        """
        tail = readings.get("tail_latency_seconds")
        idle = _idle(readings)
        told, used = readings.setdefault(LC_IDLE, idle), readings.get("lc_cpus")
        if isinstance(told, Value) and isinstance(used, Value) and used.value > SERVING_CPUS:
            readings[LC_IDLE] = replace(told, value=0.0)
        before, self._last_seconds = self._last_seconds, now_seconds
        if isinstance(tail, Quantile):
            self._add(_Window(now_seconds - tail.age_seconds, tail.window_seconds, tail.samples))
        elif number(readings[LC_IDLE]) == 1.0 and before is not None:
            self._add(_Window(now_seconds, now_seconds - before, 0))
        else:
            self._windows.clear()
        if isinstance(tail, Quantile) and 0 < tail.samples < FEW_SAMPLES:
            samples, seconds, long = self._grown()
            readings["tail_latency_seconds"] = replace(tail, samples=samples, window_seconds=seconds)
            readings[FEW_IN_LONG] = Value(float(long), tail.age_seconds)

    def _add(self, window: _Window) -> None:
        # A source that is asked in its own time may show one window twice.
        if self._windows and window.end_seconds - self._windows[-1].end_seconds < 0.5 * window.seconds:
            return
        self._windows.append(window)
        while window.end_seconds - self._windows[0].end_seconds > GROWN_SECONDS:
            self._windows.popleft()

    def _grown(self) -> tuple[int, float, bool]:
        """Requests and seconds of as many windows as hold enough requests; whether all are `GROWN_SECONDS` long."""
        samples, seconds = 0, 0.0
        for window in reversed(self._windows):
            samples, seconds = samples + window.samples, seconds + window.seconds
            if samples >= FEW_SAMPLES:
                break
        return samples, seconds, sum(window.seconds for window in self._windows) >= GROWN_SECONDS


def _idle(readings: dict[str, Reading]) -> Reading:
    """1 for an LC without a request in the window, none outstanding, without CPU use, and that waits for nothing."""
    tail, done, used = (readings.get(name) for name in ("tail_latency_seconds", "done_rps", "lc_cpus"))
    if not (isinstance(done, Value) and isinstance(used, Value)):
        return Missing(Why.NO_DATA, "neither requests nor CPU use of the LC are known")
    oldest = readings.get("oldest_request_seconds")
    if not isinstance(oldest, Value):
        # A log of completed requests is as silent beside an LC that stands still, or waits for a disk without PSI.
        return Missing(Why.NOT_SUPPORTED, "the source does not tell whether requests are outstanding")
    silent = isinstance(tail, Missing) and tail.why is Why.NO_DATA and done.value == 0.0 and used.value < IDLE_CPUS
    waits = max(number(readings.get(name, done)) or 0.0 for name in WAITS) > IDLE_WAIT_RATIO
    outstanding = number(oldest) != 0.0
    offered = (number(readings.get("offered_rps", done)) or 0.0) > 0.0
    return Value(float(silent and not (waits or outstanding or offered)), max(done.age_seconds, used.age_seconds))
