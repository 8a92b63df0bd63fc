"""Tail latency from a Prometheus histogram: what came between two scrapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import Field, model_validator

from rlctl.envs.host.decode import measured
from rlctl.envs.host.latency.figures import UNKNOWN, Figures, TimeUnit
from rlctl.envs.host.latency.histogram import Histogram, together
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import Name, Regex, Strict

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


TORN_SECONDS = 60.0
"""No service restarts twice within so long and serves meanwhile."""


class PrometheusDigest:
    """Turns one scrape after the other into figures.

    Each series is compared with itself, so that a worker that restarts (its counters start again at 0) or joins does
    not disturb the others. The figures of a window are those between two scrapes. Completed requests are all that a
    histogram shows: in overload name an `oldest` or `in_flight` gauge too. Requests that fail fast are among them:
    name a counter of `errors`.
    """

    def __init__(self, names: PrometheusNames, slo: SLO) -> None:
        self._names, self._slo = names, slo
        wanted = [f"{names.histogram}_bucket", *filter(None, (names.oldest, names.in_flight, names.errors))]
        self._starts = tuple(name + end for name in wanted for end in "{ \t")
        self._before: _Scrape | None = None
        self._fell: dict[_Labels, float] = {}
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
            return Missing(Why.MALFORMED, "its counts fall again and again: does each worker answer with its own?")
        return self._figures(before, scrape)

    def _torn(self, before: _Scrape, now: _Scrape) -> bool:
        """Whether a series' counts fell twice in TORN_SECONDS: workers answer in turn, each for itself."""
        # Of one that restarts they fall once. What two workers differ by is the lifetime of one, and no window.
        since = now.seconds - TORN_SECONDS
        fell = {key for key, one in now.series.items() if key in before.series and one.total < before.series[key].total}
        if any(self._fell.get(key, -math.inf) > since for key in fell):
            self._torn_seconds = now.seconds
        self._fell = {key: at for key, at in self._fell.items() if at > since} | dict.fromkeys(fell, now.seconds)
        return now.seconds - self._torn_seconds < TORN_SECONDS

    def _parse(self, body: bytes, now_seconds: float) -> _Scrape | Missing:
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
        return _Scrape(now_seconds, series, failed, oldest, self._gauge(samples, self._names.in_flight))

    def _histograms(self, samples: Sequence[Sample]) -> _Series | Missing:
        buckets: dict[_Labels, dict[float, float]] = {}
        for sample in samples:
            if (
                sample.name != f"{self._names.histogram}_bucket"
                or not self._names.labels.items() <= sample.labels.items()
            ):
                continue
            bound, count = _bound(sample.labels.get("le", "")), measured(sample.value)
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

    def _absent(self, page: Iterable[str]) -> Missing:
        name = self._names.histogram
        if any(line.startswith((name + "{", name + " ")) for line in page):
            return Missing(Why.NOT_SUPPORTED, f"{name} is no histogram there, and an average or a summary has no tail")
        labels = f" with {dict(self._names.labels)}" if self._names.labels else ""
        return Missing(Why.NO_DATA, f"no series of {name}_bucket{labels}: is that its name there?")

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
        if any(isinstance(measured(sample.value), Why) for sample in chosen):
            return Missing(Why.MALFORMED, f"a count of {self._names.errors} is none")
        return {_labels(sample): Histogram(counts=(sample.value,)) for sample in chosen}

    def _may_be_ours(self, sample: Sample) -> bool:
        return all(sample.labels.get(key, value) == value for key, value in self._names.labels.items())

    def _gauge(self, samples: Sequence[Sample], name: str | None) -> float | Missing:
        """The largest of all series of a gauge (the oldest request); for in-flight requests see `_figures`."""
        if name is None:
            return UNKNOWN
        ours = [sample.value for sample in samples if sample.name == name and self._may_be_ours(sample)]
        values = [value for one in ours if not isinstance(value := measured(one), Why)]
        if not values:
            return Missing(Why.NO_DATA, f"no series of {name}")
        return max(values) if name == self._names.oldest else sum(values)

    def _figures(self, before: _Scrape, now: _Scrape) -> Figures:
        seconds = now.seconds - before.seconds
        names = self._names
        figures = _growth(before.series, now.series).figures(
            names.histogram, names.unit, self._slo, now.seconds, seconds
        )
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


def _growth(before: _Series, now: _Series) -> Histogram:
    """What was added to all series; one that was not there before is new."""
    return together([histogram.since(before.get(series)) for series, histogram in now.items()])
