"""Which trial of a search has won, on seeds that none has seen; and its export."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.agents.served.card import SearchOrigin
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import logits_of, make, take_weights
from rlctl.agents.training.cluster.nodes import Cluster
from rlctl.agents.training.cluster.tasks import map_tasks
from rlctl.agents.training.learn import export_best
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.agents.training.search.job import Job
from rlctl.agents.training.search.schedulers import Told
from rlctl.agents.training.search.space import Values
from rlctl.agents.training.search.trial import drop_strays
from rlctl.agents.training.search.tuner import TrialEnd
from rlctl.agents.training.training_run import Ending, TrainingResult
from rlctl.agents.training.trial import Course, Trial, always_frozen
from rlctl.agents.training.trial import score as run_course
from rlctl.envs.sim.vector_env import SimHostVectorEnv

__all__ = ["WINNER", "Examined", "examine", "export_winner", "judge"]

WINNER = "winner"


@dataclass(frozen=True, slots=True)
class Examined:
    """One policy to be judged.

    Attributes:
        folder: Of its run; None for a BE that is always frozen.
    """

    folder: Path | None
    algorithm: str
    courses: tuple[Course, ...]
    seeds: tuple[int, ...]


def judge(
    job: Job, examined: Sequence[tuple[Path | None, Values]], cluster: Cluster, told: Told = lambda _: None
) -> list[dict[str, Trial]]:
    """Score policies on the seeds that the winner is chosen on.

    Args:
        examined: A run's folder, or None for frozen, with the values whose shield it is scored under.

    Returns:
        For each, what came of it by the course's name.
    """
    items = [Examined(folder, job.algorithm, job.courses_of(values), job.choice_seeds) for folder, values in examined]
    found: dict[int, dict[str, Trial]] = {}
    for place, trials in map_tasks(cluster, examine, items):
        found[place] = trials
        told(f"judged {place + 1}")
    return [found[place] for place in range(len(items))]


def examine(one: Examined) -> dict[str, Trial]:
    """Score one, on a worker."""
    if one.folder is None:
        return {course.name: run_course(course, always_frozen, one.seeds, (0,)) for course in one.courses}
    recipe, _ = load_recipe(one.algorithm, one.folder / files.CONFIG).fitted(1, None, n_envs=2)
    env = SimVecEnv(SimHostVectorEnv(2, lags=recipe.lags))
    model = make(one.algorithm, recipe, env, lambda: 1.0)
    take_weights(model, one.folder / files.BEST, policy_only=True)
    model.policy.set_training_mode(False)
    return {course.name: run_course(course, logits_of(model), one.seeds, recipe.lags) for course in one.courses}


def export_winner(job: Job, won: TrialEnd) -> TrainingResult:
    """The winner's run in a folder of its own, with its bundle.

    Args:
        won: A trial that has a folder.

    Raises:
        BundleError: The export failed.
    """
    assert won.folder is not None
    folder = job.out / WINNER
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(won.folder, folder)
    drop_strays(folder)
    run = job.run_of(won.candidate.name, won.values, folder)
    origin = SearchOrigin(
        space=job.space.digest, trials=len(job.candidates), seed=job.seed, trial=won.candidate.name, place=1
    )
    return export_best(
        replace(run, export=True, search=origin), Ending.STOPPED if won.stopped_by or won.error else Ending.BUDGET
    )
