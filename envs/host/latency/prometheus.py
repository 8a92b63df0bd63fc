"""Tail latency from a Prometheus histogram: what came between two readings of it, several together, and its tail."""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import Field, model_validator

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.latency.figures import UNKNOWN, Figures, TimeUnit
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import Name, Regex, Strict


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


_Labels = frozenset[tuple[str, str]]
_Series = Mapping[_Labels, Histogram]


class PrometheusNames(Strict):
    """What the endpoint calls things.

    Attributes:
        histogram: The latency histogram, without `_bucket`.
        labels: Only series that carry all of these; the rest of the series are added up. Of the other metrics, series
            that carry one of these labels with another value are left out.
        oldest: A gauge with the age of the oldest outstanding request, if there is one.
        in_flight: A gauge with the number of outstanding requests; makes offered load known in overload too.
        errors: A counter of requests that is there from the start; `error_labels` says which of them failed. Without it
            requests that fail fast are good requests.
        error_labels: Regular expressions, each for the whole of a label: `{code: "5.."}`.
        unit: Of the times that it gives: `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
    """

    histogram: Name
    labels: dict[str, str] = Field(default_factory=dict)
    oldest: Name | None = None
    in_flight: Name | None = None
    errors: Name | None = None
    error_labels: dict[str, Regex] = Field(default_factory=dict)
    unit: TimeUnit = TimeUnit.SECONDS

    @model_validator(mode="after")
    def _failures_are_chosen(self) -> Self:
        if (self.errors is None) != (not self.error_labels):
            raise ValueError("'errors', a counter of requests, and 'error_labels', which of them failed, go together")
        return self


@dataclass(frozen=True, slots=True)
class _Scrape:
    seconds: float
    series: _Series
    failed: _Series
    oldest: float | Missing
    in_flight: float | Missing
    created: Mapping[_Labels, float]
    wall_seconds: float


TORN_SECONDS = 60.0
"""No service restarts twice within so long and serves meanwhile."""

_BUCKET_LINE = re.compile(r'(?:\{")?([^\s{}",#]+)_bucket["{ \t]')
MOST_NAMES = 8


class PrometheusDigest:
    """Turns one scrape after the other into figures.

    Each series is compared with itself. One that is new, came back or began again at 0 counts from its second look: its
    counts may be those of a lifetime. Where `_created` says that it is younger than the window, it counts at once. The
    figures of a window are those between two scrapes. Completed requests are all that a
    histogram shows: in overload name an `oldest` or `in_flight` gauge too. Requests that fail fast are among them:
    name a counter of `errors`.
    """

    def __init__(self, names: PrometheusNames, slo: SLO, wall_clock: Callable[[], float] = time.time) -> None:
        self._names, self._slo, self._wall_clock = names, slo, wall_clock
        wanted = [f"{names.histogram}_bucket", f"{names.histogram}_created"]
        wanted += filter(None, (names.oldest, names.in_flight, names.errors))
        plain = tuple(name + end for name in wanted for end in "{ \t")
        self._starts = plain + tuple(f'{{"{name}"' for name in wanted)  # a name in UTF-8 is quoted, within the braces
        self._before: _Scrape | None = None
        self._broke: dict[_Labels, float] = {}
        self._last_seen: dict[_Labels, float] = {}
        self._torn_seconds = -math.inf

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
        if self._torn(before, scrape):
            return Missing(
                Why.MALFORMED,
                "its counts fall or its labels change again and again: does each worker answer for itself?",
            )
        return self._figures(before, scrape)

    def _torn(self, before: _Scrape, now: _Scrape) -> bool:
        """Whether a series fell or came back twice in TORN_SECONDS: workers answer in turn, each for itself."""
        # Of one that restarts they fall once. What two workers differ by is the lifetime of one, and no window.
        since = now.seconds - TORN_SECONDS
        broke = {key for key, one in now.series.items() if key in before.series and one.fell(before.series[key])}
        broke |= {key for key in now.series if key not in before.series and self._last_seen.get(key, -math.inf) > since}
        if any(self._broke.get(key, -math.inf) > since for key in broke):
            self._torn_seconds = now.seconds
        self._broke = {key: at for key, at in self._broke.items() if at > since} | dict.fromkeys(broke, now.seconds)
        self._last_seen = {key: at for key, at in self._last_seen.items() if at > since}
        self._last_seen |= dict.fromkeys(before.series, before.seconds) | dict.fromkeys(now.series, now.seconds)
        return now.seconds - self._torn_seconds < TORN_SECONDS

    def _parse(self, body: bytes, now_seconds: float) -> _Scrape | Missing:
        if body.startswith(b"\x1f\x8b"):
            return Missing(Why.MALFORMED, "it answers in gzip, which rlctl did not ask for; turn compression off there")
        if body.lstrip().startswith(b"<"):
            return Missing(Why.MALFORMED, "it answers with an HTML page; give the URL of the metrics, often /metrics")
        # The parser is pure Python and would hold the interpreter for long over thousands of lines that are not ours.
        page = body.decode(errors="replace").splitlines()
        text = "\n".join(line for line in page if line.startswith(self._starts))
        try:
            samples = [sample for family in text_string_to_metric_families(text + "\n") for sample in family.samples]
        except Exception as error:  # noqa: BLE001 - its author names none; see its issue tracker for what it raises
            return Missing(Why.MALFORMED, f"not the Prometheus text format: {error}")
        series = self._histograms(samples)
        if isinstance(series, Missing):
            return series
        if not series:
            return self._absent(page)
        failed = self._failed(samples)
        if isinstance(failed, Missing):
            return failed
        oldest = self._gauge(samples, self._names.oldest)
        in_flight = self._gauge(samples, self._names.in_flight)
        created = {_labels(one): one.value for one in samples if one.name == f"{self._names.histogram}_created"}
        return _Scrape(now_seconds, series, failed, oldest, in_flight, created, self._wall_clock())

    def _histograms(self, samples: Sequence[Sample]) -> _Series | Missing:
        buckets: dict[_Labels, dict[float, float]] = {}
        for sample in samples:
            if (
                sample.name != f"{self._names.histogram}_bucket"
                or not self._names.labels.items() <= sample.labels.items()
            ):
                continue
            bound, count = _bound(sample.labels.get("le", "")), parse_quantity(sample.value)
            series = buckets.setdefault(_labels(sample), {})
            if bound is not None and not isinstance(count, Why):
                series[bound] = count
        read = {series: Histogram.of(one) for series, one in buckets.items()}
        whole = {series: one for series, one in read.items() if one is not None}
        if len(whole) < len(read):
            return Missing(
                Why.MALFORMED,
                f'a series of {self._names.histogram}_bucket has no le="+Inf": its slowest requests are not to be seen',
            )
        return whole

    def _absent(self, page: Sequence[str]) -> Missing:
        name = self._names.histogram
        if any(line.startswith((name + "{", name + " ")) for line in page):
            return Missing(Why.NOT_SUPPORTED, f"{name} is no histogram there, and an average or a summary has no tail")
        labels = f" with {dict(self._names.labels)}" if self._names.labels else ""
        return Missing(Why.NO_DATA, f"no series of {name}_bucket{labels}; {_histograms_of(page)}")

    def _failed(self, samples: Sequence[Sample]) -> _Series | Missing:
        """The counter's series of requests that failed, each as a histogram without finite bounds."""
        if self._names.errors is None:
            return {}
        ours = [sample for sample in samples if sample.name == self._names.errors and self._may_be_ours(sample)]
        if not ours:
            return Missing(Why.NO_DATA, f"no series of {self._names.errors}: is that its name there?")
        chosen = [
            sample
            for sample in ours
            if all(
                re.fullmatch(pattern, sample.labels.get(key, "")) for key, pattern in self._names.error_labels.items()
            )
        ]
        if any(isinstance(parse_quantity(sample.value), Why) for sample in chosen):
            return Missing(Why.MALFORMED, f"a count of {self._names.errors} is none")
        return {_labels(sample): Histogram(counts=(sample.value,)) for sample in chosen}

    def _may_be_ours(self, sample: Sample) -> bool:
        return all(sample.labels.get(key, value) == value for key, value in self._names.labels.items())

    def _gauge(self, samples: Sequence[Sample], name: str | None) -> float | Missing:
        """The largest of all series of a gauge (the oldest request); for in-flight requests see `_figures`."""
        if name is None:
            return UNKNOWN
        ours = [sample.value for sample in samples if sample.name == name and self._may_be_ours(sample)]
        values = [value for one in ours if not isinstance(value := parse_quantity(one), Why)]
        if not values:
            return Missing(Why.NO_DATA, f"no series of {name}")
        return max(values) if name == self._names.oldest else sum(values)

    def _figures(self, before: _Scrape, now: _Scrape) -> Figures | Missing:
        seconds = now.seconds - before.seconds
        names = self._names
        series = {key: grown for key, one in now.series.items() if (grown := _grown(key, one, before, now)) is not None}
        if not series and before.series.keys() & now.series.keys():
            return Missing(Why.NO_DATA, "its counts began again at 0: they count from the next look")
        if not series:
            return Missing(
                Why.MALFORMED, "its labels changed since the last look: do replicas answer in turns under one address?"
            )
        if any(not one.rises for one in series.values()):
            return Missing(Why.MALFORMED, f'a bucket of {names.histogram} grew by more than its le="+Inf"')
        growth = together(list(series.values()))
        figures = growth.figures(names.histogram, names.unit, self._slo, now.seconds, seconds)
        offered: float | Missing = UNKNOWN
        if not isinstance(now.in_flight, Missing) and not isinstance(before.in_flight, Missing):
            assert isinstance(figures.done_rps, float)
            offered = max(figures.done_rps + (now.in_flight - before.in_flight) / seconds, 0.0)
        oldest = now.oldest if isinstance(now.oldest, Missing) else now.oldest * names.unit.seconds
        errors = UNKNOWN if names.errors is None else _growth(before.failed, now.failed).total / seconds
        return replace(figures, oldest_seconds=oldest, offered_rps=offered, error_rps=errors)


def _labels(sample: Sample) -> _Labels:
    return frozenset((key, value) for key, value in sample.labels.items() if key != "le")


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    sound = bound >= 0.0 and text.isascii()  # `float` takes other scripts' digits too
    return bound if sound else None


def _grown(key: _Labels, one: Histogram, before: _Scrape, now: _Scrape) -> Histogram | None:
    """What was added to a series since the look before; None where that cannot be known."""
    earlier = before.series.get(key)
    if earlier is not None and not one.fell(earlier):
        return one.since(earlier)
    age_seconds = now.wall_seconds - now.created.get(key, -math.inf)
    return one if 0.0 <= age_seconds <= now.seconds - before.seconds else None


def _histograms_of(page: Sequence[str]) -> str:
    """The histograms of a page, for an operator who looks for the right name."""
    found = sorted({match[1] for line in page if (match := _BUCKET_LINE.match(line)) is not None})
    if not found:
        return "the page has no histogram"
    more = ", ..." if len(found) > MOST_NAMES else ""
    return f"histograms there: {', '.join(name[:80] for name in found[:MOST_NAMES])}{more}"


def _growth(before: _Series, now: _Series) -> Histogram:
    """What was added to all series of failures; one that was not there before counts whole, so that none is missed."""
    return together([histogram.since(before.get(series)) for series, histogram in now.items()])
