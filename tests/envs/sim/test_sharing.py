"""Who gets which CPU: the facts that were measured on a two-core host (docs/measured/simulator.md)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.sim.sharing import Contest, Share, contest_of, fair_share, share_out

MINIMUM = 2.0 / 1024.0
UTILISATIONS = st.floats(0.0, 1.0)
QUOTAS = st.floats(0.01, 2.0)


def fair_on(cpus: float, weight: float = 1.0) -> float:
    return fair_share(weight, 1.0, cpus)


def two_core(wants: float, quota: float = np.inf, cpus: int = 1, weight: float = 1.0, threads: float = 2.0) -> Share:
    """LC on cpu0, BE on cpu0 (`cpus` 1) or on both."""
    return share_out(contest_of(weight, 1.0, cpus, cpus - 1.0, 1.0, threads), wants, quota)


def test_equal_weights_halve_one_cpu() -> None:
    assert fair_on(1) == pytest.approx(1 / 2)


def test_on_two_cpus_be_presses_half_as_hard() -> None:
    assert fair_on(2) == pytest.approx(2 / 3)


@given(UTILISATIONS, st.floats(0.01, 0.5))
def test_a_quota_below_the_fair_share_is_exact(wants: float, quota: float) -> None:
    assert two_core(wants, quota).be_cpus == pytest.approx(quota)


@given(UTILISATIONS, QUOTAS)
def test_beyond_it_be_has_its_fair_share(wants: float, quota: float) -> None:
    assert two_core(wants, quota).be_cpus == pytest.approx(min(quota, max(1.0 - wants, 0.5)))


@given(UTILISATIONS, QUOTAS)
def test_stable_only_while_both_fit_the_cpu(wants: float, quota: float) -> None:
    """The regime switch: with equal weights, U + min(q, .5) < 1."""
    assert two_core(wants, quota).lc_capacity_cpus == pytest.approx(1.0 - min(quota, 0.5))


@given(UTILISATIONS, QUOTAS, st.sampled_from([1, 2]))
def test_minimum_weight_nearly_removes_be(wants: float, quota: float, cpus: int) -> None:
    """cpu.shares 2: BE takes the idle time and no more."""
    share = two_core(wants, quota, cpus, MINIMUM)
    assert share.lc_capacity_cpus >= 0.995
    assert share.be_cpus >= min(quota, 1.0 - wants) * (1.0 - 1e-9)


def test_on_its_own_cpu_be_costs_lc_nothing() -> None:
    share = share_out(contest_of(1.0, 1.0, 1.0, 1.0, 0.0, 2.0), 0.8, np.inf)
    assert (share.be_cpus, share.lc_capacity_cpus, share.contended_ratio) == (1.0, 1.0, 0.0)


def test_a_frozen_be_costs_the_lc_nothing() -> None:
    share = two_core(0.8, threads=0.0)
    assert (share.be_cpus, share.lc_capacity_cpus, share.contended_ratio) == (0.0, 1.0, 0.0)


CPUS = st.floats(0.0, 20.0)


@st.composite
def contests(draw: st.DrawFn) -> Contest:
    lc_cpus = draw(st.floats(0.5, 20.0))
    weight, spread = draw(st.floats(1e-3, 10.0)), draw(st.floats(0.1, 20.0))
    shared = min(draw(CPUS), lc_cpus)
    return contest_of(weight, lc_cpus, spread, draw(CPUS), shared, draw(CPUS))


@given(contests(), CPUS, st.floats(0.01, 40.0))
def test_shares_are_of_the_cpus_there_are(contest: Contest, wants: float, quota: float) -> None:
    share = share_out(contest, min(wants, contest.lc_cpus), quota)
    assert 0.0 <= share.be_cpus <= min(contest.own + contest.shared, quota) + 1e-9
    assert contest.fair * contest.lc_cpus * (1.0 - 1e-9) <= share.lc_capacity_cpus <= contest.lc_cpus
    assert 0.0 <= share.contended_ratio <= 1.0
    assert 0.0 <= share.burst_ratio <= 1.0


def test_threads_run_on_be_s_own_cpus_first() -> None:
    for threads, own, shared in ((0.0, 0.0, 0.0), (1.0, 1.0, 0.0), (3.0, 2.0, 1.0), (9.0, 2.0, 4.0)):
        contest = contest_of(1.0, 8.0, 1.0, 2.0, 4.0, threads)
        assert (contest.own, contest.shared) == (own, shared)
