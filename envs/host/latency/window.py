"""A sliding window over latencies of single requests that arrive in batches, one batch per tick."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlctl.envs.host.latency.figures import UNKNOWN, Figures
from rlctl.envs.quantile import weighted_quantile
from rlctl.envs.telemetry import Missing, Reading, Value, Why

# Per batch; the newest are kept. At 8 bytes each a burst of any size stays below 2 MB.
MOST_SAMPLES = 200_000


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

    @property
    def count(self) -> int:
        """Requests that it tells of; a line without a latency is one too, perhaps the worst."""
        return self.weight * (len(self.latencies) + self.rejected)


@dataclass(frozen=True, slots=True)
class _Batch(Requests):
    start_seconds: float = 0.0
    end_seconds: float = 0.0


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

    def add(self, now_seconds: float, requests: Requests) -> None:
        """Take what was completed since the previous call; the first call only starts the clock."""
        start, self._last_seconds = self._last_seconds, now_seconds
        if start is not None and now_seconds > start:
            latest = array("d", requests.latencies[-MOST_SAMPLES:])  # which NumPy reads as it is, tick after tick
            others = requests.errors, requests.rejected, requests.weight
            self._batches.append(_Batch(latest, *others, start, now_seconds))
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
            done_rps=sum(batch.count for batch in self._batches) / seconds,
            error_rps=sum(batch.weight * batch.errors for batch in self._batches) / seconds,
        )

    def _tail(self) -> float | Missing:
        """The quantile, where a line without a latency counts as the worst request of all: a time-out may be one."""
        rejected = sum(batch.weight * batch.rejected for batch in self._batches)
        latencies = np.concatenate([*(np.asarray(batch.latencies) for batch in self._batches), [np.inf]])
        known = np.repeat([batch.weight for batch in self._batches], [len(batch.latencies) for batch in self._batches])
        weights = np.append(known, rejected)
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
        return rejected and not any(batch.latencies for batch in self._batches)

    def rejected_rps(self) -> Reading:
        """Lines per second in which no latency could be found."""
        if not self._batches:
            return Missing(Why.NO_DATA, "no window has ended yet")
        seconds = self._batches[-1].end_seconds - self._batches[0].start_seconds
        return Value(sum(batch.weight * batch.rejected for batch in self._batches) / seconds)

    def _is_over(self, batch: _Batch, now_seconds: float) -> bool:
        return 0.5 * (batch.start_seconds + batch.end_seconds) <= now_seconds - self._window_seconds
