"""Histograms of latency: what came between two readings of one, several together, and the tail of what came."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from rlctl.envs.host.latency.figures import Figures, TimeUnit
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many requests took at most so long.

    Attributes:
        bounds: Rising, in the unit of its source; the last one is infinite.
        counts: Requests at or below each bound, as they were read: an exporter may update them one after the other.
    """

    bounds: tuple[float, ...] = (math.inf,)
    counts: tuple[float, ...] = (0.0,)

    @classmethod
    def of(cls, buckets: Mapping[float, float]) -> Histogram | None:
        """Cumulative counts by bound; None without an infinite one: who knows how many requests it leaves out."""
        if math.inf not in buckets:
            return None
        bounds = tuple(sorted(buckets))
        return cls(bounds, tuple(buckets[bound] for bound in bounds))

    @property
    def total(self) -> float:
        """Requests in all, however long they took."""
        return self.counts[-1]

    def at_most(self, bound: float) -> float:
        """Requests that surely took no longer than this, whether it is one of the bounds or not."""
        place = bisect_right(self.bounds, bound)
        return self.counts[place - 1] if place else 0.0

    def since(self, before: Histogram | None) -> Histogram:
        """What was added to an earlier reading. All of it where any count has fallen: its counters started anew."""
        earlier = Histogram() if before is None else before
        return Histogram(self.bounds, self.counts if self.fell(earlier) else self._growth(earlier))

    def fell(self, before: Histogram) -> bool:
        """Whether any count, of a lower bound too, is less than in an earlier reading: its counters started anew."""
        return min(self._growth(before)) < 0.0

    @property
    def rises(self) -> bool:
        """Whether no bound has fewer requests than a lower one."""
        return all(low <= high for low, high in pairwise(self.counts))

    def _growth(self, before: Histogram) -> tuple[float, ...]:
        return tuple(now - before.at_most(bound) for bound, now in zip(self.bounds, self.counts, strict=True))

    def quantile(self, q: float) -> tuple[float, bool] | None:
        """A quantile by linear interpolation inside the bucket that holds it.

        Returns:
            Its estimate and False; the last finite bound and True where it lies beyond that, which is a lower limit
            and no estimate; None when there were no requests.
        """
        if self.total <= 0.0:
            return None
        rank, lower, below = q * self.total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and count > below and not math.isinf(bound):
                share = max(rank - below, 0.0) / (count - below)
                return lower + (bound - min(lower, bound)) * share, False
            if not math.isinf(bound):
                lower, below = bound, max(count, below)
        return lower, True

    def figures(self, name: str, unit: TimeUnit, slo: SLO, end_seconds: float, window_seconds: float) -> Figures:
        """What the requests of one window say.

        Args:
            name: What the source calls the histogram, for the operator.
            unit: Of the bounds.
            end_seconds: Monotonic time at which the window ended.
        """
        quantile = self.quantile(slo.quantile)
        return Figures(
            end_seconds=end_seconds,
            window_seconds=window_seconds,
            samples=round(self.total),
            tail_seconds=_tail(quantile, name, unit, slo),
            tail_is_lower_limit=quantile is not None and quantile[1],
            done_rps=self.total / window_seconds,
        )


def together(parts: Collection[Histogram]) -> Histogram:
    """All of them as one.

    At a bound that one of them lacks, its next lower one counts: its requests may seem slower for it, and never faster.
    """
    steps: dict[float, float] = {}  # what each bound adds to those below it; parts may be many, of bounds of their own
    for part in parts:
        below = 0.0
        for bound, count in zip(part.bounds, part.counts, strict=True):
            steps[bound], below = steps.get(bound, 0.0) + count - below, count
    bounds = tuple(sorted(steps)) or (math.inf,)
    return Histogram(bounds, tuple(accumulate(steps.get(bound, 0.0) for bound in bounds)))


def _tail(quantile: tuple[float, bool] | None, name: str, unit: TimeUnit, slo: SLO) -> float | Missing:
    """A lower limit beyond the target is a violation for certain; one below the target says nothing."""
    if quantile is None:
        return Missing(Why.NO_DATA, "no request completed")
    value, beyond = quantile
    seconds = value * unit.seconds
    if beyond and seconds <= slo.target_seconds:
        return Missing(
            Why.NOT_SUPPORTED,
            f"the quantile is above the histogram's last bound, {seconds:g} s: give {name} buckets beyond the target",
        )
    return seconds
