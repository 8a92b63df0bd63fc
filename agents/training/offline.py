"""Learning from a dataset alone: no host, simulated or real, is touched.

    outcome = learn_offline(OfflineRun("cql", recipe, read(place_of("nginx-v0")), folder=Path("runs/cql/1")))

`bc` clones a policy of the dataset by cross-entropy on its own choices, among the moves that the shield let through.
Cloned is the one that held its target most often; those within ALLOWANCE_POINTS of it count as equal, and among them
the one with the most BE work is taken.

`cql` is conservative Q-learning (Kumar et al., NeurIPS 2020, CQL(H)) on the network of QR-DQN: the quantile loss of
double Q-learning towards a target network, and beside it `alpha` times how far the soft maximum of the values lies
above the value of the move that was executed. Both maxima are over the moves that the shield let through. It learns
from every policy of the dataset, from executed moves with the rewards that they would have had by themselves: what
leaning on the shield costs is left out, as in `live_learners`.

In rounds the policy is judged, and the best one is kept: by its value on episodes that were held out (`fqe`), or, where
courses are given, by its merit on them in the simulator.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import JsonValue
from sb3_contrib import QRDQN, MaskablePPO
from sb3_contrib.common.utils import quantile_huber_loss
from stable_baselines3.common.utils import set_random_seed
from torch.nn.functional import cross_entropy

from rlctl.agents.card import CardParts, TrainedOn, Training
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.dataset import TERMS, Dataset, Origin
from rlctl.agents.training.evaluations import ALLOWANCE_POINTS, Evaluation, Judge
from rlctl.agents.training.fqe import value_of
from rlctl.agents.training.learners import ACTIVATIONS, LAST_SHARE, logits_of, save, take_weights, tensor_logits
from rlctl.agents.training.neighbours import share_gradients
from rlctl.agents.training.offline_recipe import Conservative, OfflineRecipe
from rlctl.agents.training.recipe import linear
from rlctl.agents.training.trial import Course
from rlctl.envs.actions import discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import LAGS, Observer
from rlctl.envs.reward import WORK

__all__ = ["OfflineOutcome", "OfflineRun", "Round", "learn_offline", "rewards_of", "teacher_of"]

OFFLINE = "offline.json"
"""What came of a run, in its folder."""

OBSERVATIONS = 2000
"""On which the exported network is compared with the model."""

VALUE_UPDATES = 2000
"""Of the network that judges a policy by the dataset."""

BLOCKED = -1e9
"""In place of the logit of a move that the shield would not let through."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What to do.

    Attributes:
        algorithm: A key of `offline_recipe.OFFLINE`.
        recipe: Its hyperparameters.
        dataset: What is learned from.
        folder: Of the run; made.
        seed: Of weights and batches.
        courses, validation_seeds: Where policies are judged in the simulator; no course judges them by the dataset.
        threads: Of torch.
        export: Write a bundle.
        arguments, command: For the folder: what the user asked for.
    """

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
        updates: After so many.
        loss: Mean over the updates since the round before.
        agreement: Share of the held-out states in which it chooses what was executed there, or by whom it clones
            chosen.
        criterion: By which the best round is kept.
        evaluation: In the simulator, if it was asked.
    """

    updates: int
    loss: float
    agreement: float
    criterion: float
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class OfflineOutcome:
    """What came of it.

    Attributes:
        run: What was to be done.
        rounds: In order.
        best: The one that is kept.
        selected_by: The criterion in words.
        teacher: Who was cloned; empty for no one in particular.
        seconds, cpu_seconds: What it took, by the wall's clock and of CPU time.
        bundle: The exported policy, if any.
    """

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
            "dataset": _dataset_in_short(self.run.dataset),
            "teacher": self.teacher,
            "selected_by": self.selected_by,
            "best": self.best.updates,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "bundle": str(self.bundle) if self.bundle else None,
            "rounds": [
                {
                    "updates": one.updates,
                    "loss": round(one.loss, 6),
                    "agreement": round(one.agreement, 6),
                    "criterion": round(one.criterion, 6),
                }
                for one in self.rounds
            ],
        }


def learn_offline(run: OfflineRun, watch: Callable[[Round], None] = lambda _: None) -> OfflineOutcome:
    """Learn, judge, export.

    Args:
        run: What to do.
        watch: Called after each round.

    Raises:
        ConfigError: The folder holds a run, or the dataset holds too little.
        BundleError: The export failed; the model's file is there.
    """
    if (run.folder / OFFLINE).exists() or files.is_run(run.folder):
        raise ConfigError("holds a run already; give another --out", run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(run.threads)
    set_random_seed(run.seed)
    begun, cpu = time.monotonic(), time.process_time()
    learner = _learner(run)
    judge = _SimJudge(run) if run.courses else _DataJudge(run)
    rounds = _rounds(run, learner, judge, watch)
    best = max(rounds, key=lambda one: one.criterion)
    take_weights(learner.model, run.folder / files.BEST)
    spent = time.monotonic() - begun, time.process_time() - cpu
    bundle = _exported(run, learner, judge.words, spent[0]) if run.export else None
    outcome = OfflineOutcome(run, tuple(rounds), best, judge.words, learner.teacher, *spent, bundle)
    (run.folder / files.ARGUMENTS).write_text(json.dumps(dict(run.arguments), indent=1) + "\n")
    (run.folder / "versions.yml").write_text(json.dumps(files.versions(), indent=1) + "\n")  # JSON is YAML
    (run.folder / "command.txt").write_text(run.command + "\n")
    (run.folder / OFFLINE).write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
    return outcome


def teacher_of(origin: Origin) -> str:
    """Whom to clone: QoS first, then BE, by what the dataset measured of each."""
    most = max(one.qos_percent for one in origin.policies.values())
    equal = {name: one for name, one in origin.policies.items() if one.qos_percent >= most - ALLOWANCE_POINTS}
    return max(equal, key=lambda name: equal[name].be_percent)


def rewards_of(data: Dataset, work: float | None) -> NDArray[np.float32]:
    """Each transition's reward without what it cost to ask for another move, shape (n,).

    Args:
        data: The dataset.
        work: Worth of BE's work by a violation; None takes each source's own.
    """
    own = np.repeat([one.work or WORK for one in data.origin.sources], [s.transitions for s in data.origin.sources])
    price = own if work is None else np.full(len(data), work)
    terms = {name: data.terms[:, place] for place, name in enumerate(TERMS)}
    made = terms["qos"] + terms["severity"] + terms["reconfiguration"] + terms["be_work"] * price / WORK
    return np.asarray(made, np.float32)


class _Learner(Protocol):
    """Who learns."""

    model: Any
    teacher: str
    train: Rows
    held_out: Rows
    labels: Rows

    def update(self, rows: Rows) -> torch.Tensor:
        """The loss of a batch."""
        ...


class _Cloner:
    """Behaviour cloning."""

    def __init__(self, run: OfflineRun) -> None:
        data = run.dataset
        self.teacher = teacher_of(data.origin)
        self.model = _blank(MaskablePPO, run, n_steps=2, batch_size=2)
        share_gradients(self.model.policy.action_net)
        # What it wanted, also where another move was tried; what happened instead, where the shield stepped in.
        wanted = data.masks[data.state, data.proposed]
        self.labels = np.where(wanted, data.proposed, data.actions)
        of_it = np.flatnonzero(data.policy == list(data.origin.policies).index(self.teacher))
        self.train, self.held_out = _parted(data, of_it, run)
        self._data = data

    def update(self, rows: Rows) -> torch.Tensor:
        """Cross-entropy among the allowed moves."""
        data, state, moves = self._data, self._data.state[rows], self.labels[rows]
        allowed = _allowed(data, state, moves)
        logits = tensor_logits(self.model, torch.as_tensor(data.observations[state]))
        return cross_entropy(logits.masked_fill(~allowed, BLOCKED), torch.as_tensor(moves))


class _Conservative:
    """Conservative Q-learning."""

    teacher = ""

    def __init__(self, run: OfflineRun) -> None:
        data, recipe = run.dataset, run.recipe
        assert isinstance(recipe, Conservative)
        self.model = _blank(QRDQN, run, buffer_size=1, gamma=recipe.gamma)
        share_gradients(self.model.quantile_net.quantile_net[-1])
        self.labels = data.actions
        self.train, self.held_out = _parted(data, np.arange(len(data)), run)
        self._data, self._recipe, self._count = data, recipe, 0
        self._rewards, self._next, self._discount = _steps(data, rewards_of(data, recipe.work), recipe)

    def update(self, rows: Rows) -> torch.Tensor:
        """The quantile loss and the conservative term."""
        data, net = self._data, self.model.quantile_net
        if self._count % self._recipe.target_update_interval == 0:
            self.model.quantile_net_target.load_state_dict(net.state_dict())
        self._count += 1
        moves = torch.as_tensor(data.actions[rows])
        quantiles = net(torch.as_tensor(data.observations[data.state[rows]]))  # (batch, quantiles, moves)
        taken = _at(quantiles, moves)
        values = quantiles.mean(dim=1).masked_fill(~_allowed(data, data.state[rows], data.actions[rows]), BLOCKED)
        warm = self._recipe.temperature
        above = warm * torch.logsumexp(values / warm, dim=1) - taken.mean(dim=1)
        loss = quantile_huber_loss(taken, self._targets(rows)) + self._recipe.alpha * above.mean()
        return torch.as_tensor(loss)

    def _targets(self, rows: Rows) -> torch.Tensor:
        data, after = self._data, self._next[rows]
        seen, may = torch.as_tensor(data.observations[after]), torch.as_tensor(data.masks[after])
        with torch.no_grad():
            best = self.model.quantile_net(seen).mean(dim=1).masked_fill(~may, BLOCKED).argmax(dim=1)
            later = _at(self.model.quantile_net_target(seen), best)
        discount, rewards = (torch.as_tensor(one[rows])[:, None] for one in (self._discount, self._rewards))
        return rewards + discount * later


def _at(quantiles: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """The quantiles of one move each, shape (batch, quantiles)."""
    return quantiles.gather(2, moves[:, None, None].expand(-1, quantiles.shape[1], 1))[:, :, 0]


def _allowed(data: Dataset, state: Rows, moves: Rows) -> torch.Tensor:
    """Moves that the shield let through, and the one that happened whatever it said."""
    allowed = data.masks[state]
    allowed[np.arange(len(moves)), moves] = True
    return torch.as_tensor(allowed)


def _steps(
    data: Dataset, rewards: NDArray[np.float32], recipe: Conservative
) -> tuple[NDArray[np.float32], Rows, NDArray[np.float32]]:
    """Sums of n rewards, fewer at an episode's end; the state after them, and its discount."""
    count = np.minimum(recipe.n_steps, data.last - data.state)
    total, here = np.zeros(len(data)), np.arange(len(data))
    for step in range(recipe.n_steps):
        total += np.where(step < count, recipe.gamma**step * rewards[np.minimum(here + step, len(data) - 1)], 0.0)
    return total.astype(np.float32), data.state + count, (recipe.gamma**count).astype(np.float32)


def _parted(data: Dataset, rows: Rows, run: OfflineRun) -> tuple[Rows, Rows]:
    """Rows to learn from and rows to judge on, by whole episodes."""
    episodes = np.unique(data.episode[rows])
    kept = np.random.default_rng(run.seed).permutation(episodes)[: round(run.recipe.held_out * len(episodes))]
    out = np.isin(data.episode[rows], kept)
    if not out.any() or out.all():
        raise ConfigError(
            f"{data.name}: of {len(episodes)} episodes {run.recipe.held_out:.0%} cannot be held out; record more"
        )
    return rows[~out], rows[out]


def _blank(kind: Any, run: OfflineRun, **settings: Any) -> Any:
    """A new model of Stable-Baselines3 without an environment."""
    given = run.recipe.policy_kwargs.model_dump()  # type: ignore[attr-defined]
    arch = given["net_arch"]
    layers = {arm: list(units) for arm, units in arch.items()} if isinstance(arch, dict) else list(arch)
    network = {**given, "net_arch": layers, "activation_fn": ACTIVATIONS[given["activation_fn"]]}
    rate, _ = linear(run.recipe.learning_rate)
    shared = {"policy_kwargs": network, "learning_rate": rate, "device": "cpu", "seed": run.seed}
    model = kind("MlpPolicy", None, _init_setup_model=False, **shared, **settings)
    model.observation_space, model.action_space, model.n_envs = _observations(), discrete_space(), 1
    model._setup_model()
    return model


def _observations() -> spaces.Space[NDArray[np.float32]]:
    return Observer(Limits(1), 1.0).space


def _learner(run: OfflineRun) -> _Learner:
    return _Conservative(run) if isinstance(run.recipe, Conservative) else _Cloner(run)


def _rounds(run: OfflineRun, learner: _Learner, judge: _Judging, watch: Callable[[Round], None]) -> list[Round]:
    """All updates; the best model so far is in the folder."""
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
        if update in ends:
            now = _judged(run, learner, judge, update, float(np.mean(losses)))
            if all(now.criterion > one.criterion for one in rounds):
                save(learner.model, run.folder / files.BEST)
            rounds.append(now)
            watch(now)
            losses = []
    return rounds


def _judged(run: OfflineRun, learner: _Learner, judge: _Judging, updates: int, loss: float) -> Round:
    learner.model.policy.set_training_mode(False)
    rows = learner.held_out
    chosen = _choices(learner.model, run.dataset, run.dataset.state[rows])
    agreement = float(np.mean(chosen == learner.labels[rows]))
    criterion, evaluation = judge.judge(learner.model, updates)
    learner.model.policy.set_training_mode(True)
    if not np.isfinite(criterion):
        raise ConfigError("the learning diverged: its values are not finite; give a smaller learning_rate")
    return Round(updates, loss, agreement, criterion, evaluation)


def _choices(model: Any, data: Dataset, states: Rows) -> Rows:
    """What the model would do in these states, among the moves that the shield let through."""
    logits = logits_of(model)(data.observations[states])
    return np.asarray(np.where(data.masks[states], logits, -np.inf).argmax(axis=1))


class _Judging(Protocol):
    """Who judges."""

    words: str

    def judge(self, model: Any, updates: int) -> tuple[float, Evaluation | None]:
        """The criterion, the larger the better."""
        ...


class _DataJudge:
    """By the dataset alone: the policy's value on held-out episodes."""

    def __init__(self, run: OfflineRun) -> None:
        self.words = f"fitted Q evaluation on {run.recipe.held_out:.0%} of the episodes, held out"
        self._run = run
        _, self._rows = _parted(run.dataset, np.arange(len(run.dataset)), run)
        self._rewards = rewards_of(run.dataset, run.recipe.work)

    def judge(self, model: Any, updates: int) -> tuple[float, Evaluation | None]:  # noqa: ARG002 - the other's
        """Its value."""
        data, rows = self._run.dataset, self._rows
        here, after = (_choices(model, data, data.state[rows] + step) for step in (0, 1))
        recipe = self._run.recipe
        spent = {"updates": min(recipe.n_updates, VALUE_UPDATES), "seed": self._run.seed}
        return value_of(data, rows, self._rewards, here, after, recipe.gamma, **spent), None


class _SimJudge:
    """By the simulator, at seeds that no run learns on: asked for, and said in the card."""

    def __init__(self, run: OfflineRun) -> None:
        names = ", ".join(one.name for one in run.courses)
        self.words = f"validation in the simulator: merit on {names}, {run.validation_seeds} validation seeds"
        self._judge = Judge(run.courses, run.validation_seeds, LAGS)

    def judge(self, model: Any, updates: int) -> tuple[float, Evaluation | None]:
        """Its merit."""
        found = self._judge.evaluate(lambda: logits_of(model), updates, 0.0)
        return found.merit, found


def _exported(run: OfflineRun, learner: _Learner, selected_by: str, seconds: float) -> Path:
    from rlctl.agents.training.export import export

    data = run.dataset
    which = np.linspace(0, len(data.observations) - 1, OBSERVATIONS).astype(int)  # again and again, where there are few
    out = run.folder / "bundle"
    export(
        learner.model,
        out,
        name=run.algorithm,
        card=_card(run, learner, selected_by, seconds),
        observations=data.observations[which],
    )
    return out


def _card(run: OfflineRun, learner: _Learner, selected_by: str, seconds: float) -> CardParts:
    recipe: dict[str, JsonValue] = run.recipe.model_dump(mode="json")
    told = {"algorithm": run.algorithm, "recipe": recipe, "dataset": run.dataset.origin.sha256, "seed": run.seed}
    text = json.dumps({**told, "selected_by": selected_by}, sort_keys=True)
    own: dict[str, JsonValue] = {"dataset": _dataset_in_short(run.dataset), "selected_by": selected_by}
    if learner.teacher:
        own["teacher"] = learner.teacher
    return CardParts(
        algorithm=run.algorithm.upper(),
        tick_seconds=run.dataset.origin.tick_seconds,
        lags=LAGS,
        plants=_trained_on(run.dataset.origin),
        training=Training(
            hyperparameters=recipe | own,
            total_timesteps=len(run.dataset),
            wall_seconds=round(seconds, 1),
            seed=run.seed,
            code=files.code_version(),
            training_id=hashlib.sha256(text.encode()).hexdigest(),
        ),
    )


def _dataset_in_short(data: Dataset) -> dict[str, JsonValue]:
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
            work=one.work,
            hosts=one.hosts,
        )
        for one in origin.sources
        if one.weight is not None and one.work is not None
    )
