"""The lattice of allocations: what the shield's soundness rests on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits, most_restrictive
from rlctl.envs.errors import ConfigError

quotas = st.one_of(st.floats(0.01, 64), st.just(UNLIMITED))
allocations = st.builds(Allocation, quotas, st.integers(1, 64), st.booleans())


@given(allocations, allocations)
def test_meet_is_below_both_and_highest(a, b):
    meet = most_restrictive(a, b)
    assert meet.at_most(a)
    assert meet.at_most(b)
    assert meet == most_restrictive(b, a)
    assert most_restrictive(meet, a) == meet


@given(allocations, allocations, allocations)
def test_whatever_is_below_both_is_below_the_meet(a, b, c):
    if c.at_most(a) and c.at_most(b):
        assert c.at_most(most_restrictive(a, b))


@given(allocations, st.integers(1, 64))
def test_clipping_never_frees(allocation, cpus):
    limits = Limits(cpus)
    assert limits.clip(allocation).at_most(allocation.but(quota_cpus=max(allocation.quota_cpus, 0.01)))


@pytest.mark.parametrize("quota", [0.0, -1.0, float("nan")])
def test_an_impossible_quota_is_refused(quota):
    with pytest.raises(ValueError):
        Allocation(quota, 1)


def test_a_cpuset_needs_a_cpu():
    with pytest.raises(ValueError, match="freeze"):
        Allocation(1.0, 0)


def test_impossible_limits_are_a_configuration_error():
    with pytest.raises(ConfigError):
        Limits(0)


def test_number_of_cpus_reads_as_itself():
    assert str(Allocation(0.5, 1)) == "0.50 CPU on 1 CPU"
    assert str(Allocation(float("inf"), 2, frozen=True)) == "unlimited on 2 CPUs, frozen"


@given(allocations, st.integers(1, 64))
def test_hold_by_quota_never_freezes(allocation, cpus):
    limits = Limits(cpus, can_freeze=False)
    clipped = limits.clip(allocation)
    assert not clipped.frozen
    assert not limits.safe.frozen
    # What is to be frozen gets the least there is, whatever stands beneath the freezer.
    assert clipped == limits.minimum if allocation.frozen else clipped == Limits(cpus).clip(allocation)
