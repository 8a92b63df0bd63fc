"""Shares of a whole: inside rlctl every one is a float, a ratio, of which 1.0 is the whole.

`Percent` exists for the edges, where people read and write; it is *not* a float: it takes part in no arithmetic and
compares with nothing but another Percent, so a percent that slips into a formula is a type error for mypy and a
TypeError at run time. Hipster's release shipped exactly that slip (`target*80`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST_RATIO = 20.0
"""Overload makes shares a little above 1 legitimate (offered load 1.2); 85 is meant as percent."""


@dataclass(frozen=True, order=True, slots=True)
class Percent:
    """A share in hundredths, for people; `.ratio` comes before any arithmetic; ValueError: not finite or negative."""

    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value < 0.0:
            raise ValueError(f"{self.value!r} is no percentage")

    @property
    def ratio(self) -> float:
        """The same share as a ratio."""
        return self.value / 100.0

    def __str__(self) -> str:
        return f"{self.value:g} %"
