"""The trials of `rlctl tune` on Ray Tune: each a training run in its own process, compared and stopped while they run.

    with connected("local") as cluster:
        ended = search(job, cluster, told)              # goes on with what stands in job.out, if anything does
        scored = judge(job, ended, cluster)             # every trial's best model on seeds that no trial has seen

What makes it resumable: all candidates are drawn before it begins and handed to Tune as they are; a trial's name and
seed are the candidate's; each evaluation is reported with the run's folder as its checkpoint, so weights, optimiser,
history and best model travel together, to the same trial after a kill or to another one that exploits it. Ray keeps no
scheduler's state, so the schedulers here take what trials had reported back in when a search goes on.

Driver and nodes must see the same folder `out`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler

from rlctl.agents.card import SearchOrigin
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.cluster import Cluster
from rlctl.agents.training.cluster_tasks import map_tasks
from rlctl.agents.training.evaluations import Evaluation
from rlctl.agents.training.hosts import Hosts, validation_seed
from rlctl.agents.training.learn import Ending, Result, Run, export_best, learn
from rlctl.agents.training.learners import logits_of, make, take_weights
from rlctl.agents.training.objective import score
from rlctl.agents.training.recipe import Recipe, load_recipe
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.agents.training.space import Candidate, Space, Values
from rlctl.agents.training.trial import Course, Trial, always_frozen
from rlctl.agents.training.trial import score as run_course
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.observation import Observer
from rlctl.envs.sim.vector_env import SimHostVectorEnv

__all__ = [
    "REPORTS",
    "WINNER",
    "Ended",
    "Job",
    "examine",
    "export_winner",
    "judge",
    "lineage",
    "reports",
    "search",
    "train",
]

EVALUATIONS = 9
"""Of a trial that runs to the end: ASHA's rungs at reduction 3 are the first, the third and the last of them."""

REDUCTION = 3
GENERATIONS = 4
"""Parts of the budget, between which population-based training replaces the worst quarter by changed copies of the
best."""

CHOICE_SEEDS, FIRST_CHOICE_SEED = 8, 1000
"""Fewest validation seeds on which the winner is chosen, else twice those of the trials; none of theirs."""

MEMORY_BYTES = 1 << 30
"""Set aside for each trial, beside DQN's replay buffer. Measured: 0.6 GB with torch and a few hosts."""

REPLAYS = 2
"""Checkpoints of a trial that keep their replay buffer: one that is being written is no use."""

MOST_LETTERS = 100
"""Of an error in a table; all of it is in the trial's error.txt."""

_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception): ")

NEVER_SECONDS = 1e9
FIXED = frozenset({"policy_kwargs", "lags", "n_envs"})
"""Keys that weights or environments depend on: population-based training copies them and changes the others."""

TRIALS, REPORTS, LINEAGE = "trials", "reports.jsonl", "lineage.json"
WINNER, SHIELD = "winner", "shield.yaml"

TUNE: Mapping[str, str] = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # reports.jsonl is what there is to read
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends it like any other end; it goes on from its folder
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Set before a search."""


@dataclass(frozen=True)
class Job:
    """A search.

    Attributes:
        algorithm: A key of `learners.CLASSES`.
        space: What is searched.
        candidates: All trials, drawn from it.
        recipe: What is searched around, not yet fitted to the budget.
        hosts, courses, validation_seeds: As of `learn.Run`; courses are under the space's profile as it is.
        timesteps, max_seconds: Budget of each trial; with seconds, the timesteps are the most.
        scheduler: asha, pbt or none.
        seed: Of the search.
        out: Its folder.
        arguments: Of a trial as `rlctl train` would be asked, for its folder.
        command: The command line.
    """

    algorithm: str
    space: Space
    candidates: tuple[Candidate, ...]
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
        rows = max(getattr(self.space.recipe(self.recipe, one.values), "buffer_size", 0) for one in self.candidates)
        size = Observer(Limits(1), 1.0, self.recipe.lags).size
        return MEMORY_BYTES + rows * 2 * size * np.dtype(np.float32).itemsize

    @property
    def choice_seeds(self) -> tuple[int, ...]:
        """On which the winner is chosen."""
        count = max(2 * self.validation_seeds, CHOICE_SEEDS)
        return tuple(validation_seed(FIRST_CHOICE_SEED + number) for number in range(count))

    def recipe_of(self, values: Values) -> Recipe:
        """A trial's hyperparameters, fitted to the budget and evaluated so often as the scheduler wants it."""
        fitted, _ = self.space.recipe(self.recipe, values).fitted(self.timesteps, self.max_seconds)
        parts = 2 * GENERATIONS if self.scheduler == "pbt" else EVALUATIONS
        by_steps = {"eval_every_timesteps": math.ceil(self.timesteps / parts), "eval_every_seconds": NEVER_SECONDS}
        by_time = {"eval_every_timesteps": None, "eval_every_seconds": (self.max_seconds or 0.0) / parts}
        return fitted.model_copy(update=by_steps if self.max_seconds is None else by_time)

    def courses_of(self, values: Values) -> tuple[Course, ...]:
        """The courses under a trial's shield."""
        margins = self.space.margins(values)
        return tuple(
            replace(one, safety=one.safety.model_copy(update=margins)) if one.safety else one for one in self.courses
        )

    def run_of(self, name: str, values: Values, folder: Path) -> Run:
        """A trial as a training run; its shield, if it has one of its own, is written into the folder.

        Args:
            name: Of the candidate.
            values: What it has now, which population-based training may have changed.
            folder: Of the run; it is there.
        """
        candidate = next(one for one in self.candidates if one.name == name)
        return Run(
            algorithm=self.algorithm,
            recipe=self.recipe_of(values),
            hosts=self._hosts_of(values, folder / SHIELD),
            courses=self.courses_of(values),
            folder=folder,
            seed=candidate.seed,
            validation_seeds=self.validation_seeds,
            max_seconds=self.max_seconds,
            export=False,
            arguments={**self.arguments, "seed": candidate.seed},
            command=self.command,
        )

    def _hosts_of(self, values: Values, file: Path) -> Hosts:
        """The hosts; those that have the space's profile get the trial's."""
        own = self.space.shield(values)
        if own is None or self.space.document.shield is None:
            file.unlink(missing_ok=True)  # of a trial that it was copied from
            return self.hosts
        file.write_text(json.dumps(own.model_dump(), indent=1) + "\n")  # JSON is YAML
        named = self.space.document.shield.profile
        kinds = tuple(
            kind.model_copy(update={"safety": str(file)}) if kind.safety == named else kind for kind in self.hosts.kinds
        )
        return self.hosts.model_copy(update={"kinds": kinds})


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a trial.

    Attributes:
        candidate: As it was drawn.
        values: What it had at the end.
        folder: Its run's, as of its last report; None when it made none.
        timesteps, seconds: What it took.
        stopped_by: The scheduler that stopped it early, or nobody.
        error: What it failed with, or nothing.
    """

    candidate: Candidate
    values: Values
    folder: Path | None
    timesteps: int
    seconds: float
    stopped_by: str = ""
    error: str = ""


Told = Callable[[str], None]


class Journal(tune.Callback):
    """Every report of every trial as a line of reports.jsonl, and a word for whoever watches when a trial ends.

    Ray pickles its callbacks with a search and takes them back from there when it goes on. So where to write and whom
    to tell are the class', set while a search runs.
    """

    file: ClassVar[Path]
    told: ClassVar[Told]

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Write it down."""
        keys = ("timesteps", "seconds", "score", "shortfall_points", "qos_percent", "be_percent")
        line = {
            "trial": str(trial),
            **{key: result[key] for key in keys},
            "values": result["config"]["drawn"]["values"],
        }
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_checkpoint(self, *, checkpoint: Any, **_: Any) -> None:
        """Drop the replay buffers of all but the newest two; what else a checkpoint holds is small.

        Ray would remove whole checkpoints, and after a kill its state may still point to one that it removed.
        """
        newest = Path(checkpoint.path)
        for older in sorted(newest.parent.glob("checkpoint_*"))[:-REPLAYS]:
            for replay in older.glob(f"checkpoints/*/{files.REPLAY}"):
                replay.unlink(missing_ok=True)

    def on_trial_complete(self, *, trial: Any, **_: Any) -> None:
        """Say what it came to."""
        last = trial.last_result or {}
        if "qos_percent" in last:
            said = f"QoS {last['qos_percent']:.2f} %, BE {last['be_percent']:.1f} % at {last['timesteps']:,} timesteps"
            type(self).told(f"{trial}: {said}")

    def on_trial_error(self, *, trial: Any, **_: Any) -> None:
        """Say that it failed."""
        type(self).told(f"{trial}: failed, see {self.file.parent / TRIALS / str(trial)}/error.txt")


class Asha(ASHAScheduler):
    """ASHA that knows again, when a search goes on, what trials had reached their rungs with."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """As Ray's; a trial that has reported already has its place in each rung."""
        super().on_trial_add(tune_controller, trial)
        reached = (trial.last_result or {}).get(self._time_attr, 0)
        for line in reports(Journal.file):
            if line["trial"] == str(trial) and line[self._time_attr] <= reached:
                self.on_trial_result(tune_controller, trial, line)


class Pbt(PopulationBasedTraining):
    """Population-based training that knows again, when a search goes on, in which generation each trial is."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """As Ray's; a trial that has reported already counts as having done so."""
        super().on_trial_add(tune_controller, trial)
        last, length = trial.last_result or {}, self._perturbation_interval
        if self._time_attr not in last:
            return
        state = self._trial_state[trial]
        self._save_trial_state(state, last[self._time_attr], last, trial)
        state.last_perturbation_time = last[self._time_attr] // length * length
        behind = min(one.last_train_time for other, one in self._trial_state.items() if not other.is_finished())
        self._next_perturbation_sync = (behind // length + 1) * length


class Explore:
    """Changes the values of a trial that was copied, within the space."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._random = space, np.random.default_rng(seed)

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with other values."""
        drawn = config["drawn"]
        return {"drawn": {**drawn, "values": self._space.near(drawn["values"], self._random, FIXED)}}


def train(config: Mapping[str, Any], job: Job) -> None:
    """One trial, on a worker: begun, gone on with, or continued from another trial's weights."""
    name, values = tune.get_context().get_trial_name(), config["drawn"]["values"]  # the name there may be another's
    folder = Path.cwd() / "run"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier part of this trial: the checkpoint is what counts
    folder.mkdir()
    kept = tune.get_checkpoint()
    if kept:
        kept.to_directory(folder)
        _drop_strays(folder)
        (folder / files.CONFIG).unlink()
    run = job.run_of(name, values, folder)
    if kept:
        files.begin(folder, run.recipe, run.hosts, run.arguments, run.command)  # its values may be others now
    past = _with_present(folder, name, values)

    def evaluated(now: Evaluation) -> None:
        (folder / LINEAGE).write_text(json.dumps({"timesteps": now.timesteps, "trials": past}) + "\n")
        told = {
            "timesteps": now.timesteps,
            "seconds": now.seconds,
            "score": score(now.shortfall_points, now.be_percent),
            "shortfall_points": now.shortfall_points,
            "qos_percent": now.qos_percent,
            "be_percent": now.be_percent,
        }
        tune.report(told, checkpoint=tune.Checkpoint.from_directory(folder))

    learn(replace(run, resume=kept is not None), evaluated=evaluated)


def lineage(folder: Path) -> list[dict[str, Any]]:
    """Whose weights a trial's were, since when, and with which values; the last one is the trial itself."""
    file = folder / LINEAGE
    found: list[dict[str, Any]] = json.loads(file.read_text())["trials"] if file.is_file() else []
    return found


def _drop_strays(folder: Path) -> None:
    """Leave only the checkpoint that was reported: a search that goes on writes over what came after its last state."""
    timesteps = json.loads((folder / LINEAGE).read_text())["timesteps"]
    files.drop_older(folder, files.checkpoint_folder(folder, timesteps))


def _with_present(folder: Path, name: str, values: Values) -> list[dict[str, Any]]:
    """The lineage, with this trial as it is now."""
    found = lineage(folder)
    if not found or (found[-1]["trial"], found[-1]["values"]) != (name, values):
        since = files.newest_checkpoint(folder).state.timesteps if found else 0
        found.append({"trial": name, "since_timesteps": since, "values": dict(values)})
    return found


def reports(file: Path) -> Iterator[dict[str, Any]]:
    """What trials reported, in order; a line that a kill cut off is left out."""
    if not file.is_file():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def search(job: Job, cluster: Cluster, told: Told, *, retry_failed: bool = False) -> list[Ended]:
    """Run all trials, or what is left of them.

    Args:
        job: The search; where its folder holds a part of it, that is gone on with.
        cluster: Where.
        told: Called with a line for each trial that ends.
        retry_failed: Trials that failed go on from their last checkpoint.

    Returns:
        All trials, in the candidates' order.

    Raises:
        ConfigError: No node has room for a trial.
        HostError: A node does not see the folder.
    """
    needed = {"CPU": 1.0, "memory": float(job.memory_bytes)}
    if not any(node.holds(needed) for node in cluster.nodes):
        raise ConfigError(f"no node of the Ray cluster offers a CPU and {job.memory_bytes >> 20} MiB for a trial")
    _end_cut_line(job.out / REPORTS)
    with _environment(len(job.candidates)), _journal(job.out / REPORTS, told):
        try:
            results = _tuner(job, retry_failed).fit()
        except (tune.TuneError, RuntimeError, ray.exceptions.RayError) as error:
            raise HostError(f"the search ended: {_why(error)}; go on with --resume") from error
    found = {Path(one.path).name: one for one in results}
    return [_ended(job, one, found[one.name]) for one in job.candidates if one.name in found]


def _end_cut_line(file: Path) -> None:
    """What a kill cut off must not swallow the line after it."""
    if file.is_file() and not file.read_bytes().endswith(b"\n"):
        with file.open("a") as open_file:
            open_file.write("\n")


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
            scheduler=_scheduler(job),
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


def _scheduler(job: Job) -> TrialScheduler:
    clock, most = job.clock
    if job.scheduler == "asha":
        return Asha(time_attr=clock, max_t=most, grace_period=most / EVALUATIONS, reduction_factor=REDUCTION)
    if job.scheduler == "pbt":
        return Pbt(
            time_attr=clock,
            perturbation_interval=most / GENERATIONS,
            custom_explore_fn=Explore(job.space, job.seed),
            log_config=False,
            synch=True,
        )
    return FIFOScheduler()


def _ended(job: Job, candidate: Candidate, result: Any) -> Ended:
    last, (clock, most) = result.metrics or {}, job.clock
    folder = Path(result.checkpoint.path) if result.checkpoint else None
    early = result.error is None and last.get(clock, 0) < most
    return Ended(
        candidate=candidate,
        values=result.config["drawn"]["values"],
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
def _environment(trials: int) -> Iterator[None]:
    """Tune's settings, where the user has none."""
    wanted = {**TUNE, "TUNE_MAX_PENDING_TRIALS_PG": str(trials)}  # all are there from the beginning, and kept so
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    logger = logging.getLogger("ray.tune")  # prints the trace of each trial that fails
    level = logger.level
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _journal(file: Path, told: Told) -> Iterator[None]:
    Journal.file, Journal.told = file, staticmethod(told)
    yield


@dataclass(frozen=True, slots=True)
class Examined:
    """One policy to be judged.

    Attributes:
        folder: Of its run; None for a BE that is always frozen.
        algorithm: Of the run.
        courses, seeds: On which.
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
        job: The search.
        examined: A run's folder, or None for frozen, with the values whose shield it is scored under.
        cluster: Where.
        told: Called once for each.

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


def export_winner(job: Job, won: Ended) -> Result:
    """The winner's run in a folder of its own, with its bundle.

    Args:
        job: The search.
        won: A trial that has a folder.

    Raises:
        BundleError: The export failed.
    """
    assert won.folder is not None
    folder = job.out / WINNER
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(won.folder, folder)
    _drop_strays(folder)
    run = job.run_of(won.candidate.name, won.values, folder)
    origin = SearchOrigin(
        space=job.space.digest, trials=len(job.candidates), seed=job.seed, trial=won.candidate.name, place=1
    )
    return export_best(
        replace(run, export=True, search=origin), Ending.STOPPED if won.stopped_by or won.error else Ending.BUDGET
    )
