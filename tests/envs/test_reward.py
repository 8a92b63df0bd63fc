"""No BE gain outweighs a violation."""

from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation
from rlctl.envs.reward import RECONFIGURATION_COST, reward
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why

A, B = Allocation(0.5, 1), Allocation(1.0, 2)


def telemetry(latency, work):
    return Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(latency, samples=100), be_work_rate=Value(work))


@given(st.floats(0, 0.01), st.floats(0, 2), st.floats(0.010001, 10), st.floats(0, 2))
def test_the_worst_held_tick_beats_the_best_missed_one(held, little, missed, much):
    assert reward(telemetry(held, little), A, B).total > reward(telemetry(missed, much), A, A).total + 0.9


def test_work_counts_not_what_was_granted():
    assert reward(telemetry(0.001, 0.0), B, B).total == 0.0
    assert reward(telemetry(0.001, 0.7), B, B).total == 0.7


def test_an_unknown_latency_is_the_worst():
    unknown = Telemetry(0.0, 0.01, tail_latency_seconds=Missing(Why.GONE), be_work_rate=Value(1.0))
    assert reward(unknown, A, A).total == -2.0


def test_reconfiguring_costs_a_little():
    assert reward(telemetry(0.001, 0.5), A, B).total == 0.5 - RECONFIGURATION_COST
