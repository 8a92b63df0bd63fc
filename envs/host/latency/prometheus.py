"""Tail latency from a Prometheus histogram: differences of two scrapes, interpolated inside a bucket."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rlctl.envs.host.decode import measured
from rlctl.envs.host.latency.figures import UNKNOWN, Figures, TimeUnit
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO

_Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class PrometheusNames:
    """What the endpoint calls things.

    Attributes:
        histogram: The latency histogram, without `_bucket`.
        labels: Only series that carry all of these; the rest of the series are added up.
        oldest: A gauge with the age of the oldest outstanding request, if there is one.
        in_flight: A gauge with the number of outstanding requests; makes offered load known in overload too.
        unit: Unit of the histogram and of `oldest`.
    """

    histogram: str
    labels: Mapping[str, str] = field(default_factory=dict)
    oldest: str | None = None
    in_flight: str | None = None
    unit: TimeUnit = TimeUnit.SECONDS


@dataclass(frozen=True, slots=True)
class BucketQuantile:
    """A quantile as far as a histogram knows it.

    Attributes:
        value: Its estimate; the histogram's last finite bound when it lies beyond.
        beyond: True when it lies above the last finite bound: `value` is then a lower limit and no estimate.
    """

    value: float
    beyond: bool


def bucket_quantile(buckets: Sequence[tuple[float, float]], q: float) -> BucketQuantile | None:
    """A quantile by linear interpolation inside the bucket that holds it.

    Args:
        buckets: (upper bound, requests at or below it) of the interval, by rising bound, the last one infinite.

    Returns:
        None when there were no requests or there is no finite bound.
    """
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0.0 or len(buckets) < 2:
        return None
    rank, lower, below = q * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            if math.isinf(bound):
                return BucketQuantile(lower, beyond=True)
            return BucketQuantile(lower + (bound - min(lower, bound)) * max(rank - below, 0.0) / (count - below), False)
        lower, below = bound, max(count, below)
    return BucketQuantile(buckets[-2][0], beyond=True)


@dataclass(frozen=True, slots=True)
class _Scrape:
    seconds: float
    buckets: Mapping[tuple[_Labels, float], float]
    oldest: float | Missing
    in_flight: float | Missing


class PrometheusDigest:
    """Turns one scrape after the other into figures.

    Each series is compared with itself, so that a worker that restarts (its counters start again at 0) or joins does
    not disturb the others. The figures of a window are those between two scrapes. Completed requests are all that a
    histogram shows: in overload name an `oldest` or `in_flight` gauge too.
    """

    def __init__(self, names: PrometheusNames, slo: SLO) -> None:
        self._names, self._slo = names, slo
        wanted = [f"{names.histogram}_bucket", *filter(None, (names.oldest, names.in_flight))]
        self._starts = tuple(name + end for name in wanted for end in "{ \t")
        self._before: _Scrape | None = None

    def __call__(self, body: bytes, now_seconds: float) -> Figures | Missing:
        """Figures since the previous scrape.

        Args:
            body: The exposition, text format 0.0.4; OpenMetrics is near enough.
            now_seconds: Monotonic time at which it arrived.
        """
        scrape = self._parse(body, now_seconds)
        before, self._before = self._before, scrape if isinstance(scrape, _Scrape) else None
        if isinstance(scrape, Missing):
            return scrape
        if before is None or scrape.seconds <= before.seconds:
            return Missing(Why.NO_DATA, "a histogram's window takes two scrapes")
        return self._figures(before, scrape)

    def _parse(self, body: bytes, now_seconds: float) -> _Scrape | Missing:
        # The parser is pure Python and would hold the interpreter for long over thousands of lines that are not ours.
        text = "\n".join(line for line in body.decode(errors="replace").splitlines() if line.startswith(self._starts))
        try:
            samples = [sample for family in text_string_to_metric_families(text + "\n") for sample in family.samples]
        except Exception as error:  # noqa: BLE001 - its author names none; see its issue tracker for what it raises
            return Missing(Why.MALFORMED, f"not the Prometheus text format: {error}")
        buckets = self._buckets(samples)
        if not buckets:
            labels = f" with {dict(self._names.labels)}" if self._names.labels else ""
            return Missing(Why.NO_DATA, f"no series of {self._names.histogram}_bucket{labels}: is that its name there?")
        if any((series, math.inf) not in buckets for series, _ in buckets):
            why = (
                f'a series of {self._names.histogram}_bucket has no le="+Inf": its slowest requests are not to be seen'
            )
            return Missing(Why.MALFORMED, why)
        oldest = self._gauge(samples, self._names.oldest)
        in_flight = self._gauge(samples, self._names.in_flight)
        return _Scrape(now_seconds, buckets, oldest, in_flight)

    def _buckets(self, samples: Sequence[Sample]) -> dict[tuple[_Labels, float], float]:
        buckets: dict[tuple[_Labels, float], float] = {}
        for sample in samples:
            if (
                sample.name != f"{self._names.histogram}_bucket"
                or not self._names.labels.items() <= sample.labels.items()
            ):
                continue
            bound, count = _bound(sample.labels.get("le", "")), measured(sample.value)
            if bound is not None and not isinstance(count, Why):
                series = frozenset((key, value) for key, value in sample.labels.items() if key != "le")
                buckets[series, bound] = count
        return buckets

    def _gauge(self, samples: Sequence[Sample], name: str | None) -> float | Missing:
        """The largest of all series of a gauge (the oldest request); for in-flight requests see `_figures`."""
        if name is None:
            return UNKNOWN
        values = [value for s in samples if s.name == name and not isinstance(value := measured(s.value), Why)]
        if not values:
            return Missing(Why.NO_DATA, f"no series of {name}")
        return max(values) if name == self._names.oldest else sum(values)

    def _figures(self, before: _Scrape, now: _Scrape) -> Figures | Missing:
        buckets = _growth(before.buckets, now.buckets)
        seconds = now.seconds - before.seconds
        unit_seconds = self._names.unit.seconds
        total = buckets[-1][1]
        done_rps = total / seconds
        offered: float | Missing = UNKNOWN
        if not isinstance(now.in_flight, Missing) and not isinstance(before.in_flight, Missing):
            offered = max(done_rps + (now.in_flight - before.in_flight) / seconds, 0.0)
        oldest = now.oldest if isinstance(now.oldest, Missing) else now.oldest * unit_seconds
        quantile = bucket_quantile(buckets, self._slo.quantile)
        return Figures(
            end_seconds=now.seconds,
            window_seconds=seconds,
            samples=round(total),
            tail_seconds=self._tail(quantile, unit_seconds),
            tail_is_lower_limit=quantile is not None and quantile.beyond,
            oldest_seconds=oldest,
            offered_rps=offered,
            done_rps=done_rps,
        )

    def _tail(self, quantile: BucketQuantile | None, unit_seconds: float) -> float | Missing:
        """A lower limit beyond the target is a violation for certain; one below the target says nothing."""
        if quantile is None:
            return Missing(Why.NO_DATA, "no request completed")
        seconds = quantile.value * unit_seconds
        if quantile.beyond and seconds <= self._slo.target_seconds:
            return Missing(
                Why.NOT_SUPPORTED,
                f"the quantile is above the histogram's last bound, {seconds:g} s: give {self._names.histogram} "
                f"buckets beyond the target",
            )
        return seconds


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    sound = bound >= 0.0 and text.isascii()  # `float` takes other scripts' digits too
    return bound if sound else None


def _growth(
    before: Mapping[tuple[_Labels, float], float], now: Mapping[tuple[_Labels, float], float]
) -> list[tuple[float, float]]:
    """Growth of every bucket, added up over the series; the last bound is infinite.

    A series of which any bucket shrank started anew: all of it is growth. So is a series that was not there before.
    Bounds that some series lack are left out. Buckets are made monotone, as an exporter may update them one after the
    other while it is scraped.
    """
    bounds: dict[_Labels, set[float]] = {}
    for series, bound in now:
        bounds.setdefault(series, set()).add(bound)
    common = set.intersection(*bounds.values())
    reset = {series for (series, bound), count in now.items() if count < before.get((series, bound), 0.0)}
    grown: dict[float, float] = {}
    for (series, bound), count in now.items():
        if bound not in common:
            continue
        grown[bound] = grown.get(bound, 0.0) + count - (0.0 if series in reset else before.get((series, bound), 0.0))
    buckets, highest = [], 0.0
    for bound in sorted(grown):
        highest = max(highest, grown[bound])
        buckets.append((bound, highest))
    return buckets
