"""Comparisons a reader may trust: the textbook's numbers, honest coverage, and nothing certain from little."""

import math

import numpy as np
import pytest

from rlctl.bench.comparison import Comparison, bca_interval, paired_difference, ratio_of_means


def test_the_t_interval_by_hand():
    # differences 1, 2, 3: mean 2, sd 1, error 1/sqrt(3) = 0.57735; t(0.95, 2) = 4.30265, so half-width 2.48414
    difference = paired_difference(np.array([11.0, 22.0, 33.0]), np.array([10.0, 20.0, 30.0]))
    assert difference.mean == pytest.approx(2.0)
    assert difference.t95 == pytest.approx((-0.48414, 4.48414), abs=1e-3)
    assert not difference.is_clear


def test_bca_is_percentile_when_nothing_is_skewed():
    samples = np.linspace(-1.0, 1.0, 10_001)
    low, high = bca_interval(0.0, samples, np.array([-1.0, 0.0, 1.0]), 1.959964)
    assert (low, high) == pytest.approx((-0.95, 0.95), abs=1e-3)


def test_bca_by_hand():
    # half below: bias 0. left out 0, 0, 3: away 1, 1, -2; a = (1 + 1 - 8) / (6 * 6^1.5) = -0.068041
    # level(-1.95996) = Phi(-1.95996 / (1 - 0.068041 * 1.95996)) = Phi(-2.26156) = 0.011862
    # level(+1.95996) = Phi(1.95996 / (1 + 0.068041 * 1.95996)) = Phi(1.72937) = 0.958129
    samples = np.linspace(0.0, 1.0, 100_001)
    low, high = bca_interval(0.5, samples, np.array([0.0, 0.0, 3.0]), 1.959964)
    assert (low, high) == pytest.approx((0.01186, 0.95813), abs=1e-4)


@pytest.mark.slow
def test_intervals_cover_the_truth_as_said(monkeypatch):
    monkeypatch.setattr("rlctl.bench.comparison.RESAMPLES", 4000)
    rng, hits = np.random.default_rng(7), np.zeros(3)
    for _ in range(600):
        common = 10.0 + rng.normal(size=30)
        one = common + 1.0 + rng.normal(size=30)
        difference, ratio = paired_difference(one, common), ratio_of_means(one, common)
        hits += [low <= 1.0 <= high for low, high in (difference.t95, difference.bootstrap95)] + [
            ratio.bootstrap95[0] <= 1.1 <= ratio.bootstrap95[1]
        ]
    error = np.sqrt(0.95 * 0.05 / 600)
    assert np.all(np.abs(hits / 600 - 0.95) <= 3.5 * error), hits / 600


def test_common_random_numbers_find_what_unpaired_ones_cannot():
    rng = np.random.default_rng(1)
    weather = rng.normal(50.0, 10.0, 30)
    one, other = weather + 0.5 + rng.normal(0, 0.2, 30), weather + rng.normal(0, 0.2, 30)
    assert paired_difference(one, other).is_clear
    assert not paired_difference(one, rng.permutation(other)).is_clear


def test_ratio_by_hand_is_certain():
    other = np.array([1.0, 2.0, 3.0, 6.0])
    ratio = ratio_of_means(2.5 * other, other)
    assert ratio.value == pytest.approx(2.5)
    assert ratio.bootstrap95 == pytest.approx((2.5, 2.5))


def test_a_baseline_without_be_work_has_no_ratio():
    ratio = ratio_of_means(np.array([5.0, 6.0]), np.zeros(2))
    assert math.isnan(ratio.value)
    assert Comparison("m", {}, ratio).as_json() == {"be_throughput_ratio": {"ratio": None, "bootstrap95": [None, None]}}


def test_one_seed_is_certain_of_nothing():
    difference = paired_difference(np.array([3.0]), np.array([1.0]))
    assert difference.mean == 2.0
    assert not difference.is_clear
    assert difference.as_json()["t95"] == [None, None]
    assert math.isinf(ratio_of_means(np.array([3.0]), np.array([1.0])).bootstrap95[1])


def test_the_same_numbers_every_time():
    rng = np.random.default_rng(3)
    one, other = rng.exponential(size=30), rng.exponential(size=30)
    assert paired_difference(one, other) == paired_difference(one, other)
    assert ratio_of_means(one, other) == ratio_of_means(one, other)


def test_equal_differences_are_no_proof():
    """One missed window in each of two rounds: the same twice by chance."""
    found = paired_difference(np.array([100.0, 100.0]), np.array([98.0, 98.0]))
    assert (found.p, found.is_clear) == (0.5, False)
    found = paired_difference(np.array([100.0, 98.3333, 96.6667]), np.array([98.3333, 96.6667, 95.0]))
    assert (found.p, found.is_clear) == (0.25, False), "as rounds are rounded"
    assert paired_difference(np.array([5e-5, *[0.0] * 9]), np.zeros(10)).p == 1.0


def test_values_of_different_seeds_cannot_be_paired():
    with pytest.raises(ValueError, match="one length"):
        paired_difference(np.zeros(3), np.zeros(4))
