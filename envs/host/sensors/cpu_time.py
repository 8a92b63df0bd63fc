"""CPU time that the LC used between any two moments, from a counter that is read once per tick."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise

from rlctl.envs.host.sensors.kernel_file import LATE_SECONDS
from rlctl.envs.host.sensors.sensor import Window
from rlctl.envs.telemetry import Missing, Reading, Value, Why

MOST_READINGS = 512

UNSURE_RATIO = 0.1
"""Of the CPU time of a window: where so much may be of another one, nobody knows it."""


class CpuTime:
    """Readings of a counter of CPU time, and what lies between them.

    A window that ends between two readings takes its share of what was used between them. How far that may be wrong is
    told by how much the pace of that time differs from the times beside it.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._totals: list[float] = []

    def add(self, reading: tuple[float, float] | None) -> None:
        """Take the monotonic time of a reading and the counter; None, or a counter that began anew, begins anew."""
        if reading is None or (self._totals and reading[1] < self._totals[-1]):
            self._seconds, self._totals = [], []
        if reading is not None and not (self._seconds and reading[0] <= self._seconds[-1]):
            self._seconds.append(reading[0])
            self._totals.append(reading[1])
            del self._seconds[:-MOST_READINGS], self._totals[:-MOST_READINGS]

    def within(self, window: Window, *, between: bool = True) -> float | Missing:
        """CPU-seconds that were used in a window.

        Args:
            between: Its ends may lie between two readings; else such a window is one of a tick that was held up.
        """
        ends = [self._at(end, between=between) for end in window]
        if any(math.isnan(total) for total, _ in ends):
            return Missing(Why.NO_DATA, "the CPU time was not read at both ends of the window")
        (first, early), (last, late) = ends
        if early + late > UNSURE_RATIO * (last - first):
            return Missing(Why.NO_DATA, "the CPU time was not read when the window began or ended")
        return last - first

    def _at(self, moment: float, *, between: bool) -> tuple[float, float]:
        """The counter at a moment, and by how much it may have been another number; NaN where it was not read."""
        seconds, totals = self._seconds, self._totals
        after = bisect_left(seconds, moment)
        near = [n for n in (after - 1, after) if 0 <= n < len(seconds) and abs(seconds[n] - moment) <= LATE_SECONDS]
        if near:
            return totals[near[0]], 0.0
        if not between or not 0 < after < len(seconds):
            return math.nan, math.nan
        first = max(after - 2, 0)
        paces = [
            (totals[n + 1] - totals[n]) / (seconds[n + 1] - seconds[n])
            for n, _ in pairwise(range(first, min(after + 2, len(seconds))))
        ]
        before, span = seconds[after - 1], seconds[after] - seconds[after - 1]
        pace = paces[after - 1 - first]
        least = min(moment - before, before + span - moment)
        return totals[after - 1] + pace * (moment - before), least * max(abs(one - pace) for one in paces)


def request_cost(done_rps: Reading, window: Window, cpu_time: CpuTime, *, between: bool) -> Reading:
    """CPU time per completed request, of the requests' own window: the stand-in for CPI where there is no PMU."""
    if isinstance(done_rps, Missing):
        return done_rps
    used_seconds = cpu_time.within(window, between=between)
    if isinstance(used_seconds, Missing):
        return used_seconds
    requests = done_rps.value * (window[1] - window[0])
    if requests <= 0.0:
        return Missing(Why.NO_DATA, "no request was completed")
    return Value(used_seconds / requests, done_rps.age_seconds)
