"""Budgets and hold-downs, in ticks: what one policy may do wrong before it must stand back, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.served.circuit_breaker import CircuitBreaker, FailureBudget, Meter

BUDGETS = FailureBudget(
    failure_percent=10.0, failure_window_seconds=50, window_seconds=10, hold_seconds=10, most_hold_seconds=35
)
ALLOWED = 5


def pass_ticks(breaker, count, strange="", busy=False):
    for _ in range(count):
        breaker.next(strange, busy)


def demote(breaker):
    """Let it fail until it has to stand back."""
    for number in range(ALLOWED + 1):
        assert not breaker.demoted
        breaker.next("", busy=False)
        breaker.record_failure(f"failure {number}")
    assert breaker.demoted


def test_failures_are_borne_within_the_budget():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    demote(breaker)
    assert breaker.demoted == "6 of 50 ticks without a usable answer, the last: failure 5"
    assert (breaker.demotions, breaker.ticks_to_retry) == (1, 10)


def test_failures_far_enough_apart_are_borne_for_ever():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    for number in range(1000):
        breaker.next("", busy=False)
        if number % 10 == 0:
            breaker.record_failure("now and then")
    assert not breaker.demoted


@pytest.mark.parametrize(("tick_seconds", "borne"), [(0.1, 50), (1.0, 5), (10.0, 2), (60.0, 2)])
def test_budget_is_a_share_of_time(tick_seconds, borne):
    breaker = CircuitBreaker(BUDGETS, tick_seconds)
    for _ in range(borne):
        breaker.record_failure("x")
    assert not breaker.demoted
    breaker.record_failure("x")
    assert breaker.demoted


def test_after_the_hold_it_gets_another_try():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    demote(breaker)
    pass_ticks(breaker, 9)
    assert breaker.demoted
    assert breaker.ticks_to_retry == 1
    pass_ticks(breaker, 1)
    assert not breaker.demoted
    assert breaker.ticks_to_retry == 0
    for _ in range(ALLOWED):
        breaker.record_failure("x")
    assert not breaker.demoted


def test_disappointments_double_the_hold_up_to_most():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    holds = []
    for _ in range(5):
        demote(breaker)
        holds.append(breaker.ticks_to_retry)
        pass_ticks(breaker, breaker.ticks_to_retry)
    assert holds == [10, 20, 35, 35, 35]


def test_a_window_that_it_held_forgives_it_everything():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    for _ in range(3):
        demote(breaker)
        pass_ticks(breaker, breaker.ticks_to_retry)
    pass_ticks(breaker, 50)
    demote(breaker)
    assert breaker.ticks_to_retry == 10


def test_hanging_policy_is_not_promoted():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    demote(breaker)
    pass_ticks(breaker, 1000, busy=True)
    assert breaker.demoted
    assert breaker.ticks_to_retry == 1
    pass_ticks(breaker, 1)
    assert not breaker.demoted


def test_shield_that_mostly_decides_demotes_it():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    for _ in range(5):
        breaker.next("", busy=False)
        breaker.record_override()
    assert not breaker.demoted
    breaker.record_override()
    assert breaker.demoted == "6 of 10 ticks overridden by the shield"


def test_drift_demotes_as_long_as_it_lasts():
    breaker = CircuitBreaker(BUDGETS, 1.0)
    pass_ticks(breaker, 5, strange="no cpi")
    assert not breaker.demoted
    pass_ticks(breaker, 1, strange="no cpi")
    assert breaker.demoted == "6 of 10 ticks unlike its training: no cpi"
    pass_ticks(breaker, 1000, strange="no cpi")
    assert (breaker.demotions, bool(breaker.demoted)) == (1, True)
    pass_ticks(breaker, 5)
    assert not breaker.demoted


def test_answer_may_take_quarter_of_short_tick():
    assert FailureBudget().answer_within(1.0) == 0.1
    assert FailureBudget().answer_within(0.05) == 0.0125


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 20), st.floats(0.0, 1.0))
def test_meter_counts_marked_ticks_of_its_window(marks, ticks, ratio):
    meter = Meter(ticks, ratio)
    for tick, marked in enumerate(marks, 1):
        if marked:
            meter.mark(tick)
        count = sum(marks[max(tick - ticks, 0) : tick])
        assert meter.count(tick) == count
        assert meter.is_exceeded(tick) == (count > int(ratio * ticks))


@given(st.lists(st.sampled_from(["fail", "override", "strange", "busy", ""]), max_size=300))
def test_whatever_happens_there_is_always_a_way_back(events):
    breaker = CircuitBreaker(BUDGETS, 1.0)
    for event in events:
        breaker.next("odd" if event == "strange" else "", event == "busy")
        if event == "fail" and not breaker.demoted:
            breaker.record_failure("x")
        if event == "override" and not breaker.demoted:
            breaker.record_override()
        assert bool(breaker.demoted) == (breaker.ticks_to_retry > 0)
    pass_ticks(breaker, 35)
    assert not breaker.demoted
