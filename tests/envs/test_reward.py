"""A reward that cannot be gamed: each trap that its forerunners fell into has its test.

The lessons L1 to L16 are what other managers' sources and papers taught. Those about what a policy sees stand in
test_observation.py, those about the shield in tests/safety.
"""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.reward import NEAR, NEAR_COST, OVERRIDE_COST, RECONFIGURATION_COST, WORK, RewardTerms, reward
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why

TARGET = 0.01
A, B = Allocation(0.5, 1), Allocation(1.0, 2)
ALLOCATIONS = st.builds(
    Allocation, st.one_of(st.floats(0.01, 64.0), st.just(UNLIMITED)), st.integers(1, 64), st.booleans()
)
NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.0, 0.03), st.floats(0.0, 2.0))
READINGS = st.one_of(
    st.builds(Missing, st.sampled_from(Why)),
    st.builds(Value, NUMBERS),
    st.builds(Quantile, NUMBERS, st.floats(0.0, 10.0), st.integers(0, 500)),
)
HELD = st.floats(0.0, TARGET)
MISSED = st.one_of(st.floats(TARGET * (1 + 1e-9), 1e6), st.just(math.inf), st.just(math.nan), st.none())


def telemetry(latency, work, **changes):
    tail = Missing(Why.GONE) if latency is None else Quantile(latency, samples=100)
    return Telemetry(0.0, TARGET, tail_latency_seconds=tail, be_work_rate=Value(work)).but(**changes)


def total(latency, work, before=A, after=A, **options):
    return reward(telemetry(latency, work), before, after, **options).total


@given(HELD, st.floats(0, 2), MISSED, st.floats(0, 1e3), *[ALLOCATIONS] * 4, st.booleans())
def test_worst_held_tick_beats_best_missed_one(held, little, missed, much, a, b, c, d, overridden):
    """L2: no gain of BE, under any allocation, makes up for a violation."""
    assert total(held, little, a, b, overridden=overridden) > total(missed, much, c, d) + 0.9


@given(MISSED, st.floats(0, 1e3), st.lists(st.tuples(HELD, st.floats(0, 1e3)), max_size=math.floor(1 / WORK)))
def test_violation_outweighs_horizon_of_best_ticks(missed, much, ticks):
    """L2: with -2n for n ways a policy did best at one violation in six ticks; here below one in 1 / WORK."""
    earned = sum(total(latency, work) for latency, work in ticks)
    assert earned + total(missed, much) <= 1e-9


def test_price_of_violation_is_one_that_is_documented():
    """L2: a price far above 1 / WORK would teach to leave BE frozen, which is no service either."""
    assert total(TARGET * (1 + 1e-9), 1.0) == pytest.approx(-1.0)
    assert total(0.0, 1.0) == pytest.approx(WORK)


@given(st.floats(0.0, 1.0), *[ALLOCATIONS] * 2)
def test_work_counts_not_what_was_granted(work, small, large):
    """L3: ways, quota and CPUs are no progress; the same work earns the same under any allocation that stays."""
    assert total(0.001, work, small, small) == total(0.001, work, large, large)
    assert total(0.001, 0.0, large, large) == 0.0


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_more_work_is_worth_more(some, more):
    """L3: a counter that runs away (util/limit, a burst after a thaw) is not worth more than BE alone on the host."""
    some, more = sorted((some, more))
    assert total(0.001, some) <= total(0.001, more) <= total(0.001, 1.0) == total(0.001, 7.0)
    assert total(0.001, 0.0) < total(0.001, 0.1) < total(0.001, 0.9)


@pytest.mark.parametrize("work", [Missing(Why.NO_DATA), Value(math.nan), Value(-1.0)])
def test_unknown_work_earns_nothing(work):
    """L3: a BE that has no work, or whose counter is lost, is not a BE that is well served."""
    assert reward(telemetry(0.001, 0.0, be_work_rate=work), B, B)._asdict()["be_work"] == 0.0


@given(READINGS, READINGS, READINGS)
@example(Missing(Why.NOT_CONFIGURED), Value(8.98846567431158e305), Missing(Why.NOT_CONFIGURED))  # an overflow once
def test_an_unknown_latency_is_the_worst(tail, oldest, work):
    """L4: whoever blinds the sensor must gain nothing by it."""
    unknown = Telemetry(0.0, TARGET, tail_latency_seconds=Missing(Why.GONE), be_work_rate=Value(1.0))
    worst = reward(unknown, A, A).total
    known = Telemetry(0.0, TARGET, tail_latency_seconds=tail, oldest_request_seconds=oldest, be_work_rate=work)
    assert worst == -2.0 <= reward(known, A, A).total


@pytest.mark.parametrize("why", list(Why))
def test_a_dead_lc_is_not_zero_latency(why):
    """L4: an LC that crashed, or completes nothing, has no latency; a naive reward gives BE the host for it."""
    silent = telemetry(0.0, 1.0, tail_latency_seconds=Missing(why), lc_alive=Value(0.0), load_ratio=Value(0.0))
    assert reward(silent, A, A).total == total(None, 0.0)


def test_stalled_client_is_judged_by_its_oldest_request():
    """L4: few requests finish, and fast (coordinated omission); the one that waits tells the truth."""
    stalled = telemetry(0.001, 1.0, oldest_request_seconds=Value(3.0))
    assert reward(stalled, A, A).total == -2.0
    quiet = telemetry(0.001, 1.0, tail_latency_seconds=Missing(Why.NO_DATA), oldest_request_seconds=Value(0.001))
    assert reward(quiet, A, A).total == -2.0


@given(READINGS, READINGS, READINGS, *[ALLOCATIONS] * 2, st.booleans(), st.sampled_from([TARGET, 0.0, -1.0, math.nan]))
def test_every_term_is_a_fraction(tail, oldest, work, before, after, overridden, target):
    """L14: a percentage where a fraction belongs, a NaN or a zero target would drown every other term."""
    seen = Telemetry(0.0, target, tail_latency_seconds=tail, oldest_request_seconds=oldest, be_work_rate=work)
    terms = reward(seen, before, after, overridden=overridden)
    assert set(terms._asdict()) == set(RewardTerms._fields)
    assert all(-1.0 <= term <= 1.0 for term in terms._asdict().values())
    assert terms.total == pytest.approx(sum(terms._asdict().values()))
    if not target > 0.0:
        assert (terms.qos, terms.severity, terms.be_work) == (-1.0, -1.0, 0.0)


@given(HELD, HELD)
def test_coming_near_target_costs_more_nearer(one, other):
    """L11: a smooth barrier instead of Hipster's dice; none in the quiet half, never as bad as a violation."""
    near, far = max(one, other), min(one, other)
    assert total(near, 0.0) <= total(far, 0.0)
    assert -NEAR_COST <= total(near, 0.0) <= 0.0
    assert total(min(near, NEAR * TARGET), 0.0) == 0.0
    assert total(TARGET, 0.0) == pytest.approx(-NEAR_COST)


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_worse_violation_is_worse_until_twice_target(one, other):
    """L8: past a cliff the latency is without bound, the penalty is not, or one cliff would be all that is learned."""
    less, more = sorted((one, other))
    assert total(TARGET * (1 + more), 0.0) <= total(TARGET * (1 + less), 0.0) <= -1.0
    assert total(TARGET * 1e6, 0.0) == total(TARGET * 2.0, 0.0) == pytest.approx(-2.0)


def test_reconfiguring_costs_a_little_and_only_a_little():
    """L7: above zero, or a policy flaps for nothing; far below BE's work, or it never reacts."""
    assert total(0.001, 0.5, A, B) == pytest.approx(total(0.001, 0.5) - RECONFIGURATION_COST)
    assert 0.0 < RECONFIGURATION_COST <= 0.01 * WORK
    one_percent_more_for_a_second = WORK * 0.01
    assert one_percent_more_for_a_second > RECONFIGURATION_COST


def test_override_is_charged_once():
    """L10: leaning on the shield costs, but never so much that asking and being refused is worse than a violation."""
    assert total(0.001, 0.5, overridden=True) == pytest.approx(total(0.001, 0.5) - OVERRIDE_COST)
    assert RECONFIGURATION_COST < OVERRIDE_COST < WORK
