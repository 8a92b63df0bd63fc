"""Tail latency from histograms of OpenTelemetry that are sent here (OTLP: protobuf, or its JSON).

The wire format is https://opentelemetry.io/docs/specs/otlp/, what its points mean is
https://opentelemetry.io/docs/specs/otel/metrics/data-model/; its message classes come with the extra `otlp`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from pydantic import Field

from rlctl.envs.errors import ConfigError, shown
from rlctl.envs.host.latency.figures import FIRST_ERROR_STATUS, Figures, TimeUnit
from rlctl.envs.host.latency.histogram import Histogram, together
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import Name, Strict

MOST_BODY_BYTES = 1 << 20
MOST_SERIES = 1000
MOST_BUCKETS = 400
"""Of a point; SDKs have 160 at most by default."""

MOST_LABELS, MOST_CHARACTERS = 64, 200
"""Of a series, and of a label: what is kept of the longest is some 25 kB."""

REMEMBERED_SECONDS = 60.0
"""For so long an exporter that has fallen silent is missed, and there are no figures: a process that hangs exports
nothing. After that it has ended."""

_UNITS = {
    "s": TimeUnit.SECONDS, "ms": TimeUnit.MILLISECONDS, "us": TimeUnit.MICROSECONDS, "ns": TimeUnit.NANOSECONDS,
}  # fmt: skip
_STATUS = ("http.response.status_code", "http.status_code")
_GRPC_FAULTS = ("2", "4", "12", "13", "14", "15")  # of a server; the others are its clients'
_Labels = frozenset[tuple[str, str]]


class OtlpNames(Strict):
    """Which histogram it is.

    Attributes:
        histogram: Its name, such as `http.server.request.duration`.
        labels: Attributes, of the point or of the resource, that a series must have; those that have are added up.
        unit: Of its values, where it does not say itself.
    """

    histogram: Name
    labels: dict[str, str] = Field(default_factory=dict)
    unit: TimeUnit = TimeUnit.SECONDS


@dataclass(frozen=True, slots=True)
class _Point:
    """One series as it was exported last.

    Attributes:
        histogram: Of all since `start_ns`.
        added: What came since the export before.
        seconds: How long that was.
    """

    start_ns: int
    end_ns: int
    cumulative: bool
    unit: TimeUnit
    histogram: Histogram
    added: Histogram = field(default_factory=Histogram)
    seconds: float = math.inf


@dataclass(slots=True)
class _Exporter:
    """A process that exports, by its resource; `arrival_seconds` is monotonic."""

    arrival_seconds: float = -math.inf
    end_ns: int = 0
    series: dict[_Labels, _Point] = field(default_factory=dict)


class OtlpDigest:
    """Turns one export after the other into figures; the window is what lies between two exports of a process.

    Both temporalities are taken. A process is told from another by its resource, so that several need a
    `service.instance.id` each. Where one falls silent the figures of all grow old with it, until it is forgotten.

    Args:
        stale_seconds: Points that are farther apart are none to act on.
    """

    def __init__(self, names: OtlpNames, slo: SLO, stale_seconds: float) -> None:
        self._names, self._slo, self._stale_seconds = names, slo, stale_seconds
        self._exporters: dict[_Labels, _Exporter] = {}
        self._latest: Figures | Missing = Missing(Why.NO_DATA, "nothing was sent yet")
        self._torn_seconds = -math.inf  # when two processes were last taken for one
        self._decode = _decoder()  # its imports belong to the start

    def __call__(self, body: bytes, now_seconds: float, *, as_json: bool = False) -> Figures | Missing:
        """The figures after an export that arrived at a monotonic time.

        Raises:
            ValueError: It is no export, or one that contradicts itself or an earlier one.
        """
        request, others, heard, found = self._decode(body, as_json), set(), dict[_Labels, int](), set()
        exported_ns = {resource: one.end_ns for resource, one in self._exporters.items()}
        for resource, metric in _metrics(request):
            heard[resource] = max(heard.get(resource, 0), _end_ns(metric))
            if metric.name != self._names.histogram or metric.WhichOneof("data") not in _HISTOGRAMS:
                others.add(metric.name)
                continue
            for labels, point in _points(metric, self._names.unit):
                if self._names.labels.items() <= dict(resource | labels).items():
                    self._take(resource, labels, point, now_seconds, exported_ns.get(resource, 0))
                    found.add(resource)
        found |= {one for one in heard.keys() - found if self._idled(one, heard[one], now_seconds)}
        if found:
            self._latest = self._figures(now_seconds)
        elif not self._exporters:
            there = shown(", ".join(sorted(others)[:8]))[:200] or "nothing"
            self._latest = Missing(
                Why.NO_DATA, f"no histogram {self._names.histogram} with {dict(self._names.labels)}; there is: {there}"
            )
        return self._latest

    def _idled(self, resource: _Labels, end_ns: int, now_seconds: float) -> bool:
        """Whether a known process that exports differences says by leaving its histogram out that nothing came.

        Not by the rest of an export that came in parts: such points end when those of the histogram did.
        """
        exporter = self._exporters.get(resource)
        if exporter is None or any(point.cumulative for point in exporter.series.values()):
            return False
        if end_ns - exporter.end_ns < 0.5e9 * min(point.seconds for point in exporter.series.values()):
            return False
        exporter.arrival_seconds = now_seconds
        exporter.series = {key: replace(point, added=Histogram()) for key, point in exporter.series.items()}
        return True

    def _take(self, resource: _Labels, labels: _Labels, point: _Point, now_seconds: float, exported_ns: int) -> None:
        exporter = self._exporters.get(resource, _Exporter())
        before = exporter.series.get(labels)
        if before is not None and point.end_ns <= before.end_ns:
            return  # sent again, as its answer was lost
        if before is None and self._is_full():
            self._forget_silent(now_seconds)
            if self._is_full():
                raise ValueError(f"more than {MOST_SERIES} series: choose some by lc.latency.labels")
        if before is not None and _of_another(before, point):
            # It goes on from this one: the other process may have ended.
            self._torn_seconds, before, exported_ns = now_seconds, None, 0
        exporter.series[labels] = _after(before, point, exported_ns)
        exporter.end_ns, exporter.arrival_seconds = max(exporter.end_ns, point.end_ns), now_seconds
        self._exporters[resource] = exporter

    def _is_full(self) -> bool:
        return sum(len(one.series) for one in self._exporters.values()) >= MOST_SERIES

    def _forget_silent(self, now_seconds: float) -> None:
        self._exporters = {
            resource: one
            for resource, one in self._exporters.items()
            if now_seconds - one.arrival_seconds < REMEMBERED_SECONDS
        }
        for one in self._exporters.values():  # an export of differences leaves out what has ended
            since_ns = one.end_ns - 1e9 * REMEMBERED_SECONDS
            one.series = {key: it for key, it in one.series.items() if it.cumulative or it.end_ns > since_ns}

    def _figures(self, now_seconds: float) -> Figures | Missing:
        if now_seconds - self._torn_seconds < REMEMBERED_SECONDS:
            raise ValueError("two processes export as one: give each a service.instance.id in OTEL_RESOURCE_ATTRIBUTES")
        self._forget_silent(now_seconds)
        current = {
            (resource, labels): point
            for resource, exporter in self._exporters.items()
            for labels, point in exporter.series.items()
            # a series to which nothing was added is left out of an export of differences
            if exporter.end_ns - point.end_ns < 0.5e9 * point.seconds
        }
        units = {point.unit for point in current.values()}
        if not current:
            return Missing(Why.NO_DATA, "only what was sent before is sent again")
        if len(units) > 1:
            raise ValueError(f"{self._names.histogram} comes in several units")
        known = {key: point for key, point in current.items() if point.seconds <= self._stale_seconds}
        if len(known) < len(current):
            return Missing(Why.NO_DATA, self._too_far(current))
        windows: dict[_Labels, float] = {}  # by exporter; a series may be younger than its exporter's last export
        for (resource, _), point in known.items():
            windows[resource] = max(windows.get(resource, 0.0), point.seconds)
        added = together([point.added for point in known.values()])
        arrival_seconds = min(one.arrival_seconds for one in self._exporters.values())
        longest_seconds = max(windows.values())
        figures = added.figures(self._names.histogram, units.pop(), self._slo, arrival_seconds, longest_seconds)
        rps = {key: point.added.total / windows[key[0]] for key, point in known.items()}
        failed = sum(rate for (_, labels), rate in rps.items() if _failed(dict(labels)))
        return replace(figures, done_rps=sum(rps.values()), error_rps=float(failed))

    def _too_far(self, current: Mapping[tuple[_Labels, _Labels], _Point]) -> str:
        apart = max(point.seconds for point in current.values())
        if math.isinf(apart):
            return "a cumulative histogram's window takes two exports"
        return (
            f"its points are {apart:.0f} s apart, and stale_seconds is {self._stale_seconds:g}: "
            f"OTEL_METRIC_EXPORT_INTERVAL=1000"
        )


_HISTOGRAMS = ("histogram", "exponential_histogram")


def _end_ns(metric: Any) -> int:
    """When the latest of a metric's points ends; 0 of one without points."""
    kind = metric.WhichOneof("data")
    return max((point.time_unix_nano for point in getattr(metric, kind).data_points), default=0) if kind else 0


def _of_another(before: _Point, point: _Point) -> bool:
    """Whether a series that seems to go on is that of another process: it began, or counted, less than it has."""
    if not point.cumulative:
        return point.start_ns < before.end_ns
    fallen = point.start_ns == before.start_ns and point.histogram.total < before.histogram.total
    return point.start_ns < before.start_ns or fallen


def _after(before: _Point | None, point: _Point, exported_ns: int) -> _Point:
    """A point with what was added since the export before.

    Args:
        before: The same series then.
        exported_ns: When its exporter last exported anything; 0 for never.
    """
    if not point.cumulative:
        return replace(point, added=point.histogram, seconds=(point.end_ns - point.start_ns) * 1e-9)
    if before is not None and before.start_ns == point.start_ns:
        added, since_ns = point.histogram.since(before.histogram), before.end_ns
    elif 0 < exported_ns < point.end_ns:  # new since then: a label that was not there, or the process started anew
        added, since_ns = point.histogram, exported_ns
    else:
        return point
    return replace(point, added=added, seconds=(point.end_ns - since_ns) * 1e-9)


def _points(metric: Any, unit: TimeUnit) -> Iterator[tuple[_Labels, _Point]]:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    if data.aggregation_temporality not in (1, 2):
        raise ValueError("no temporality")
    if metric.unit and metric.unit not in _UNITS:
        raise ValueError(f"its unit is {shown(metric.unit)[:20]!r}, none of {', '.join(_UNITS)}")
    read = _explicit if kind == "histogram" else _exponential
    for one in data.data_points:
        if one.flags & 1:  # FLAG_NO_RECORDED_VALUE
            continue
        if not one.start_time_unix_nano < one.time_unix_nano:
            raise ValueError("a point that ends before it starts")
        yield (
            _labels(one.attributes),
            _Point(
                one.start_time_unix_nano, one.time_unix_nano, data.aggregation_temporality == 2,
                _UNITS.get(metric.unit, unit), read(one),
            ),
        )  # fmt: skip


def _explicit(point: Any) -> Histogram:
    bounds, counts = tuple(point.explicit_bounds), tuple(point.bucket_counts) or (point.count,)
    if len(counts) != len(bounds) + 1 or len(counts) > MOST_BUCKETS or list(bounds) != sorted(set(bounds)):
        raise ValueError("buckets that do not fit their bounds")
    return _whole(bounds, counts, point)


def _exponential(point: Any) -> Histogram:
    """Bucket n ends at base ** (n + 1), where base is 2 ** 2 ** -scale: a coarser scale has fewer bounds, no others."""
    counts, step = tuple(point.positive.bucket_counts), 2.0**-point.scale
    if any(point.negative.bucket_counts) or len(counts) > MOST_BUCKETS or not -10 <= point.scale <= 20:
        raise ValueError("no histogram of latencies")
    first = point.positive.offset
    try:
        bounds = tuple(2.0 ** (step * number) for number in range(first, first + len(counts) + 1))
    except OverflowError as error:
        raise ValueError("no histogram of latencies") from error
    return _whole((0.0, *bounds), (point.zero_count, 0, *counts, 0), point)


def _whole(bounds: tuple[float, ...], counts: tuple[float, ...], point: Any) -> Histogram:
    """With all requests at or below infinity, those that no bucket has among them."""
    if any(not math.isfinite(bound) for bound in bounds):
        raise ValueError("a bound that is not finite")
    summed = list(accumulate(map(float, counts)))
    return Histogram((*bounds, math.inf), (*summed[:-1], max(summed[-1], float(point.count))))


def _failed(labels: Mapping[str, str]) -> bool:
    """By the semantic conventions of OpenTelemetry."""
    status = next((labels[name] for name in _STATUS if name in labels), "")
    if labels.get("error.type") or labels.get("rpc.grpc.status_code") in _GRPC_FAULTS:
        return True
    return status.isdecimal() and int(status) >= FIRST_ERROR_STATUS


def _metrics(request: Any) -> Iterator[tuple[_Labels, Any]]:
    for of_resource in request.resource_metrics:
        resource = _labels(of_resource.resource.attributes)
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                yield resource, metric


def _labels(attributes: Any) -> _Labels:
    if len(attributes) > MOST_LABELS:
        raise ValueError(f"a series with more than {MOST_LABELS} attributes")
    return frozenset((_cut(one.key), _cut(_text(one.value))) for one in attributes)


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    return str(getattr(value, kind)) if kind else ""


def _cut(text: str) -> str:
    """A long one by its beginning, and still another than any other."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}#{hash(text)}"


def _decoder() -> Callable[[bytes, bool], Any]:
    """Makes the message of a body, in protobuf or JSON; raises ValueError for one that is none.

    Raises:
        ConfigError: The extra is not installed.
    """
    try:
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    except ImportError as error:
        raise ConfigError(f"lc.latency: kind otlp needs rlctl[otlp]: pip install 'rlctl[otlp]' ({error})") from error

    def decode(body: bytes, as_json: bool) -> Any:
        request = ExportMetricsServiceRequest()
        try:
            if as_json:
                json_format.Parse(body, request, ignore_unknown_fields=True)
            else:
                request.ParseFromString(body)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError("no ExportMetricsServiceRequest of OTLP") from error
        return request

    return decode


def unzipped(body: bytes) -> bytes:
    """What gzip has packed, if that is at most MOST_BODY_BYTES.

    Raises:
        ValueError: It is more, or not gzip.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(body, MOST_BODY_BYTES)
    except zlib.error as error:
        raise ValueError(f"no gzip: {error}") from error
    if not unpacker.eof:
        raise ValueError(f"cut short, or more than {MOST_BODY_BYTES >> 20} MiB when unpacked")
    return plain
