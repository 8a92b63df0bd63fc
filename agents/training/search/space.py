"""What `rlctl tune` searches, as YAML: ranges of a recipe's keys and of margins of the shield.

    space = load_space("ppo", recipe)                       # configs/tuning/ppo.yaml, checked against the recipe
    space.domains                                           # what Ray Tune's searcher draws numbers from
    values = space.values(numbers); space.recipe(recipe, values), space.shield(values)

Margins of the shield may only be tightened. A trial's shield is its profile with these margins, on the training hosts
that have that profile and in the evaluation. The profile that ships stays as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import Field, JsonValue, model_validator

from rlctl.agents.training.recipe import Recipe, linear
from rlctl.envs.errors import ConfigError, meant
from rlctl.envs.yaml_edge import Lines, Strict, configs_folder, load_yaml, validate
from rlctl.safety.profile import Profile, load_profile

T = TypeVar("T", bound=Recipe)

Values = Mapping[str, Any]
"""A trial's own values: keys of the recipe, and margins after `shield.`."""

SHIELD = "shield."

SIGNIFICANT_DIGITS = 3
"""Precision of a drawn number: a handful of seeds cannot tell finer ones apart."""

OURS = frozenset({"n_timesteps", "eval_every_seconds", "eval_every_timesteps", "early_stop"})
"""Keys of a recipe that follow from the search's budget and schedule."""

MARGINS: Mapping[str, int] = MappingProxyType(
    {
        "load_suspend_ratio": -1,
        "load_resume_ratio": -1,
        "slack_hold_ratio": 1,
        "slack_floor_ratio": 1,
        "floor_cpus": -1,
        "floor_ratio": -1,
        "growth_ratio_per_second": -1,
        "ceiling_ratio": -1,
    }
)
"""Margins that may be searched, and where tighter is: 1 upwards, -1 downwards.

On the same readings the tighter one never allows BE more (tests/safety/test_margins.py). Strikes and cool-downs are
not among them: BE that is suspended earlier is back earlier.
"""


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


class Margins(Strict):
    """The shield's part of a file: which margins of a profile are searched; its other constants stay.

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


@dataclass(frozen=True)
class Space:
    """What is searched, margins after `shield.`; `base` has the recipe's and the profile's own values."""

    document: SpaceFile
    draws: Mapping[str, Draw]
    base: Values
    profile: Profile | None

    @property
    def digest(self) -> str:
        """sha256 over what is searched."""
        data = {
            "space": self.document.model_dump(mode="json"),
            "base": dict(self.base),
            "shield": self.profile.digest if self.profile else None,
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @property
    def domains(self) -> dict[str, Any]:
        """Ray Tune's domains by key."""
        return {key: draw.domain for key, draw in self.draws.items()}

    @property
    def first(self) -> dict[str, float]:
        """Numbers of the first trial: recipe and profile as they are."""
        return {key: draw.number(self.base[key]) for key, draw in self.draws.items()}

    def values(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """A trial's values: whole where the recipe's are, thresholds of the shield in their order."""
        first = self.first
        values = {
            key: self.base[key]
            if numbers[key] == first[key]
            else draw.value(numbers[key], whole=_is_whole(self.base[key]))
            for key, draw in self.draws.items()
        }
        return values | _in_order(values, self.profile)

    def recipe(self, base: T, values: Values) -> T:
        """A recipe with a trial's values; ConfigError where they do not go together."""
        own = {name: value for name, value in values.items() if not name.startswith(SHIELD)}
        return validate(type(base), base.model_dump() | own, "the trial")

    def margins(self, values: Values) -> dict[str, float]:
        """A trial's margins by their names in a profile."""
        return {key.removeprefix(SHIELD): float(value) for key, value in values.items() if key.startswith(SHIELD)}

    def shield(self, values: Values) -> Profile | None:
        """The profile with a trial's margins, under a name of its own; None where they are the profile's own."""
        margins = self.margins(values)
        if self.profile is None or margins == self.margins(self.base):
            return None
        tuned = {**self.profile.model_dump(), **margins, "name": f"{self.profile.name}-tuned"}
        return validate(Profile, tuned, "the trial's shield")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_order(values: Values, profile: Profile | None) -> dict[str, float]:
    """Margins that another one would overtake, tightened until it does not; those that are not searched give way."""
    if profile is None:
        return {}
    hold, floor = f"{SHIELD}slack_hold_ratio", f"{SHIELD}slack_floor_ratio"
    suspend, resume = f"{SHIELD}load_suspend_ratio", f"{SHIELD}load_resume_ratio"
    changed = {}
    if hold in values or floor in values:
        low = values.get(floor, profile.slack_floor_ratio)
        changed[hold] = max(values.get(hold, profile.slack_hold_ratio), low)
    if suspend in values or resume in values:
        high = values.get(suspend, profile.load_suspend_ratio)
        changed[resume] = min(values.get(resume, profile.load_resume_ratio), high)
    return changed


def load_space(algorithm: str, recipe: Recipe, path: Path | None = None) -> Space:
    """The space that ships, or that of a file.

    Raises:
        ConfigError: The file is absent or wrong, with its line: it is for another algorithm, a key is none of the
            recipe's or of the shield's, a value is refused there, or a margin would loosen the shield.
    """
    source = path or configs_folder("tuning") / f"{algorithm}.yaml"
    if path is None and not source.is_file():
        raise ConfigError(f"no space ships for {algorithm}; give --space FILE")
    data, lines = load_yaml(source)
    return space_of(validate(SpaceFile, data, source, lines), algorithm, recipe, source, lines)


def space_of(
    document: SpaceFile, algorithm: str, recipe: Recipe, name: Path | str, lines: Lines = MappingProxyType({})
) -> Space:
    """A document checked against the recipe and the profile, see `load_space`; `name` and `lines` say where."""
    if document.algorithm != algorithm:
        raise ConfigError(f"is for {document.algorithm}, and --algo is {algorithm}", name, lines.get(("algorithm",)))
    _check_recipe(document.recipe, recipe, name, lines)
    profile = load_profile(document.shield.profile) if document.shield else None
    margins = document.shield.margins if document.shield else {}
    if profile:
        _check_margins(margins, profile, name, lines)
    draws = document.recipe | {SHIELD + key: one for key, one in margins.items()}
    if not draws:
        raise ConfigError("searches nothing: give keys under recipe or shield.margins", name, lines.get(()))
    plain = recipe.model_dump(mode="json")
    base = {key: plain[key] for key in document.recipe} | {SHIELD + key: getattr(profile, key) for key in margins}
    for key, draw in draws.items():
        try:
            draw.number(base[key])
        except ValueError:
            raise ConfigError(
                f"{key}: {base[key]}, as the first trial has it, is outside; extend the range", name
            ) from None
    # What must follow from a searched threshold is listed with it.
    base |= {key: getattr(profile, key.removeprefix(SHIELD)) for key in _in_order(base, profile) if key not in base}
    return Space(document, draws, base, profile)


def _check_recipe(draws: Mapping[str, Draw], recipe: Recipe, name: Path | str, lines: Lines) -> None:
    known = set(type(recipe).model_fields) - OURS
    plain = recipe.model_dump()
    for key, draw in draws.items():
        line = lines.get(("recipe", key))
        if key in OURS:
            raise ConfigError(f"recipe.{key} follows from the budget and cannot be searched; leave it out", name, line)
        if key not in known:
            raise ConfigError(f"unknown hyperparameter '{key}'" + meant(key, sorted(known), "known are"), name, line)
        # Probed are the ends of a range, and all of a choice.
        for value in draw.choice or (draw.value(end, whole=_is_whole(plain[key])) for end in draw.ends):
            validate(type(recipe), {**plain, key: value}, name, {(key,): line} if line else None)


def _check_margins(draws: Mapping[str, Draw], profile: Profile, name: Path | str, lines: Lines) -> None:
    for key, draw in draws.items():
        line = lines.get(("shield", "margins", key))
        if key not in MARGINS:
            raise ConfigError(
                f"'{key}' is not a margin of a shield that may be searched" + meant(key, sorted(MARGINS), "known are"),
                name,
                line,
            )
        if draw.linear or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in draw.ends):
            raise ConfigError(f"shield.margins.{key} needs plain numbers", name, line)
        own, way = getattr(profile, key), MARGINS[key]
        if looser := [one for one in draw.ends if (one - own) * way < 0.0]:
            side = "or more" if way > 0 else "or less"
            raise ConfigError(
                f"shield.margins.{key}: {looser[0]:g} is looser than {profile.name}'s {own:g}; a search only tightens "
                f"the shield: give {own:g} {side}",
                name,
                line,
            )
        for value in draw.ends:
            constants = {**profile.model_dump(), key: float(value)}
            constants |= {
                k.removeprefix(SHIELD): v for k, v in _in_order({SHIELD + key: float(value)}, profile).items()
            }
            validate(Profile, constants, name, {(key,): line} if line else None)
