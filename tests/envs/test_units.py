"""A percent that slips into a formula must fail, not compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.units import Percent


def test_a_percent_is_no_number():
    with pytest.raises(TypeError):
        0.010 * Percent(80)  # type: ignore[operator]
    with pytest.raises(TypeError):
        assert Percent(80) > 0.8  # type: ignore[operator]


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_what_is_no_share_is_refused(bad):
    with pytest.raises(ValueError):
        Percent(bad)


@given(st.floats(0, 1))
def test_a_percentage_as_a_ratio(share):
    assert Percent(100.0 * share).ratio == pytest.approx(share)
