"""A training run from the first host to the bundle.

    run = TrainingRun("ppo", recipe, hosts, courses, folder=Path("runs/ppo/1"), seed=0)
    result = learn(run)

Where the folder holds a checkpoint and `resume` is set it goes on from there. `stopped` is asked at every step: once it
answers True the run writes a checkpoint, evaluates, exports and ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import CLASSES, logits_of, make, save, take_weights
from rlctl.agents.training.evaluations import METRICS, Evaluation, History, Judge
from rlctl.agents.training.export import weights_of
from rlctl.agents.training.host_groups import Happened
from rlctl.agents.training.host_kinds import build, validation_seed
from rlctl.agents.training.lagrangian import Multiplier
from rlctl.agents.training.recipe import ConstrainedPpo
from rlctl.agents.training.run_bundle import write_bundle
from rlctl.agents.training.run_folder import Checkpoint, State
from rlctl.agents.training.training_run import Ending, Tally, TrainingResult, TrainingRun, TrainingStatus
from rlctl.envs.errors import HostError, RlctlError
from rlctl.envs.observations import EXPERIENCE

if TYPE_CHECKING:
    from rlctl.agents.training.rollouts.cluster_env import Rollouts

LOG_SECONDS = 5.0
"""Between two points of a curve."""

CHECKPOINT_SECONDS = 120.0
"""Between two checkpoints: what a kill costs at most."""

EXPORT_SECONDS = 4.0
"""Kept back for the last checkpoint and the export, of which most is 2,000 observations to compare on."""

SEEDS_OF_A_BLOCK = 1_000_003
"""Distance between the seeds of two sessions of one run: far beyond the seeds that people give."""


def learn(
    run: TrainingRun,
    watch: Callable[[TrainingStatus], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    rollouts: Rollouts | None = None,
    evaluated: Callable[[Evaluation], None] | None = None,
) -> TrainingResult:
    """Train a policy, judge and export the best one.

    Args:
        rollouts: The testbeds of a cluster, which act instead of simulated hosts in this process.
        evaluated: Called after each evaluation, with a checkpoint of that moment in the folder.

    Raises:
        ConfigError: Something does not fit: a host's profile, a seed, the weights to begin with, the folder.
        HostError: No testbed is left; there is a checkpoint.
        BundleError: The export failed; the model's files are there.
    """
    if not run.resume:
        files.begin(run)
    with files.alone(run.folder):
        checkpoint = files.newest_checkpoint(run.folder) if run.resume else None
        try:
            session = _Session(run, checkpoint, watch, stopped, rollouts, evaluated)
        except RlctlError:
            if not run.resume:
                files.undo_begin(run.folder)
            raise
        with contextlib.closing(session.env):
            session.learn()
            return session.result()


def export_best(run: TrainingRun, ending: Ending) -> TrainingResult:
    """The best model of a run that goes on no more, judged and exported; ConfigError where there is none that fits."""
    session = _Session(run, files.newest_checkpoint(run.folder))
    session.ending = ending
    with contextlib.closing(session.env):
        return session.result()


class TrainingBudget:
    """What a run may spend, and what it has; `max_seconds` None is no limit.

    Attributes:
        reserve_seconds: Kept back for what follows the last step: evaluation, checkpoint, export.
    """

    def __init__(self, timesteps: int, max_seconds: float | None, spent_seconds: float) -> None:
        self._most, self._most_seconds = timesteps, max_seconds
        self._begun = time.monotonic() - spent_seconds
        self.timesteps, self.reserve_seconds = 0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds spent so far."""
        return time.monotonic() - self._begun

    def is_time_up(self, more_seconds: float = 0.0) -> bool:
        """True when so many seconds more than the reserve are not left; timesteps are the learner's to count."""
        if self._most_seconds is None:
            return False
        return self.seconds + self.reserve_seconds + more_seconds >= self._most_seconds

    def left(self) -> float:
        """Share that is left, 1 to 0, of that which runs out first."""
        spent = self.timesteps / self._most
        if self._most_seconds is not None:
            spent = max(spent, (self.seconds + self.reserve_seconds) / self._most_seconds)
        return max(1.0 - spent, 0.0)


class _Session(BaseCallback):
    """One process' part of a run: a learner, and what goes on beside its learning: curves, evaluations, checkpoints."""

    def __init__(
        self,
        run: TrainingRun,
        checkpoint: Checkpoint | None,
        watch: Callable[[TrainingStatus], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
        rollouts: Rollouts | None = None,
        evaluated: Callable[[Evaluation], None] | None = None,
    ) -> None:
        super().__init__()
        torch.set_num_threads(run.threads)
        self._run, self._watch, self._stopped, self._evaluated = run, watch, stopped, evaluated
        state = checkpoint.state if checkpoint else None
        self._block = state.block + 1 if state else 0
        self._budget = TrainingBudget(run.recipe.n_timesteps, run.max_seconds, state.seconds if state else 0.0)
        self._remarks: list[str] = []
        # Who learns without memory is judged without; all other sensors are there in every course.
        absent = [EXPERIENCE] if all(EXPERIENCE in kind.absent for kind in run.hosts.kinds) else []
        seeds = [validation_seed(number) for number in range(run.validation_seeds)]
        self._judge = Judge(run.courses, seeds, run.recipe.lags, absent)
        self._history = History(run.folder / "evaluations.npz", run.courses)
        self._last: Evaluation | None = None
        self._best: Evaluation | None = None
        self.ending = Ending.BUDGET
        set_random_seed(run.seed + self._block * SEEDS_OF_A_BLOCK)
        # As of the checkpoint: what came after it is learned from, and counted, anew.
        self._tally = (Tally.read(checkpoint.folder) if checkpoint else Tally()) if rollouts else None
        self._multiplier: Multiplier | None = None
        if isinstance(recipe := run.recipe, ConstrainedPpo):
            begun = state.multiplier if state else 1.0
            self._multiplier = Multiplier(recipe.cost_limit, recipe.multiplier_gain, begun)
        self.env, classes = self._hosts(rollouts)
        self.model: Any = make(run.algorithm, run.recipe, self.env, self._budget.left, classes)
        if self._run.export:
            weights_of(self.model)  # a network that cannot become a bundle, before the budget is spent on it
        self.model.action_space.seed(run.seed + self._block)
        self.model.set_logger(configure(str(run.folder / "tensorboard"), self._outputs()))
        self._begin(checkpoint)
        self._logged = self._evaluated_at = self._saved = time.monotonic()
        self._evaluated_timesteps = self.model.num_timesteps
        self._evaluation_seconds = 0.0

    def learn(self) -> None:
        """Train until the budget is spent or there is a reason to end; evaluated and with a checkpoint at the end."""
        model = self.model
        left = self._run.recipe.n_timesteps - model.num_timesteps
        if left > 0:
            self._evaluate_first()
            try:
                model.learn(left, self, log_interval=None, reset_num_timesteps=model.num_timesteps == 0)
            except HostError as error:
                self._checkpoint()
                raise HostError(f"{error}; what was learned is in {self._run.folder}, which can be resumed") from error
        self._budget.timesteps = model.num_timesteps
        self._checkpoint()
        if self._last is None or self._last.timesteps < model.num_timesteps or not self._best_file.is_file():
            self._evaluate()
        if left > 0:
            self._log()

    def result(self) -> TrainingResult:
        """The best model judged and, where asked for, exported."""
        take_weights(self.model, self._best_file)
        best = self._best or self._judged()  # of an earlier session there is only the model
        timesteps, seconds, bundle = self.model.num_timesteps, self._budget.seconds, None
        if self._run.export:
            bundle = write_bundle(self._run, self.model, seconds, self._tally)
        return TrainingResult(
            self._run, self.ending, timesteps, seconds, best, bundle, tuple(self._remarks), self._tally
        )

    def _on_step(self) -> bool:
        self._budget.timesteps = self.num_timesteps
        if self._stopped():
            self.ending = Ending.STOPPED
        return self.ending is Ending.BUDGET and not self._budget.is_time_up()

    def _on_rollout_end(self) -> None:
        now, recipe = time.monotonic(), self._run.recipe
        if self._multiplier:
            self._multiplier.update()
        if self._is_evaluation_due(now):
            self._evaluate()
            self._evaluated_at, self._evaluated_timesteps = time.monotonic(), self.num_timesteps
            if recipe.early_stop is not None and self._history.without_gain >= recipe.early_stop:
                self.ending = Ending.NO_GAIN
        if now - self._saved >= CHECKPOINT_SECONDS:
            self._checkpoint()
            self._saved = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._log()
            self._tell("")
            self._logged = time.monotonic()

    def _is_evaluation_due(self, now: float) -> bool:
        if self._budget.is_time_up(self._evaluation_seconds):
            return False  # the last one follows soon
        steps, seconds = self._run.recipe.eval_every_timesteps, self._run.recipe.eval_every_seconds
        if steps is not None and self.num_timesteps - self._evaluated_timesteps >= steps:
            return True
        return seconds is not None and now - self._evaluated_at >= seconds

    @property
    def _best_file(self) -> Path:
        return self._run.folder / files.BEST

    def _judged(self) -> Evaluation:
        return self._judge.evaluate(logits_of(self.model), self.model.num_timesteps, self._budget.seconds)

    def _evaluate_first(self) -> None:
        """The curve's point before learning; a session that goes on has it, and only sees how long one takes."""
        begun = time.monotonic()
        _ = self._judge.least
        self._keep_back(time.monotonic() - begun)
        if not len(self._history):
            self._score()
        if self._budget.is_time_up():
            each, most = self._evaluation_seconds, self._run.max_seconds
            self._remarks.append(f"{most:g} s leave no time to learn, for an evaluation takes {each:.1f} s: give more")

    def _keep_back(self, evaluation_seconds: float) -> None:
        self._evaluation_seconds = evaluation_seconds
        self._budget.reserve_seconds = evaluation_seconds + (EXPORT_SECONDS if self._run.export else 0.0)

    def _evaluate(self) -> None:
        """Score the policy as it is, and keep it if it is the best."""
        best_merit = self._history.best_merit
        now = self._score()
        if now.merit > best_merit or not self._best_file.is_file():
            save(self.model, self._best_file)
            self._best = now
        if self._evaluated is not None:
            self._checkpoint()
            self._evaluated(now)

    def _score(self) -> Evaluation:
        self._tell("evaluating")
        begun = time.monotonic()
        self.model.policy.set_training_mode(False)
        self._last = now = self._judged()
        self._keep_back(time.monotonic() - begun)
        self._history.add(now)
        for name, trial in now.trials.items():
            for metric in METRICS:
                self.logger.record(f"eval/{name}/{metric}", float(getattr(trial, metric).mean()))
        self.logger.record("eval/merit", now.merit)
        self.logger.dump(now.timesteps)
        self._tell("")
        return now

    def _checkpoint(self) -> None:
        """Write down everything from which the run goes on."""
        model, folder = self.model, self._run.folder
        into = files.checkpoint_folder(folder, model.num_timesteps)
        save(model, into / files.MODEL)
        if isinstance(model, OffPolicyAlgorithm):
            files.write_replay(model.replay_buffer, into)
        if self._tally is not None:
            self._tally.write(into)
            self._tally.write(folder)
        state = State(
            timesteps=model.num_timesteps,
            seconds=self._budget.seconds,
            calls=getattr(model, "_n_calls", 0),
            block=self._block,
            multiplier=self._multiplier.value if self._multiplier else 1.0,
        )
        files.write_state(into, state)
        files.drop_older(folder, into)

    def _tell(self, activity: str) -> None:
        done = 1.0 - self._budget.left()
        self._watch(TrainingStatus(self.model.num_timesteps, done, self._budget.seconds, activity, self._last))

    def _log(self) -> None:
        """One point of every curve."""
        counts, record = self.env.take_counts(), self.logger.record
        if counts.episode_rewards:
            record("rollout/ep_rew_mean", float(np.mean(counts.episode_rewards)))
            record("rollout/ep_len_mean", float(np.mean(counts.episode_steps)))
        total = sum(counts.happened.values(), Happened())
        for prefix, one in (("rlctl", total), *((f"rlctl/{kind}", one) for kind, one in counts.happened.items())):
            if one.ticks:
                record(f"{prefix}/slo_violation_ratio", one.missed / one.ticks)
                record(f"{prefix}/be_throughput_ratio", one.be_work / one.ticks)
                record(f"{prefix}/shield_override_ratio", one.overridden / one.ticks)
        if self._multiplier:
            record("rlctl/multiplier", self._multiplier.value)
        if self._tally:
            for name in ("learned", "lost", "losses"):
                record(f"rollouts/{name}", self._tally.total(name))
            self._tally.write(self._run.folder)
        self.model.dump_logs()

    def _hosts(self, rollouts: Rollouts | None) -> tuple[Any, Mapping[str, type[BaseAlgorithm]]]:
        """What is learned on: the environment, and the learners that it takes."""
        run, recipe = self._run, self._run.recipe
        if rollouts is None:
            here = build(
                run.hosts, recipe.n_envs, run.seed, recipe.lags, block=self._block, multiplier=self._multiplier
            )
            return here, CLASSES
        from rlctl.agents.training.rollouts.learners import ROLLOUT_CLASSES

        assert self._tally is not None
        far = rollouts.env(run.hosts, recipe.n_envs, run.seed, recipe.lags, self._block, self._tally)
        return far, ROLLOUT_CLASSES

    def _outputs(self) -> list[str]:
        if find_spec("tensorboard") is None:
            self._remarks.append("no curves: tensorboard is not installed (pip install 'rlctl[train]')")
            return []
        return ["tensorboard"]

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Weights and counters of the checkpoint, or those that a new run begins with."""
        model = self.model
        if checkpoint is None:
            if self._run.init:
                take_weights(model, self._run.init, policy_only=True)
            return
        take_weights(model, checkpoint.folder / files.MODEL)
        state = checkpoint.state
        model.num_timesteps = self._budget.timesteps = state.timesteps
        if isinstance(model, OffPolicyAlgorithm):
            model._n_calls = state.calls  # type: ignore[attr-defined]
            buffer: Any = model.replay_buffer
            kept = files.read_replay(buffer, checkpoint.folder)
            # It goes on learning once there is as much to draw from as in the beginning.
            lacking = model.learning_starts - buffer.size() * buffer.n_envs
            model.learning_starts = max(model.learning_starts, state.timesteps + lacking)
            if not kept:
                self._remarks.append("the replay buffer was not kept, or does not fit: it is filled anew")
                self._tell(self._remarks[-1])
