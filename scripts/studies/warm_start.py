"""A model to begin with that acts like a manager: behaviour cloning of the manager on the training hosts.

The manager asks for an allocation, the network has moves: the hosts follow the nearest one (`nearest_move`), so the
pairs are of states that the network will get into.

PPO learns them by cross-entropy on its logits. DQN and QR-DQN learn by the large margin of DQfD (Hester et al., AAAI
2018, eq. 2) on their values: the teacher's move shall be worth MARGIN more than any other; their scale stays that of
rewards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.utils import set_random_seed
from torch.nn.functional import cross_entropy

from rlctl.agents import catalogue
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.agents.training.algorithms import make, save, tensor_logits
from rlctl.agents.training.host_kinds import Hosts, Kind, build, first_seed, present, readings_without
from rlctl.agents.training.nearest_move import InMoves
from rlctl.agents.training.recipe import Recipe
from rlctl.envs.reward import WORK
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimBatch
from rlctl.safety.shield import Shield

HOSTS, TICKS = 24, 300
"""Hosts that the manager drives at a time, and for how long."""

MARGIN = WORK / 2.0
SAMPLES, EPOCHS = 20_000, 4
"""Pairs of an observation and its move, and passes over them."""

BATCH, LEARNING_RATE = 256, 1e-3
SEEDS = 1 << 19
"""Run seed whose hosts the manager drives; runs of that seed and it share hosts."""


class Pairs(NamedTuple):
    """What the manager did: observations, float32, shape (n, size), and moves, indices into MOVES, shape (n,)."""

    observations: NDArray[np.float32]
    moves: NDArray[np.int64]


def save_like(manager: str, algorithm: str, recipe: Recipe, hosts: Hosts, seed: int, file: Path) -> float:
    """Write a model that does what a manager would do; returns the share in which it then does the same."""
    set_random_seed(seed)
    model = make(algorithm, recipe, build(hosts, 8, seed, recipe.lags), lambda: 1.0)
    agreed = clone(model, pairs_of(hosts, manager, SAMPLES, seed, recipe.lags), EPOCHS)
    save(model, file)
    return agreed


def pairs_of(hosts: Hosts, manager: str, samples: int, seed: int, lags: tuple[int, ...]) -> Pairs:
    """Drive hosts of all kinds with a manager; PolicyError where there is none such, or it does not fit a host."""
    rounds = -(-samples // (HOSTS * TICKS))
    driven = [
        _driven(kind, count, manager, first_seed(SEEDS + seed % SEEDS, HOSTS, number), lags)
        for number in range(rounds)
        for kind, count in present(hosts, HOSTS)
    ]
    return Pairs(*(np.concatenate(parts) for parts in zip(*driven, strict=True)))


def _driven(kind: Kind, count: int, manager: str, seed: int, lags: tuple[int, ...]) -> Pairs:
    """One kind's hosts under the manager for one run."""
    batch = SimBatch(kind.host(), range(seed, seed + count), training_load, TICKS, vary=True, weight=kind.weight)
    policies, profile = [InMoves(catalogue.build(manager)) for _ in range(count)], kind.shield()
    shields = [Shield(profile, batch.limits) if profile else None for _ in policies]
    runners = [
        PolicyRunner(one, shield, batch.limits, 1.0, strict=True, lags=lags, learns=True)
        for one, shield in zip(policies, shields, strict=True)
    ]
    for runner in runners:
        runner.start()
    absent = readings_without(kind.absent)
    seen, moves = [], []
    for _ in range(TICKS):
        batch.step()
        each = zip(runners, [one.but(**absent) for one in batch.telemetry()], batch.allocations, strict=True)
        batch.apply([runner.decide(telemetry, current).verdict.allocation for runner, telemetry, current in each])
        seen += [one.observation.vector for one in policies]
        moves += [one.chosen for one in policies]
    return Pairs(np.array(seen, np.float32), np.array(moves, np.int64))


def clone(model: Any, pairs: Pairs, epochs: int) -> float:
    """Teach a model the pairs, with an optimiser of its own; returns the share in which it then does the same."""
    observations, moves = torch.as_tensor(pairs.observations), torch.as_tensor(pairs.moves)
    optimizer = torch.optim.Adam(model.policy.parameters(), lr=LEARNING_RATE)
    by_margin = isinstance(model, DQN | QRDQN)
    for _ in range(epochs):
        for part in torch.split(torch.randperm(len(moves)), BATCH):
            answers = tensor_logits(model, observations[part])
            loss = _margin(answers, moves[part]) if by_margin else cross_entropy(answers, moves[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if isinstance(model, DQN):
        model.q_net_target.load_state_dict(model.q_net.state_dict())
    elif isinstance(model, QRDQN):
        model.quantile_net_target.load_state_dict(model.quantile_net.state_dict())
    with torch.no_grad():
        preferred = tensor_logits(model, observations).argmax(dim=1).numpy()
    return float(np.mean(preferred == pairs.moves))


def _margin(values: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    others = values + MARGIN
    others = others.scatter_add(1, moves[:, None], torch.full((len(moves), 1), -MARGIN))
    return (others.max(dim=1).values - values.gather(1, moves[:, None])[:, 0]).mean()
