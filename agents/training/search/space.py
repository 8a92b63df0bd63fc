"""What `rlctl tune` searches, as YAML: ranges of a recipe's keys.

space = load_space("ppo", recipe)                       # configs/tuning/ppo.yaml, checked against the recipe
space.draws["gamma"].domain                             # what Ray Tune's searcher draws numbers from
space.recipe(recipe, space.values(numbers))             # a trial's hyperparameters
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field, JsonValue, model_validator

from rlctl.agents.training.recipe import Recipe, linear
from rlctl.envs.errors import ConfigError, meant
from rlctl.envs.yaml_edge import Strict, configs_folder, load_yaml, validate

T = TypeVar("T", bound=Recipe)

Values = Mapping[str, Any]
"""A trial's own values of keys of the recipe."""

SIGNIFICANT_DIGITS = 3
"""Precision of a drawn number: a handful of seeds cannot tell finer ones apart."""

OURS = frozenset({"n_timesteps", "eval_every_seconds", "eval_every_timesteps", "early_stop"})
"""Keys of a recipe that follow from the search's budget and schedule."""


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
            raise ValueError(f"[{low:g}, {high:g}] is not a valid range; give [low, high]")
        if self.log_uniform and low <= 0.0:
            raise ValueError(f"a logarithm needs a range above 0, and this begins at {low:g}")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """The extreme values of a range, or all choices."""
        return self.uniform or self.log_uniform or self.choice or ()

    @property
    def domain(self) -> Any:
        """Ray Tune's domain of the number that is drawn; of a choice, of its place."""
        from ray import tune

        if self.choice is not None:
            return tune.randint(0, len(self.choice))
        return tune.loguniform(*self.ends) if self.log_uniform else tune.uniform(*self.ends)

    def number(self, value: Any) -> float:
        """The number that stands for a value; ValueError where the value cannot be drawn."""
        if self.choice is not None:
            return self.choice.index(value)
        number = linear(value)[0] if isinstance(value, str) else float(value)
        low, high = self.ends
        if not low <= number <= high:
            raise ValueError
        return number

    def value(self, number: float, *, whole: bool = False) -> Any:
        """The value that a number stands for; `whole` rounds it to a whole number."""
        if self.choice is not None:
            return self.choice[int(number)]
        low, high = self.ends
        value = min(max(float(f"{number:.{SIGNIFICANT_DIGITS}g}"), low), high)
        if whole:
            return round(value)
        return f"lin_{value:g}" if self.linear else value


class SpaceFile(Strict):
    """A file of `configs/tuning`.

    Attributes:
        algorithm: The learner whose recipe is searched.
        recipe: Where keys of the recipe are drawn from.
    """

    REMOVED: ClassVar = {"shield": "compare profiles of your own with `rlctl evaluate BUNDLE --shield measured,FILE`"}

    algorithm: str
    recipe: dict[str, Draw] = Field(min_length=1)


@dataclass(frozen=True)
class Space:
    """What is searched; `base` has the recipe's own values."""

    draws: Mapping[str, Draw]
    base: Values

    @property
    def digest(self) -> str:
        """sha256 over what is searched."""
        data = {"space": {key: draw.model_dump(mode="json") for key, draw in self.draws.items()}, "base": self.base}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @property
    def first(self) -> dict[str, float]:
        """Numbers of the first trial: the recipe as it is."""
        return {key: draw.number(self.base[key]) for key, draw in self.draws.items()}

    def values(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """A trial's values, whole where the recipe's are."""
        first = self.first
        return {
            key: self.base[key]
            if numbers[key] == first[key]
            else draw.value(numbers[key], whole=_is_whole(self.base[key]))
            for key, draw in self.draws.items()
        }


def recipe_with(base: T, values: Values) -> T:
    """A recipe with a trial's values; ConfigError where they do not go together."""
    return validate(type(base), base.model_dump() | dict(values), "the trial")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def load_space(algorithm: str, recipe: Recipe, path: Path | None = None) -> Space:
    """The space that ships, or that of a file.

    Raises:
        ConfigError: The file is absent or wrong, with its line: it is for another algorithm, a key is none of the
            recipe's, or a value is refused there.
    """
    source = path or configs_folder("tuning") / f"{algorithm}.yaml"
    if path is None and not source.is_file():
        raise ConfigError(f"no space ships for {algorithm}; give --space FILE")
    data, lines = load_yaml(source)
    document = validate(SpaceFile, data, source, lines)
    if document.algorithm != algorithm:
        raise ConfigError(f"is for {document.algorithm}, and --algo is {algorithm}", source, lines.get(("algorithm",)))
    known, plain = set(type(recipe).model_fields) - OURS, recipe.model_dump(mode="json")
    for key, draw in document.recipe.items():
        line = lines.get(("recipe", key))
        if key in OURS:
            raise ConfigError(
                f"recipe.{key} follows from the budget and cannot be searched; leave it out", source, line
            )
        if key not in known:
            raise ConfigError(f"unknown hyperparameter '{key}'" + meant(key, sorted(known), "known are"), source, line)
        # Probed are the ends of a range, and all of a choice.
        for value in draw.choice or (draw.value(end, whole=_is_whole(plain[key])) for end in draw.ends):
            validate(type(recipe), {**plain, key: value}, source, {(key,): line} if line else None)
        try:
            draw.number(plain[key])
        except ValueError:
            said = f"{key}: {plain[key]}, as the first trial has it, is outside; extend the range"
            raise ConfigError(said, source, line) from None
    return Space(document.recipe, {key: plain[key] for key in document.recipe})
