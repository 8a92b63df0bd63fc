"""What `rlctl train` is asked for, made into a run: every value with where it is from, and what a resumed run keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rlctl.agents.training.hosts import Hosts, load_hosts
from rlctl.agents.training.recipe import Recipe, load_recipe, small
from rlctl.agents.training.trial import Course
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import load_model
from rlctl.safety.profile import load_profile
from rlctl.scenarios.shipped import sim_scenario
from rlctl.scenarios.sim import SUITE, SimScenario

__all__ = [
    "EXPLORE",
    "EXPLORE_SLACK",
    "LIBRARIES",
    "Asked",
    "TrainingPlan",
    "course_of",
    "courses_of",
    "new_plan",
    "next_folder",
    "require_libraries",
    "resumed_plan",
]

LIBRARIES = ("torch", "stable_baselines3", "sb3_contrib", "onnx", "onnxruntime")

EXPLORE, EXPLORE_SLACK = 0.1, 0.5
"""On a live host: share of ticks that may try another move, and the slack from which on they may."""

VALIDATION_SECONDS, VALIDATION_SEEDS = 600.0, 16
TRY_OUT_SECONDS, TRY_OUT_SEEDS = 30.0, 2
"""Of the evaluations while learning: their longest run and its seeds."""


class Asked(BaseModel):
    """What the user asked for, as args.yml has it.

    Attributes:
        algorithm: A key of `recipe.ALGORITHMS`.
        config, hosts, init: Files, or None for what ships, and for random weights.
        profiles: Calibrated hosts of the user's.
        seed, threads, n_envs: As given.
        total_timesteps, max_seconds: The budget; None for the recipe's, and for no limit.
        shield: Profile of the courses that policies are compared on.
        scenarios: These courses.
        live: Scenario of the live testbeds among those of a cluster, if any.
        explore, explore_slack: Bounds of exploration there, see `rlctl.agents.training.live.bounded`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str
    config: str | None = None
    hosts: str | None = None
    profiles: tuple[str, ...] = ()
    init: str | None = None
    seed: int = Field(0, ge=0)
    total_timesteps: int | None = None
    max_seconds: float | None = None
    n_envs: int | None = None
    shield: str = "responsive"
    scenarios: tuple[str, ...] = SUITE
    threads: int = 1
    live: str | None = None
    explore: float = EXPLORE
    explore_slack: float = EXPLORE_SLACK


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A run that can begin.

    Attributes:
        asked: What it follows from.
        recipe, hosts, courses: As they are used.
        validation_seeds: Of each course.
        sources: Where a hyperparameter is from, where that is not the recipe's file.
    """

    asked: Asked
    recipe: Recipe
    hosts: Hosts
    courses: tuple[Course, ...]
    validation_seeds: int
    sources: Mapping[str, str]

    def lines(self) -> list[str]:
        """The effective configuration as YAML, with each value's source as a comment."""
        asked, given = self.asked, self.recipe.model_dump(mode="json")
        shipped = "configs/training"
        return [
            f"algorithm: {asked.algorithm}",
            f"seed: {asked.seed}",
            f"threads: {asked.threads}",
            f"max_seconds: {_plain(asked.max_seconds)}",
            f"init: {_plain(asked.init)}",
            f"hyperparameters: # {asked.config or f'{shipped}/{asked.algorithm}.yaml'}",
            *(f"  {key}: {_plain(value)}" + self._source(key) for key, value in given.items()),
            f"hosts: # {asked.hosts or f'{shipped}/hosts.yaml'}; episodes of {self.hosts.episode_steps} steps",
            *self._kinds(),
            f"evaluation: # on {self.validation_seeds} validation seeds, which no run learns on",
            *(
                f"  {one.name}: {{seconds: {one.ticks * one.tick_seconds:g}, shield: {_shield(one)}}}"
                for one in self.courses
            ),
        ]

    def _source(self, key: str) -> str:
        return f" # {self.sources[key]}" if key in self.sources else ""

    def _kinds(self) -> list[str]:
        from rlctl.agents.training.hosts import present

        return [
            f"  {kind.name}: {{profile: {kind.profile}, hosts: {count}, weight: {kind.weight}, "
            f"shield: {kind.safety or 'none'}}}"
            for kind, count in present(self.hosts, self.recipe.n_envs)
        ]


def require_libraries(export: bool) -> None:
    """Check that what training needs is installed.

    Raises:
        ConfigError: It is not.
    """
    needed = LIBRARIES if export else LIBRARIES[:3]
    if lacking := [name for name in needed if find_spec(name) is None]:
        raise ConfigError(
            f"training needs {', '.join(lacking)}: pip install 'rlctl[train]', or in a checkout "
            "scripts/install dev,train"
        )


def new_plan(asked: Asked) -> TrainingPlan:
    """The plan of a new run, everything checked before anything is started.

    Raises:
        ConfigError: A file is wrong, or something that is asked for is not there.
    """
    recipe = load_recipe(asked.algorithm, Path(asked.config) if asked.config else None)
    hosts = load_hosts(Path(asked.hosts) if asked.hosts else None)
    for file in asked.profiles:
        hosts = hosts.with_profile(load_host(file), file)
    return _plan(asked, recipe, hosts)


def resumed_plan(folder: Path, changes: Mapping[str, Any]) -> TrainingPlan:
    """The plan of a run that goes on: what stands in its folder, with another budget if one is given.

    Args:
        folder: Of the run.
        changes: `total_timesteps`, `max_seconds`, `threads`.

    Raises:
        ConfigError: There is no run, or a file in it is wrong.
    """
    from rlctl.agents.training import run_folder as files

    if not files.is_run(folder):
        raise ConfigError("is no folder of a run: there is no config.yml", folder)
    asked = load_model(Asked, folder / files.ARGUMENTS)
    kept = asked.model_copy(update={"profiles": tuple(_copy(folder, file) for file in asked.profiles)})
    recipe = load_recipe(asked.algorithm, folder / files.CONFIG)
    plan = _plan(kept, recipe, load_hosts(folder / files.HOSTS))
    # A longer budget makes no other learner: hosts, batches and evaluations stay those that the run was begun with.
    longer = recipe.model_copy(update={"n_timesteps": changes.get("total_timesteps") or recipe.n_timesteps})
    return replace(plan, asked=kept.model_copy(update=dict(changes)), recipe=longer, sources={})


def _copy(folder: Path, file: str) -> str:
    return str(folder / "profiles" / Path(file).name)


def next_folder(algorithm: str) -> Path:
    """runs/<algorithm>/<the first number that is free>."""
    parent = Path("runs") / algorithm
    numbers = [int(one.name) for one in parent.glob("*") if re.fullmatch(r"\d+", one.name)]
    return parent / str(max(numbers, default=0) + 1)


def _plan(asked: Asked, recipe: Recipe, hosts: Hosts) -> TrainingPlan:
    timesteps = asked.total_timesteps or recipe.n_timesteps
    fitted, why = recipe.fitted(timesteps, asked.max_seconds, asked.n_envs)
    sources = why | ({"n_timesteps": "--total-timesteps"} if asked.total_timesteps else {})
    try_out = small(timesteps, asked.max_seconds)
    seconds, seeds = (TRY_OUT_SECONDS, TRY_OUT_SEEDS) if try_out else (VALIDATION_SECONDS, VALIDATION_SEEDS)
    return TrainingPlan(asked, fitted, hosts, courses_of(asked, seconds), seeds, sources)


def courses_of(asked: Asked, most_seconds: float = VALIDATION_SECONDS) -> tuple[Course, ...]:
    """The scenarios, and the user's own hosts under a training load.

    Raises:
        ConfigError: A scenario is none of the simulator's, or a host's profile or the shield is not there.
    """
    own = [_own_course(load_host(file), asked.shield, most_seconds) for file in asked.profiles]
    return (*(_course(name, asked.shield, most_seconds) for name in asked.scenarios), *own)


def _course(name: str, shield: str, most_seconds: float) -> Course:
    scenario = sim_scenario(name)
    return course_of(scenario, shield, round(min(scenario.duration_seconds, most_seconds) / scenario.tick_seconds))


def course_of(scenario: SimScenario, shield: str | None, ticks: int | None = None) -> Course:
    """A scenario to score policies on.

    Args:
        scenario: With its time scale, which the shield's profile follows.
        shield: Name or file of the profile; None for none.
        ticks: How many; None for all.

    Raises:
        ConfigError: There is no such host or profile.
    """
    safety = load_profile(shield).scaled(scenario.time_scale) if shield else None
    host, load, weight = scenario.host(), scenario.load_model, scenario.be.weight
    return Course(scenario.name, host, load, weight, ticks or scenario.ticks, scenario.tick_seconds, safety)


def _own_course(host: Any, shield: str, most_seconds: float) -> Course:
    return Course(host.name, host, training_load, Weight.EQUAL, round(most_seconds), 1.0, load_profile(shield))


def _shield(course: Course) -> str:
    return course.safety.name if course.safety else "none"


def _plain(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value)
