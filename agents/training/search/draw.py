"""Where each value of a search is drawn from, as a file says it, and how candidates are spread over all ranges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import Field, JsonValue, model_validator

from rlctl.agents.training.recipe import linear
from rlctl.envs.arrays import Array
from rlctl.envs.yaml_edge import Strict

SIGNIFICANT_DIGITS = 3
"""Precision of a drawn number: more would pretend that a handful of seeds can tell them apart."""


class Draw(Strict):
    """Where one value is drawn from: one of the first three.

    Attributes:
        uniform: Lowest and highest value.
        log_uniform: Lowest and highest value; the logarithm is drawn evenly.
        choice: All values there are, in an order in which neighbours are alike.
        linear: The number falls to its end with the budget, and is written `lin_` and the number.
    """

    uniform: tuple[float, float] | None = None
    log_uniform: tuple[float, float] | None = None
    choice: tuple[JsonValue, ...] | None = Field(None, min_length=1)
    linear: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> Draw:
        if sum(one is not None for one in (self.uniform, self.log_uniform, self.choice)) != 1:
            raise ValueError("give one of uniform: [low, high], log_uniform: [low, high], choice: [...]")
        if self.choice is not None:
            return self
        low, high = self.ends
        if not low < high:
            raise ValueError(f"[{low:g}, {high:g}] is no range; give [low, high]")
        if self.log_uniform and low <= 0.0:
            raise ValueError(f"a logarithm needs a range above 0, and this begins at {low:g}")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """The extreme values of a range, or all there are."""
        return self.uniform or self.log_uniform or self.choice or ()

    def at(self, share: float, *, whole: bool = False) -> Any:
        """The value at a share of the range, from 0, the lowest, to 1; `whole` rounds it to a whole number."""
        if self.choice is not None:
            return self.choice[min(int(share * len(self.choice)), len(self.choice) - 1)]
        low, high = self.ends
        value = low * (high / low) ** share if self.log_uniform else low + share * (high - low)
        value = min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), low), high)
        if whole:
            return round(value)
        return f"lin_{value:g}" if self.linear else value

    def share(self, value: Any) -> float:
        """Where a value stands in the range; the nearer end for one outside, the middle for one that is no choice."""
        if self.choice is not None:
            return float((self.choice.index(value) + 0.5) / len(self.choice)) if value in self.choice else 0.5
        low, high = (float(end) for end in self.ends)
        number = linear(value)[0] if isinstance(value, str) else float(value)
        if self.log_uniform:
            low, high, number = math.log(low), math.log(high), math.log(max(number, low))
        return min(max((number - low) / (high - low), 0.0), 1.0)


class Margins(Strict):
    """The shield's part of a file: what is searched of a profile, whose other constants stay.

    Attributes:
        profile: A safety profile, by name or file, which policies are judged under.
    """

    profile: str
    margins: dict[str, Draw] = Field(default_factory=dict)


class SpaceFile(Strict):
    """A file of `configs/tuning`.

    Attributes:
        algorithm: The learner whose recipe is searched.
        recipe: Where keys of the recipe are drawn from.
        shield: Margins of a safety profile.
    """

    algorithm: str
    recipe: dict[str, Draw] = Field(default_factory=dict)
    shield: Margins | None = None


def latin_hypercube(random: np.random.Generator, count: int, dimensions: int) -> Array:
    """Points of the unit cube, shape (count, dimensions), that meet each of `count` parts of every side once.

    McKay, Beckman and Conover, Technometrics 21(2), 1979.
    """
    columns = [(random.permutation(count) + random.random(count)) / max(count, 1) for _ in range(dimensions)]
    return np.array(columns).T.reshape(count, dimensions)


def folded(shares: Array) -> Array:
    """Shares beyond an end of the range mirrored back into it: cut off, they would pile up at the ends."""
    return np.asarray(1.0 - np.abs(1.0 - np.abs(shares) % 2.0))
