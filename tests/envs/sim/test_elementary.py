"""Exponential, logarithm and sine are those of the library, but for their last bits."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.sim.elementary import cosine_and_sine, exponential, logarithm, power

NEAR = 4.0 * 2.0**-52


@given(st.floats(-700.0, 700.0))
def test_exponential(x):
    assert math.isclose(exponential(x), math.exp(x), rel_tol=NEAR)


@given(st.floats(1e-300, 1e300) | st.floats(0.9, 1.1))
def test_logarithm(x):
    assert math.isclose(logarithm(x), math.log(x), rel_tol=NEAR)


@given(st.floats(1e-6, 1e6), st.floats(-3.0, 3.0))
def test_power(x, exponent):
    assert math.isclose(power(x, exponent), x**exponent, rel_tol=100.0 * NEAR)


@given(st.floats(0.0, 1.0))
def test_cosine_and_sine(turns):
    cosine, sine = cosine_and_sine(turns)
    assert abs(cosine - math.cos(2.0 * math.pi * turns)) <= NEAR
    assert abs(sine - math.sin(2.0 * math.pi * turns)) <= NEAR
    assert math.isclose(cosine * cosine + sine * sine, 1.0, rel_tol=NEAR)
