"""Shares of a whole, in two types that cannot be mistaken for each other.

Inside rlctl every share is a `Ratio` (a float, 1.0 is the whole). `Percent` exists for the edges, where people
read and write; it is *not* a float: it takes part in no arithmetic and compares with nothing but another Percent,
so a percent that slips into a formula is a type error for mypy and a TypeError at run time. Hipster's release
shipped exactly that slip (`target*80`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


class Ratio(float):
    """A share of a whole, 1.0 being all of it; finite and not negative.

    Overload makes values a little above 1 legitimate (offered load 1.2), so the upper bound is generous; 85 meant
    as percent is still refused.

    Raises:
        ValueError: Not finite, negative, or above `Ratio.LARGEST`.
    """

    LARGEST = 20.0
    __slots__ = ()

    def __new__(cls, value: float) -> Ratio:
        """Check the range, then build. A Percent is no float, so `float` refuses it with a TypeError."""
        number = float(value)
        if not math.isfinite(number) or not 0.0 <= number <= cls.LARGEST:
            raise ValueError(f"{value!r} is no ratio: 1.0 is the whole (a percentage? use Percent({value!r}).ratio)")
        return super().__new__(cls, number)

    @property
    def percent(self) -> Percent:
        """The same share as a percentage."""
        return Percent(self * 100.0)


@dataclass(frozen=True, order=True, slots=True)
class Percent:
    """A share in hundredths, for people; `.ratio` comes before any arithmetic; ValueError: not finite or negative."""

    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value < 0.0:
            raise ValueError(f"{self.value!r} is no percentage")

    @property
    def ratio(self) -> Ratio:
        """The same share as a ratio."""
        return Ratio(self.value / 100.0)

    def __str__(self) -> str:
        return f"{self.value:g} %"
