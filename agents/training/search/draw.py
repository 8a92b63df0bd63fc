"""From where each value of a search is drawn, as a file of `configs/tuning` says it."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, JsonValue, model_validator

from rlctl.agents.training.recipe import linear
from rlctl.envs.yaml_edge import Strict

__all__ = ["Draw", "Margins", "SpaceFile"]

SIGNIFICANT_DIGITS = 3
"""Of a drawn number: more would pretend that a handful of seeds can tell them apart."""


class Draw(Strict):
    """From where one value is drawn: one of the three.

    Attributes:
        uniform: Lowest and highest value.
        log_uniform: The same, by the logarithm.
        choice: The values that there are, in an order in which neighbours are alike.
        linear: The number falls to its end with the budget, `lin_` before it.
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
        """The value at a share of the range, from 0 to 1.

        Args:
            share: Where.
            whole: Round to a whole number.
        """
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
    """The shield's part of a file.

    Attributes:
        profile: A safety profile, by name or file, which policies are judged under.
        margins: What is searched of it; its other constants stay.
    """

    profile: str
    margins: dict[str, Draw] = Field(default_factory=dict)


class SpaceFile(Strict):
    """A file of `configs/tuning`.

    Attributes:
        algorithm: Whose recipe is searched.
        recipe: Keys of it.
        shield: Margins of a safety profile.
    """

    algorithm: str
    recipe: dict[str, Draw] = Field(default_factory=dict)
    shield: Margins | None = None
