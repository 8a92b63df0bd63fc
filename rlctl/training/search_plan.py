"""What `rlctl tune` is asked for, made into a search that can begin, and kept so that it can go on: `search.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlctl.agents.training.host_kinds import SEED_BITS, Hosts
from rlctl.agents.training.recipe import ALGORITHMS, Recipe, load_recipe
from rlctl.agents.training.search.draw import SpaceFile
from rlctl.agents.training.search.job import Job
from rlctl.agents.training.search.space import Candidate, Space, load_space, space_of
from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import write_whole
from rlctl.envs.yaml_edge import Strict, load_model, validated
from rlctl.safety.profile import DEFAULT
from rlctl.scenarios.sim import CAPPED, SUITE
from rlctl.training.plan import TrainingOptions, new_plan

SEARCH = "search.json"
SHIELD = DEFAULT
"""Under which policies are judged where the space names no shield."""


class SearchOptions(Strict):
    """What the user asked for.

    Attributes:
        algorithm, config, hosts, scenarios, total_timesteps, max_seconds: As of `TrainingOptions`, for each trial.
        space: A file, or None for the one that ships.
        seed: Seed of the draw and of the first trial.
    """

    algorithm: str
    space: str | None = None
    scheduler: Literal["asha", "pbt", "none"] = "asha"
    trials: int = Field(16, ge=2, le=1000)
    seed: int = Field(0, ge=0)
    config: str | None = None
    hosts: str | None = None
    scenarios: tuple[str, ...] = (*SUITE, *CAPPED)
    total_timesteps: int | None = None
    max_seconds: float | None = None


class SearchFile(Strict):
    """`search.json`: all that a search that goes on must not take from elsewhere, and a digest of what is searched."""

    schema_version: Literal[1] = Field(1, alias="schema")
    asked: SearchOptions
    space: SpaceFile
    digest: str
    recipe: dict[str, Any]
    hosts: Hosts
    trials: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search that can begin or go on."""

    options: SearchOptions
    job: Job

    def as_file(self) -> dict[str, Any]:
        """As `search.json` has it."""
        job, space = self.job, self.job.space
        content = SearchFile(
            schema=1,
            asked=self.options,
            space=space.document,
            digest=space.digest,
            recipe=job.recipe.model_dump(mode="json"),
            hosts=job.hosts,
            trials=job.candidates,
        )
        return content.model_dump(mode="json", by_alias=True)


def new_search(options: SearchOptions, out: Path) -> SearchPlan:
    """The plan of a new search; a ConfigError comes before anything is started."""
    seed, trials = options.seed, options.trials
    if seed + trials > 1 << SEED_BITS:
        most = (1 << SEED_BITS) - trials
        raise ConfigError(f"--seed {seed}: each trial has the next one; give {most} at most")
    recipe = load_recipe(options.algorithm, Path(options.config) if options.config else None)
    space = load_space(options.algorithm, recipe, Path(options.space) if options.space else None)
    return _search(options, space, tuple(space.candidates(trials, seed)), recipe, None, out)


def resumed_search(out: Path, given: Mapping[str, Any]) -> SearchPlan:
    """The plan of a search that goes on: what stands in its folder, and `given` again must be the same.

    Raises:
        ConfigError: There is no search, what is given is another one, or the shield that it tightens was changed.
    """
    file = out / SEARCH
    if not file.is_file():
        raise ConfigError(f"holds no search: there is no {SEARCH}; leave out --resume to begin one", out)
    kept = load_model(SearchFile, file)
    recipe: Recipe = validated(ALGORITHMS[kept.asked.algorithm], kept.recipe, str(file))
    _check_same(kept, recipe, given, out)
    space = space_of(kept.space, kept.asked.algorithm, recipe, str(file))
    if space.digest != kept.digest:
        raise ConfigError("the safety profile that its margins tighten was changed since; give another --out", out)
    options = kept.asked.model_copy(update={"config": None, "hosts": None})  # what those files said is in the folder
    return _search(options, space, kept.trials, recipe, kept.hosts, out)


def _search(
    options: SearchOptions,
    space: Space,
    candidates: tuple[Candidate, ...],
    recipe: Recipe,
    hosts: Hosts | None,
    out: Path,
) -> SearchPlan:
    timesteps = options.total_timesteps or recipe.n_timesteps
    plan = new_plan(_of_a_trial(options, space).model_copy(update={"total_timesteps": timesteps}))
    job = Job(
        algorithm=options.algorithm,
        space=space,
        candidates=candidates,
        recipe=recipe,
        hosts=hosts or plan.run.hosts,
        courses=plan.run.courses,
        validation_seeds=plan.run.validation_seeds,
        timesteps=timesteps,
        max_seconds=options.max_seconds,
        scheduler=options.scheduler,
        seed=options.seed,
        out=out,
        arguments=plan.run.arguments,
    )
    return SearchPlan(options, job)


def begin(plan: SearchPlan) -> None:
    """Make the folder of a new search; ConfigError where there is one already."""
    check_new(plan.job.out)
    write_whole(plan.job.out / SEARCH, json.dumps(plan.as_file(), indent=1) + "\n")


def check_new(out: Path) -> None:
    """Raise ConfigError where a folder holds a search already."""
    if (out / SEARCH).exists():
        raise ConfigError("holds a search already; --resume goes on with it, or give another --out", out)


def _check_same(kept: SearchFile, recipe: Recipe, given: Mapping[str, Any], out: Path) -> None:
    for key, value in given.items():
        if key == "space":
            if load_space(kept.asked.algorithm, recipe, Path(value)).digest != kept.digest:
                raise ConfigError(
                    f"was begun with another space than {value}; leave out --space, or give another --out", out
                )
        elif (before := getattr(kept.asked, key)) != value:
            option = {"algorithm": "algo", "scenarios": "scenario"}.get(key, key).replace("_", "-")
            then, now = (",".join(one) if isinstance(one, tuple) else one for one in (before, value))
            raise ConfigError(f"was begun with --{option} {then}, not {now}; leave it out, or give another --out", out)


def _of_a_trial(options: SearchOptions, space: Space) -> TrainingOptions:
    """What `rlctl train` would be asked for a trial."""
    shared = ("algorithm", "config", "hosts", "seed", "total_timesteps", "max_seconds", "scenarios")
    shield = space.document.shield.profile if space.document.shield else SHIELD
    return TrainingOptions(shield=shield, **{name: getattr(options, name) for name in shared})
