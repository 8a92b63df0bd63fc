"""What an action asks for, on any host."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.actions import (
    ALL_CPUS,
    LEAP_RATIO,
    MOVES,
    MOVES_VERSION,
    RISE_RATIO,
    decode,
    discrete_space,
)
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import PolicyError

LIMITS = Limits(cpus=4, levels=20)
INDEX = {move.name: index for index, move in enumerate(MOVES)}
TARGETS = [index for index, move in enumerate(MOVES) if move.quota_ratio and move.name != "leap"]
HOSTS = [Limits(1), Limits(4), Limits(36, 17.0), Limits(3, levels=7, min_quota_cpus=0.3)]


def move(name, current, limits=LIMITS):
    return decode(INDEX[name], current, limits)


@st.composite
def hosts_and_allocations(draw):
    limits = draw(st.one_of(st.sampled_from(HOSTS), st.integers(1, 200).map(Limits)))
    quotas = st.one_of(st.just(UNLIMITED), st.floats(limits.min_quota_cpus, limits.cpus), st.just(float(limits.cpus)))
    return limits, Allocation(draw(quotas), draw(st.integers(1, limits.cpus)), draw(st.booleans()))


def test_the_table_of_this_version():
    """A bundle names a version and trusts it: another order or meaning under the same number would act at random."""
    assert MOVES_VERSION == 3
    assert (RISE_RATIO, LEAP_RATIO) == (0.10, 0.50)
    percents = [
        1, 1.2, 1.4, 1.7, 2, 2.4, 2.8, 3.4, 4, 4.7, 5.6, 6.7, 8, 9.5,
        11, 13, 15.5, 18, 21, 25, 30, 36, 43, 51, 60, 71, 84, 100,
    ]  # fmt: skip
    assert [(move.name, move.quota_ratio, move.cpuset_cpus, move.frozen) for move in MOVES] == [
        ("keep", None, 0, None),
        ("freeze", 0.0, -ALL_CPUS, True),
        ("thaw", None, 0, False),
        ("minimum", 0.0, -ALL_CPUS, None),
        *((f"quota-{percent:g}%", percent / 100.0, 0, False) for percent in percents),
        ("leap", 1.0, 0, False),
        ("cpuset-1", None, -1, None),
        ("cpuset+1", None, 1, None),
    ]
    assert {move.name: move.rise_ratio for move in MOVES if move.rise_ratio != RISE_RATIO} == {"leap": LEAP_RATIO}


def test_the_table_does_what_its_names_say():
    current = Allocation(2.0, 2)
    assert move("keep", current) == current
    assert move("quota-1%", current) == Allocation(0.04, 2)
    assert move("quota-15.5%", current) == Allocation(0.62, 2)
    assert move("quota-51%", current.but(cpuset_cpus=3)) == Allocation(2.04, 3)
    assert move("quota-100%", current.but(cpuset_cpus=3)) == Allocation(2.4, 3)  # a tenth of the host nearer
    assert move("leap", current.but(cpuset_cpus=1, frozen=True)) == Allocation(4.0, 3)  # half of the host nearer
    assert move("leap", Allocation(0.5, 3)) == Allocation(2.5, 3)
    assert move("minimum", current) == LIMITS.minimum
    assert move("cpuset+1", current) == Allocation(2.0, 3)
    assert move("cpuset-1", current) == Allocation(2.0, 1)
    assert move("freeze", current) == LIMITS.safe
    assert move("thaw", current.but(frozen=True)) == current


def test_only_aiming_moves_touch_the_freezer():
    for frozen in (Allocation(2.0, 2, frozen=True), LIMITS.safe):
        thawing = {index for index, move in enumerate(MOVES) if not move.of(frozen, LIMITS).frozen}
        assert thawing == {INDEX["thaw"], *TARGETS, INDEX["leap"]}
    freezing = {index for index, move in enumerate(MOVES) if move.of(Allocation(2.0, 2), LIMITS).frozen}
    assert freezing == {INDEX["freeze"]}


def test_target_opens_a_cpu_for_its_quota():
    """Else a policy would pay for quota that BE cannot use, until it finds out that cpuset+1 comes first."""
    assert move("quota-51%", Allocation(2.0, 2)).cpuset_cpus == 3
    assert move("quota-51%", Allocation(2.0, 3)).cpuset_cpus == 3
    assert move("quota-100%", Allocation(3.9, 1)).cpuset_cpus == 2  # one at a time
    assert move("quota-71%", Allocation(3.9, 1)).cpuset_cpus == 2  # on the way down too: 2.84 CPUs do not fit on one
    assert move("quota-100%", Allocation(4.0, 4)).cpuset_cpus == 4
    assert move("quota-25%", Allocation(2.0, 1)).cpuset_cpus == 1


def test_moves_stop_at_the_ends():
    assert move("minimum", LIMITS.minimum) == LIMITS.minimum
    assert move("freeze", LIMITS.safe) == LIMITS.safe
    assert move("quota-1%", Allocation(0.3, 1), Limits(4, min_quota_cpus=0.2)) == Allocation(0.2, 1)
    assert move("quota-100%", Allocation(3.9, 4)) == Allocation(4.0, 4)
    assert move("cpuset-1", Allocation(0.01, 1)).cpuset_cpus == 1
    assert move("cpuset+1", Allocation(0.01, 4)).cpuset_cpus == 4


def test_a_lifted_quota_counts_as_the_whole_host():
    lifted = Allocation(UNLIMITED, 4)
    assert move("quota-1%", lifted) == Allocation(0.04, 4)
    assert move("quota-84%", lifted) == Allocation(3.36, 4)
    assert move("quota-100%", lifted) == Allocation(4.0, 4)
    assert move("minimum", lifted) == LIMITS.minimum
    assert move("freeze", lifted) == LIMITS.safe
    for name in ("keep", "thaw", "cpuset-1"):
        assert move(name, lifted).quota_cpus == UNLIMITED


@pytest.mark.parametrize("limits", HOSTS)
def test_targets_ascend_on_hosts_of_any_size(limits):
    """Two moves that mean the same would halve a learner's samples of each; only the minimum quota may make it so."""
    aims = [decode(index, limits.full, limits).quota_cpus for index in TARGETS]
    assert aims == sorted(aims)
    apart = [aim for aim in aims if aim > limits.min_quota_cpus]
    assert len(set(apart)) == len(apart)
    assert aims[-1] == limits.cpus
    assert len(apart) >= (len(TARGETS) - 1 if limits.min_quota_cpus <= 0.01 * limits.cpus else 13)
    assert decode(INDEX["minimum"], limits.full, limits).quota_cpus == limits.min_quota_cpus <= aims[0]


@given(hosts_and_allocations())
def test_freeze_is_safe_and_going_on_minimum(case):
    """What a frozen BE keeps beneath the freezer would be the size of the leap when it thaws."""
    limits, current = case
    assert move("freeze", current, limits) == limits.safe
    assert move("thaw", limits.safe, limits) == limits.minimum
    assert move("minimum", current, limits) == limits.minimum.but(frozen=current.frozen)


@given(hosts_and_allocations(), st.sampled_from(TARGETS))
def test_target_goes_down_at_once_up_slowly(case, index):
    limits, current = case
    aim = decode(index, limits.full, limits).quota_cpus
    asked, was = decode(index, current, limits).quota_cpus, min(current.quota_cpus, limits.cpus)
    if aim <= was:
        assert asked == aim
    else:
        assert was < asked <= aim
        assert asked == aim or asked - was == pytest.approx(RISE_RATIO * limits.cpus, abs=1e-9)


@given(hosts_and_allocations(), st.sampled_from([INDEX["minimum"], INDEX["freeze"], *TARGETS]))
def test_asking_for_the_same_target_again_changes_nothing(case, index):
    """A policy that knows what it wants must neither drift nor pay for turning a knob."""
    limits, current = case
    aim = decode(index, limits.full, limits).quota_cpus
    once = decode(index, current.but(cpuset_cpus=limits.cpus), limits)
    if once.quota_cpus == aim:
        assert decode(index, once, limits) == once
    for _ in range(round(1 / RISE_RATIO)):  # from anywhere it is there within so many ticks, and to the last bit
        current = decode(index, current, limits)
    assert current.quota_cpus == aim
    assert decode(index, current, limits).quota_cpus == aim


@given(st.integers(1, 64), st.integers(1, 40), st.data())
def test_every_move_is_an_allocation_of_this_host(cpus, levels, data):
    limits = Limits(cpus, levels=levels)
    quota = data.draw(st.one_of(st.just(UNLIMITED), st.floats(0.01, cpus)))
    current = Allocation(quota, data.draw(st.integers(1, cpus)), data.draw(st.booleans()))
    asked = decode(data.draw(st.integers(0, int(discrete_space().n) - 1)), current, limits)
    assert 1 <= asked.cpuset_cpus <= cpus
    assert limits.clip(asked) == asked


@pytest.mark.parametrize(
    "bad", [-1, len(MOVES), 0.5, float("nan"), None, "freeze", True, (0, 0), np.array([0.0]), np.array([1])]
)
def test_what_is_no_action_is_refused(bad):
    with pytest.raises(PolicyError):
        decode(bad, LIMITS.full, LIMITS)
