"""A training run from the first host to the bundle.

    result = learn(Run(algorithm="ppo", recipe=recipe, hosts=hosts, courses=courses, folder=Path("runs/ppo/1"), seed=0))

Where the folder holds a checkpoint and `resume` is set it goes on from there. `stopped` is asked at every step: once it
answers True the run writes a checkpoint, evaluates, exports and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.evaluations import Evaluation, History, Judge
from rlctl.agents.training.hosts import build, present
from rlctl.agents.training.learners import CLASSES, logits_of, make, save, take_weights
from rlctl.agents.training.rollouts.tally import Tally
from rlctl.agents.training.run import Ending, Result, Run, Status
from rlctl.agents.training.run_folder import Checkpoint, State
from rlctl.agents.training.warm_start import clone, pairs_of
from rlctl.envs.errors import HostError

if TYPE_CHECKING:
    from rlctl.agents.training.rollouts.cluster_env import Rollouts

__all__ = ["export_best", "learn"]

LOG_SECONDS = 5.0


def learn(
    run: Run,
    watch: Callable[[Status], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    rollouts: Rollouts | None = None,
    evaluated: Callable[[Evaluation], None] | None = None,
) -> Result:
    """Train.

    Args:
        run: What to do.
        watch: Called with how far it has come, several times a minute.
        stopped: True asks to end early.
        rollouts: The testbeds of a cluster, which act instead of simulated hosts in this process.
        evaluated: Called after each evaluation, with a checkpoint of that moment in the folder.

    Raises:
        ConfigError: Something does not fit: a host's profile, a seed, the weights to begin with, the folder.
        HostError: No testbed is left; there is a checkpoint.
        BundleError: The export failed; the model's files are there.
    """
    torch.set_num_threads(run.threads)
    checkpoint = files.newest_checkpoint(run.folder) if run.resume else None
    if not run.resume:
        files.begin(run.folder, run.recipe, run.hosts, run.arguments, run.command)
    session = _Session(run, checkpoint, watch, stopped, rollouts, evaluated)
    try:
        return session.result(session.learn())
    finally:
        session.env.close()


def export_best(run: Run, ending: Ending) -> Result:
    """The best model of a run that goes on no more, judged and exported.

    Args:
        run: Whose folder holds a checkpoint.
        ending: Why it ended.

    Raises:
        ConfigError: There is no checkpoint, or something does not fit it.
        BundleError: The export failed.
    """
    torch.set_num_threads(run.threads)
    session = _Session(run, files.newest_checkpoint(run.folder))
    try:
        return session.result(ending)
    finally:
        session.env.close()


class Budget:
    """What a run may spend, and what it has.

    Args:
        timesteps: Control periods at most.
        max_seconds: Seconds at most, or None.
        spent_seconds: In earlier sessions.
    """

    def __init__(self, timesteps: int, max_seconds: float | None, spent_seconds: float) -> None:
        self._most, self._most_seconds = timesteps, max_seconds
        self._begun = time.monotonic() - spent_seconds
        self.timesteps = 0

    @property
    def seconds(self) -> float:
        """Spent so far."""
        return time.monotonic() - self._begun

    @property
    def time_is_up(self) -> bool:
        """True when no second is left; the end of the timesteps is the learner's to see."""
        return self._most_seconds is not None and self.seconds >= self._most_seconds

    def left(self) -> float:
        """Share that is left, 1 to 0, of that which runs out first."""
        spent = self.timesteps / self._most
        if self._most_seconds is not None:
            spent = max(spent, self.seconds / self._most_seconds)
        return max(1.0 - spent, 0.0)


class _Session:
    """One process' part of a run."""

    def __init__(
        self,
        run: Run,
        checkpoint: Checkpoint | None,
        watch: Callable[[Status], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
        rollouts: Rollouts | None = None,
        evaluated: Callable[[Evaluation], None] | None = None,
    ) -> None:
        self.run, self.watch, self.stopped, self.evaluated = run, watch, stopped, evaluated
        state = checkpoint.state if checkpoint else None
        self.block = state.block + 1 if state else 0
        self.budget = Budget(run.recipe.n_timesteps, run.max_seconds, state.seconds if state else 0.0)
        self.remarks: list[str] = []
        self.judge = Judge(run.courses, run.validation_seeds, run.recipe.lags)
        self.history = History(run.folder / "evaluations.npz", run.courses)
        self.last: Evaluation | None = None
        self.best: Evaluation | None = None
        set_random_seed(run.seed + self.block * 1_000_003)
        self.tally = self._tally(checkpoint) if rollouts else None
        self.env, self.kinds, classes = self._hosts(rollouts)
        self.model = make(run.algorithm, run.recipe, self.env, self.budget.left, classes)
        self.model.action_space.seed(run.seed + self.block)
        self.model.set_logger(configure(str(run.folder / "tensorboard"), self._outputs()))
        self._begin(checkpoint)

    def learn(self) -> Ending:
        """Train until the budget is spent or there is a reason to end; evaluated and with a checkpoint at the end."""
        left = self.run.recipe.n_timesteps - self.model.num_timesteps
        overseer = _Overseer(self)
        if left > 0:
            self._learn(left, overseer)
        self.budget.timesteps = self.model.num_timesteps
        self.checkpoint()
        if self.last is None or self.last.timesteps < self.model.num_timesteps:
            self.evaluate()
        if left > 0:
            overseer.log()
        return overseer.ending

    def _learn(self, left: int, overseer: _Overseer) -> None:
        try:
            self.model.learn(left, overseer, log_interval=None, reset_num_timesteps=self.model.num_timesteps == 0)
        except HostError as error:
            self.checkpoint()
            raise HostError(f"{error}; what was learned is in {self.run.folder}, which can be resumed") from error

    def evaluate(self) -> None:
        """Score the policy as it is, and keep it if it is the best."""
        self.tell("evaluating")
        self.model.policy.set_training_mode(False)
        now = self.judge.evaluate(lambda: logits_of(self.model), self.model.num_timesteps, self.budget.seconds)
        self.last = now
        if now.merit > self.history.best_merit or not (self.run.folder / files.BEST).is_file():
            save(self.model, self.run.folder / files.BEST)
            self.best = now
        self.history.add(now)
        for name, trial in now.trials.items():
            self.model.logger.record(f"eval/{name}/qos_percent", float(trial.qos_percent.mean()))
            self.model.logger.record(f"eval/{name}/be_percent", float(trial.be_percent.mean()))
            self.model.logger.record(f"eval/{name}/override_percent", float(trial.override_percent.mean()))
        self.model.logger.record("eval/merit", now.merit)
        self.tell("")
        if self.evaluated is not None:
            self.checkpoint()
            self.evaluated(now)

    def checkpoint(self) -> None:
        """Write down everything from which the run goes on."""
        model, into = self.model, files.checkpoint_folder(self.run.folder, self.model.num_timesteps)
        save(model, into / files.MODEL)
        if isinstance(model, OffPolicyAlgorithm):
            files.write_replay(model.replay_buffer, into)
        state = State(
            timesteps=model.num_timesteps,
            seconds=self.budget.seconds,
            updates=model._n_updates,
            calls=getattr(model, "_n_calls", 0),
            episodes=model._episode_num,
            block=self.block,
        )
        if self.tally is not None:
            self.tally.write(into)
            self.tally.write(self.run.folder)
        files.write_state(into, state)
        files.drop_older(self.run.folder, into)

    def result(self, ending: Ending) -> Result:
        """The best model judged and, where asked for, exported."""
        take_weights(self.model, self.run.folder / files.BEST)
        best = self.best  # of an earlier session there is only the model
        if best is None:
            best = self.judge.evaluate(lambda: logits_of(self.model), self.model.num_timesteps, self.budget.seconds)
        bundle = self._exported() if self.run.export else None
        return Result(
            self.run.folder,
            ending,
            self.model.num_timesteps,
            self.budget.seconds,
            best,
            bundle,
            tuple(self.remarks),
            self.tally,
        )

    def tell(self, doing: str) -> None:
        """Let the watcher know."""
        done = 1.0 - self.budget.left()
        self.watch(Status(self.model.num_timesteps, done, self.budget.seconds, doing, self.last))

    @staticmethod
    def _tally(checkpoint: Checkpoint | None) -> Tally:
        """As of the checkpoint: what came after it is learned from, and counted, anew."""
        return Tally.read(checkpoint.folder) if checkpoint else Tally()

    def _hosts(self, rollouts: Rollouts | None) -> tuple[Any, list[str], Mapping[str, type[BaseAlgorithm]]]:
        """What is learned on: the environment, its kinds of hosts, and the learners that it takes."""
        run, recipe = self.run, self.run.recipe
        if rollouts is None:
            env = build(run.hosts, recipe.n_envs, run.seed, recipe.lags, block=self.block)
            return env, [kind.name for kind, _ in present(run.hosts, recipe.n_envs)], CLASSES
        from rlctl.agents.training.rollouts.segment_learners import ROLLOUT_CLASSES

        assert self.tally is not None
        far = rollouts.env(run.hosts, recipe.n_envs, run.seed, recipe.lags, self.block, self.tally)
        return far, far.kinds, ROLLOUT_CLASSES

    def _outputs(self) -> list[str]:
        if find_spec("tensorboard") is None:
            self.remarks.append("no curves: tensorboard is not installed (pip install 'rlctl[train]')")
            return []
        return ["tensorboard"]

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Weights and counters of the checkpoint, or those that a new run begins with."""
        model = self.model
        if checkpoint is None:
            if self.run.init:
                take_weights(model, self.run.init, policy_only=True)
            self._warm_start()
            return
        take_weights(model, checkpoint.model)
        state = checkpoint.state
        model.num_timesteps = self.budget.timesteps = state.timesteps
        model._n_updates, model._episode_num = state.updates, state.episodes
        if isinstance(model, OffPolicyAlgorithm):
            model._n_calls = state.calls  # type: ignore[attr-defined]
            if not files.read_replay(model.replay_buffer, checkpoint.folder):
                self.remarks.append("the replay buffer was too large to be kept: it is filled anew")

    def _warm_start(self) -> None:
        asked = getattr(self.run.recipe, "warm_start", None)
        if asked is None:
            return
        self.tell(f"imitating {asked.manager}")
        pairs = pairs_of(self.run.hosts, asked.manager, asked.samples, self.run.seed, self.run.recipe.lags)
        agreed = clone(self.model, pairs, asked.epochs)
        self.remarks.append(f"begun like {asked.manager}: the same move in {agreed:.0%} of {len(pairs.moves)} states")

    def _exported(self) -> Path | None:
        """The best model's bundle; with a remark where it cannot have one."""
        from rlctl.agents.training.export import ALGORITHMS
        from rlctl.agents.training.run_bundle import FEWEST_HOSTS, write_bundle

        if CLASSES[self.run.algorithm].__name__ not in ALGORITHMS:
            self.remarks.append(f"no bundle: the memory of {self.run.algorithm} is nothing that a bundle holds")
            return None
        env = self.env
        if self.tally is not None:  # its hosts are elsewhere, and busy
            env = build(self.run.hosts, FEWEST_HOSTS, self.run.seed, self.run.recipe.lags, block=self.block)
        return write_bundle(self.run, self.model, env, self.budget.seconds, self.tally)


class _Overseer(BaseCallback):
    """What goes on beside the learning: curves, evaluations, checkpoints, and the end."""

    def __init__(self, session: _Session) -> None:
        super().__init__()
        self.ending = Ending.BUDGET
        self._session = session
        now = time.monotonic()
        self._logged = self._evaluated = self._saved = now
        self._evaluated_timesteps = session.model.num_timesteps

    def _on_step(self) -> bool:
        session = self._session
        session.budget.timesteps = self.num_timesteps
        if session.stopped():
            self.ending = Ending.STOPPED
        return self.ending is Ending.BUDGET and not session.budget.time_is_up

    def _on_rollout_end(self) -> None:
        now, session = time.monotonic(), self._session
        if self._due(now):
            session.evaluate()
            self._evaluated, self._evaluated_timesteps = time.monotonic(), self.num_timesteps
            limit = session.run.recipe.early_stop
            if limit is not None and session.history.without_gain >= limit:
                self.ending = Ending.NO_GAIN
        if now - self._saved >= session.run.checkpoint_seconds:
            session.checkpoint()
            self._saved = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self.log()
            session.tell("")
            self._logged = time.monotonic()

    def _due(self, now: float) -> bool:
        recipe = self._session.run.recipe
        by_steps = recipe.eval_every_timesteps
        if by_steps is not None and self.num_timesteps - self._evaluated_timesteps >= by_steps:
            return True
        by_seconds = recipe.eval_every_seconds
        return by_seconds is not None and now - self._evaluated >= by_seconds

    def log(self) -> None:
        """One point of every curve."""
        session = self._session
        counts, record = session.env.take_counts(), session.model.logger.record
        if len(counts.episode_rewards):
            record("rollout/ep_rew_mean", float(counts.episode_rewards.mean()))
            record("rollout/ep_len_mean", float(counts.episode_steps.mean()))
        sums = {
            "slo_violation_ratio": counts.missed,
            "be_throughput_ratio": counts.be_work,
            "shield_override_ratio": counts.overridden,
        }
        if counts.ticks.sum():
            for name, values in sums.items():
                record(f"rlctl/{name}", float(values.sum() / counts.ticks.sum()))
                for kind, value, ticks in zip(session.kinds, values, counts.ticks, strict=True):
                    if ticks:
                        record(f"rlctl/{kind}/{name}", float(value / ticks))
        if session.tally:
            for name, total in session.tally.curves().items():
                record(f"rollouts/{name}", total)
            session.tally.write(session.run.folder)
        session.model.dump_logs()
