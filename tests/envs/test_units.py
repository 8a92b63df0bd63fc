"""A percent that slips into a formula must fail, not compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.units import Percent, Ratio


def test_a_percent_is_no_number_and_a_ratio_takes_none():
    with pytest.raises(TypeError):
        0.010 * Percent(80)  # type: ignore[operator]
    with pytest.raises(TypeError):
        Ratio(Percent(80))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        assert Percent(80) > Ratio(0.8)


def test_a_percentage_given_as_ratio_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"Percent\(85\)"):
        Ratio(85)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_what_is_no_share_is_refused(bad):
    with pytest.raises(ValueError):
        Ratio(bad)
    with pytest.raises(ValueError):
        Percent(bad)


@given(st.floats(0, 1))
def test_there_and_back(share):
    assert Ratio(share).percent.ratio == pytest.approx(share)
