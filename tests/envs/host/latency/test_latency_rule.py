"""A stalled client or a dead LC is not good latency, whichever source it comes from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency.figures import LONGEST_SECONDS, PROVIDES, UNKNOWN, Figures, Reporter, TimeUnit
from rlctl.envs.host.latency.text_log import Requests, SampleWindow
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why
from rlctl.envs.workload import SLO

near: Any = pytest.approx  # its own type is not that of a number


@pytest.fixture
def reporter(slo: SLO) -> Reporter:
    return Reporter("source", slo, stale_seconds=3.0)


def why(reading: Reading) -> Why | None:
    return reading.why if isinstance(reading, Missing) else None


def test_figures_become_readings_with_their_age(reporter: Reporter) -> None:
    figures = Figures(10.0, 1.0, 500, 0.004, 0.002, offered_rps=520.0, done_rps=500.0, error_rps=1.0)
    assert reporter.readings(figures, 10.5) == {
        "tail_latency_seconds": Quantile(0.004, 0.5, samples=500, window_seconds=1.0),
        "oldest_request_seconds": Value(0.002, 0.5),
        "load_ratio": Value(0.52, 0.5),
        "offered_rps": Value(520.0, 0.5),
        "done_rps": Value(500.0, 0.5),
        "error_rps": Value(1.0, 0.5),
        "tail_is_lower_limit": Value(0.0, 0.5),
    }


def test_a_stalled_lc_speaks_through_its_oldest_request(reporter: Reporter) -> None:
    stalled = Figures(10.0, 1.0, 0, Missing(Why.NO_DATA), 0.9, offered_rps=100.0, done_rps=0.0)
    found = reporter.readings(stalled, 10.0)
    assert why(found["tail_latency_seconds"]) is Why.NO_DATA
    telemetry = Telemetry(
        10.0,
        0.010,
        tail_latency_seconds=found["tail_latency_seconds"],
        oldest_request_seconds=found["oldest_request_seconds"],
    )
    assert telemetry.latency_seconds == Value(0.9)
    assert telemetry.slack_ratio is not None
    assert telemetry.slack_ratio < 0.0


@pytest.mark.parametrize(("offered", "words"), [(100.0, "none completed"), (0.0, "no request was offered")])
def test_nothing_completed_and_nothing_outstanding_is_no_data(reporter: Reporter, offered: float, words: str) -> None:
    """Even if the source says that the tail of no requests is zero."""
    tail = reporter.readings(Figures(10.0, 1.0, 0, 0.0, 0.0, offered_rps=offered), 10.0)["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert tail.why is Why.NO_DATA
    assert words in tail.detail


def test_old_figures_are_stale_as_a_whole(reporter: Reporter) -> None:
    figures = Figures(10.0, 1.0, 500, 0.004, 0.0, offered_rps=1.0)
    reporter.readings(figures, 12.0)
    found = reporter.readings(figures, 13.5)
    assert {why(reading) for reading in found.values()} == {Why.STALE}
    assert found["tail_latency_seconds"].age_seconds == 3.5


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (Missing(Why.NO_DATA, "'bad' is absent or null"), Why.NO_DATA),
        (Missing(Why.MALFORMED, "'bad' is 'none'"), Why.MALFORMED),
        (math.nan, Why.ABSURD),
        (0.0, None),
        (UNKNOWN, None),  # a source without a counter
    ],
)
def test_silent_counter_of_failures_says_nothing(
    reporter: Reporter, errors: float | Missing, reason: Why | None
) -> None:
    tail = reporter.readings(Figures(10.0, 1.0, 500, 0.004, error_rps=errors), 10.0)["tail_latency_seconds"]
    assert why(tail) is reason
    assert reason is None or "nobody knows how many requests fail" in repr(tail)


def test_load_is_what_was_offered(reporter: Reporter) -> None:
    both = Figures(1.0, 1.0, 500, 0.1, offered_rps=1200.0, done_rps=500.0)
    assert reporter.readings(both, 1.0)["load_ratio"] == Value(1.2)
    done = Figures(1.0, 1.0, 500, 0.1, done_rps=500.0)
    assert reporter.readings(done, 1.0)["load_ratio"] == Value(0.5)
    assert why(reporter.readings(done, 1.0)["offered_rps"]) is Why.NOT_SUPPORTED


def test_load_that_is_in_another_unit_is_absurd(reporter: Reporter) -> None:
    figures = Figures(1.0, 1.0, 5, 0.1, offered_rps=60_000.0)
    assert why(reporter.readings(figures, 1.0)["load_ratio"]) is Why.ABSURD


NUMBERS = st.floats() | st.just(UNKNOWN) | st.just(Missing(Why.NO_DATA))


@given(st.floats(0, 10), st.floats(0.01, 10), st.integers(-5, 1000), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_no_figures_give_an_insane_reading(
    end: float, window: float, samples: int, tail: float, oldest: float, offered: float, done: float, errors: float
) -> None:
    slo = SLO(target_seconds=0.010, max_load_rps=1000.0)
    figures = Figures(end, window, samples, tail, oldest, offered, done, errors)
    found = Reporter("source", slo, 3.0).readings(figures, 10.0)
    assert set(found) == set(PROVIDES)
    for reading in found.values():
        assert isinstance(reading, Missing) or (math.isfinite(reading.value) and reading.value >= 0.0)
    reading = found["tail_latency_seconds"]
    assert isinstance(reading, Missing) or (samples > 0 and reading.value <= LONGEST_SECONDS)


def test_units() -> None:
    assert [TimeUnit(name).seconds for name in ("seconds", "milliseconds", "microseconds")] == [1.0, 1e-3, 1e-6]


def window_of(window: SampleWindow) -> tuple[int, float]:
    figures = window.figures()
    assert isinstance(figures, Figures)
    return figures.samples, figures.window_seconds


def test_one_ticks_window_holds_one_batch() -> None:
    window = SampleWindow(1.0, 0.95)
    assert isinstance(window.figures(), Missing)
    for tick, now in enumerate((0.0, 1.01, 2.0, 2.99, 4.02)):
        window.add(now, Requests([0.001] * tick))
    assert window_of(window) == (4, near(1.03))


def test_a_longer_window_holds_several_batches() -> None:
    window = SampleWindow(2.0, 0.95)
    for now in range(6):
        window.add(float(now), Requests([0.001] * 10))
    assert window_of(window) == (20, 2.0)


def test_a_window_without_requests_has_no_tail() -> None:
    window = SampleWindow(1.0, 0.95)
    window.add(0.0, Requests())
    window.add(1.0, Requests())
    figures = window.figures()
    assert isinstance(figures, Figures)
    assert isinstance(figures.tail_seconds, Missing)
    assert figures.done_rps == 0.0


BATCH = st.builds(
    Requests, st.lists(st.floats(0.0, 10.0), max_size=20), rejected=st.integers(0, 3), weight=st.integers(1, 30)
)


@given(st.lists(BATCH, min_size=1, max_size=8), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_tail_of_bursts_is_weighed_by_lines(batches: list[Requests], q: float) -> None:
    window = SampleWindow(100.0, q)
    window.add(0.0, Requests())
    for second, batch in enumerate(batches, start=1):
        window.add(float(second), batch)
    lines = [([*batch.latencies, *[math.inf] * batch.rejected], batch.weight) for batch in batches]
    every = [latency for latencies, weight in lines for latency in latencies * weight]
    figures = window.figures()
    assert isinstance(figures, Figures)
    if not every or math.isinf(np.quantile(every, q, method="higher")):
        assert isinstance(figures.tail_seconds, Missing)
    else:
        assert figures.tail_seconds == np.quantile(every, q, method="higher")
