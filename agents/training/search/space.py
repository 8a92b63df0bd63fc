"""What `rlctl tune` searches, as YAML, and the candidates that a seed draws from it before anything runs.

    space = load_space("ppo", recipe)                       # configs/tuning/ppo.yaml, checked against the recipe
    for one in space.candidates(24, seed=0): one.name, one.seed, one.values
    space.recipe(recipe, one.values), space.shield(one.values)

Everything is drawn as a share of its range: a Latin hypercube for the candidates, a step of that share for one that
population-based training changes, so nothing ever leaves its range.

Margins of the shield may only be tightened. A trial's shield is its profile with these margins, on the training hosts
that have that profile and in the evaluation; whatever it comes to is a profile of its own, which an operator may serve
with, and the one that ships stays as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.search.draw import Draw, SpaceFile, folded, latin_hypercube
from rlctl.envs.errors import ConfigError, meant
from rlctl.envs.yaml_edge import Lines, Strict, configs_folder, load_yaml, validated
from rlctl.safety.profile import Profile, load_profile

T = TypeVar("T", bound=Recipe)

Values = Mapping[str, Any]
"""What a trial has by its own: keys of the recipe, and margins after `shield.`."""

SHIELD = "shield."

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
"""Margins that may be searched, and where tighter is: 1 upwards, -1 downwards. On the same readings the tighter one
never allows BE more (tests/agents/training/test_space.py holds it to that over whole histories). Strikes and cool-downs
are not among them: BE that is suspended earlier is back earlier."""

REACH_RATIO, ANEW_RATIO = 0.15, 0.25
"""Of a value that population-based training changes: standard deviation of its step as a share of the range, and how
often it is drawn anew instead, as Ray has it."""


class Candidate(Strict):
    """One trial as it was drawn, and as `search.json` has it.

    Attributes:
        name: Such as t003; its folder's name.
        values: What it has by its own.
    """

    name: str
    seed: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Space:
    """What is searched, margins after `shield.`, with what it is searched around."""

    document: SpaceFile
    draws: Mapping[str, Draw]
    base: Values
    profile: Profile | None

    @property
    def digest(self) -> str:
        """sha256 over what is searched: equal ones draw the same candidates."""
        data = {
            "space": self.document.model_dump(mode="json"),
            "base": dict(self.base),
            "shield": self.profile.digest if self.profile else None,
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def candidates(self, count: int, seed: int) -> list[Candidate]:
        """All trials: recipe and profile as they are, then a Latin hypercube; each has the next seed from `seed` on."""
        random = np.random.default_rng([seed, len(self.draws), count])
        drawn = [self._values(shares) for shares in latin_hypercube(random, count - 1, len(self.draws))]
        return [
            Candidate(name=f"t{place:03d}", seed=seed + place, values=values)
            for place, values in enumerate([dict(self.base), *drawn])
        ]

    def near(self, values: Values, random: np.random.Generator, fixed: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Values around others, all in their ranges."""
        centre = np.array([one.share(values[name]) for name, one in self.draws.items()])
        step = centre + random.normal(0.0, REACH_RATIO, len(centre))
        anew = np.where(random.random(len(centre)) < ANEW_RATIO, random.random(len(centre)), folded(step))
        found = self._values(anew)
        return {name: values[name] if name in fixed else found[name] for name in values}

    def recipe(self, base: T, values: Values) -> T:
        """A recipe with a trial's values; ConfigError where they do not go together."""
        own = {name: value for name, value in values.items() if not name.startswith(SHIELD)}
        return validated(type(base), base.model_dump() | own, "the trial")

    def margins(self, values: Values) -> dict[str, float]:
        """A trial's margins by their names in a profile."""
        return {key.removeprefix(SHIELD): float(value) for key, value in values.items() if key.startswith(SHIELD)}

    def shield(self, values: Values) -> Profile | None:
        """The profile with a trial's margins, under a name of its own; None where they are the profile's own."""
        margins = self.margins(values)
        if self.profile is None or margins == self.margins(self.base):
            return None
        tuned = {**self.profile.model_dump(), **margins, "name": f"{self.profile.name}-tuned"}
        return validated(Profile, tuned, "the trial's shield")

    def _values(self, shares: NDArray[np.float64]) -> dict[str, Any]:
        """Whole numbers where the recipe has one; thresholds of the shield in their order."""
        found = {
            name: one.at(float(share), whole=_is_whole(self.base[name]))
            for (name, one), share in zip(self.draws.items(), shares, strict=True)
        }
        return found | _ordered(found, self.profile)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ordered(values: Values, profile: Profile | None) -> dict[str, float]:
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
    return space_of(validated(SpaceFile, data, source, lines), algorithm, recipe, source, lines)


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
    # What must follow from a searched threshold is listed with it.
    base |= {key: getattr(profile, key.removeprefix(SHIELD)) for key in _ordered(base, profile) if key not in base}
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
        whole = _is_whole(plain[key])  # probed: the ends of a range, all of a choice
        for value in draw.choice or (draw.at(share, whole=whole) for share in (0.0, 1.0)):
            validated(type(recipe), {**plain, key: value}, name, {(key,): line} if line else None)


def _check_margins(draws: Mapping[str, Draw], profile: Profile, name: Path | str, lines: Lines) -> None:
    for key, draw in draws.items():
        line = lines.get(("shield", "margins", key))
        if key not in MARGINS:
            raise ConfigError(
                f"'{key}' is no margin of a shield that may be searched" + meant(key, sorted(MARGINS), "known are"),
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
            constants |= {k.removeprefix(SHIELD): v for k, v in _ordered({SHIELD + key: float(value)}, profile).items()}
            validated(Profile, constants, name, {(key,): line} if line else None)
