"""What `rlctl train` is asked for, made into a run: every value with where it is from, and what a resumed run keeps."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.host_kinds import Hosts, load_hosts, present
from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.recipe import Recipe, load_recipe, small
from rlctl.agents.training.rollouts.live_testbed import LiveTestbed
from rlctl.agents.training.training_run import TrainingRun
from rlctl.agents.training.trial import Course
from rlctl.bench.scenarios import live_scenario, require_distinct, sim_scenario
from rlctl.bench.sim_scenario import JUDGED, SimScenario
from rlctl.envs.errors import ConfigError, require_installed
from rlctl.envs.observation import LAGS
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import YAML, Strict, load_model
from rlctl.safety.profile import DEFAULT, Profile, load_profile

VALIDATION_SECONDS, VALIDATION_SEEDS = 600.0, 16
SHORT_SECONDS, SHORT_SEEDS, SHORT_BUDGET_SECONDS = 300.0, 4, 300.0
TRY_OUT_SECONDS, TRY_OUT_SEEDS = 30.0, 2
"""Evaluations while learning: their longest run and its seeds, below a budget of five minutes, and of a try-out. They
come out of the budget, and one of full length takes ten seconds of CPU time."""


class RunOptions(Strict):
    """What the user asked for of a run, or of each trial of a search.

    Attributes:
        algorithm: A key of `recipe.ALGORITHMS`.
        config, hosts: Files; None for what ships.
        total_timesteps, max_seconds: The budget; None for the recipe's, and for no limit.
    """

    algorithm: str
    config: str | None = None
    hosts: str | None = None
    seed: int = Field(0, ge=0)
    total_timesteps: int | None = None
    max_seconds: float | None = None
    scenarios: tuple[str, ...] = JUDGED

    @classmethod
    def of_arguments(cls, given: Mapping[str, Any]) -> Self:
        """From the command's arguments by name; None stands for the default."""
        scenario = "all" if given["scenario"] is None else given["scenario"]
        names = tuple(dict.fromkeys(filter(None, map(str.strip, scenario.split(",")))))
        if not names:
            raise ConfigError("--scenario names nothing")
        named = {name: given.get(name) for name in cls.model_fields} | {"algorithm": given["algo"]}
        named["scenarios"] = None if names == ("all",) else names
        named["profiles"] = tuple(given.get("profile") or ()) or None
        return cls(**{name: value for name, value in named.items() if value is not None})


class TrainingOptions(RunOptions):
    """What `rlctl train` is asked for, as args.yml has it.

    Attributes:
        profiles: Files of the user's calibrated hosts.
        init: A file; None for random weights.
        shield: Safety profile of the courses that policies are compared on.
        live: Scenario of the live testbeds among those of a cluster, if any.
        explore, explore_slack: Bounds of exploration there, see `rlctl.agents.training.live.bounded`.
    """

    profiles: tuple[str, ...] = ()
    init: str | None = None
    n_envs: int | None = None
    shield: str = DEFAULT
    threads: int = 1
    live: str | None = None
    explore: float = Bounds().probability
    explore_slack: float = Bounds().least_slack_ratio


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A run that can begin once it has a folder; `sources` says where a value is from, if not the recipe's file."""

    options: TrainingOptions
    run: TrainingRun
    sources: Mapping[str, str]

    def lines(self) -> list[str]:
        """The effective configuration as YAML, with each value's source as a comment."""
        options, run, sources, shipped = self.options, self.run, self.sources, "configs/training"
        return [
            f"algorithm: {options.algorithm}",
            f"seed: {options.seed}",
            f"threads: {options.threads}",
            f"max_seconds: {_yaml(options.max_seconds)}",
            f"init: {_yaml(options.init)}",
            f"hyperparameters: # {options.config or f'{shipped}/{options.algorithm}.yaml'}",
            *(
                f"  {key}: {_yaml(value)}" + (f" # {sources[key]}" if key in sources else "")
                for key, value in run.recipe.model_dump(mode="json").items()
            ),
            f"hosts: # {options.hosts or f'{shipped}/hosts.yaml'}; episodes of {run.hosts.episode_steps} steps",
            *(
                f"  {kind.name}: {{profile: {kind.profile}, hosts: {count}, weight: {kind.weight}, "
                f"shield: {kind.safety or 'none'}}}"
                for kind, count in present(run.hosts, run.recipe.n_envs)
            ),
            f"evaluation: # on {run.validation_seeds} validation seeds, which no run learns on",
            *(
                f"  {one.name}: {{seconds: {one.ticks * one.tick_seconds:g}, "
                f"shield: {one.safety.name if one.safety else 'none'}}}"
                for one in run.courses
            ),
        ]


def _yaml(value: object) -> str:
    """A value as YAML has it in one line: JSON without its quotes."""
    return json.dumps(value).replace('"', "")


def require_libraries() -> None:
    """Raise ConfigError where something that training needs is not installed."""
    require_installed("training", "train", "torch", "stable_baselines3", "sb3_contrib")


def new_plan(options: TrainingOptions) -> TrainingPlan:
    """The plan of a new run; a ConfigError comes before anything is started."""
    recipe = load_recipe(options.algorithm, Path(options.config) if options.config else None)
    hosts = load_hosts(Path(options.hosts) if options.hosts else None)
    hosts = hosts.with_profiles({file: load_host(file) for file in options.profiles})
    return _plan(options, recipe, hosts)


def resumed_plan(folder: Path, changes: Mapping[str, Any]) -> TrainingPlan:
    """The plan of a run that goes on, with `changes` of budget or threads; ConfigError: no run, or a file is wrong."""
    files.require_run(folder)
    options = load_model(TrainingOptions, folder / files.ARGUMENTS)
    copied = partial(files.copy_of, folder)
    own = {"profiles": tuple(map(copied, options.profiles)), "scenarios": tuple(map(copied, options.scenarios))}
    kept = options.model_copy(update=own | {"shield": copied(options.shield)})
    recipe = load_recipe(options.algorithm, folder / files.CONFIG)
    # A longer budget makes no other learner: hosts, batches and evaluations stay those that the run was begun with.
    longer = recipe.model_copy(update={"n_timesteps": changes.get("total_timesteps") or recipe.n_timesteps})
    plan = _plan(kept, recipe, load_hosts(folder / files.HOSTS), copied)
    # Seconds count over all sessions of a run: who asks for more steps would else get none.
    seconds = {"max_seconds": None} if "total_timesteps" in changes else {}
    changed = kept.model_copy(update={**seconds, **changes})
    return TrainingPlan(changed, replace(plan.run, recipe=longer, **_of_options(changed)), {})


def next_folder(algorithm: str) -> Path:
    """runs/<algorithm>/<the first number that is free>."""
    parent = Path("runs") / algorithm
    numbers = [int(one.name) for one in parent.glob("*") if re.fullmatch(r"\d+", one.name)]
    return parent / str(max(numbers, default=0) + 1)


def new_folder(algorithm: str) -> Path:
    """`next_folder`, made: of two runs that begin together each has its own."""
    while True:
        folder = next_folder(algorithm)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


def _plan(options: TrainingOptions, recipe: Recipe, hosts: Hosts, copied: Callable[[str], str] = str) -> TrainingPlan:
    timesteps = options.total_timesteps or recipe.n_timesteps
    fitted, why = recipe.fitted(timesteps, options.max_seconds, options.n_envs)
    sources = why | ({"n_timesteps": "--total-timesteps"} if options.total_timesteps else {})
    seconds, seeds = VALIDATION_SECONDS, VALIDATION_SEEDS
    if small(timesteps, options.max_seconds):
        seconds, seeds = TRY_OUT_SECONDS, TRY_OUT_SEEDS
    elif options.max_seconds is not None and options.max_seconds < SHORT_BUDGET_SECONDS:
        seconds, seeds = SHORT_SECONDS, SHORT_SEEDS
    run = TrainingRun(
        algorithm=options.algorithm,
        recipe=fitted,
        hosts=hosts,
        courses=courses_of(options, seconds, copied),
        folder=Path(),
        seed=options.seed,
        validation_seeds=seeds,
        init=Path(options.init) if options.init else None,
        inputs=_inputs(options),
        **_of_options(options),
    )
    return TrainingPlan(options, run, sources)


def _inputs(options: TrainingOptions) -> tuple[Path, ...]:
    """The user's files that courses follow from: shield, scenarios, and hosts beside these."""
    hosts = (sim_scenario(name).profile for name in options.scenarios)
    named = (options.shield, *options.scenarios, *hosts)
    return tuple(Path(name) for name in named if Path(name).suffix in YAML)


def _of_options(options: TrainingOptions) -> dict[str, Any]:
    """What of a run follows from the options alone, and changes with them when it goes on."""
    arguments = options.model_dump(mode="json")
    return {"max_seconds": options.max_seconds, "threads": options.threads, "arguments": arguments}


def courses_of(
    options: TrainingOptions, most_seconds: float = VALIDATION_SECONDS, copied: Callable[[str], str] = str
) -> tuple[Course, ...]:
    """The scenarios, and the user's own hosts under a training load; ConfigError for one that is not there.

    Args:
        copied: Where the file of a host that a scenario names is now.
    """
    safety, courses = load_profile(options.shield), []
    for scenario in map(sim_scenario, options.scenarios):
        ticks = round(min(scenario.duration_seconds, most_seconds) / scenario.tick_seconds)
        here = scenario.model_copy(update={"profile": copied(scenario.profile)})
        courses.append(course_of(here, safety, ticks))
    courses += [
        Course(host.name, host, training_load, Weight.MINIMUM, round(most_seconds), 1.0, safety)
        for host in map(load_host, options.profiles)
    ]
    require_distinct([course.name for course in courses])
    return tuple(courses)


def course_of(scenario: SimScenario, safety: Profile | None, ticks: int | None = None) -> Course:
    """A scenario of so many ticks, or its own, to run policies on, under a shield that follows its time scale."""
    scaled = safety.scale_time(scenario.time_scale) if safety else None
    host, load, weight, ticks = scenario.host(), scenario.load_model, scenario.be.weight, ticks or scenario.ticks
    return Course(scenario.name, host, load, weight, ticks, scenario.tick_seconds, scaled, scenario.vary)


def live_testbed(asked: TrainingOptions, lags: tuple[int, ...] = LAGS) -> LiveTestbed | None:
    """The live testbed that a learner is to act on, if any is asked for; ConfigError for what is not there."""
    if asked.live is None:
        return None
    scenario = live_scenario(asked.live)
    return LiveTestbed(
        scenario=scenario,
        safety=load_profile(asked.shield).scale_time(scenario.time_scale),
        bounds=Bounds(asked.explore, asked.explore_slack),
        lags=lags,
        seed=asked.seed,
    )
