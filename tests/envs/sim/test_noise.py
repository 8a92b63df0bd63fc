"""The random numbers: the same for the same host whatever stands beside it, and as good as independent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlctl.envs.sim.noise import normals, uniforms

SEEDS = np.arange(10_000, dtype=np.uint64)
EDGES = np.array([0, 1, 2**32, 2**63, 2**64 - 1], np.uint64)


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**7), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_host_draws_same_alone_and_among_others(seed: int, tick: int, others: list[int]) -> None:
    """Otherwise adding a manager to a comparison would change the others' results."""
    alone = normals(np.array([seed], np.uint64), tick, 6)
    among = normals(np.array([*others, seed], np.uint64), tick, 6)
    assert (among[:, -1:] == alone).all()


@given(st.integers(0, 10**6), st.integers(0, 3000), st.integers(1, 12))
def test_channel_is_same_however_many_are_drawn(tick: int, first: int, count: int) -> None:
    alone = uniforms(EDGES, tick, 1, first + count - 1)
    assert (uniforms(EDGES, tick, count, first)[-1] == alone[0]).all()


def test_the_numbers_are_these() -> None:
    """Every published table rests on them: a change of the generator is a change of all results."""
    drawn = uniforms(np.array([0, 1], np.uint64), 3, 2)
    expected = [[0.1161360803920884, 0.252820825199034], [0.8694502069615451, 0.887051363810508]]
    np.testing.assert_allclose(drawn, expected, rtol=1e-12)


@pytest.mark.parametrize("tick", [0, 1, 2**40])
def test_uniforms_lie_strictly_between_0_and_1(tick: int) -> None:
    drawn = uniforms(np.concatenate((EDGES, SEEDS)), tick, 4)
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0


def test_uniforms_are_uniform() -> None:
    """Chi-square over 100 cells, .8 million draws: 99 degrees of freedom, 5 standard deviations of it are 169."""
    drawn = np.concatenate([uniforms(SEEDS, tick, 4).ravel() for tick in range(20)])
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    expected = len(drawn) / 100
    assert ((counts - expected) ** 2 / expected).sum() < 169


def test_normals_have_the_moments_of_a_normal() -> None:
    """One million draws; bounds are 5 standard errors."""
    z = np.concatenate([normals(SEEDS, tick, 6).ravel() for tick in range(16)])
    error = 1.0 / np.sqrt(len(z))
    assert abs(z.mean()) < 5 * error
    assert abs((z**2).mean() - 1.0) < 5 * np.sqrt(2.0) * error
    assert abs((z**3).mean()) < 5 * np.sqrt(15.0) * error
    assert abs((z**4).mean() - 3.0) < 5 * np.sqrt(96.0) * error
    assert np.mean(np.abs(z) > 3.0) == pytest.approx(0.0027, abs=5 * np.sqrt(0.0027) * error)


def correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.abs(np.corrcoef(a, b)[0, 1]))


BOUND = 5.0 / np.sqrt(len(SEEDS))


def test_channels_do_not_know_of_each_other() -> None:
    """Load noise that goes with the tail's noise would be a second, hidden coupling of load and latency."""
    z = normals(SEEDS, 17, 8)
    off = np.corrcoef(z)[~np.eye(8, dtype=bool)]
    assert np.abs(off).max() < BOUND
    squares = np.corrcoef(z**2)[~np.eye(8, dtype=bool)]
    assert np.abs(squares).max() < BOUND


@pytest.mark.parametrize("lag", [1, 2, 64])
def test_ticks_do_not_know_of_each_other(lag: int) -> None:
    assert correlation(uniforms(SEEDS, 100, 1)[0], uniforms(SEEDS, 100 + lag, 1)[0]) < BOUND


def test_one_host_over_time_is_white() -> None:
    one = np.array([7], np.uint64)
    series = np.array([uniforms(one, tick, 1)[0, 0] for tick in range(10_000)])
    for lag in (1, 2, 5):
        assert correlation(series[:-lag], series[lag:]) < 5.0 / np.sqrt(len(series))


@pytest.mark.parametrize("apart", [1, 2, 1000])
def test_neighbouring_seeds_do_not_know_of_each_other(apart: int) -> None:
    """Seeds are counted up, so neighbours are what every benchmark uses."""
    drawn = uniforms(SEEDS, 5, 1)[0]
    assert correlation(drawn[:-apart], drawn[apart:]) < BOUND


def test_no_two_places_draw_the_same_number() -> None:
    drawn = np.stack([uniforms(SEEDS[:500], tick, 8) for tick in range(100)])
    assert len(np.unique(drawn)) == drawn.size
