"""Who learns from a dataset: `bc`, who clones a policy of it, and `cql`, conservative Q-learning; and what it is worth.

    learner = learner_of(dataset, recipe, seed=0)
    loss = learner.update(rows)                     # a batch of learner.train; the caller steps the optimiser

`bc` clones a policy of the dataset by cross-entropy on its own choices, among the moves that the shield let through.
Cloned is the one that held its target most often; those within ALLOWANCE_POINTS of it count as equal, and among them
the one with the most BE work is taken.

`cql` is conservative Q-learning (Kumar et al., NeurIPS 2020, CQL(H), eq. 4) on the network of QR-DQN. Its loss is the
quantile loss of double Q-learning towards a target network, and `alpha` times how far the soft maximum of the values
lies above the value of the move that was executed. Both maxima are over the moves that the shield let through. It
learns from every policy of the dataset, from executed moves with the rewards that they would have had by themselves.
The cost of leaning on the shield is left out, as on a live host (`rollouts.live_testbed`).  What a policy is worth is
told by fitted Q evaluation (Le, Voloshin and Yue, ICML 2019): a network learns the policy's own values on transitions
of others. It compares policies that stay near to what was recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import QRDQN, MaskablePPO
from sb3_contrib.common.utils import quantile_huber_loss
from stable_baselines3.common.torch_layers import create_mlp
from torch.nn.functional import cross_entropy, smooth_l1_loss

from rlctl.agents.training.algorithms import head_of, logits_of, network_of, share_gradients, tensor_logits
from rlctl.agents.training.evaluations import ALLOWANCE_POINTS
from rlctl.agents.training.offline.dataset import TERMS, Dataset, Origin
from rlctl.agents.training.recipe import Conservative, OfflineRecipe, linear
from rlctl.envs.actions import MOVES, discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import MOST_PRICE, Observer
from rlctl.envs.reward import WORK

BLOCKED = -1e9
"""In place of the logit of a move that the shield would not let through."""

LEAST_SHARE = 0.1
"""Of the transitions of whoever acted for longest: who has less is not cloned."""

UNITS, BATCH, RATE, TARGET_UPDATES = [64, 64], 256, 1e-3, 100
"""Of the network that judges a policy."""

Rows = NDArray[np.int64]


def teacher_of(origin: Origin) -> str:
    """Whom to clone: QoS first, then BE, by what the dataset measured of each that acted for long enough."""
    # Who stood in for some ticks, such as the safe allocation, may have a QoS of 100 % by chance.
    long = LEAST_SHARE * max(one.transitions for one in origin.policies.values())
    acted = {name: one for name, one in origin.policies.items() if one.transitions >= long}
    most = max(one.qos_percent for one in acted.values())
    equal = {name: one for name, one in acted.items() if one.qos_percent >= most - ALLOWANCE_POINTS}
    return max(equal, key=lambda name: equal[name].be_percent)


def rewards_of(data: Dataset, work: float | None) -> NDArray[np.float32]:
    """Rewards, shape (n,), without what asking for another move cost; `work` as in `OfflineRecipe`."""
    own = np.repeat([one.work or WORK for one in data.origin.sources], [s.transitions for s in data.origin.sources])
    # What a violation costs is the last number of an observation; as in training it divides what BE's work is worth.
    price = (own if work is None else np.full(len(data), work)) / MOST_PRICE ** data.observations[data.state, -1]
    terms = {name: data.terms[:, place] for place, name in enumerate(TERMS)}
    made = terms["qos"] + terms["severity"] + terms["reconfiguration"] + terms["be_work"] * price / WORK
    return np.asarray(made, np.float32)


class Cloner:
    """Behaviour cloning of one policy; `labels` are what it chose in each transition, shape (n,)."""

    def __init__(self, data: Dataset, recipe: OfflineRecipe, seed: int) -> None:
        self.teacher, self._data = teacher_of(data.origin), data
        self.model = _blank(MaskablePPO, recipe, seed, n_steps=2, batch_size=2)
        # What it wanted, also where another move was tried; what happened instead, where the shield stepped in.
        self.labels = np.where(data.masks[data.state, data.proposed], data.proposed, data.actions)
        # Parted as all are, or it would be judged on episodes that it learned from.
        of_teacher = data.policy == list(data.origin.policies).index(self.teacher)
        self.train, self.held_out = (rows[of_teacher[rows]] for rows in parted(data, recipe.held_out, seed))
        if not len(self.train) or not len(self.held_out):
            raise ConfigError(f"{data.name}: too few episodes of {self.teacher} to hold some out; record more")

    def update(self, rows: Rows) -> torch.Tensor:
        """The loss of a batch: cross-entropy among the allowed moves."""
        logits = tensor_logits(self.model, torch.as_tensor(self._data.observations[self._data.state[rows]]))
        allowed = _allowed(self._data, rows, self.labels[rows])
        return cross_entropy(logits.masked_fill(~allowed, BLOCKED), torch.as_tensor(self.labels[rows]))


class ConservativeLearner:
    """Conservative Q-learning; attributes as of `Cloner`, with a QR-DQN, no teacher, and executed moves as labels."""

    teacher = ""

    def __init__(self, data: Dataset, recipe: Conservative, seed: int) -> None:
        self.model = _blank(QRDQN, recipe, seed, buffer_size=1, gamma=recipe.gamma)
        self.labels = data.actions
        self.train, self.held_out = parted(data, recipe.held_out, seed)
        self._data, self._recipe, self._count = data, recipe, 0
        self._rewards = rewards_of(data, recipe.work)

    def update(self, rows: Rows) -> torch.Tensor:
        """The loss of a batch: the quantile loss and the conservative term."""
        data, net, warm = self._data, self.model.quantile_net, self._recipe.temperature
        if self._count % self._recipe.target_update_interval == 0:
            self.model.quantile_net_target.load_state_dict(net.state_dict())
        self._count += 1
        quantiles = net(torch.as_tensor(data.observations[data.state[rows]]))  # (batch, quantiles, moves)
        taken = _at(quantiles, torch.as_tensor(data.actions[rows]))
        values = quantiles.mean(dim=1).masked_fill(~_allowed(data, rows, data.actions[rows]), BLOCKED)
        # The soft maximum at a temperature in units of the reward, which tells moves apart whose values differ little.
        above = warm * torch.logsumexp(values / warm, dim=1) - taken.mean(dim=1)
        loss = quantile_huber_loss(taken, self._targets(rows)) + self._recipe.alpha * above.mean()
        return torch.as_tensor(loss)

    def _targets(self, rows: Rows) -> torch.Tensor:
        """Double Q-learning: the network chooses the next move, the target network values it."""
        after = self._data.state[rows] + 1
        seen, may = torch.as_tensor(self._data.observations[after]), torch.as_tensor(self._data.masks[after])
        with torch.no_grad():
            best = self.model.quantile_net(seen).mean(dim=1).masked_fill(~may, BLOCKED).argmax(dim=1)
            later = _at(self.model.quantile_net_target(seen), best)
        return torch.as_tensor(self._rewards[rows])[:, None] + self._recipe.gamma * later


def _at(quantiles: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """The quantiles of one move each, shape (batch, quantiles)."""
    return quantiles.gather(2, moves[:, None, None].expand(-1, quantiles.shape[1], 1))[:, :, 0]


def _allowed(data: Dataset, rows: Rows, moves: Rows) -> torch.Tensor:
    """Moves that the shield let through, and the one that happened whatever it said."""
    allowed = data.masks[data.state[rows]]
    allowed[np.arange(len(moves)), moves] = True
    return torch.as_tensor(allowed)


def parted(data: Dataset, held_out: float, seed: int) -> tuple[Rows, Rows]:
    """Rows to learn from and rows to judge on, by whole episodes; ConfigError where they are too few."""
    episodes = np.unique(data.episode)
    kept = np.random.default_rng(seed).permutation(episodes)[: round(held_out * len(episodes))]
    out = np.isin(data.episode, kept)
    if not out.any() or out.all():
        raise ConfigError(f"{data.name}: of {len(episodes)} episodes {held_out:.0%} cannot be held out; record more")
    return np.flatnonzero(~out), np.flatnonzero(out)


def _blank(kind: Any, recipe: OfflineRecipe, seed: int, **settings: Any) -> Any:
    """A new model of Stable-Baselines3 without an environment."""
    rate, _ = linear(recipe.learning_rate)
    shared = {"policy_kwargs": network_of(recipe), "learning_rate": rate, "device": "cpu", "seed": seed}
    model = kind("MlpPolicy", None, _init_setup_model=False, **shared, **settings)
    model.observation_space, model.action_space, model.n_envs = Observer(Limits(1), 1.0).space, discrete_space(), 1
    model._setup_model()
    share_gradients(head_of(model))
    return model


def learner_of(data: Dataset, recipe: OfflineRecipe, seed: int) -> Cloner | ConservativeLearner:
    """The learner that a recipe is of; ConfigError where the dataset holds too little."""
    return ConservativeLearner(data, recipe, seed) if isinstance(recipe, Conservative) else Cloner(data, recipe, seed)


def choices(model: Any, data: Dataset, states: Rows) -> Rows:
    """What the model would do in these states, among the moves that the shield let through."""
    logits = logits_of(model)(data.observations[states])
    return np.asarray(np.where(data.masks[states], logits, -np.inf).argmax(axis=1))


def value_of(
    data: Dataset, rows: Rows, rewards: NDArray[np.float32], chosen: tuple[Rows, Rows], gamma: float, updates: int
) -> float:
    """A policy's mean value over the states of some transitions, always by the same first weights and batches.

    Args:
        chosen: What the policy does where these transitions begin, shape (len(rows),), and where they end.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, target = (torch.nn.Sequential(*create_mlp(data.observations.shape[1], len(MOVES), UNITS)) for _ in "ab")
        batches = torch.randint(len(rows), (updates, BATCH))
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    seen, later = (torch.as_tensor(data.observations[data.state[rows] + step]) for step in (0, 1))
    here, after, taken = (torch.as_tensor(one)[:, None] for one in (*chosen, data.actions[rows]))
    gained = torch.as_tensor(rewards[rows])[:, None]
    for number, part in enumerate(batches):
        if number % TARGET_UPDATES == 0:
            target.load_state_dict(net.state_dict())
        with torch.no_grad():  # Bellman's equation of the policy: its own choice next, and not the best one
            wanted = gained[part] + gamma * target(later[part]).gather(1, after[part])
        loss = smooth_l1_loss(net(seen[part]).gather(1, taken[part]), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return float(net(seen).gather(1, here).mean())
