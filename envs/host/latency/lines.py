"""Tail latency from a file to which every request adds a line."""

from __future__ import annotations

import math
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
"""Parsed in a tick. Two standard errors of the rank of their p95, 2 sqrt(q (1 - q) / 3000), are .8 points."""

LOOK_BYTES, LOOK_LINES, LOOK_EVERY = 4096, 16, 2
"""The most that is read between two ticks, and of that parsed, at every second look: enough to see that most requests
are late. Decoding is what costs, at a cold cache more for each time than for each line."""

_NEWLINE = ord("\n")


def sampled(lines: bytes, run: int = 1) -> tuple[bytes, int]:
    """About MOST_LINES whole lines, evenly from first to last, and how many each of them stands for.

    Args:
        run: Lines in a row that stay together.
    """
    weight = -(-lines.count(b"\n") // MOST_LINES)
    if weight <= 1:
        return lines, 1
    begins = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE) + 1  # of the line that comes next
    begins = np.concatenate([[0], begins])
    firsts = np.arange(weight // 2 * run, begins.size - 1, weight * run)
    ends = begins[np.minimum(firsts + run, begins.size - 1)]
    return b"".join([lines[begin:end] for begin, end in zip(begins[firsts].tolist(), ends.tolist())]), weight


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
        self._window = SampleWindow(window_seconds, slo.quantile)
        self._reporter = Reporter(self.name, slo, stale_seconds=float("inf"))  # the window ends with every tick

    @abstractmethod
    def parse(self, lines: bytes, seconds: float) -> Requests:
        """The requests in some whole lines, written since the previous call."""

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The window's figures, checked, as readings; `rejected_rps` counts lines without a latency."""
        lines = self._file.read()
        if isinstance(lines, Missing):
            self._window.add(now_seconds, Requests())
            return {**self._reporter.readings(lines, now_seconds), "rejected_rps": lines}
        sample, weight = sampled(lines, self.run)
        found = self.parse(sample, self._window.seconds_since_last(now_seconds))
        self._window.add(now_seconds, replace(found, weight=round(found.weight * weight / self._file.taken_ratio)))
        figures = Missing(Why.MALFORMED, self.unfit) if self._window.unfit else self._window.figures()
        return {**self._reporter.readings(figures, now_seconds), "rejected_rps": self._window.rejected_rps()}

    def newest(self) -> Newest:
        """The newest requests since the last look; a line without a latency is the slowest of all."""
        self._looks += 1
        if self._looks % LOOK_EVERY or not (lines := self._file.ahead(LOOK_BYTES)):
            return NOTHING
        found = self.parse(b"\n".join(lines.rsplit(b"\n", LOOK_LINES + 1)[-LOOK_LINES - 1 :]), 0.0)
        return Newest((*found.latencies, *[math.inf] * found.rejected))

    def close(self) -> None:
        """Close the file that is read."""
        self._file.close()
