"""Histograms of two scrapes become a tail that never flatters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rlctl.config.fields import Url
from rlctl.envs.host.latency.figures import Figures, Reporter, TimeUnit
from rlctl.envs.host.latency.polled import PolledSource
from rlctl.envs.host.latency.prometheus import PrometheusDigest, PrometheusNames
from rlctl.envs.telemetry import Missing, Quantile, Value, Why
from rlctl.envs.workload import SLO
from tests.waiting import reading, until

FIXTURES = Path(__file__).parents[3] / "fixtures/latency"
NAMES = PrometheusNames(histogram="http_seconds", oldest="oldest_seconds", in_flight="in_flight")
BOUNDS = (0.001, 0.005, 0.010, 0.050)


def exposition(counts: tuple[int, ...], worker: str = "1", extra: str = "", bounds: tuple[float, ...] = BOUNDS) -> str:
    """Cumulative counts per bound, the last one +Inf."""
    lines = ["# HELP http_seconds Time.", "# TYPE http_seconds histogram"]
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        le = "+Inf" if math.isinf(bound) else f"{bound}"
        lines.append(f'http_seconds_bucket{{worker="{worker}",le="{le}"}} {count}')
    lines += [f'http_seconds_count{{worker="{worker}"}} {counts[-1]}', "go_goroutines 7", extra]
    return "\n".join(lines) + "\n"


def figures(slo: SLO, *scrapes: str, names: PrometheusNames = NAMES) -> Figures | Missing:
    digest = PrometheusDigest(names, slo)
    found: Figures | Missing = Missing(Why.NO_DATA)
    for second, scrape in enumerate(scrapes):
        found = digest(scrape.encode(), float(second))
    return found


def sound(found: Figures | Missing) -> Figures:
    assert isinstance(found, Figures), found
    return found


def test_tail_is_of_the_interval(slo: SLO) -> None:
    before = exposition((10_000, 10_000, 10_000, 10_000, 10_000))
    now = exposition((10_000, 10_000, 10_100, 10_100, 10_100))
    found = sound(figures(slo, before, now))
    assert found.samples == 100
    assert found.done_rps == 100.0
    assert found.tail_seconds == pytest.approx(0.005 + 0.95 * 0.005)


def test_one_scrape_is_no_window(slo: SLO) -> None:
    found = figures(slo, exposition((1, 2, 3, 4, 5)))
    assert isinstance(found, Missing)
    assert found.why is Why.NO_DATA


def test_tail_beyond_last_bound_is_a_lower_limit(slo: SLO) -> None:
    found = sound(figures(slo, exposition((0, 0, 0, 0, 0)), exposition((0, 0, 0, 50, 100))))
    assert found.tail_seconds == 0.050
    assert found.tail_is_lower_limit


def test_histogram_that_ends_below_target_cannot_tell(slo: SLO) -> None:
    bounds = (0.001, 0.005)
    scrapes = [exposition(counts, bounds=bounds) for counts in ((0, 0, 0), (10, 20, 100))]
    tail = sound(figures(slo, *scrapes)).tail_seconds
    assert isinstance(tail, Missing)
    assert tail.why is Why.NOT_SUPPORTED
    assert "buckets beyond the target" in tail.detail


def test_restarted_worker_does_not_disturb_others(slo: SLO) -> None:
    before = exposition((500,) * 5, "1") + exposition((900,) * 5, "2")
    now = exposition((600,) * 5, "1") + exposition((30,) * 5, "2") + exposition((20,) * 5, "3")
    after = exposition((700,) * 5, "1") + exposition((60,) * 5, "2") + exposition((40,) * 5, "3")
    assert sound(figures(slo, before, now)).samples == 100, "the others' may be counts of a lifetime"
    assert sound(figures(slo, before, now, after)).samples == 100 + 30 + 20


@pytest.mark.parametrize(("age_seconds", "samples"), [(0.5, 100 + 20), (1.5, 100), (-5.0, 100)])
def test_a_young_series_counts_at_once(slo: SLO, age_seconds: float, samples: int) -> None:
    digest = PrometheusDigest(NAMES, slo, wall_clock=lambda: 5000.0)
    born = f'http_seconds_created{{worker="2"}} {5000.0 - age_seconds}'
    digest(exposition((500,) * 5).encode(), 0.0)
    found = digest((exposition((600,) * 5) + exposition((20,) * 5, "2", born)).encode(), 1.0)
    assert sound(found).samples == samples


def test_buckets_that_outgrow_infinity_are_malformed(slo: SLO) -> None:
    found = figures(slo, exposition((50, 50, 50, 50, 50)), exposition((80, 80, 80, 80, 50)))
    assert isinstance(found, Missing)
    assert found.why is Why.MALFORMED
    assert "+Inf" in found.detail


def test_a_reset_in_a_lower_bucket_is_seen(slo: SLO) -> None:
    found = figures(slo, exposition((90, 90, 90, 90, 100)), exposition((0, 0, 90, 100, 120)))
    assert isinstance(found, Missing)
    assert "began again" in found.detail


def test_replicas_with_labels_of_their_own_are_named(slo: SLO) -> None:
    """Each look saw a lifetime's requests: 43,890 a second where 60 were served."""
    looks = [exposition((9000 + n,) * 5, worker=str(n % 2)) for n in range(8)]
    for last in range(2, len(looks)):
        found = figures(slo, *looks[:last])
        assert isinstance(found, Missing)
        assert found.why is Why.MALFORMED
        assert "labels" in found.detail


def test_a_series_that_returns_brings_no_lifetime(slo: SLO) -> None:
    always, away = [exposition((n,) * 5) for n in (100, 200, 300)], exposition((10**6,) * 5, "2")
    assert sound(figures(slo, always[0] + away, always[1], always[2] + away)).samples == 100


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x1f\x8b\x08 and more", "gzip"),
        (b"\n<!DOCTYPE html><html>", "HTML page"),
        (b'{"rpc.seconds_bucket",le="+Inf"} 3\nother_bucket{le="1"} 2\n', "histograms there: other, rpc.seconds"),
    ],
)
def test_another_page_says_what_it_is(slo: SLO, body: bytes, reason: str) -> None:
    found = PrometheusDigest(NAMES, slo)(body, 0.0)
    assert isinstance(found, Missing)
    assert reason in found.detail


def test_names_in_utf8_are_read(slo: SLO) -> None:
    names = PrometheusNames(histogram="rpc.seconds")
    pages = [f'{{"rpc.seconds_bucket",le="0.001"}} {n}\n{{"rpc.seconds_bucket",le="+Inf"}} {n}\n' for n in (3, 10)]
    assert sound(figures(slo, *pages, names=names)).samples == 7


def test_workers_answering_in_turn_are_no_window(slo: SLO) -> None:
    """What they differ by is the lifetime of one: its tail hid a service that missed at that moment."""
    one, other = exposition((9000,) * 5), exposition((200,) * 5)
    restarted = figures(slo, one, other)
    assert isinstance(restarted, Missing)
    assert restarted.why is Why.NO_DATA, "one that has restarted"
    torn = figures(slo, one, other, one, other)
    assert isinstance(torn, Missing)
    assert "does each worker answer for itself?" in torn.detail
    assert isinstance(figures(slo, one, other, one, other, one), Missing)
    minute = [exposition((300 + second,) * 5) for second in range(62)]
    assert isinstance(figures(slo, one, other, one, other, *minute), Figures), "and not for ever"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "no series of http_seconds_bucket; the page has no histogram"),
        ({"worker": "9"}, "no series of http_seconds_bucket with {'worker': '9'}; histograms there: http_seconds"),
    ],
)
def test_absent_histogram_is_told_by_name(slo: SLO, labels: dict[str, str], said: str) -> None:
    names = PrometheusNames(histogram="http_seconds", labels=labels)
    page = exposition((0, 1, 1, 1, 1)) if labels else "go_goroutines 7\n"
    found = figures(slo, page, page, names=names)
    assert isinstance(found, Missing)
    assert found.detail == said


def test_labels_choose_series(slo: SLO) -> None:
    names = PrometheusNames(histogram="http_seconds", labels={"worker": "2"})
    scrapes = [exposition((n,) * 5, "1") + exposition((3 * n,) * 5, "2") for n in (0, 100)]
    assert sound(figures(slo, *scrapes, names=names)).samples == 300


def test_in_flight_growth_is_undone_load(slo: SLO) -> None:
    before = exposition((0,) * 5, extra="in_flight 5\noldest_seconds 0.001")
    now = exposition((300,) * 5, extra="in_flight 205\noldest_seconds 0.8")
    found = sound(figures(slo, before, now))
    assert found.offered_rps == 500.0
    assert found.oldest_seconds == 0.8


def test_milliseconds(slo: SLO) -> None:
    names = PrometheusNames(histogram="http_seconds", unit=TimeUnit.MILLISECONDS)
    scrapes = [exposition((n, n, n, n), bounds=(1.0, 10.0, 100.0)) for n in (0, 100)]
    assert sound(figures(slo, *scrapes, names=names)).tail_seconds == pytest.approx(0.95e-3)


def test_an_endpoint_without_the_histogram_says_which(slo: SLO) -> None:
    found = figures(slo, "up 1\n")
    assert isinstance(found, Missing)
    assert "http_seconds_bucket" in found.detail


def test_no_requests_in_the_interval_have_no_tail(slo: SLO) -> None:
    found = sound(figures(slo, *[exposition((7,) * 5)] * 2))
    assert found.samples == 0
    assert isinstance(found.tail_seconds, Missing)


def test_a_series_without_an_infinite_bucket_is_refused(slo: SLO) -> None:
    """Time-outs are counted there and nowhere else."""
    whole = [exposition((n,) * 5, "1") for n in (0, 100)]
    lacking = "\n".join(line for line in exposition((50,) * 5, "2").splitlines() if "+Inf" not in line)
    found = figures(slo, whole[0], whole[1] + lacking + "\n")
    assert isinstance(found, Missing)
    assert found.why is Why.MALFORMED
    assert "+Inf" in found.detail


def captured(name: str) -> list[str]:
    return [(FIXTURES / f"{name}-{number}.prom").read_text() for number in (1, 2)]


ENVOY = PrometheusNames(
    histogram="envoy_http_downstream_rq_time",
    labels={"envoy_http_conn_manager_prefix": "ingress_http"},
    in_flight="envoy_http_downstream_rq_active",
    errors="envoy_http_downstream_rq_xx",
    error_labels={"envoy_response_code_class": "5"},
    unit=TimeUnit.MILLISECONDS,
)
OTEL = PrometheusNames(
    histogram="http_server_request_duration_seconds",
    errors="http_server_request_duration_seconds_count",
    error_labels={"http_response_status_code": "5.."},
)


@pytest.mark.parametrize(
    ("name", "names", "samples", "failed", "between"),
    [("envoy", ENVOY, 40, 1, (0.025, 0.050)), ("otel", OTEL, 31, 1, (0.010, 0.025))],
)
def test_what_real_programs_export(
    slo: SLO, name: str, names: PrometheusNames, samples: int, failed: int, between: tuple[float, float]
) -> None:
    found = sound(figures(slo, *captured(name), names=names))
    assert (found.samples, found.done_rps, found.error_rps) == (samples, samples, failed)
    assert isinstance(found.tail_seconds, float)
    assert between[0] < found.tail_seconds <= between[1]


def test_a_gauge_of_another_place_is_not_counted(slo: SLO) -> None:
    """Envoy's administration has requests in flight, too: the very one that asks."""
    found = sound(figures(slo, *captured("envoy"), names=ENVOY))
    assert found.offered_rps == found.done_rps


def test_requests_that_fail_fast_are_no_good_news(slo: SLO) -> None:
    names = PrometheusNames(histogram="http_seconds", errors="requests_total", error_labels={"code": "5.."})
    page = 'requests_total{{code="200"}} {}\nrequests_total{{code="503"}} {}\n'
    scrapes = [exposition((n,) * 5, extra=page.format(n // 2, n // 2)) for n in (0, 100)]
    found = sound(figures(slo, *scrapes, names=names))
    assert found.error_rps == 50.0
    tail = Reporter("prometheus", slo, 3.0).readings(found, found.end_seconds)["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert tail.why is Why.FAILING


def test_absent_counter_of_failures_is_told_by_name(slo: SLO) -> None:
    names = PrometheusNames(histogram="http_seconds", errors="nosuch_total", error_labels={"code": "5.."})
    found = figures(slo, *[exposition((n,) * 5) for n in (0, 100)], names=names)
    assert isinstance(found, Missing)
    assert found.detail == "no series of nosuch_total: is that its name there?"


def test_an_average_is_refused(slo: SLO) -> None:
    """All that HAProxy's exporter has of times are averages and maxima."""
    names = PrometheusNames(histogram="haproxy_backend_response_time_average_seconds")
    found = figures(slo, (FIXTURES / "haproxy.prom").read_text(), names=names)
    assert isinstance(found, Missing)
    assert found.why is Why.NOT_SUPPORTED
    assert "is no histogram there" in found.detail


def test_a_histogram_without_its_last_bucket_is_none(slo: SLO) -> None:
    """Requests beyond the last bound are in no bucket then, and the tail would flatter."""
    scrapes = [exposition((n, n, n, n, 2 * n)) for n in (100, 200)]
    cut = ["\n".join(line for line in scrape.splitlines() if "+Inf" not in line) for scrape in scrapes]
    found = figures(slo, *cut)
    assert isinstance(found, Missing)
    assert found.why is Why.MALFORMED
    one_of_two = [
        exposition((n, n, n, n, n), worker="2") + text + "\n" for n, text in zip((100, 200), cut, strict=True)
    ]
    assert isinstance(figures(slo, *one_of_two), Missing), "a worker without one hides its own"


TEXT = st.text(alphabet='http_seconds_bucket{}le="0.5+Inf", NaN#\\\n -1e9', max_size=200)


@given(st.lists(st.binary(max_size=100) | TEXT.map(str.encode), min_size=1, max_size=4))
def test_no_body_raises_or_gives_insane_figures(bodies: list[bytes]) -> None:
    digest = PrometheusDigest(PrometheusNames(histogram="h", oldest="o"), SLO(0.01))
    start = b'h_bucket{le="0.1"} 1\nh_bucket{le="+Inf"} 1\n'
    for second, body in enumerate([start, *bodies, start + b"\nh_bucket" + bodies[0] + b"\no " + bodies[0]]):
        found = digest(body, float(second))
        if isinstance(found, Figures) and isinstance(found.tail_seconds, float):
            assert math.isfinite(found.tail_seconds)
            assert found.tail_seconds >= 0.0


def test_a_live_endpoint_and_then_a_silent_one(slo: SLO, serve: Callable[..., str]) -> None:
    scrapes = iter(range(0, 10**6, 50))
    answer = {"status": 200}
    url = serve(lambda: (answer["status"], exposition((next(scrapes),) * 5).encode()))
    source = PolledSource(
        "prometheus", url, PrometheusDigest(NAMES, slo), slo, interval_seconds=0.02, stale_seconds=0.3
    )
    try:
        assert 0.0 < reading(source, "tail_latency_seconds", Quantile).value <= 0.001
        assert isinstance(source.read(time.monotonic())["load_ratio"], Value)
        answer["status"] = 503
        silent = reading(source, "tail_latency_seconds", Missing)
        assert silent.why is Why.STALE
        assert silent.age_seconds > 0.3
    finally:
        source.close()
        source.close()


def test_an_endpoint_that_is_not_there_is_gone(slo: SLO) -> None:
    source = PolledSource(
        "prometheus", "http://127.0.0.1:9/metrics", PrometheusDigest(NAMES, slo), slo, interval_seconds=0.02
    )
    try:
        until(lambda: reading(source, "tail_latency_seconds", Missing).why is Why.GONE)
    finally:
        source.close()


@pytest.mark.parametrize("url", ["/metrics", "file:///etc/passwd", "ftp://x/y", "http://"])
def test_only_http_urls(url: str) -> None:
    with pytest.raises(ValidationError, match="http"):
        TypeAdapter(Url).validate_python(url)
