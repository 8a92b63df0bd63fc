"""Histograms that are sent: windows between two exports, whoever exports, and nothing that is made up of two."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency import otlp
from rlctl.envs.host.latency.figures import Figures, TimeUnit
from rlctl.envs.host.latency.otlp import OtlpDigest, OtlpNames, unzipped
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO

service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="needs rlctl[otlp]"
)
json_format = pytest.importorskip("google.protobuf.json_format")

FIXTURES = Path(__file__).parents[3] / "fixtures/latency"
NAME = "http.server.request.duration"
SECOND = 10**9
BOUNDS = (0.001, 0.005, 0.010, 0.050)
DELTA, CUMULATIVE = 1, 2


@pytest.fixture
def digest(slo: SLO) -> OtlpDigest:
    return OtlpDigest(OtlpNames(histogram=NAME), slo, stale_seconds=3.0)


def export(
    start: float,
    end: float,
    counts: Sequence[int],
    *,
    temporality: int = CUMULATIVE,
    instance: str = "1",
    unit: str = "s",
    bounds: Sequence[float] = BOUNDS,
    labels: Mapping[str, Any] = {},
    name: str = NAME,
) -> Any:
    """One process's histogram, with the count of each bucket."""
    request = service.ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    of_resource.resource.attributes.add(key="service.instance.id").value.string_value = instance
    metric = of_resource.scope_metrics.add().metrics.add(name=name, unit=unit)
    metric.histogram.aggregation_temporality = temporality
    point = metric.histogram.data_points.add(
        start_time_unix_nano=round(start * SECOND),
        time_unix_nano=round(end * SECOND),
        count=sum(counts),
        bucket_counts=counts,
        explicit_bounds=bounds,
    )
    for key, value in labels.items():
        told = point.attributes.add(key=key).value
        if isinstance(value, int):
            told.int_value = value
        else:
            told.string_value = value
    return request


def told(digest: OtlpDigest, request: Any, now: float) -> Figures | Missing:
    return digest(request.SerializeToString(), now)


def sound(found: Figures | Missing) -> Figures:
    assert isinstance(found, Figures), found
    return found


@pytest.mark.parametrize(("kind", "between"), [("cumulative", (0.010, 0.025)), ("delta-exponential", (0.012, 0.013))])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_real_sdk_sends(digest: OtlpDigest, kind: str, between: tuple[float, float], as_json: bool) -> None:
    """30 requests, three of which took 12 ms, and one that failed."""
    found: Figures | Missing = Missing(Why.NO_DATA)
    for number in (1, 2):
        body = (FIXTURES / f"otlp-{kind}-{number}.pb").read_bytes()
        if as_json:
            request = service.ExportMetricsServiceRequest.FromString(body)
            body = json_format.MessageToJson(request).encode()
        found = digest(body, float(number), as_json=as_json)
    figures = sound(found)
    assert figures.samples == 31
    assert isinstance(figures.tail_seconds, float)
    assert between[0] < figures.tail_seconds <= between[1]
    assert isinstance(figures.done_rps, float)
    assert figures.error_rps == pytest.approx(figures.done_rps / 31)
    assert figures.end_seconds == 2.0


def test_a_cumulative_window_lies_between_two_exports(digest: OtlpDigest) -> None:
    first = told(digest, export(1, 100, (900, 0, 0, 0, 0)), 10.0)
    assert isinstance(first, Missing)
    assert first.why is Why.NO_DATA
    found = sound(told(digest, export(1, 102, (900, 0, 200, 0, 0)), 12.0))
    assert (found.samples, found.done_rps, found.window_seconds) == (200, 100.0, 2.0)
    assert found.tail_seconds == pytest.approx(0.005 + 0.95 * 0.005)


def test_differences_are_windows_of_their_own(digest: OtlpDigest) -> None:
    found = sound(told(digest, export(1, 2, (0, 0, 100, 0, 0), temporality=DELTA), 10.0))
    assert (found.samples, found.done_rps) == (100, 100.0)


def test_an_export_that_is_sent_again_counts_once(digest: OtlpDigest) -> None:
    request = export(1, 2, (0, 0, 100, 0, 0), temporality=DELTA)
    assert told(digest, request, 10.0) == told(digest, request, 11.0)  # as old as it was


def test_a_new_label_of_a_known_process_is_growth_and_so_is_its_restart(digest: OtlpDigest) -> None:
    """The first failure of a day makes a new series: it must not wait for a second one to be seen."""
    told(digest, export(1, 100, (10, 0, 0, 0, 0)), 10.0)
    request = export(1, 101, (10, 0, 0, 0, 0))
    request.MergeFrom(export(1, 101, (0, 0, 0, 0, 5), labels={"http.response.status_code": 503}))
    found = sound(told(digest, request, 11.0))
    assert (found.samples, found.error_rps, found.tail_seconds) == (5, 5.0, 0.050)
    again = sound(told(digest, export(101.5, 102, (7, 0, 0, 0, 0)), 12.0))
    assert again.samples == 7


def test_a_series_that_is_left_out_is_one_to_which_nothing_was_added(digest: OtlpDigest) -> None:
    request = export(1, 2, (0, 0, 0, 0, 9), temporality=DELTA, labels={"http.route": "/slow"})
    request.MergeFrom(export(1, 2, (5, 0, 0, 0, 0), temporality=DELTA))
    assert sound(told(digest, request, 10.0)).samples == 14
    assert sound(told(digest, export(2, 3, (6, 0, 0, 0, 0), temporality=DELTA), 11.0)).samples == 6


def test_labels_that_clients_choose_may_come_and_go_for_ever(
    digest: OtlpDigest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MOST_SERIES", 3)
    for minute in range(8):
        begun = 1 + minute * 0.6 * otlp.REMEMBERED_SECONDS
        found = told(
            digest, export(begun, begun + 1, (0, 0, 9, 0, 0), temporality=DELTA, labels={"host": f"{minute}"}), begun
        )
        assert sound(found).samples == 9


def test_processes_are_added_up_and_one_that_falls_silent_is_missed_for_a_minute(digest: OtlpDigest) -> None:
    for instance in ("1", "2"):
        told(digest, export(1, 100, (0, 0, 0, 0, 0), instance=instance), 10.0)
    for instance in ("1", "2"):
        found = told(digest, export(1, 101, (0, 30, 0, 0, 0), instance=instance), 11.0)
    assert sound(found).samples == 60
    for second in range(2, 64):
        found = told(digest, export(1, 100 + second, (0, 30 * second, 0, 0, 0)), 10.0 + second)
        assert sound(found).end_seconds == (11.0 if second < 61 else 10.0 + second)
    assert sound(found).samples == 30


def test_a_process_without_requests_leaves_its_differences_out_and_is_not_silent(digest: OtlpDigest) -> None:
    """In a quiet night one idle worker of eight made the figures of all stale."""
    for instance in ("1", "2"):
        told(digest, export(1, 2, (30, 0, 0, 0, 0), temporality=DELTA, instance=instance), 10.0)
    for second in range(2, 30):
        idle = export(second, second + 1, (1, 0, 0, 0, 0), temporality=DELTA, instance="2", name="other")
        told(digest, idle, 9.0 + second)
        found = sound(told(digest, export(second, second + 1, (30, 0, 0, 0, 0), temporality=DELTA), 9.0 + second))
        assert (found.end_seconds, found.samples) == (9.0 + second, 30)


def test_the_rest_of_an_export_that_comes_in_parts_takes_nothing_away(digest: OtlpDigest) -> None:
    told(digest, export(1, 2, (0, 0, 0, 0, 30), temporality=DELTA), 10.0)
    rest = export(1, 2, (1, 0, 0, 0, 0), temporality=DELTA, name="other")
    assert sound(told(digest, rest, 10.01)).samples == 30


@pytest.mark.parametrize("start", [20, 10])
def test_two_processes_that_export_as_one_are_told_apart(digest: OtlpDigest, start: int) -> None:
    """Started one after the other, or forked. Their counts, mixed, would rise and fall as no service's do."""
    told(digest, export(10, 100, (50, 0, 0, 0, 0)), 10.0)
    other = export(start, 100.5, (9, 0, 0, 0, 0))
    if start > 10:
        told(digest, other, 10.5)  # it might be the same, started anew
        other = export(10, 101, (52, 0, 0, 0, 0))
    assert_torn(digest, other, 11.0)
    assert_torn(digest, export(start, 105, (90, 0, 0, 0, 0)), 15.0)  # and not only every other time


def test_who_is_left_of_two_processes_is_well_again_after_a_minute(digest: OtlpDigest) -> None:
    """Also where the one that has ended, such as a canary, had counted more."""
    told(digest, export(10, 100, (500, 0, 0, 0, 0)), 10.0)
    assert_torn(digest, export(10, 101, (50, 0, 0, 0, 0)), 11.0)
    assert_torn(digest, export(10, 102, (80, 0, 0, 0, 0)), 12.0)
    for second in range(3, 63):
        if second < 61:
            assert_torn(digest, export(10, 100 + second, (20 + 30 * second, 0, 0, 0, 0)), 10.0 + second)
        else:
            found = told(digest, export(10, 100 + second, (20 + 30 * second, 0, 0, 0, 0)), 10.0 + second)
    assert sound(found).samples == 30


def test_differences_that_overlap_come_from_two_processes(digest: OtlpDigest) -> None:
    told(digest, export(99, 100, (50, 0, 0, 0, 0), temporality=DELTA), 10.0)
    assert_torn(digest, export(99.5, 100.5, (9, 0, 0, 0, 0), temporality=DELTA), 10.5)


def assert_torn(digest: OtlpDigest, request: Any, now: float) -> None:
    with pytest.raises(ValueError, match=r"service\.instance\.id"):
        told(digest, request, now)


def test_exports_that_are_too_rare_are_told_with_the_way_out(digest: OtlpDigest) -> None:
    for minute in (1, 2):
        found = told(digest, export(1, 60 * minute, (10 * minute, 0, 0, 0, 0)), 60.0 * minute)
    assert isinstance(found, Missing)
    assert found.detail.endswith("OTEL_METRIC_EXPORT_INTERVAL=1000")


def test_a_histogram_that_is_not_there_is_told_with_those_that_are(digest: OtlpDigest) -> None:
    found = told(digest, export(1, 2, (1, 0, 0, 0, 0), name="rpc.server.\x1bduration"), 1.0)
    assert isinstance(found, Missing)
    assert found.detail.endswith("there is: rpc.server.?duration")


def test_labels_choose_series_by_the_point_and_by_the_resource(slo: SLO) -> None:
    names = OtlpNames(histogram=NAME, labels={"service.instance.id": "2", "http.route": "/search"})
    digest = OtlpDigest(names, slo, 3.0)
    for instance, route, count in (("1", "/search", 1), ("2", "/", 2), ("2", "/search", 4)):
        labels = {"http.route": route}
        request = export(1, 2, (count, 0, 0, 0, 0), temporality=DELTA, instance=instance, labels=labels)
        found = told(digest, request, 1.0)
    assert sound(found).samples == 4


def test_its_own_unit_counts_and_another_where_it_has_none(slo: SLO) -> None:
    digest = OtlpDigest(OtlpNames(histogram=NAME, unit=TimeUnit.MICROSECONDS), slo, 3.0)
    for second, unit, expected in ((1, "ms", 0.00095), (2, "", 0.95e-6)):
        request = export(second, second + 1, (100, 0), temporality=DELTA, unit=unit, bounds=(1.0,))
        assert sound(told(digest, request, float(second))).tail_seconds == pytest.approx(expected)
    with pytest.raises(ValueError, match="unit"):
        told(digest, export(3, 4, (100, 0), temporality=DELTA, unit="By", bounds=(1.0,)), 3.0)


@pytest.mark.parametrize(
    "request_",
    [
        export(2, 1, (1, 0, 0, 0, 0)),
        export(1, 2, (1, 0, 0)),
        export(1, 2, (1, 0, 0), bounds=(2.0, 1.0)),
        export(1, 2, (1, 0, 0), bounds=(1.0, math.nan)),
        export(1, 2, (1, 0, 0), bounds=(1.0, math.inf)),
        export(1, 2, (1, 0, 0, 0, 0), temporality=0),
        export(1, 2, (1,) * 500, bounds=tuple(map(float, range(499)))),
        export(1, 2, (1, 0, 0, 0, 0), labels={str(number): "" for number in range(65)}),
    ],
)
def test_a_point_that_contradicts_itself_is_refused(digest: OtlpDigest, request_: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        told(digest, request_, 1.0)


def exponential(scale: int, offset: int, counts: Sequence[int], start: float, end: float, zeros: int = 0) -> Any:
    request = export(start, end, (0, 0, 0, 0, 0))
    metric = request.resource_metrics[0].scope_metrics[0].metrics[0]
    metric.ClearField("histogram")
    metric.exponential_histogram.aggregation_temporality = CUMULATIVE
    point = metric.exponential_histogram.data_points.add(
        start_time_unix_nano=round(start * SECOND), time_unix_nano=round(end * SECOND), scale=scale,
        count=sum(counts) + zeros, zero_count=zeros,
    )  # fmt: skip
    point.positive.offset, point.positive.bucket_counts[:] = offset, counts
    return request


def test_an_exponential_histogram_may_become_coarser(digest: OtlpDigest) -> None:
    """From 16 buckets between 1/1024 and 1/512 s to one; what came since is in that between 1/512 and 1/256."""
    told(digest, exponential(4, -160, (5,) * 16, 1, 100, zeros=3), 10.0)
    found = sound(told(digest, exponential(0, -10, (80, 20), 1, 101, zeros=3), 11.0))
    assert found.samples == 20
    assert found.tail_seconds == pytest.approx(1 / 512 + 0.95 / 512)


@pytest.mark.parametrize("request_", [exponential(40, 0, (1,), 1, 2), exponential(-10, 2000, (1,), 1, 2)])
def test_an_exponential_histogram_of_no_latencies_is_refused(digest: OtlpDigest, request_: Any) -> None:
    with pytest.raises(ValueError, match="no histogram of latencies"):
        told(digest, request_, 1.0)


@pytest.mark.parametrize(
    ("labels", "failed"),
    [
        ({"error.type": "TimeoutError"}, 4.0),
        ({"http.status_code": 502}, 4.0),
        ({"http.response.status_code": 404}, 0.0),
        ({"rpc.grpc.status_code": 14}, 4.0),
        ({"rpc.grpc.status_code": 5}, 0.0),
    ],
)
def test_failures_are_told_by_the_conventions(digest: OtlpDigest, labels: Mapping[str, Any], failed: float) -> None:
    found = sound(told(digest, export(1, 2, (4, 0, 0, 0, 0), temporality=DELTA, labels=labels), 1.0))
    assert found.error_rps == failed


def test_series_and_their_labels_are_bounded(digest: OtlpDigest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_SERIES", 3)
    requests = [export(1, 2, (1, 0, 0, 0, 0), labels={"user": f"{'x' * 10_000}{number}"}) for number in range(4)]
    for request in requests[:3]:
        told(digest, request, 1.0)
    with pytest.raises(ValueError, match="more than 3 series"):
        told(digest, requests[3], 1.0)
    kept = [text for one in digest._exporters.values() for labels in one.series for pair in labels for text in pair]
    assert len({*kept}) == 4  # "user", and three that are not taken for one another
    assert max(map(len, kept)) < 300
    sound(told(digest, export(1, 3, (1, 0, 0, 0, 0), temporality=DELTA, instance="2"), 2.0 + otlp.REMEMBERED_SECONDS))


@given(st.binary(max_size=300) | st.tuples(st.integers(0, 1353), st.integers(0, 255)))
def test_no_body_raises_but_a_value_error_or_gives_insane_figures(change: bytes | tuple[int, int]) -> None:
    first, second = ((FIXTURES / f"otlp-cumulative-{number}.pb").read_bytes() for number in (1, 2))
    body = (
        change if isinstance(change, bytes) else b"%b%c%b" % (second[: change[0]], change[1], second[change[0] + 1 :])
    )
    digest = OtlpDigest(OtlpNames(histogram=NAME), SLO(0.01), 3.0)
    digest(first, 1.0)
    try:
        found = digest(body, 2.0)
    except ValueError:
        return
    if isinstance(found, Figures) and isinstance(found.tail_seconds, float):
        assert math.isfinite(found.tail_seconds)
        assert found.tail_seconds >= 0.0


def test_what_is_packed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unzipped(gzip.compress(b"x" * 1000)) == b"x" * 1000
    with pytest.raises(ValueError, match="MiB"):
        unzipped(gzip.compress(bytes(2 << 20)))
    with pytest.raises(ValueError, match="gzip"):
        unzipped(b"plain")
