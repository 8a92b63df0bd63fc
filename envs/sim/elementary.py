"""Exponential, logarithm and sine as laws of plain arithmetic, so that a loop over hosts takes several at a time.

A processor adds and multiplies eight numbers in one instruction, where a library's function takes one at a time. Each
is a series after its argument was brought near 0 without a loss (Muller 2016, Elementary Functions, chapters 3 and 11).
The result is off by a unit or two in the last place, and is the same, to the bit, interpreted and compiled.
"""

from __future__ import annotations

import math

import numpy as np

from rlctl.envs.law import law

_MANTISSA_BITS, _MANTISSA, _BIAS = 52, 2**52 - 1, 1023
_ROOT_HALF = int(np.float64(math.sqrt(0.5)).view(np.int64))
_WHOLE = 1.5 * 2.0**52
"""What is added and taken away again has no fraction."""

# ln 2 in two parts: the first has so few bits that its product with any exponent is exact.
_LN2_HIGH, _LN2_LOW = 0xB17217F7 / 2.0**32, 0xD1CF79ABC9E3B398 / 2.0**96
_PER_LN2, _TURN = 1.0 / math.log(2.0), 2.0 * math.pi
_LEAST_POWER, _MOST_POWER = -708.0, 709.0

_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(number) for number in range(18))
_INVERSE_ODDS = tuple(1.0 / (2 * number + 1) for number in range(12))


@law
def exponential(x: float) -> float:
    """E to the x, of an x between -708 and 709; what is beyond counts as that."""
    # x = k ln 2 + r, where |r| is half of ln 2 at most: e^x = 2^k e^r.
    x = min(max(_LEAST_POWER, x), _MOST_POWER)
    k = x * _PER_LN2 + _WHOLE - _WHOLE
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    # Even and odd terms apart: neither half of the series waits for the other.
    square, even, odd = r * r, _INVERSE_FACTORIALS[12], _INVERSE_FACTORIALS[13]
    for number in range(10, 1, -2):
        even, odd = even * square + _INVERSE_FACTORIALS[number], odd * square + _INVERSE_FACTORIALS[number + 1]
    return (1.0 + (r + square * (even + r * odd))) * np.int64((int(k) + _BIAS) << _MANTISSA_BITS).view(np.float64)


@law
def logarithm(x: float) -> float:
    """The natural logarithm of a normal number above 0."""
    # x = 2^k m with m between the roots of a half and of 2: ln x = k ln 2 + 2 artanh((m - 1) / (m + 1)).
    bits = int(np.float64(x).view(np.int64)) - _ROOT_HALF
    k, m = float(bits >> _MANTISSA_BITS), np.int64((bits & _MANTISSA) + _ROOT_HALF).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    fourth, even, odd = square * square, _INVERSE_ODDS[10], _INVERSE_ODDS[9]
    for number in range(8, 0, -2):
        even, odd = even * fourth + _INVERSE_ODDS[number], odd * fourth + _INVERSE_ODDS[number - 1]
    series = square * (odd + square * even)
    return k * _LN2_HIGH + (2.0 * s + (2.0 * s * series + k * _LN2_LOW))


@law
def power(x: float, exponent: float) -> float:
    """A normal number above 0 to an exponent, as far as `exponential` goes."""
    return exponential(exponent * logarithm(x))


@law
def cosine_and_sine(turns: float) -> tuple[float, float]:
    """Of an angle in turns, from 0 to 1."""
    # The angle from the nearest quarter turn is an eighth of a turn at most.
    quarters = 4.0 * turns + _WHOLE - _WHOLE
    angle, quarter = (turns - 0.25 * quarters) * _TURN, int(quarters)
    square = angle * angle
    sine, cosine = _INVERSE_FACTORIALS[17], -_INVERSE_FACTORIALS[16]
    for number in range(15, 2, -2):
        sine = _INVERSE_FACTORIALS[number] - square * sine
        cosine = -_INVERSE_FACTORIALS[number - 1] - square * cosine
    sine, cosine = angle - angle * square * sine, 1.0 + square * cosine
    first, second = (sine, cosine) if quarter & 1 else (cosine, sine)
    return -first if (quarter + 1) & 2 else first, -second if quarter & 2 else second
