"""The number that trials are compared by while they run: QoS first, whatever BE comes to."""

from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS, search_score, shortfall_steps

SHORT, BE = st.floats(0.0, 600.0), st.floats(0.0, 100.0)


@given(SHORT, SHORT, BE, BE)
def test_no_be_throughput_makes_up_for_qos(one, other, be_one, be_other):
    if shortfall_steps(one) != shortfall_steps(other):
        assert (search_score(one, be_one) > search_score(other, be_other)) == (
            shortfall_steps(one) < shortfall_steps(other)
        )
    else:
        assert (search_score(one, be_one) > search_score(other, be_other)) <= (be_one > be_other)


@given(SHORT, SHORT)
def test_less_shortfall_is_never_worse(one, other):
    assert search_score(min(one, other), 50.0) >= search_score(max(one, other), 50.0)


def test_nothing_short_is_a_step_of_its_own():
    assert shortfall_steps(0.0) == 0
    assert shortfall_steps(1e-5) == 1
    assert shortfall_steps(ALLOWANCE_POINTS) == 1
    assert shortfall_steps(3 * ALLOWANCE_POINTS) == 3  # whatever floats make of it
    assert shortfall_steps(1e-12) == 0  # a difference of floats, not of QoS


def test_within_a_step_more_be_is_better():
    assert search_score(0.02, 40.1) > search_score(0.01, 40.0)
    assert search_score(0.02, 40.0) == search_score(0.01, 40.0)
    assert search_score(0.0, 130.0) < 1.0  # a host that ran BE faster than it ever ran alone does not win a step
