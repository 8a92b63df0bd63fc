"""A sliding window over latencies of single requests that arrive in batches, one batch per tick."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.host.latency.figures import UNKNOWN, Figures
from rlctl.envs.telemetry import Missing, Reading, Value, Why

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
class Requests:
    """Requests that were completed in a batch.

    Attributes:
        latencies: In seconds, oldest first, each finite and not negative.
        rejected: Lines in which no latency could be found.
        weight: Requests that each of them stands for, where only a part of a burst was looked at.
    """

    latencies: Sequence[float] = ()
    errors: int = 0
    rejected: int = 0
    weight: int = 1


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
