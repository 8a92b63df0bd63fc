"""Fine-tuning of a trained policy on a live host, behind the shield and within bounds (`bounded`).

    run = begin(Task(init=Path("best_model.zip"), folder=Path("runs/live/1"), timesteps=600))
    outcome = fine_tune(run, plant, safety)
    bundle = export(outcome, "live")

It goes in rounds. First the policy is measured as it is; then it learns for some minutes, is measured again, and so on.
Measured policies do not explore. A later one is kept only if it held more windows than the best so far, or as many with
more BE work; otherwise the initial one stays.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from rlctl.agents.served.card import CardParts, Training
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.learners import logits_of, save
from rlctl.agents.training.live.bounded import BoundedHost, Bounds, Step
from rlctl.agents.training.live.learners import learner
from rlctl.agents.training.live.patient_plant import PatientPlant
from rlctl.agents.training.sb3_model import load_model, parts_of, recorded
from rlctl.envs.errors import ConfigError, RlctlError
from rlctl.envs.host_env import HostEnv
from rlctl.envs.observation import LAGS
from rlctl.envs.plant import Plant
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.safety.wrapper import ShieldedEnv

__all__ = ["TRANSITIONS", "Outcome", "Phase", "Run", "Task", "begin", "export", "fine_tune", "rounds_of"]

TRANSITIONS, LIVE = "transitions.jsonl", "live.json"

ROUND_TICKS, ROLLOUT_TICKS = 300, 60
"""Most ticks between two measurements, and most between two updates of PPO."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to do.

    Attributes:
        init: The model to begin with, a zip of one's own: opening it runs what it holds.
        folder: Of the run; made.
        timesteps: Control periods to learn from; a few less where they do not part into equal rounds.
        evaluation_ticks: Length of each measurement.
        bounds: Of exploration.
        rate_ratio: The learning rate, as a share of the one that the model was trained with.
        seed: Of draws and batches.
        arguments, command: For the folder: what the user asked for.
    """

    init: Path
    folder: Path
    timesteps: int
    evaluation_ticks: int = 60
    bounds: Bounds = field(default_factory=Bounds)
    rate_ratio: float = 0.1
    seed: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A task that can begin.

    Attributes:
        task: What to do.
        model: The policy as it is, a model of Stable-Baselines3.
        lags: Ticks back that it sees.
    """

    task: Task
    model: Any
    lags: tuple[int, ...]


@dataclass(slots=True)
class Phase:
    """Counts of a stretch of ticks: a measurement, or a round of learning.

    Attributes:
        name: `before`, `learning 1`, `after 1`, ...
        ticks, violations, overrides, explored, missed_deadlines: How many.
        be_work: Sum of BE's work by BE running alone.
    """

    name: str
    ticks: int = 0
    violations: int = 0
    overrides: int = 0
    explored: int = 0
    missed_deadlines: int = 0
    be_work: float = 0.0

    def add(self, step: Step) -> None:
        """One more tick."""
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
        """By name."""
        qos, be = self.rank
        counts = ("name", "ticks", "violations", "overrides", "explored", "missed_deadlines")
        named = {name: getattr(self, name) for name in counts}
        return {**named, "qos_guarantee_percent": round(qos, 4), "be_throughput_percent": round(be, 4)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        task: What was to be done.
        phases: In the order of time.
        best: The measurement of the policy that is kept.
        timesteps: Control periods learned from.
        seconds: Wall-clock time.
        interrupted: Why it ended early; empty when it did not.
    """

    task: Task
    phases: tuple[Phase, ...]
    best: Phase
    timesteps: int
    seconds: float
    interrupted: str = ""

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


def rounds_of(timesteps: int) -> tuple[int, int, int]:
    """How many rounds, how many ticks each has, and how many of them a rollout of PPO has: all of one length."""
    count = -(-timesteps // ROUND_TICKS)
    each = timesteps // count
    rollout = each // -(-each // ROLLOUT_TICKS)
    return count, each // rollout * rollout, rollout


def begin(task: Task) -> Run:
    """Load the model and make the folder, before anything is started on the host.

    Raises:
        ConfigError: The model does not fit, or the folder holds a run.
    """
    model = load_model(task.init)
    run = Run(task, model, lags_of(task.init, model))
    _make_folder(task)
    return run


def fine_tune(
    run: Run,
    plant: Plant,
    safety: Profile,
    restart: Callable[[], None] = lambda: None,
    watch: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Measure, learn, measure again; export afterwards with `export`, when nothing has to be held any more.

    An error of the host or Ctrl-C after the first measurement ends it early, and is told in the outcome. The policy
    that is kept is `best_model.zip` in the folder.

    Args:
        run: What `begin` gave.
        plant: The host, under load and with BE started. It stays the caller's, who restores it.
        safety: The shield's constants.
        restart: Called at the start of each phase, such as to let the load begin anew.
        watch: Called after each tick with what is being done.

    Raises:
        HostError: The host failed before anything was measured.
    """
    begun, task = time.monotonic(), run.task
    with _Session(run, plant, safety, restart, watch) as session:
        interrupted = session.run()
    outcome = Outcome(task, tuple(session.phases), session.best, session.learned, time.monotonic() - begun, interrupted)
    (task.folder / LIVE).write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
    return outcome


def export(outcome: Outcome, name: str) -> Path:
    """Write the bundle of the policy that is kept; returns its folder.

    Raises:
        BundleError: It cannot be exported; the model's file is there.
    """
    from rlctl.agents.training.export import export as export_model

    task, kept = outcome.task, outcome.task.folder / files.BEST
    model = load_model(kept)
    parts = parts_of(model, kept, lags_of(task.init, model))
    out = task.folder / "bundle"
    export_model(model, out, name=name, card=_card(parts, outcome), observations=recorded(parts.lags))
    return out


def lags_of(init: Path, model: Any) -> tuple[int, ...]:
    """Ticks back that a model sees: as the folder of its run says, or rlctl's own.

    Raises:
        ConfigError: They are not those of the model.
    """
    from rlctl.agents.served.card import ObservationTable

    configs = (folder / files.CONFIG for folder in init.resolve().parents[:3])
    found = next((path for path in configs if path.is_file()), None)
    lags = _lags_in(found) if found else LAGS
    seen = model.observation_space.shape
    if seen != (ObservationTable.here(lags).size,):
        raise ConfigError(
            f"sees {seen}, and lags {list(lags)} give another size; keep it in the folder of its run", init
        )
    return lags


def _lags_in(config: Path) -> tuple[int, ...]:
    from rlctl.agents.training.recipe import load_recipe
    from rlctl.envs.yaml_edge import load_yaml

    arguments, _ = load_yaml(config.with_name(files.ARGUMENTS))
    return load_recipe(str(arguments.get("algorithm")), config).lags


def _make_folder(task: Task) -> None:
    folder = task.folder
    if files.is_run(folder) or (folder / TRANSITIONS).exists():
        raise ConfigError("holds a run already; give another --out", folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.note_origin(folder, task.arguments, task.command)
    shutil.copyfile(task.init, folder / files.BEST)


class _Session:
    """A run of fine-tuning; as a context it holds the record open."""

    def __init__(
        self,
        run: Run,
        plant: Plant,
        safety: Profile,
        restart: Callable[[], None],
        watch: Callable[[str], None],
    ) -> None:
        self._task, self._restart, self._watch = run.task, restart, watch
        task, initial = run.task, run.model
        shielded = ShieldedEnv(HostEnv(PatientPlant(plant), run.lags), Shield(safety, plant.limits))
        self._host = BoundedHost(shielded, logits_of(initial), task.bounds, task.seed, self._note)
        self._count, self._each, rollout = rounds_of(task.timesteps)
        self._model = learner(
            initial, DummyVecEnv([lambda: self._host]), task.timesteps, rollout, task.rate_ratio, task.seed
        )
        self._model.set_logger(configure(str(task.folder), []))
        self._host.logits = logits_of(self._model)
        self._stack = contextlib.ExitStack()
        self.phases: list[Phase] = []
        self.best = Phase("before")

    def __enter__(self) -> _Session:
        """Open the record."""
        self._record = self._stack.enter_context((self._task.folder / TRANSITIONS).open("w", encoding="utf-8"))
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; the plant is not ours to close."""
        self._stack.close()

    @property
    def learned(self) -> int:
        """Control periods learned from."""
        return int(self._model.num_timesteps)

    def run(self) -> str:
        """All rounds; returns why it ended early, or nothing."""
        measured = False
        try:
            self.best = self._measured("before")
            measured = True
            for number in range(1, self._count + 1):
                self._learn(number)
                now = self._measured(f"after {number}")
                if now.rank > self.best.rank:
                    save(self._model, self._task.folder / files.BEST)
                    self.best = now
        except (RlctlError, KeyboardInterrupt) as error:
            if not measured:
                raise
            return str(error) or "Ctrl-C"
        return ""

    def _measured(self, name: str) -> Phase:
        """The policy as it is, without exploration."""
        with self._phase(name) as phase:
            self._model.policy.set_training_mode(False)
            self._host.reset()
            for _ in range(self._task.evaluation_ticks):
                self._host.step(self._host.action_masks().argmax())
        return phase

    def _learn(self, number: int) -> None:
        with self._phase(f"learning {number}"):
            self._host.exploring = True
            self._model._last_obs = None  # the measurement went on without it: begin anew
            self._model.learn(self._each, log_interval=None, reset_num_timesteps=self._model.num_timesteps == 0)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[Phase]:
        phase = Phase(name)
        self.phases.append(phase)
        self._host.exploring = False
        self._restart()
        yield phase

    def _note(self, step: Step) -> None:
        """Count and write down a step; a line that is written stays, whatever comes."""
        phase = self.phases[-1]
        phase.add(step)
        self._record.write(json.dumps({"phase": phase.name, **step.as_json()}) + "\n")
        self._record.flush()
        self._watch(phase.name)


def _card(parts: CardParts, outcome: Outcome) -> CardParts:
    """What the card says of the training: the model's own words, and the fine-tuning."""
    task, said = outcome.task, parts.training
    live: dict[str, JsonValue] = {
        "init": str(task.init),
        "kept_initial": not outcome.improved,
        "timesteps": outcome.timesteps,
        "rate_ratio": task.rate_ratio,
        "explore": task.bounds.probability,
        "explore_slack_ratio": task.bounds.least_slack_ratio,
    }
    training = Training(
        hyperparameters={**said.hyperparameters, "live": live},
        total_timesteps=said.total_timesteps,
        wall_seconds=round(outcome.seconds, 1),
        seed=task.seed,
        code=files.code_version(),
        training_id=said.training_id,
    )
    return parts.model_copy(update={"training": training})
