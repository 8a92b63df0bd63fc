"""A model to begin with that does what an upper bound would do: for `rlctl train --init`.

The teacher is `oracle-model`, which knows the simulated host and the load: its answer hangs on the host, not on what it
did before. A model that sees what sensors say can only learn what most hosts that look alike allow (learning by
cheating: Chen et al., CoRL 2019). A manager as the teacher taught its own habits: to stay where it stood.

The first round is driven by the teacher, the later ones by the model, while the teacher says what it would do there
(DAgger: Ross et al., AISTATS 2011). The hosts are the learner's own, behind their shields; the answer is the allowed
move nearest to the bound's.

PPO learns by cross-entropy on its logits. DQN and QR-DQN learn by the large margin of DQfD (Hester et al., AAAI 2018,
eq. 2) on their values: the teacher's move shall be worth MARGIN more than any other; their scale stays that of
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

from rlctl.agents.bounds.oracle_model import OracleModel
from rlctl.agents.training.algorithms import logits_of, make, save, tensor_logits
from rlctl.agents.training.host_kinds import Hosts, build
from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, apply_moves
from rlctl.envs.arrays import Flags
from rlctl.envs.reward import WORK
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.vector_env import SimHostVectorEnv

HOSTS, ROUNDS, TICKS = 224, 3, 300
"""Hosts that are driven at a time, how often, and for how long."""

EVERY = 3
"""Ticks from one pair to the next: neighbours in time say much the same."""

MARGIN = WORK / 2.0
EPOCHS = 8
"""Passes over the pairs after each round; twice as many after the last."""

BATCH, LEARNING_RATE = 256, 2e-3
SEEDS = 1 << 19
"""Run seed of the first round's hosts; runs of that seed and those after it share hosts."""


class Pairs(NamedTuple):
    """What was seen, float32, shape (n, size), and what the teacher would do, indices into MOVES, shape (n,)."""

    observations: NDArray[np.float32]
    moves: NDArray[np.int64]


def save_like_oracle(algorithm: str, recipe: Recipe, hosts: Hosts, seed: int, file: Path) -> float:
    """Write a model that does what the teacher would do; returns the share of pairs in which it does."""
    set_random_seed(seed)
    torch.set_num_threads(1)  # a small network is no faster on more
    model: Any = None
    rounds: list[Pairs] = []
    agreed = 0.0
    for number in range(ROUNDS):
        env = build(hosts, HOSTS, SEEDS + (seed * ROUNDS + number) % SEEDS, recipe.lags)
        if model is None:
            model = make(algorithm, recipe, env, lambda: 1.0)
        rounds.append(driven(env, model if number else None))
        env.close()
        pairs = Pairs(*(np.concatenate(parts) for parts in zip(*rounds, strict=True)))
        agreed = clone(model, pairs, 2 * EPOCHS if number == ROUNDS - 1 else EPOCHS)
    save(model, file)
    return agreed


def driven(env: SimVecEnv, model: Any) -> Pairs:
    """Pairs of hosts that the model drives, or with None the teacher."""
    logits, teachers = logits_of(model) if model else None, [Teacher(group) for group in env.groups]
    seen, rounds = env.reset(), []
    for tick in range(TICKS if logits else TICKS // EVERY):
        masks = np.array(env.env_method("action_masks"))
        if not logits or tick % EVERY == 0:
            ends = np.cumsum([group.num_envs for group in env.groups])
            each = zip(teachers, np.split(masks, ends[:-1]), strict=True)
            moves = np.concatenate([teacher.moves(mask) for teacher, mask in each])
            rounds.append(Pairs(seen, moves))
        chosen = np.where(masks, logits(seen), -np.inf).argmax(axis=1) if logits else moves
        seen = np.asarray(env.step(chosen)[0], np.float32)
    return Pairs(*(np.concatenate(parts) for parts in zip(*rounds, strict=True)))


class Teacher:
    """The bound on the hosts of one environment, episode after episode."""

    def __init__(self, group: SimHostVectorEnv) -> None:
        self._group = group
        self._bound: tuple[SimBatch, OracleModel] | None = None

    def moves(self, masks: Flags) -> NDArray[np.int64]:
        """The allowed moves nearest to what the bound would give BE in the next window."""
        batch = self._group._loop._batch
        if self._bound is None or self._bound[0] is not batch:  # an episode has its own hosts
            self._bound = batch, OracleModel(batch)
        wanted = Allocations.of(self._bound[1].act_all())
        return nearest_moves(wanted, self._group.current, self._group.limits, masks)


def nearest_moves(wanted: Allocations, current: Allocations, limits: Limits, masks: Flags) -> NDArray[np.int64]:
    """The allowed moves, shape (n,), that come nearest: in the freezer, then in usable CPUs, then in the quota."""
    done = apply_moves(current, limits)
    usable = [np.where(one.frozen, 0.0, np.minimum(one.quota_cpus, one.cpuset_cpus)) for one in (done, wanted)]
    quota = [np.minimum(one.quota_cpus, limits.cpus) for one in (done, wanted)]
    # Differences in CPUs stay far below a thousand, so that no sum of the lesser ones makes up for a greater one.
    apart = 1e6 * (done.frozen != wanted.frozen) + 1e3 * abs(usable[0] - usable[1]).round(4) + abs(quota[0] - quota[1])
    found: NDArray[np.int64] = np.where(masks.T, apart, np.inf).argmin(axis=0)
    return found


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
