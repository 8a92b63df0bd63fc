"""Tail latency from a file to which every request adds a line."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlctl.envs.host.latency.figures import PROVIDES, Reporter
from rlctl.envs.host.latency.growing_file import GrowingFile
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.latency.window import Requests, SampleWindow
from rlctl.envs.telemetry import Missing, Reading, Why
from rlctl.envs.workload import SLO

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


class LineSource(ABC):
    """The SLO's quantile over the requests of the last seconds.

    Such a file holds completed requests only; in overload its tail comes too late, see `oldest_request_seconds`.

    Args:
        path: A regular file; it may be rotated, truncated, or not exist yet.
    """

    provides = (*PROVIDES, "rejected_rps")
    unfit = ""
    run = 1
    """Lines in a row that tell of one request together."""

    def __init__(self, kind: str, path: Path, slo: SLO, window_seconds: float) -> None:
        self.name = f"{kind} {path}"
        self._file, self._looks = GrowingFile(path), 0
        self._pieces: list[Requests] = []  # taken since the last reading
        self._may_parse, self._allowed = 0, 0  # lines, and how many of them since the last reading
        self._read_seconds = time.monotonic()
        self._window = SampleWindow(window_seconds, slo.quantile)
        self._reporter = Reporter(self.name, slo, stale_seconds=float("inf"))  # the window ends with every tick

    @abstractmethod
    def parse(self, lines: bytes, seconds: float) -> Requests:
        """The requests in some whole lines, written since the previous call."""

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The window's figures, checked, as readings; `rejected_rps` counts lines without a latency."""
        lines, self._read_seconds = self._file.read(), time.monotonic()
        if not isinstance(lines, Missing):
            share, self._allowed = max(MOST_LINES - self._allowed, EARLY_LINES), 0
            self._take(lines, share, self._window.seconds_since_last(now_seconds))
        pieces, self._pieces = self._pieces, []
        self._window.add(now_seconds, *(pieces or [Requests()]))
        if isinstance(lines, Missing):
            return {**self._reporter.readings(lines, now_seconds), "rejected_rps": lines}
        figures = Missing(Why.MALFORMED, self.unfit) if self._window.unfit else self._window.figures()
        return {**self._reporter.readings(figures, now_seconds), "rejected_rps": self._window.rejected_rps()}

    def newest(self) -> Newest:
        """The newest requests since the last look; a line without a latency is the slowest of all."""
        self._looks += 1
        if self._looks % LOOK_EVERY:
            self._allowed += EARLY_LINES
            self._take(self._file.early(EARLY_BYTES), EARLY_LINES, time.monotonic() - self._read_seconds)
            return NOTHING
        lines = self._file.ahead(LOOK_BYTES)
        return self.look(b"\n".join(lines.rsplit(b"\n", LOOK_LINES + 1)[-LOOK_LINES - 1 :])) if lines else NOTHING

    def look(self, lines: bytes) -> Newest:
        """The requests in some lines that `parse` is yet to be given."""
        found = self.parse(lines, 0.0)
        return Newest((*found.latencies, *[math.inf] * found.rejected))

    def _take(self, lines: bytes, share: int, seconds: float) -> None:
        """Keep what the file gave last for the reading; `share`: so many more lines may be parsed."""
        self._may_parse = min(max(self._may_parse, 0) + share, MOST_LINES)
        if lines:
            sample, weight = sampled(lines, self._may_parse, self.run)
            self._may_parse -= sample.count(b"\n")
            found = self.parse(sample, seconds)
            self._pieces.append(replace(found, weight=round(found.weight * weight / self._file.taken_ratio)))

    def close(self) -> None:
        """Close the file that is read."""
        self._file.close()
