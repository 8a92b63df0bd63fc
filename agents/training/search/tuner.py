"""The trials of `rlctl tune` on Ray Tune: each a training run in its own process, compared and stopped while they run.

    with connected("local") as cluster:
        ended = search(job, cluster, watch)             # goes on with what stands in job.run.folder, if anything does
        scores = judge(job, ended, cluster)             # best models on seeds that no trial has seen

Optuna's TPE proposes each trial's values from the scores before it, and ASHA stops the worse trials early. Ray Tune
restores the first; ASHA's rungs begin anew with a search that goes on. Each evaluation is reported with the run's
folder as its checkpoint, so weights, optimiser, history and best model are restored together. Driver and nodes must
see the same folder `out`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import optuna
import ray
from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search.optuna import OptunaSearch

from rlctl.agents.served.card import SearchOrigin
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import logits_of, make, take_weights
from rlctl.agents.training.cluster.connection import environment
from rlctl.agents.training.cluster.nodes import Cluster
from rlctl.agents.training.cluster.tasks import map_tasks
from rlctl.agents.training.evaluations import Evaluation, Judge
from rlctl.agents.training.learn import export_best
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.agents.training.search.job import EVALUATIONS, NUMBER, REDUCTION, Job, drop_unreported, train_trial
from rlctl.agents.training.search.space import Values
from rlctl.agents.training.training_run import Ending, TrainingResult
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.sim.vector_env import SimHostVectorEnv

TRIALS, WINNER = "trials", "winner"
"""Folders of Ray Tune, and of the winner's run, in the folder of the search."""

REPLAYS = 2
"""Checkpoints of a trial that keep their replay buffer: the newest may be half written when a search is killed."""

MOST_LETTERS = 100
"""Of an error in a table; all of it is in the trial's error.txt."""

TUNE: Mapping[str, str] = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # result.json is written, TensorBoard's files are the runs' own
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends it like any other end; it goes on from its folder
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Ray Tune's settings, where the user has none."""

REPORTED_METRICS = ("timesteps", "seconds", "score", "shortfall_points", "qos_percent", "be_percent")

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """What became of a trial.

    Attributes:
        folder: Folder of its run, as of its last report; None when it made none.
        reports: Metrics of each evaluation, in order.
        stopped_by: The scheduler that stopped it early; empty when none did.
        error: What it failed with, in a line; empty when it did not.
    """

    number: int
    values: Values
    folder: Path | None
    reports: Sequence[Mapping[str, float]]
    stopped_by: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """Such as t003; its folder's name."""
        return trial_name(self.number)

    @property
    def ending(self) -> str:
        """Why it ended, in a few words."""
        if self.error:
            return f"failed: {self.error}"
        return f"stopped by {self.stopped_by}" if self.stopped_by else "budget spent"


def trial_name(number: int) -> str:
    """The name of a trial and of its folder."""
    return f"t{number:03d}"


class NumberedSearch(OptunaSearch):
    """Optuna's searcher; each trial's configuration has its number, too."""

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next trial's configuration; None when there is none now."""
        config = super().suggest(trial_id)
        return None if config is None else {**config, NUMBER: self._ot_trials[trial_id].number}


class Watching(tune.Callback):
    """Tells whoever watches when a trial ends, and keeps checkpoints small.

    Ray pickles its callbacks with a search; so `watch` is the class', set while a search runs.
    """

    watch: ClassVar[Watch]

    def on_checkpoint(self, *, checkpoint: Any, **_: Any) -> None:
        """Drop the replay buffers of all but the newest checkpoints.

        Ray would remove whole checkpoints, and after a kill its state may still point to one that it removed.
        """
        newest = Path(checkpoint.path)
        for older in sorted(newest.parent.glob("checkpoint_*"))[:-REPLAYS]:
            for replay in older.glob(f"checkpoints/*/{files.REPLAY}"):
                replay.unlink(missing_ok=True)

    def on_trial_complete(self, *, trial: Any, **_: Any) -> None:
        """Print the last scores."""
        last = trial.last_result or {}
        if "qos_percent" in last:
            scores = f"QoS {last['qos_percent']:.2f} %, BE {last['be_percent']:.1f} %"
            type(self).watch(f"{trial}: {scores} at {last['timesteps']:,} timesteps")

    def on_trial_error(self, *, trial: Any, **_: Any) -> None:
        """Print where the error stands."""
        type(self).watch(f"{trial}: failed, see error.txt in {TRIALS}/{trial}")


def search(job: Job, cluster: Cluster, watch: Watch, *, retry_failed: bool = False) -> list[TrialEnd]:
    """Run all trials, or those that are left of a search that stands in the job's folder; returned by number.

    Raises:
        ConfigError: No node has room for a trial.
        HostError: A node does not see the folder.
    """
    needed = {"CPU": 1.0, "memory": float(job.memory_bytes)}
    if not any(node.holds(needed) for node in cluster.nodes):
        raise ConfigError(
            f"no node of the Ray cluster offers a CPU and {job.memory_bytes >> 20} MiB for a trial; add a larger one"
        )
    Watching.watch = staticmethod(watch)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it logs the trace of each trial that fails
    with environment(TUNE):
        try:
            results = _tuner(job, retry_failed).fit()
        except (tune.TuneError, RuntimeError, ray.exceptions.RayError) as error:
            raise HostError(f"the search ended: {_why(error)}; go on with --resume") from error
    return sorted((_trial_end(job, one) for one in results), key=lambda one: one.number)


def _tuner(job: Job, retry_failed: bool) -> tune.Tuner:
    trainable = tune.with_resources(tune.with_parameters(train_trial, job=job), {"cpu": 1, "memory": job.memory_bytes})
    place = str(job.run.folder.resolve() / TRIALS)
    if tune.Tuner.can_restore(place):
        return tune.Tuner.restore(place, trainable, resume_errored=retry_failed)
    clock, most = job.clock
    asha = ASHAScheduler(time_attr=clock, max_t=most, grace_period=most / EVALUATIONS, reduction_factor=REDUCTION)
    return tune.Tuner(
        trainable,
        param_space={key: draw.domain for key, draw in job.space.draws.items()},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=job.trials,
            search_alg=NumberedSearch(points_to_evaluate=[job.space.first], seed=job.run.seed),
            scheduler=asha if job.scheduler == "asha" else FIFOScheduler(),
            reuse_actors=True,  # importing torch takes seconds
            trial_name_creator=lambda trial: trial_name(trial.config[NUMBER]),
            trial_dirname_creator=lambda trial: trial_name(trial.config[NUMBER]),
        ),
        run_config=tune.RunConfig(
            name=TRIALS,
            storage_path=str(job.run.folder.resolve()),
            stop={clock: most},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=None),  # see Watching.on_checkpoint
            failure_config=tune.FailureConfig(max_failures=1),
            callbacks=[Watching(), JsonLoggerCallback()],
            verbose=0,
        ),
    )


def _trial_end(job: Job, result: Any) -> TrialEnd:
    clock, most = job.clock
    number = int(Path(result.path).name.removeprefix("t"))
    frame = result.metrics_dataframe
    reports = [] if frame is None or "timesteps" not in frame else frame[list(REPORTED_METRICS)].to_dict("records")
    last = reports[-1] if reports else {}
    # A trial that spends its seconds is evaluated for the last time a while before; one of steps at its very end. After
    # a resume ASHA has forgotten who passed which rung, and may stop a trial anywhere.
    spent = last.get("timesteps", 0) >= job.timesteps or (clock == "seconds" and last.get(clock, 0.0) >= most / 2)
    early = result.error is None and not spent
    return TrialEnd(
        number=number,
        # A trial that failed before its first report has no configuration.
        values=job.space.values(result.config) if result.config else {},
        folder=Path(result.checkpoint.path) if result.checkpoint else None,
        reports=reports,
        stopped_by=job.scheduler if early and job.scheduler != "none" else "",
        error=_why(result.error) if result.error else "",
    )


def _why(error: BaseException) -> str:
    """What it was in a line: Ray puts traces above it, and numbers may stand below."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (named or lines or [type(error).__name__])[-1][:MOST_LETTERS]


def judge(job: Job, trials: Sequence[TrialEnd], cluster: Cluster) -> list[Evaluation]:
    """Score the best models of trials that have folders on the winner's seeds."""
    found = dict(map_tasks(cluster, _judge_one, [(job, one.folder) for one in trials if one.folder]))
    return [found[place] for place in range(len(trials))]


def _judge_one(item: tuple[Job, Path]) -> Evaluation:
    """Score one, on a worker."""
    job, folder = item
    recipe, _ = load_recipe(job.run.algorithm, folder / files.CONFIG).fitted(1, None, n_envs=2)
    model = make(job.run.algorithm, recipe, SimVecEnv(SimHostVectorEnv(2, lags=recipe.lags)), lambda: 1.0)
    take_weights(model, folder / files.BEST, policy_only=True)
    model.policy.set_training_mode(False)
    return Judge(job.run.courses, job.choice_seeds, recipe.lags).evaluate(logits_of(model), 0, 0.0)


def export_winner(job: Job, won: TrialEnd) -> TrainingResult:
    """Copy the run of the winner, a trial that has a folder, to a folder of its own, and export its bundle."""
    assert won.folder is not None
    folder = job.run.folder / WINNER
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(won.folder, folder)
    drop_unreported(folder)
    run = job.run_of(won.number, won.values, folder)
    origin = SearchOrigin(space=job.space.digest, trials=job.trials, seed=job.run.seed, trial=won.name, place=1)
    return export_best(
        replace(run, export=True, search=origin), Ending.STOPPED if won.stopped_by or won.error else Ending.BUDGET
    )
