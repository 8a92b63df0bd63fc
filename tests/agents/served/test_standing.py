"""Budgets and hold-downs, in ticks: what one policy may do wrong before it must stand back, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.served.standing import Budgets, Meter, Standing

BUDGETS = Budgets(
    failure_ratio=0.1, failure_window_seconds=50, window_seconds=10, hold_seconds=10, most_hold_seconds=35
)
ALLOWED = 5


def pass_ticks(standing, count, strange="", busy=False):
    for _ in range(count):
        standing.next(strange, busy)


def demote(standing):
    """Let it fail until it has to stand back."""
    for number in range(ALLOWED + 1):
        assert not standing.demoted
        standing.next("", busy=False)
        standing.failed(f"failure {number}")
    assert standing.demoted


def test_failures_within_the_budget_are_borne_and_one_more_is_not():
    standing = Standing(BUDGETS, 1.0)
    demote(standing)
    assert standing.demoted == "6 of 50 ticks without a usable answer, the last: failure 5"
    assert (standing.demotions, standing.ticks_to_retry) == (1, 10)


def test_failures_far_enough_apart_are_borne_for_ever():
    standing = Standing(BUDGETS, 1.0)
    for number in range(1000):
        standing.next("", busy=False)
        if number % 10 == 0:
            standing.failed("now and then")
    assert not standing.demoted


@pytest.mark.parametrize(("tick_seconds", "borne"), [(0.1, 50), (1.0, 5), (10.0, 2), (60.0, 2)])
def test_the_budget_is_a_share_of_time_whatever_the_tick_and_never_less_than_two(tick_seconds, borne):
    standing = Standing(BUDGETS, tick_seconds)
    for _ in range(borne):
        standing.failed("x")
    assert not standing.demoted
    standing.failed("x")
    assert standing.demoted


def test_after_the_hold_it_gets_another_try_with_a_clean_slate():
    standing = Standing(BUDGETS, 1.0)
    demote(standing)
    pass_ticks(standing, 9)
    assert standing.demoted
    assert standing.ticks_to_retry == 1
    pass_ticks(standing, 1)
    assert not standing.demoted
    assert standing.ticks_to_retry == 0
    for _ in range(ALLOWED):
        standing.failed("x")
    assert not standing.demoted


def test_each_disappointment_soon_after_a_return_doubles_the_hold_up_to_the_most():
    standing = Standing(BUDGETS, 1.0)
    holds = []
    for _ in range(5):
        demote(standing)
        holds.append(standing.ticks_to_retry)
        pass_ticks(standing, standing.ticks_to_retry)
    assert holds == [10, 20, 35, 35, 35]


def test_a_window_that_it_held_forgives_it_everything():
    standing = Standing(BUDGETS, 1.0)
    for _ in range(3):
        demote(standing)
        pass_ticks(standing, standing.ticks_to_retry)
    pass_ticks(standing, 50)
    demote(standing)
    assert standing.ticks_to_retry == 10


def test_a_policy_that_still_hangs_is_not_promoted_however_long_the_hold_is_over():
    standing = Standing(BUDGETS, 1.0)
    demote(standing)
    pass_ticks(standing, 1000, busy=True)
    assert standing.demoted
    assert standing.ticks_to_retry == 1
    pass_ticks(standing, 1)
    assert not standing.demoted


def test_the_shield_that_decides_more_often_than_the_policy_demotes_it():
    standing = Standing(BUDGETS, 1.0)
    for _ in range(5):
        standing.next("", busy=False)
        standing.overridden()
    assert not standing.demoted
    standing.overridden()
    assert standing.demoted == "6 of 10 ticks overridden by the shield"


def test_drift_demotes_and_as_long_as_it_lasts_there_is_no_other_try_and_no_doubling():
    standing = Standing(BUDGETS, 1.0)
    pass_ticks(standing, 5, strange="no cpi")
    assert not standing.demoted
    pass_ticks(standing, 1, strange="no cpi")
    assert standing.demoted == "6 of 10 ticks unlike its training: no cpi"
    pass_ticks(standing, 1000, strange="no cpi")
    assert (standing.demotions, bool(standing.demoted)) == (1, True)
    pass_ticks(standing, 5)
    assert not standing.demoted


def test_an_answer_may_take_a_quarter_of_a_short_tick():
    assert Budgets().answer_within(1.0) == 0.1
    assert Budgets().answer_within(0.05) == 0.0125


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 20), st.floats(0.0, 1.0))
def test_a_meter_counts_the_marked_ticks_of_its_window(marks, ticks, ratio):
    meter = Meter(ticks, ratio)
    for tick, marked in enumerate(marks, 1):
        if marked:
            meter.mark(tick)
        count = sum(marks[max(tick - ticks, 0) : tick])
        assert meter.count(tick) == count
        assert meter.exceeded(tick) == (count > int(ratio * ticks))


@given(st.lists(st.sampled_from(["fail", "override", "strange", "busy", ""]), max_size=300))
def test_whatever_happens_there_is_always_a_way_back(events):
    standing = Standing(BUDGETS, 1.0)
    for event in events:
        standing.next("odd" if event == "strange" else "", event == "busy")
        if event == "fail" and not standing.demoted:
            standing.failed("x")
        if event == "override" and not standing.demoted:
            standing.overridden()
        assert bool(standing.demoted) == (standing.ticks_to_retry > 0)
    pass_ticks(standing, 35)
    assert not standing.demoted
