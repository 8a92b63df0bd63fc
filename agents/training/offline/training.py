"""Learning from a dataset alone: no host, simulated or real, is touched.

    outcome = learn_offline(OfflineRun("cql", recipe, read(dataset_folder("nginx-v0")), folder=Path("runs/cql/1")))

`learners` has who learns: `bc` clones the best policy of the dataset, `cql` learns from all of them. In rounds the
policy is judged, and the best one is kept. The criterion is its value on episodes that were held out, or, where courses
are given, its merit on them in the simulator.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from stable_baselines3.common.utils import set_random_seed

from rlctl.agents.served.card import CardParts, TrainedOn, Training
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import LAST_SHARE, logits_of, save, take_weights
from rlctl.agents.training.evaluations import Judge
from rlctl.agents.training.host_kinds import validation_seed
from rlctl.agents.training.offline.dataset import Dataset, Origin
from rlctl.agents.training.offline.learners import (
    Cloner,
    ConservativeLearner,
    choices,
    learner_of,
    parted,
    rewards_of,
    value_of,
)
from rlctl.agents.training.recipe import OfflineRecipe, linear
from rlctl.agents.training.trial import Course
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import LAGS
from rlctl.envs.whole_file import write_json

OBSERVATIONS = 2000
"""Number of states on which the exported network is compared with the model."""

VALUE_UPDATES = 2000
"""Updates of the network that judges a policy by the dataset."""

Learner = Cloner | ConservativeLearner
Judging = Callable[[Any], float]
"""A model to its criterion, the larger the better."""


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What a run has to do; without courses in the simulator its policies are judged by the dataset."""

    algorithm: str
    recipe: OfflineRecipe
    dataset: Dataset
    folder: Path
    seed: int = 0
    courses: tuple[Course, ...] = ()
    validation_seeds: int = 16
    threads: int = 1
    export: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A policy on its way.

    Attributes:
        loss: Mean over the updates since the round before.
        agreement: Share of the held-out states in which it chooses what was executed there, or by whom it clones
            chosen.
    """

    updates: int
    loss: float
    agreement: float
    criterion: float


@dataclass(frozen=True, slots=True)
class OfflineOutcome:
    """What came of a run; `teacher` is who was cloned, empty where all were learned from."""

    run: OfflineRun
    rounds: tuple[Round, ...]
    best: Round
    selected_by: str
    teacher: str
    seconds: float
    cpu_seconds: float
    bundle: Path | None

    def as_json(self) -> dict[str, object]:
        """For `--json` and the folder."""
        return {
            "schema": 1,
            "folder": str(self.run.folder),
            "algorithm": self.run.algorithm,
            "seed": self.run.seed,
            "dataset": _in_short(self.run.dataset),
            "teacher": self.teacher,
            "selected_by": self.selected_by,
            "best": self.best.updates,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "bundle": str(self.bundle) if self.bundle else None,
            "rounds": [{name: round(value, 6) for name, value in asdict(one).items()} for one in self.rounds],
        }


def learn_offline(
    run: OfflineRun, watch: Callable[[Round], None] = lambda _: None, stopped: Callable[[], bool] = lambda: False
) -> OfflineOutcome:
    """Learn from a dataset, judge and export the best policy; ConfigError where a folder or the data are of no use.

    `stopped` is asked after every update: once it answers True, the policy is judged as it is, for the last time.
    """
    files.check_new(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(run.threads)
    set_random_seed(run.seed)
    begun, cpu = time.monotonic(), time.process_time()
    learner = learner_of(run.dataset, run.recipe, run.seed)
    selected_by, judge = _criterion(run)
    rounds = _rounds(run, learner, judge, watch, stopped)
    best = max(rounds, key=lambda one: one.criterion)
    take_weights(learner.model, run.folder / files.BEST)
    spent = time.monotonic() - begun, time.process_time() - cpu
    bundle = _exported(run, learner, rounds[-1].updates, selected_by, spent[0]) if run.export else None
    outcome = OfflineOutcome(run, tuple(rounds), best, selected_by, learner.teacher, *spent, bundle)
    files.note_origin(run.folder, run.arguments, run.command)
    write_json(run.folder / files.OFFLINE, outcome.as_json())
    return outcome


def _rounds(
    run: OfflineRun, learner: Learner, judge: Judging, watch: Callable[[Round], None], stopped: Callable[[], bool]
) -> list[Round]:
    """All updates, or those until it is stopped; the best model so far is in the folder."""
    recipe, draw, rounds = run.recipe, np.random.default_rng(run.seed), list[Round]()
    rate, falls = linear(recipe.learning_rate)
    optimizer = torch.optim.Adam(learner.model.policy.parameters(), lr=rate)
    ends = np.linspace(0, recipe.n_updates, min(recipe.rounds, recipe.n_updates) + 1).round().astype(int)
    losses: list[float] = []
    for update in range(1, recipe.n_updates + 1):
        left = 1.0 - update / recipe.n_updates if falls else 1.0
        optimizer.param_groups[0]["lr"] = rate * (LAST_SHARE + (1.0 - LAST_SHARE) * left)
        loss = learner.update(learner.train[draw.integers(len(learner.train), size=recipe.batch_size)])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learner.model.policy.parameters(), recipe.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
        last = stopped()
        if update in ends or last:
            now = _judged(run, learner, judge, update, float(np.mean(losses)))
            if all(now.criterion > one.criterion for one in rounds):
                save(learner.model, run.folder / files.BEST)
            rounds.append(now)
            watch(now)
            losses = []
        if last:
            break
    return rounds


def _judged(run: OfflineRun, learner: Learner, judge: Judging, updates: int, loss: float) -> Round:
    learner.model.policy.set_training_mode(False)
    chosen = choices(learner.model, run.dataset, run.dataset.state[learner.held_out])
    criterion = judge(learner.model)
    learner.model.policy.set_training_mode(True)
    if not np.isfinite(criterion):
        raise ConfigError("the learning diverged: its values are not finite; give a smaller learning_rate")
    return Round(updates, loss, float(np.mean(chosen == learner.labels[learner.held_out])), criterion)


def _criterion(run: OfflineRun) -> tuple[str, Judging]:
    """What policies are judged by: in the simulator if that is asked for, or their value on held-out episodes."""
    data, recipe = run.dataset, run.recipe
    if run.courses:
        seeds = [validation_seed(number) for number in range(run.validation_seeds)]
        names, in_simulator = ", ".join(one.name for one in run.courses), Judge(run.courses, seeds, LAGS)
        told = f"validation in the simulator: merit on {names}, {run.validation_seeds} validation seeds"
        return told, lambda model: in_simulator.evaluate(logits_of(model), 0, 0.0).merit
    _, rows = parted(data, recipe.held_out, run.seed)
    rewards, updates = rewards_of(data, recipe.work), min(recipe.n_updates, VALUE_UPDATES)

    def judge(model: Any) -> float:
        here, after = (choices(model, data, data.state[rows] + step) for step in (0, 1))
        return value_of(data, rows, rewards, (here, after), recipe.gamma, updates)

    return f"fitted Q evaluation on {recipe.held_out:.0%} of the episodes, held out", judge


def _exported(run: OfflineRun, learner: Learner, updates: int, selected_by: str, seconds: float) -> Path:
    from rlctl.agents.training.export import export

    states, out = run.dataset.observations, run.folder / "bundle"
    which = np.linspace(0, len(states) - 1, OBSERVATIONS).astype(int)  # again and again, where there are few
    card = _card(run, learner, updates, selected_by, seconds)
    export(learner.model, out, name=run.algorithm, card=card, observations=states[which])
    return out


def _card(run: OfflineRun, learner: Learner, updates: int, selected_by: str, seconds: float) -> CardParts:
    data, recipe = run.dataset, run.recipe.model_dump(mode="json")
    origin = {"algorithm": run.algorithm, "recipe": recipe, "dataset": data.origin.sha256, "seed": run.seed}
    text = json.dumps({**origin, "selected_by": selected_by}, sort_keys=True)
    own: dict[str, JsonValue] = {"dataset": _in_short(data), "selected_by": selected_by}
    if learner.teacher:
        own["teacher"] = learner.teacher
    if updates < run.recipe.n_updates:
        own["stopped_after_updates"] = updates
    return CardParts(
        algorithm=run.algorithm.upper(),
        tick_seconds=data.origin.tick_seconds,
        lags=LAGS,
        plants=_trained_on(data.origin),
        training=Training(
            hyperparameters=recipe | own,
            total_timesteps=len(data),
            wall_seconds=round(seconds, 1),
            seed=run.seed,
            code=files.code_version(),
            training_id=hashlib.sha256(text.encode()).hexdigest(),
        ),
    )


def _in_short(data: Dataset) -> dict[str, JsonValue]:
    """A dataset's identity, size and origin, for a card."""
    origin = data.origin
    return {
        "id": data.name,
        "sha256": origin.sha256,
        "transitions": origin.transitions,
        "episodes": origin.episodes,
        "ticks": origin.ticks,
        "policies": {name: one.transitions for name, one in origin.policies.items()},
        "sources": [f"{one.kind} {one.name}, sha256 {one.sha256[:12]}" for one in origin.sources],
    }


def _trained_on(origin: Origin) -> tuple[TrainedOn, ...]:
    """The simulated hosts; real ones have no profile, and stand among the dataset's sources."""
    return tuple(
        TrainedOn(
            profile=one.host,
            digest=one.host_digest,
            weight=one.weight,
            shield=one.shield or None,
            shield_digest=one.shield_digest or None,
            absent=one.absent,
            work=one.work,
            hosts=one.hosts,
        )
        for one in origin.sources
        if one.weight is not None and one.work is not None
    )
