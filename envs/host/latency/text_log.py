"""Tail latency from a file to which every request adds a line, whatever its format, over a sliding window."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.host.latency.figures import PROVIDES, UNKNOWN, Figures, ReportedSource, Reporter
from rlctl.envs.host.latency.growing_file import GrowingFile
from rlctl.envs.host.latency.line_formats import LineFormat, Requests
from rlctl.envs.host.latency.newest import NOTHING, Newest
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


# Per batch; the newest are kept. At 16 bytes each a burst of any size stays below 4 MB.
MOST_SAMPLES = 200_000


def weighted_quantile(
    values: Sequence[float] | NDArray[np.float64], weights: Sequence[int] | NDArray[np.int64], q: float
) -> float:
    """The value at rank ceil(q (n - 1)), 0 the smallest, of the n that there are if each stands as often as it weighs.

    It equals `numpy.quantile(..., method="higher")` of that sample, which is not made. It is always a latency that some
    request really had, never an average of two. Of few it is the worse one, the safe side of an SLO.

    Args:
        values: Latencies in seconds, in any order, infinite ones too, shape (n,).
        weights: How many requests each stands for, none of them negative, shape (n,); one of them is above 0.
        q: Which quantile, in [0, 1].

    Raises:
        ValueError: No weight above 0, or q outside [0, 1].
    """
    sample, counts = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.int64)
    total = int(counts.sum())
    if total < 1 or not 0.0 <= q <= 1.0:
        raise ValueError(f"no quantile {q!r} of {total} values")
    order = np.argsort(sample)
    ends = np.cumsum(counts[order])  # the ranks of a value are those below its end, from the end before it on
    rank = math.ceil(q * (total - 1) - 1e-9)  # 0.95 * 20 must not become rank 20 by rounding
    return float(sample[order[np.searchsorted(ends, rank, side="right")]])


@dataclass(frozen=True, slots=True)
class _Batch:
    """The requests of a period.

    Attributes:
        latencies: In seconds, shape (n,).
        weights: How many requests each of them stands for, shape (n,).
        done, errors, rejected: Requests in all, those that failed, and lines without a latency; all by weight.
        gap: Why there were more; empty where these are all.
    """

    latencies: NDArray[np.float64]
    weights: NDArray[np.int64]
    done: int
    errors: int
    rejected: int
    start_seconds: float
    end_seconds: float
    gap: str = ""

    @classmethod
    def of(cls, pieces: Sequence[Requests], start_seconds: float, end_seconds: float, gap: str = "") -> _Batch:
        """The requests of several pieces, oldest first."""
        latencies = np.concatenate([np.asarray(piece.latencies, np.float64) for piece in pieces])[-MOST_SAMPLES:]
        each = np.array([(piece.weight, len(piece.latencies)) for piece in pieces], np.int64)
        weights = np.repeat(each[:, 0], each[:, 1])[-MOST_SAMPLES:]
        rejected = sum(piece.weight * piece.rejected for piece in pieces)
        errors = sum(piece.weight * piece.errors for piece in pieces)
        done = int(weights.sum()) + rejected  # a line without a latency is a request too, perhaps the worst
        return cls(latencies, weights, done, errors, rejected, start_seconds, end_seconds, gap)


class SampleWindow:
    """The requests completed in the last seconds.

    A batch belongs to the window when its middle does, so that a tick that comes a little early or late does not
    drop or keep a whole batch more.

    Args:
        window_seconds: Length of the window; it is at least one batch.
    """

    def __init__(self, window_seconds: float, q: float) -> None:
        self._window_seconds, self._q = window_seconds, q
        self._batches: deque[_Batch] = deque()
        self._last_seconds: float | None = None

    def seconds_since_last(self, now_seconds: float) -> float:
        """Time since the previous `add`; 0 before the first."""
        return 0.0 if self._last_seconds is None else now_seconds - self._last_seconds

    def add(self, now_seconds: float, *pieces: Requests, gap: str = "") -> None:
        """Take what was completed since the previous call, one piece or several; the first only starts the clock.

        Args:
            now_seconds: When the last of them was read; what came later is of the next batch.
            gap: Why these are not all; empty where they are.
        """
        start, self._last_seconds = self._last_seconds, now_seconds
        if start is not None and now_seconds > start:
            self._batches.append(_Batch.of(pieces, start, now_seconds, gap))
        while len(self._batches) > 1 and self._is_over(self._batches[0], now_seconds):
            self._batches.popleft()

    def figures(self) -> Figures | Missing:
        """What the window holds now; missing before the first batch."""
        if not self._batches:
            return Missing(Why.NO_DATA, "no window has ended yet")
        first, last = self._batches[0], self._batches[-1]
        seconds = last.end_seconds - first.start_seconds
        return Figures(
            end_seconds=last.end_seconds,
            window_seconds=seconds,
            samples=sum(len(batch.latencies) for batch in self._batches),
            tail_seconds=self._tail(),
            oldest_seconds=UNKNOWN,
            done_rps=sum(batch.done for batch in self._batches) / seconds,
            error_rps=sum(batch.errors for batch in self._batches) / seconds,
            gap=next((batch.gap for batch in self._batches if batch.gap), ""),
        )

    def _tail(self) -> float | Missing:
        """The quantile, where a line without a latency counts as the worst request of all: a time-out may be one."""
        rejected = sum(batch.rejected for batch in self._batches)
        latencies = np.concatenate([*(batch.latencies for batch in self._batches), [np.inf]])
        weights = np.concatenate([*(batch.weights for batch in self._batches), [rejected]])
        if not (lines := int(weights.sum())):
            return Missing(Why.NO_DATA)
        tail = weighted_quantile(latencies, weights, self._q)
        if math.isinf(tail):
            share = f"{rejected / lines:.1%} of {lines} lines"
            return Missing(
                Why.MALFORMED, f"{share} hold no latency, more than the {1.0 - self._q:.2g} above the quantile"
            )
        return tail

    @property
    def unfit(self) -> bool:
        """Lines came, and in none of them a latency could be found: the source is not what it is taken for."""
        rejected = any(batch.rejected for batch in self._batches)
        return rejected and not any(batch.latencies.size for batch in self._batches)

    def rejected_rps(self) -> Reading:
        """Lines per second in which no latency could be found."""
        if not self._batches:
            return Missing(Why.NO_DATA, "no window has ended yet")
        seconds = self._batches[-1].end_seconds - self._batches[0].start_seconds
        return Value(sum(batch.rejected for batch in self._batches) / seconds)

    def _is_over(self, batch: _Batch, now_seconds: float) -> bool:
        return 0.5 * (batch.start_seconds + batch.end_seconds) <= now_seconds - self._window_seconds
