"""A search as the nodes are given it, and one trial of it on a worker of Ray Tune: a training run."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.evaluations import Evaluation, search_score
from rlctl.agents.training.host_kinds import validation_seed
from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.search.space import Space, Values, recipe_with
from rlctl.agents.training.training_run import TrainingRun
from rlctl.envs.allocation import Limits
from rlctl.envs.observation import Observer

REDUCTION, EVALUATIONS = 3, 9
"""ASHA (Li et al., MLSys 2020) stops all but the best third at each rung. A trial that runs to its end is evaluated
nine times: the rungs are the first, the third and the last of them."""

CHOICE_SEEDS, FIRST_CHOICE_SEED = 8, 1000
"""Fewest validation seeds on which the winner is chosen, else twice those of the trials; none of theirs."""

MEMORY_BYTES = 1 << 30
"""Set aside for each trial, beside DQN's replay buffer: ample for torch and a few hosts."""

NUMBER = "number"
"""Key of a trial's configuration: its place in the search, from 0."""

REPORTED = "reported"
"""File with the timesteps of the last report, in the folder of the run."""


@dataclass(frozen=True)
class Job:
    """A search as it is done.

    Attributes:
        trials: Number of trials that the search runs.
        run: What trials have in common. Its seed is that of the first one, its folder that of the search, which
            driver and nodes must both see.
        timesteps: Budget of each trial; with seconds, the most.
    """

    space: Space
    trials: int
    run: TrainingRun
    timesteps: int
    scheduler: str

    @property
    def clock(self) -> tuple[str, float]:
        """What a trial's budget is counted in, and how much of it there is."""
        seconds = self.run.max_seconds
        return ("timesteps", self.timesteps) if seconds is None else ("seconds", seconds)

    @property
    def memory_bytes(self) -> int:
        """Set aside for each trial, so that Ray runs no more at a time than a node has room for."""
        drawn = self.space.draws.get("buffer_size")
        rows = max(drawn.ends) if drawn else getattr(self.run.recipe, "buffer_size", 0)
        size = Observer(Limits(1), 1.0, self.run.recipe.lags).size
        return MEMORY_BYTES + int(rows) * 2 * size * np.dtype(np.float32).itemsize

    @property
    def choice_seeds(self) -> tuple[int, ...]:
        """Seeds on which the winner is chosen."""
        count = max(2 * self.run.validation_seeds, CHOICE_SEEDS)
        return tuple(validation_seed(FIRST_CHOICE_SEED + number) for number in range(count))

    def recipe_of(self, values: Values) -> Recipe:
        """A trial's hyperparameters, fitted to the budget, evaluated and ended as the scheduler wants it."""
        most_seconds = self.run.max_seconds
        fitted, _ = recipe_with(self.run.recipe, values).fitted(self.timesteps, most_seconds)
        each = math.ceil(self.timesteps / EVALUATIONS)
        by_steps = {"eval_every_timesteps": each, "eval_every_seconds": None}
        by_time = {"eval_every_timesteps": None, "eval_every_seconds": (most_seconds or 0.0) / EVALUATIONS}
        return fitted.model_copy(update={"early_stop": None} | (by_steps if most_seconds is None else by_time))

    def run_of(self, number: int, values: Values, folder: Path) -> TrainingRun:
        """A trial as a training run."""
        seed = self.run.seed + number
        arguments = {**self.run.arguments, "seed": seed}
        return replace(
            self.run, recipe=self.recipe_of(values), folder=folder, seed=seed, export=False, arguments=arguments
        )


def train_trial(config: Mapping[str, Any], job: Job) -> None:
    """Train one trial, or go on with it from its checkpoint; each evaluation is reported with the folder of the run."""
    from ray import tune

    from rlctl.agents.training.learn import learn

    folder = Path.cwd() / "run"
    # What an earlier worker left here does not count, the checkpoint does.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if checkpoint := tune.get_checkpoint():
        checkpoint.to_directory(folder)
        drop_unreported(folder)
    run = job.run_of(config[NUMBER], job.space.values(config), folder)

    def report(now: Evaluation) -> None:
        (folder / REPORTED).write_text(str(now.timesteps))
        metrics = {
            "timesteps": now.timesteps,
            "seconds": now.seconds,
            "score": search_score(now.shortfall_points, now.mean("be_percent")),
            "shortfall_points": now.shortfall_points,
            "qos_percent": now.mean("qos_percent"),
            "be_percent": now.mean("be_percent"),
        }
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    learn(replace(run, resume=checkpoint is not None), evaluated=report)


def drop_unreported(folder: Path) -> None:
    """Leave only the checkpoint that was reported: a search that goes on writes over what came after its last state."""
    timesteps = int((folder / REPORTED).read_text())
    files.drop_older(folder, files.checkpoint_folder(folder, timesteps))
