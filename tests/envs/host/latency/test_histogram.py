"""Differences, sums and quantiles of histograms: whatever is unknown of one never flatters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency.figures import TimeUnit
from rlctl.envs.host.latency.prometheus import Histogram, together
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO

BUCKETS = st.lists(st.tuples(st.floats(1e-4, 10), st.integers(0, 1000)), min_size=1, max_size=10)


@given(BUCKETS, st.integers(0, 1000), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantile_lies_in_bucket_that_holds_it(rows: list[tuple[float, int]], above: int, q: float) -> None:
    bounds = sorted({bound for bound, _ in rows})
    counts, total = [], 0
    for _, (_, grow) in zip(bounds, rows, strict=False):
        total += grow
        counts.append(total)
    buckets = [*zip(bounds, map(float, counts), strict=True), (math.inf, float(total + above))]
    bounds_, counts_ = zip(*buckets, strict=True)
    found = Histogram(bounds_, counts_).quantile(q)
    if total + above == 0:
        assert found is None
        return
    assert found is not None
    value, beyond = found
    below = [count for bound, count in buckets if bound < value]
    assert max(below, default=0.0) <= q * (total + above) + 1e-9
    assert beyond == (total < q * (total + above))


def test_added_is_told_from_started_anew() -> None:
    before = Histogram((1.0, math.inf), (5.0, 10.0))
    assert Histogram((1.0, math.inf), (6.0, 12.0)).since(before).counts == (1.0, 2.0)
    assert Histogram((1.0, math.inf), (6.0, 9.0)).since(before).counts == (6.0, 9.0)
    assert before.since(None) == before


def test_a_histogram_without_an_infinite_bound_is_none() -> None:
    """Its slowest requests are nowhere: a tail of the others is no tail."""
    assert Histogram.of({0.1: 5.0, 1.0: 6.0}) is None


def test_bounds_may_come_and_go_between_two_readings() -> None:
    """Redis leaves out empty buckets, and an exponential histogram of OpenTelemetry halves its resolution."""
    fine = Histogram((1.0, 2.0, 4.0, 8.0, math.inf), (1.0, 2.0, 3.0, 4.0, 4.0))
    coarse = Histogram((4.0, 16.0, math.inf), (5.0, 8.0, 8.0))
    assert coarse.since(fine).counts == (2.0, 4.0, 4.0)


HISTOGRAMS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 50)), min_size=1, max_size=6, unique_by=lambda row: row[0]
)


def histogram(rows: list[tuple[int, int]]) -> tuple[Histogram, list[int]]:
    """Its requests, too, each at the bound of its bucket."""
    rows = sorted(rows)
    requests = [bound for bound, count in rows for _ in range(count)]
    counts = tuple(float(sum(request <= bound for request in requests)) for bound, _ in rows)
    return Histogram((*(float(bound) for bound, _ in rows), math.inf), (*counts, float(len(requests)))), requests


@given(HISTOGRAMS, HISTOGRAMS)
def test_together_no_request_seems_faster_than_it_was(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    (first, requests), (second, others) = histogram(one), histogram(two)
    both = together([first, second])
    assert both.total == len(requests) + len(others)
    for bound, count in zip(both.bounds, both.counts, strict=True):
        assert count == first.at_most(bound) + second.at_most(bound)
        assert count <= sum(request <= bound for request in (*requests, *others))


def test_requests_in_infinite_bucket_are_only_counted() -> None:
    only = Histogram((math.inf,), (7.0,))
    assert only.quantile(0.95) == (0.0, True)
    figures = only.figures("h", TimeUnit.SECONDS, SLO(0.010), 1.0, 1.0)
    assert isinstance(figures.tail_seconds, Missing)
    assert figures.tail_seconds.why is Why.NOT_SUPPORTED
    assert figures.done_rps == 7.0


@pytest.mark.parametrize("parts", [[], [Histogram()]])
def test_nothing_together_is_nothing(parts: list[Histogram]) -> None:
    assert together(parts).quantile(0.95) is None
