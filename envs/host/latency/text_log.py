"""Tail latency from a file to which every request adds a line, whatever its format."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlctl.envs.host.latency.figures import PROVIDES, ReportedSource, Reporter
from rlctl.envs.host.latency.growing_file import GrowingFile
from rlctl.envs.host.latency.line_formats import LineFormat
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.latency.window import Requests, SampleWindow
from rlctl.envs.telemetry import Missing, Reading, Value, Why
from rlctl.envs.workload import SLO

log = logging.getLogger(__name__)

MOST_LINES = 3000
"""Parsed of what waits for a tick. Two standard errors of the rank of their p95, 2 sqrt(q (1 - q) / 3000), are .8
points."""

LOOK_BYTES, LOOK_LINES, LOOK_EVERY = 4096, 16, 2
"""The most that is read between two ticks, and of that parsed, at every second look: enough to see that most requests
are late. Decoding is what costs, at a cold cache more for each time than for each line."""

EARLY_BYTES = 1 << 16
"""Where as many wait between two ticks they are taken then, so that a megabyte is not left for the tick: at every look
in which none are parsed."""

EARLY_LINES = MOST_LINES * LOOK_EVERY // 50
"""Parsed of them, and what looks before it have left of theirs; looks are 20 ms apart, or less when a sign is near."""

_NEWLINE = ord("\n")


def sampled(lines: bytes, most: int, run: int = 1) -> tuple[bytes, int]:
    """About so many whole lines, evenly from first to last, and how many each of them stands for.

    Args:
        run: Lines in a row that stay together.
    """
    weight = -(-lines.count(b"\n") // most)
    if weight <= 1:
        return lines, 1
    begins = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE) + 1  # of the line that comes next
    begins = np.concatenate([[0], begins])
    firsts = np.arange(weight // 2 * run, begins.size - 1, weight * run)
    ends = begins[np.minimum(firsts + run, begins.size - 1)]
    spans = zip(begins[firsts].tolist(), ends.tolist(), strict=True)
    return b"".join([lines[begin:end] for begin, end in spans]), weight


class TextLog(ReportedSource):
    """The SLO's quantile over the requests of the last seconds.

    Such a file holds completed requests only; in overload its tail comes too late, see `oldest_request_seconds`. A
    window ends when the file was read, however late that was, and not when the tick began.

    Args:
        path: A regular file; it may be rotated, truncated, or not exist yet.
        lines: How its lines are read.
        clock: Of the tick, monotonic.
    """

    provides = (*PROVIDES, "rejected_rps", "log_gaps")

    ends_at_ticks = True

    def __init__(
        self,
        path: Path,
        lines: LineFormat,
        slo: SLO,
        *,
        window_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"{lines.kind} {path}"
        self._format, self._clock, self._window_seconds = lines, clock, window_seconds
        self._file, self._looks = GrowingFile(path, clock), 0
        self._pieces: list[Requests] = []  # taken since the last reading
        self._may_parse, self._allowed = 0, 0  # lines, and how many of them since the last reading
        self._gaps = 0
        self._window = SampleWindow(window_seconds, slo.quantile)
        self._reporter = Reporter(self.name, slo, stale_seconds=float("inf"))  # the window ends with every tick

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The window's figures, checked, as readings.

        `rejected_rps` counts lines without a latency, `log_gaps` the readings since the start that lack lines: they
        have a tail, and no load.
        """
        lines = self._file.read()
        if not isinstance(lines, Missing):
            share, self._allowed = max(MOST_LINES - self._allowed, EARLY_LINES), 0
            self._take(lines, share)
        if self._file.gap:
            self._gaps += 1
            log.log(logging.DEBUG if self._gaps > 1 else logging.WARNING, "%s: %s", self.name, self._file.gap)
        pieces, self._pieces = self._pieces, []
        self._window.add(self._file.read_seconds, *(pieces or [Requests()]), gap=self._file.gap)
        gaps = Value(float(self._gaps))
        if isinstance(lines, Missing):
            return {**self._reporter.readings(lines, now_seconds), "rejected_rps": lines, "log_gaps": gaps}
        figures = Missing(Why.MALFORMED, self._format.unfit) if self._window.unfit else self._window.figures()
        readings = self._reporter.readings(figures, now_seconds)
        return {**readings, "rejected_rps": self._window.rejected_rps(), "log_gaps": gaps}

    def newest(self) -> Newest:
        """The newest requests since the last look; a line without a latency is the slowest of all."""
        self._looks += 1
        if self._looks % LOOK_EVERY:
            self._allowed += EARLY_LINES
            self._take(self._file.early(EARLY_BYTES), EARLY_LINES)
            return NOTHING
        lines = self._file.ahead(LOOK_BYTES)
        if not lines:
            return NOTHING
        last = b"\n".join(lines.rsplit(b"\n", LOOK_LINES + 1)[-LOOK_LINES - 1 :])
        found = self._format.look(last, self._window_seconds)
        return Newest((*found.latencies, *[math.inf] * found.rejected))

    def _take(self, lines: bytes, share: int) -> None:
        """Keep what the file gave last for the reading; `share`: so many more lines may be parsed."""
        self._may_parse = min(max(self._may_parse, 0) + share, MOST_LINES)
        if lines:
            sample, weight = sampled(lines, self._may_parse, self._format.run)
            self._may_parse -= sample.count(b"\n")
            span_seconds = max(self._window.seconds_since_last(self._file.read_seconds), self._window_seconds)
            found = self._format.parse(sample, span_seconds)
            self._pieces.append(replace(found, weight=round(found.weight * weight / self._file.taken_ratio)))

    def close(self) -> None:
        """Close the file that is read."""
        self._file.close()
