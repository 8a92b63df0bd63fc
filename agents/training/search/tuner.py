"""The trials of `rlctl tune` on Ray Tune: each a training run in its own process, compared and stopped while they run.

    with connected("local") as cluster:
        ended = search(job, cluster, told)              # goes on with what stands in job.out, if anything does
        scored = judge(job, examined, cluster)          # best models on seeds that no trial has seen

What makes it resumable: all candidates are drawn before it begins and handed to Tune as they are; a trial's name and
seed are the candidate's; each evaluation is reported with the run's folder as its checkpoint, so weights, optimiser,
history and best model travel together, to the same trial after a kill or to another one that exploits it; and the
schedulers take what trials had reported back in when a search goes on (`schedulers`).

Driver and nodes must see the same folder `out`.
"""

from __future__ import annotations

import logging
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from rlctl.agents.served.card import SearchOrigin
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import logits_of, make, take_weights
from rlctl.agents.training.cluster.connection import environment
from rlctl.agents.training.cluster.nodes import Cluster
from rlctl.agents.training.cluster.tasks import map_tasks
from rlctl.agents.training.learn import export_best
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.agents.training.search.job import Job
from rlctl.agents.training.search.schedulers import REPORTS, TRIALS, Journal, Told, journal, scheduler_of
from rlctl.agents.training.search.space import Candidate, Values
from rlctl.agents.training.search.trial import drop_strays, train
from rlctl.agents.training.training_run import Ending, TrainingResult
from rlctl.agents.training.trial import Trial, frozen
from rlctl.agents.training.trial import score as run_course
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.sim.vector_env import SimHostVectorEnv

WINNER = "winner"
"""Folder of the winner's run, in the folder of the search."""

MOST_LETTERS = 100
"""Of an error in a table; all of it is in the trial's error.txt."""

_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception): ")

TUNE: Mapping[str, str] = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # reports.jsonl is what there is to read
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends it like any other end; it goes on from its folder
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Ray Tune's settings, where the user has none."""


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """What became of a trial.

    Attributes:
        folder: Folder of its run, as of its last report; None when it made none.
        stopped_by: The scheduler that stopped it early; empty when none did.
        error: What it failed with, in a line; empty when it did not.
    """

    candidate: Candidate
    values: Values
    folder: Path | None
    timesteps: int
    seconds: float
    stopped_by: str = ""
    error: str = ""

    @property
    def ending(self) -> str:
        """Why it ended, in a few words."""
        if self.error:
            return f"failed: {self.error}"
        return f"stopped by {self.stopped_by}" if self.stopped_by else "budget spent"


def search(job: Job, cluster: Cluster, told: Told, *, retry_failed: bool = False) -> list[TrialEnd]:
    """Run all trials, or what is left of them.

    Args:
        job: The search; where its folder holds a part of it, that is gone on with.

    Returns:
        All trials, in the candidates' order.

    Raises:
        ConfigError: No node has room for a trial.
        HostError: A node does not see the folder.
    """
    needed = {"CPU": 1.0, "memory": float(job.memory_bytes)}
    if not any(node.holds(needed) for node in cluster.nodes):
        raise ConfigError(
            f"no node of the Ray cluster offers a CPU and {job.memory_bytes >> 20} MiB for a trial; add a larger one"
        )
    pending = {"TUNE_MAX_PENDING_TRIALS_PG": str(len(job.candidates))}  # all are there from the beginning, and kept so
    with environment({**TUNE, **pending}), _quiet(), journal(job.out / REPORTS, told):
        try:
            results = _tuner(job, retry_failed).fit()
        except (tune.TuneError, RuntimeError, ray.exceptions.RayError) as error:
            raise HostError(f"the search ended: {_why(error)}; go on with --resume") from error
    found = {Path(one.path).name: one for one in results}
    return [_ended(job, one, found[one.name]) for one in job.candidates if one.name in found]


def _tuner(job: Job, retry_failed: bool) -> tune.Tuner:
    trainable = tune.with_resources(tune.with_parameters(train, job=job), {"cpu": 1, "memory": job.memory_bytes})
    place = str(job.out.resolve() / TRIALS)
    if tune.Tuner.can_restore(place):
        return tune.Tuner.restore(place, trainable, resume_errored=retry_failed)
    random.seed(job.seed)  # which of the best is copied
    drawn = [{"name": one.name, "values": dict(one.values)} for one in job.candidates]
    clock, most = job.clock
    return tune.Tuner(
        trainable,
        param_space={"drawn": tune.grid_search(drawn)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=scheduler_of(job),
            reuse_actors=True,  # to import torch takes longer than many a generation
            trial_name_creator=lambda trial: trial.config["drawn"]["name"],
            trial_dirname_creator=lambda trial: trial.config["drawn"]["name"],
        ),
        run_config=tune.RunConfig(
            name=TRIALS,
            storage_path=str(job.out.resolve()),
            stop={clock: most},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=None),  # see Journal.on_checkpoint
            failure_config=tune.FailureConfig(max_failures=1),
            callbacks=[Journal()],
            verbose=0,
        ),
    )


def _ended(job: Job, candidate: Candidate, result: Any) -> TrialEnd:
    last, (clock, most) = result.metrics or {}, job.clock
    folder = Path(result.checkpoint.path) if result.checkpoint else None
    early = result.error is None and last.get(clock, 0) < most and last.get("timesteps", 0) < job.timesteps
    return TrialEnd(
        candidate=candidate,
        values=result.config["drawn"]["values"] if result.config else candidate.values,  # None before the first report
        folder=folder,
        timesteps=int(last.get("timesteps", 0)),
        seconds=float(last.get("seconds", 0.0)),
        stopped_by=job.scheduler if early and job.scheduler != "none" else "",
        error=_why(result.error) if result.error else "",
    )


def _why(error: BaseException) -> str:
    """What it was in a line: that of the exception itself, beneath the traces that Ray puts above it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _RAISED.match(line)]
    return (named or lines or [type(error).__name__])[-1][:MOST_LETTERS]


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray Tune logs the trace of each trial that fails."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def judge(job: Job, examined: Sequence[tuple[Path | None, Values]], cluster: Cluster) -> list[dict[str, Trial]]:
    """Score runs' folders, None for frozen, each under its values' shield, on the winner's seeds; by course's name."""
    found = dict(map_tasks(cluster, _examined, [(job, *one) for one in examined]))
    return [found[place] for place in range(len(examined))]


def _examined(item: tuple[Job, Path | None, Values]) -> dict[str, Trial]:
    """Score one, on a worker."""
    job, folder, values = item
    courses, seeds = job.courses_of(values), job.choice_seeds
    if folder is None:
        return {course.name: frozen(course, seeds) for course in courses}
    recipe, _ = load_recipe(job.algorithm, folder / files.CONFIG).fitted(1, None, n_envs=2)
    env = SimVecEnv(SimHostVectorEnv(2, lags=recipe.lags))
    model = make(job.algorithm, recipe, env, lambda: 1.0)
    take_weights(model, folder / files.BEST, policy_only=True)
    model.policy.set_training_mode(False)
    return {course.name: run_course(course, logits_of(model), seeds, recipe.lags) for course in courses}


def export_winner(job: Job, won: TrialEnd) -> TrainingResult:
    """The run of the winner, a trial that has a folder, in a folder of its own with its bundle."""
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
