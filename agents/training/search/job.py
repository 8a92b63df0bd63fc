"""A search as the nodes are given it: each trial as a training run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.agents.training.host_kinds import Hosts, validation_seed
from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.search.space import Space, Values
from rlctl.agents.training.training_run import TrainingRun
from rlctl.agents.training.trial import Course
from rlctl.envs.allocation import Limits
from rlctl.envs.observation import Observer

REDUCTION, EVALUATIONS = 3, 9
"""ASHA (Li et al., MLSys 2020) stops all but the best third at each rung. A trial that runs to its end is evaluated
nine times: the rungs are the first, the third and the last of them."""

CHOICE_SEEDS, FIRST_CHOICE_SEED = 8, 1000
"""Fewest validation seeds on which the winner is chosen, else twice those of the trials; none of theirs."""

MEMORY_BYTES = 1 << 30
"""Set aside for each trial, beside DQN's replay buffer: ample for torch and a few hosts."""

NEVER_SECONDS = 1e9
SHIELD = "shield.yaml"


@dataclass(frozen=True)
class Job:
    """A search as it is done.

    Attributes:
        hosts, courses, validation_seeds: As of `TrainingRun`; courses are under the space's profile as it is.
        timesteps, max_seconds: Budget of each trial; with seconds, the timesteps are the most.
        trials: Number of trials that the search runs.
        out: Folder of the search, which driver and nodes must both see.
        arguments: What `rlctl train` would be asked for a trial, to be kept in its folder.
    """

    algorithm: str
    space: Space
    trials: int
    recipe: Recipe
    hosts: Hosts
    courses: tuple[Course, ...]
    validation_seeds: int
    timesteps: int
    max_seconds: float | None
    scheduler: str
    seed: int
    out: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    @property
    def clock(self) -> tuple[str, float]:
        """What a trial's budget is counted in, and how much of it there is."""
        return ("timesteps", self.timesteps) if self.max_seconds is None else ("seconds", self.max_seconds)

    @property
    def memory_bytes(self) -> int:
        """Set aside for each trial, so that Ray runs no more at a time than a node has room for."""
        rows = getattr(self.recipe, "buffer_size", 0)
        if drawn := self.space.draws.get("buffer_size"):
            rows = max(drawn.ends)
        size = Observer(Limits(1), 1.0, self.recipe.lags).size
        return MEMORY_BYTES + int(rows) * 2 * size * np.dtype(np.float32).itemsize

    @property
    def choice_seeds(self) -> tuple[int, ...]:
        """Seeds on which the winner is chosen."""
        count = max(2 * self.validation_seeds, CHOICE_SEEDS)
        return tuple(validation_seed(FIRST_CHOICE_SEED + number) for number in range(count))

    def recipe_of(self, values: Values) -> Recipe:
        """A trial's hyperparameters, fitted to the budget, evaluated and ended as the scheduler wants it."""
        fitted, _ = self.space.recipe(self.recipe, values).fitted(self.timesteps, self.max_seconds)
        each = math.ceil(self.timesteps / EVALUATIONS)
        by_steps = {"eval_every_timesteps": each, "eval_every_seconds": NEVER_SECONDS}
        by_time = {"eval_every_timesteps": None, "eval_every_seconds": (self.max_seconds or 0.0) / EVALUATIONS}
        return fitted.model_copy(update={"early_stop": None} | (by_steps if self.max_seconds is None else by_time))

    def courses_of(self, values: Values) -> tuple[Course, ...]:
        """The courses under a trial's shield."""
        margins = self.space.margins(values)
        return tuple(
            replace(one, safety=one.safety.model_copy(update=margins)) if one.safety else one for one in self.courses
        )

    def run_of(self, number: int, values: Values, folder: Path) -> TrainingRun:
        """A trial as a training run; a shield of its own is written into the folder."""
        return TrainingRun(
            algorithm=self.algorithm,
            recipe=self.recipe_of(values),
            hosts=self._hosts_of(values, folder / SHIELD),
            courses=self.courses_of(values),
            folder=folder,
            seed=self.seed + number,
            validation_seeds=self.validation_seeds,
            max_seconds=self.max_seconds,
            export=False,
            arguments={**self.arguments, "seed": self.seed + number},
            command=self.command,
        )

    def _hosts_of(self, values: Values, file: Path) -> Hosts:
        """The hosts; those that have the space's profile get the trial's."""
        plain, own = self.space.profile, self.space.shield(values)
        if plain is None or own is None:
            return self.hosts
        file.write_text(json.dumps(own.model_dump(), indent=1) + "\n")  # JSON is YAML
        tuned = {"safety": str(file)}
        kinds = tuple(
            kind.model_copy(update=tuned) if (shield := kind.shield()) and shield.digest == plain.digest else kind
            for kind in self.hosts.kinds
        )
        return self.hosts.model_copy(update={"kinds": kinds})
