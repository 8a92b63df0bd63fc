"""Intervals a reader may trust: within range, never of width zero, and the textbook's numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.bench.intervals import mean_interval, share_interval, student_t


@given(st.integers(1, 5000), st.data())
def test_share_is_bounded_and_never_certain(total, data):
    hits = data.draw(st.integers(0, total))
    estimate = share_interval(hits, total)
    for low, high in (estimate.ci95, estimate.ci99):
        assert 0.0 <= low <= estimate.mean + 1e-9
        assert estimate.mean - 1e-9 <= high <= 100.0
        assert high - low > 0.0


def test_wilson_by_hand():
    # 9 of 10 at 95 %: z = 1.96, centre (0.9 + 0.19208) / 1.38416, half-width 0.26...; Wilson 1927
    low, high = share_interval(9, 10).ci95
    assert low == pytest.approx(59.6, abs=0.1)
    assert high == pytest.approx(98.2, abs=0.1)


def test_180_good_windows_leave_two_percent_doubt():
    assert share_interval(180, 180).ci95[0] == pytest.approx(97.9, abs=0.1)


@pytest.mark.parametrize(("confidence", "degrees", "t"), [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 4, 4.604)])
def test_student_t_as_tabulated(confidence, degrees, t):
    assert student_t(confidence, degrees) == pytest.approx(t, abs=1e-3)


def test_single_run_has_no_interval():
    estimate = mean_interval([50.0], low=0.0)
    assert math.isinf(estimate.ci95[1])
    assert estimate.as_json() == {"mean": 50.0, "ci95": [0.0, None], "ci99": [0.0, None]}


def test_nothing_measured_is_an_error_not_a_zero():
    with pytest.raises(ValueError):
        mean_interval([])
    with pytest.raises(ValueError):
        share_interval(0, 0)
