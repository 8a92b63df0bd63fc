"""Fine-tuning of a trained policy on one live testbed, behind the shield and within bounds of exploration.

    task = FineTuningTask(init=Path("best_model.zip"), folder=Path("runs/live/1"), timesteps=600)
    outcome = fine_tune(task, lambda lags: LiveWorker(replace(testbed, lags=lags)))

These are rollouts as on a Ray cluster, with one testbed and in this process. They go in rounds: the policy is measured
as it is, learns for some minutes, is measured again, and so on. Measured policies do not explore. A later one is kept
only if it held more windows than the best so far, or as many with more BE work; otherwise the initial one stays.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from pydantic import JsonValue
from sb3_contrib import QRDQN
from stable_baselines3.common.logger import configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import head_of, save, share_gradients
from rlctl.agents.training.export import export as export_model
from rlctl.agents.training.export import weights_of
from rlctl.agents.training.live.bounded import Bounds, Step
from rlctl.agents.training.rollouts.learners import ROLLOUT_CLASSES, OneHost
from rlctl.agents.training.rollouts.live_testbed import LiveWorker
from rlctl.agents.training.rollouts.worker import Orders
from rlctl.agents.training.sb3_model import lags_of, load_model, parts_of, recorded
from rlctl.envs.errors import ConfigError, RlctlError

OUTCOME = "live.json"

ROUND_TICKS, ROLLOUT_TICKS = 300, 60
"""Most ticks between two measurements, and most between two updates of PPO."""

LEAST_TIMESTEPS = 2

BATCH, TARGET_TICKS = 64, 100
"""DQN: samples of an update, also those that it begins to learn with; and ticks between two target networks."""

CLIP_RANGE = 0.1
"""PPO: half of what it is where hosts are cheap."""

RATE_RATIO = 0.1
"""The learning rate, as a share of the one that the model was trained with."""


@dataclass(frozen=True, slots=True)
class FineTuningTask:
    """What a fine-tuning has to learn; ConfigError for too few timesteps.

    Attributes:
        init: The model to begin with, a zip of one's own: opening it runs what it holds.
        timesteps: Control periods to learn from; a few less where they do not part into equal rounds.
        evaluation_ticks: Length of each measurement, in control periods.
    """

    init: Path
    folder: Path
    timesteps: int
    evaluation_ticks: int = 60
    bounds: Bounds = field(default_factory=Bounds)
    seed: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        if self.timesteps < LEAST_TIMESTEPS:
            raise ConfigError(f"{self.timesteps} timesteps are none to learn from; give {LEAST_TIMESTEPS} or more")

    @property
    def ticks(self) -> int:
        """Control periods of all phases."""
        rounds, each, _ = rounds_of(self.timesteps)
        return rounds * each + (rounds + 1) * self.evaluation_ticks


@dataclass(slots=True)
class Phase:
    """Counts of a stretch of ticks: a measurement, or a round of learning.

    Attributes:
        name: `before`, `learning 1`, `after 1`, ...
        be_work: Sum of BE's work, as a share of BE running alone.
    """

    name: str
    ticks: int = 0
    violations: int = 0
    overrides: int = 0
    explored: int = 0
    missed_deadlines: int = 0
    be_work: float = 0.0

    def add(self, step: Step) -> None:
        """Count one more tick."""
        self.ticks += 1
        self.violations += not step.held
        self.overrides += step.overridden
        self.explored += step.proposed != step.chosen
        self.missed_deadlines += step.missed_deadlines
        self.be_work += step.be_work_ratio

    @property
    def rank(self) -> tuple[float, float]:
        """QoS first, then BE: percent of windows that held the target, percent of BE running alone."""
        share = 100.0 / max(self.ticks, 1)
        return share * (self.ticks - self.violations), share * self.be_work

    def as_json(self) -> dict[str, object]:
        """Counts and percentages by name."""
        qos, be = self.rank
        named = asdict(self)
        del named["be_work"]
        return {**named, "qos_guarantee_percent": round(qos, 4), "be_throughput_percent": round(be, 4)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fine-tuning.

    Attributes:
        best: The measurement of the policy that is kept.
        interrupted: Why it ended early; empty when it did not.
        bundle: The folder of the exported policy, if that was asked for.
    """

    task: FineTuningTask
    phases: tuple[Phase, ...]
    best: Phase
    timesteps: int
    seconds: float
    interrupted: str = ""
    bundle: Path | None = None

    @property
    def improved(self) -> bool:
        """False: the initial policy is kept."""
        return self.best is not self.phases[0]

    def as_json(self) -> dict[str, object]:
        """For `--json` and the folder."""
        return {
            "schema": 1,
            "folder": str(self.task.folder),
            "init": str(self.task.init),
            "improved": self.improved,
            "best": self.best.name,
            "timesteps": self.timesteps,
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "phases": [one.as_json() for one in self.phases],
        }


def fine_tune(
    task: FineTuningTask,
    begin: Callable[[tuple[int, ...]], LiveWorker],
    watch: Callable[[str], None] = lambda _: None,
    *,
    export: bool = True,
) -> Outcome:
    """Start the testbed, learn, take the testbed down again, whatever happened, and export.

    Args:
        begin: Starts it, for a policy that looks so many ticks back.

    Raises:
        ConfigError: The model or the folder does not fit.
        HostError: The testbed could not be run, or failed before anything was measured.
    """
    tuning = FineTuning(task)  # loading takes seconds, in which nobody would look after the LC
    outcome: Outcome | None = None
    try:
        with contextlib.closing(begin(tuning.lags)) as running:
            outcome = tuning.run(running, watch)
    except KeyboardInterrupt:
        if outcome is None:
            raise
        outcome = replace(outcome, interrupted="Ctrl-C")  # while the testbed was taken down: nothing is lost
    return replace(outcome, bundle=tuning.export(outcome, "live")) if export else outcome


def rounds_of(timesteps: int) -> tuple[int, int, int]:
    """How many rounds, how many ticks each has, and how many of them a rollout of PPO has: all of one length."""
    count = -(-timesteps // ROUND_TICKS)
    each = timesteps // count
    rollout = each // -(-each // ROLLOUT_TICKS)
    return count, each // rollout * rollout, rollout


class FineTuning:
    """A policy that goes on learning; made before anything starts on the host, for loading a model takes seconds."""

    def __init__(self, task: FineTuningTask) -> None:
        self.task, self.model = task, load_model(task.init)
        self.lags = lags_of(task.init, self.model)
        folder = task.folder
        files.check_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files.note_origin(folder, task.arguments, task.command)

    def run(self, running: LiveWorker, watch: Callable[[str], None] = lambda _: None) -> Outcome:
        """Measure, learn, measure again.

        An error of the host or Ctrl-C after the first measurement ends it early, and is told in the outcome. The policy
        that is kept is `best_model.zip` in the folder.

        Args:
            running: The testbed, under load and with BE started. It stays the caller's, who closes it.

        Raises:
            HostError: The host failed before anything was measured.
        """
        begun, folder, task = time.monotonic(), self.task.folder, self.task
        self._running, self._watch, self._tick_seconds = running, watch, running.tick_seconds
        self._env = OneHost(running, self.lags)
        rounds, each, rollout = rounds_of(task.timesteps)
        self.learner = _learner(self.model, self._env, task, rollout)
        self.phases: list[Phase] = []
        shutil.copyfile(task.init, folder / files.BEST)
        with (folder / files.TRANSITIONS).open("w", encoding="utf-8") as record:
            running.note = lambda step: self._note(step, record)
            best, interrupted = self._go_through(rounds, each)
        timesteps, seconds = int(self.learner.num_timesteps), time.monotonic() - begun
        outcome = Outcome(task, tuple(self.phases), best, timesteps, seconds, interrupted)
        (folder / OUTCOME).write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
        return outcome

    def _go_through(self, rounds: int, each: int) -> tuple[Phase, str]:
        """All rounds; returns what measured the policy that is kept, and why it ended early, or nothing."""
        best: Phase | None = None
        try:
            best = self._measure("before")
            for number in range(1, rounds + 1):
                self._learn(number, each)
                now = self._measure(f"after {number}")
                if now.rank > best.rank:
                    save(self.learner, self.task.folder / files.BEST)
                    best = now
        except (RlctlError, KeyboardInterrupt) as error:
            if best is None:
                raise
            return best, str(error) or "Ctrl-C"
        return best, ""

    def _measure(self, name: str) -> Phase:
        """The policy as it is served: its best move alone."""
        phase = self._begin(name, exploring=False)
        self._env.budget = ticks = self.task.evaluation_ticks
        self._env.sample(weights_of(self.learner), Orders(ticks, epsilon=0.0))
        return phase

    def _learn(self, number: int, ticks: int) -> None:
        self._begin(f"learning {number}", exploring=True)
        self._env.budget = ticks
        self.learner.learn(ticks, log_interval=None, reset_num_timesteps=self.learner.num_timesteps == 0)

    def _begin(self, name: str, *, exploring: bool) -> Phase:
        self.phases.append(phase := Phase(name))
        self._running.host.exploring = exploring
        self._running.restart()
        return phase

    def _note(self, step: Step, record: TextIO) -> None:
        """Count and write down a step; a line that is written stays, whatever comes."""
        phase = self.phases[-1]
        phase.add(step)
        record.write(json.dumps({"phase": phase.name, **step.as_json()}) + "\n")
        record.flush()
        self._watch(phase.name)

    def export(self, outcome: Outcome, name: str) -> Path:
        """Write the bundle of the policy that is kept; returns its folder. The model's file is there anyway."""
        kept, out = self.task.folder / files.BEST, self.task.folder / "bundle"
        model = load_model(kept)
        task, parts = self.task, parts_of(model, kept, self.lags)
        trained, before = parts.training, files.card_beside(task.init)
        live: dict[str, JsonValue] = {
            "init": str(task.init),
            "kept_initial": not outcome.improved,
            "timesteps": outcome.timesteps,
            "rate_ratio": RATE_RATIO,
            "explore": task.bounds.probability,
            "explore_slack_ratio": task.bounds.least_slack_ratio,
        }
        learned = before.training.total_timesteps if before else int(self.model.num_timesteps)
        training = trained.model_copy(
            update={
                "hyperparameters": {**trained.hyperparameters, "live": live},
                "total_timesteps": learned + (outcome.timesteps if outcome.improved else 0),
                "wall_seconds": round(outcome.seconds, 1),
                "seed": task.seed,
                "code": files.code_version(),
            }
        )
        # By the hosts that it learned on before, too, a reading that this host loses is unlike its training.
        plants = before.plants if before else ()
        updated = {"training": training, "plants": plants, "tick_seconds": self._tick_seconds}
        card = parts.model_copy(update=updated)
        export_model(model, out, name=name, card=card, observations=recorded(self.lags))
        return out


def _learner(initial: Any, env: OneHost, task: FineTuningTask, rollout_ticks: int) -> Any:
    """A learner with the weights of a model, its network and its discount, that learns slowly.

    PPO goes on as MaskablePPO: it needs the probabilities of its own distribution, which is then the policy's,
    restricted to the allowed moves. Where these are one, there is nothing to choose and only the value learns.
    """
    rate = initial.learning_rate
    arguments = {
        "learning_rate": RATE_RATIO * float(rate(1.0) if callable(rate) else rate),
        "gamma": initial.gamma,
        "policy_kwargs": initial.policy_kwargs,
        "seed": task.seed,
        "device": "cpu",
    }
    if isinstance(initial, OffPolicyAlgorithm):
        algorithm = "qrdqn" if isinstance(initial, QRDQN) else "dqn"
        arguments |= {
            "buffer_size": task.timesteps,
            "learning_starts": min(BATCH, task.timesteps // 2),
            "batch_size": BATCH,
            "train_freq": 1,
            "gradient_steps": 1,
            "target_update_interval": TARGET_TICKS,
        }
    else:
        algorithm = "maskable-ppo"
        kept = ("n_epochs", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
        arguments |= {"n_steps": rollout_ticks, "batch_size": rollout_ticks, "clip_range": CLIP_RANGE}
        arguments |= {name: getattr(initial, name) for name in kept}
    learner: Any = ROLLOUT_CLASSES[algorithm]
    made = learner("MlpPolicy", env, **arguments)
    made.policy.load_state_dict(initial.policy.state_dict())
    share_gradients(head_of(made))
    made.set_logger(configure(None, []))
    return made
