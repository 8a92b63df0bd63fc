"""What `rlctl tune` is asked for, made into a search that can begin, and kept so that it can go on: `search.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rlctl.agents.training.hosts import SEED_BITS, Hosts
from rlctl.agents.training.recipe import Recipe, load_recipe, recipe_from
from rlctl.agents.training.search.draw import SpaceFile
from rlctl.agents.training.search.space import Candidate, Space, load_space, space_of
from rlctl.agents.training.trial import Course
from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import write_whole
from rlctl.envs.yaml_edge import load_model
from rlctl.scenarios.sim import SUITE
from rlctl.training.plan import Asked, new_plan

__all__ = ["SEARCH", "SearchAsked", "SearchPlan", "begin", "check_new", "new_search", "resumed_search"]

SEARCH = "search.json"
SHIELD = "responsive"
"""Under which policies are judged where the space names no shield."""


class SearchAsked(BaseModel):
    """What the user asked for.

    Attributes:
        algorithm, config, hosts, scenarios, total_timesteps, max_seconds: As of `training_plan.Asked`, for each trial.
        space: A file, or None for the one that ships.
        scheduler: asha, pbt or none.
        trials: How many.
        seed: Of the draw and of the first trial.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str
    space: str | None = None
    scheduler: Literal["asha", "pbt", "none"] = "asha"
    trials: int = Field(16, ge=2, le=1000)
    seed: int = Field(0, ge=0)
    config: str | None = None
    hosts: str | None = None
    scenarios: tuple[str, ...] = SUITE
    total_timesteps: int | None = None
    max_seconds: float | None = None


class Drawn(BaseModel):
    """A candidate, as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    seed: int
    values: dict[str, Any]


class SearchFile(BaseModel):
    """`search.json`: all that a search that goes on must not take from elsewhere.

    Attributes:
        schema_version: `schema` in the file.
        asked: What was asked for.
        space: What is searched.
        digest: sha256 over it and what it is searched around.
        recipe: Around which.
        hosts: What is learned on.
        trials: All candidates.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = Field(1, alias="schema")
    asked: SearchAsked
    space: SpaceFile
    digest: str
    recipe: dict[str, Any]
    hosts: Hosts
    trials: tuple[Drawn, ...]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search that can begin or go on.

    Attributes:
        asked: What it follows from.
        space, candidates: What is searched, and all trials.
        recipe: Around which, not yet fitted to the budget.
        hosts, courses, validation_seeds: As of `TrainingPlan`.
    """

    asked: SearchAsked
    space: Space
    candidates: tuple[Candidate, ...]
    recipe: Recipe
    hosts: Hosts
    courses: tuple[Course, ...]
    validation_seeds: int

    @property
    def timesteps(self) -> int:
        """Of each trial, at most."""
        return self.asked.total_timesteps or self.recipe.n_timesteps

    @property
    def training(self) -> Asked:
        """What `rlctl train` would be asked for a trial."""
        return _training(self.asked, self.space.document)

    def as_file(self) -> dict[str, Any]:
        """As `search.json` has it."""
        return {
            "schema": 1,
            "asked": self.asked.model_dump(mode="json"),
            "space": self.space.document.model_dump(mode="json"),
            "digest": self.space.digest,
            "recipe": self.recipe.model_dump(mode="json"),
            "hosts": self.hosts.model_dump(mode="json"),
            "trials": [{"name": one.name, "seed": one.seed, "values": dict(one.values)} for one in self.candidates],
        }


def new_search(asked: SearchAsked) -> SearchPlan:
    """The plan of a new search, everything checked before anything is started.

    Raises:
        ConfigError: A file is wrong, or something that is asked for is not there.
    """
    if asked.seed + asked.trials > 1 << SEED_BITS:
        raise ConfigError(
            f"--seed {asked.seed}: each trial has the next one; give {(1 << SEED_BITS) - asked.trials} at most"
        )
    recipe = load_recipe(asked.algorithm, Path(asked.config) if asked.config else None)
    space = load_space(asked.algorithm, recipe, Path(asked.space) if asked.space else None)
    plan = new_plan(_training(asked, space.document))
    candidates = tuple(space.candidates(asked.trials, asked.seed))
    return SearchPlan(asked, space, candidates, recipe, plan.hosts, plan.courses, plan.validation_seeds)


def resumed_search(out: Path, given: Mapping[str, Any]) -> SearchPlan:
    """The plan of a search that goes on: what stands in its folder.

    Args:
        out: The folder.
        given: What the user gave again; it must be the same.

    Raises:
        ConfigError: There is no search, what is given is another one, or the shield that it tightens was changed.
    """
    file = out / SEARCH
    if not file.is_file():
        raise ConfigError(f"holds no search: there is no {SEARCH}; leave out --resume to begin one", out)
    kept = load_model(SearchFile, file)
    _check_same(kept, given, out)
    recipe = recipe_from(kept.asked.algorithm, {"rlctl/SimHost-v0": kept.recipe}, str(file))
    space = space_of(kept.space, kept.asked.algorithm, recipe, str(file))
    if space.digest != kept.digest:
        raise ConfigError("the safety profile that its margins tighten was changed since; give another --out", out)
    asked = kept.asked.model_copy(update={"config": None, "hosts": None})  # what those files said is in the folder
    plan = new_plan(_training(asked, space.document))
    candidates = tuple(Candidate(one.name, one.seed, one.values) for one in kept.trials)
    return SearchPlan(asked, space, candidates, recipe, kept.hosts, plan.courses, plan.validation_seeds)


def begin(plan: SearchPlan, out: Path) -> None:
    """Make the folder of a new search.

    Raises:
        ConfigError: There is one already.
    """
    check_new(out)
    write_whole(out / SEARCH, json.dumps(plan.as_file(), indent=1) + "\n")


def check_new(out: Path) -> None:
    """Check that a new search may begin in a folder.

    Raises:
        ConfigError: It holds one already.
    """
    if (out / SEARCH).exists():
        raise ConfigError("holds a search already; --resume goes on with it, or give another --out", out)


def _check_same(kept: SearchFile, given: Mapping[str, Any], out: Path) -> None:
    for key, value in given.items():
        if key == "space":
            recipe = recipe_from(kept.asked.algorithm, {"rlctl/SimHost-v0": kept.recipe}, str(out))
            if load_space(kept.asked.algorithm, recipe, Path(value)).digest != kept.digest:
                raise ConfigError(
                    f"was begun with another space than {value}; leave out --space, or give another --out", out
                )
        elif (before := getattr(kept.asked, key)) != value:
            raise ConfigError(
                f"was begun with --{_option(key)} {_plain(before)}, not {_plain(value)}; leave it out, or give another "
                "--out",
                out,
            )


def _option(key: str) -> str:
    return {"algorithm": "algo", "scenarios": "scenario"}.get(key, key).replace("_", "-")


def _plain(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _training(asked: SearchAsked, space: SpaceFile) -> Asked:
    return Asked(
        algorithm=asked.algorithm,
        config=asked.config,
        hosts=asked.hosts,
        seed=asked.seed,
        total_timesteps=asked.total_timesteps,
        max_seconds=asked.max_seconds,
        shield=space.shield.profile if space.shield else SHIELD,
        scenarios=asked.scenarios,
    )
