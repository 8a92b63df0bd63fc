"""Latency figures that come by themselves, in another thread than the tick's."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlctl.envs.host.latency.figures import PROVIDES, Figures, Reporter
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.telemetry import Missing, Reading, Why
from rlctl.envs.workload import SLO


class ArrivingFigures:
    """The newest figures, which grow old until others come.

    Args:
        nothing: Why there are none before the first.
        stale_seconds: Figures older than this are missing.
    """

    provides = PROVIDES

    def __init__(self, name: str, slo: SLO, stale_seconds: float, nothing: str) -> None:
        self.name = name
        self._reporter = Reporter(name, slo, stale_seconds)
        self._latest: Figures | Missing = Missing(Why.NO_DATA, nothing)
        self._failure = ""  # why there are no newer ones
        self._looked_seconds = -math.inf  # end of the window that was looked at last

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The newest figures as readings. A source that falls silent leaves its last ones, which grow old."""
        return self._reporter.readings(self._latest, now_seconds, self._failure)

    def newest(self) -> Newest:
        """The latency of a window that has come since the last look; with the oldest request, as in a tick."""
        figures = self._latest
        if isinstance(figures, Missing) or figures.samples < 1 or figures.end_seconds <= self._looked_seconds:
            return NOTHING
        self._looked_seconds = figures.end_seconds
        known = [one for one in (figures.tail_seconds, figures.oldest_seconds) if not isinstance(one, Missing)]
        return Newest(tail_seconds=max(known, default=None))
