"""Fitted Q evaluation: what a policy is worth, told from transitions of others alone.

A network learns the policy's own values on the given transitions: the reward, and what the target network says of the
next state and the policy's choice there (Le, Voloshin and Yue, ICML 2019). The mean of its values over the states, with
the policy's choices, is the score. It compares policies that stay near to what was recorded; of a move that was seldom
tried it knows little, as nobody does who has no host.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from rlctl.agents.training.offline.dataset import Dataset
from rlctl.envs.actions import MOVES

UNITS, BATCH, RATE, TARGET_UPDATES = 64, 256, 1e-3, 100

Rows = NDArray[np.int64]


def value_of(
    data: Dataset,
    rows: Rows,
    rewards: NDArray[np.float32],
    here: Rows,
    after: Rows,
    gamma: float,
    *,
    updates: int,
    seed: int,
) -> float:
    """A policy's mean value over the states of some transitions.

    Args:
        here: What the policy chooses where these transitions begin, shape (len(rows),).
        after: What it chooses where they end.
        seed: Seed of weights and batches: the same for policies that are compared.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = _network(data.observations.shape[1])
        draw = torch.Generator().manual_seed(seed)
        batches = [torch.randint(len(rows), (BATCH,), generator=draw) for _ in range(updates)]
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=RATE)
    seen, later = (torch.as_tensor(data.observations[data.state[rows] + step]) for step in (0, 1))
    taken, next_moves = torch.as_tensor(data.actions[rows]), torch.as_tensor(after)
    gained = torch.as_tensor(rewards[rows])
    for number, part in enumerate(batches):
        if number % TARGET_UPDATES == 0:
            target.load_state_dict(net.state_dict())
        with torch.no_grad():  # Bellman's equation of the policy: its own choice next, and not the best one
            wanted = gained[part] + gamma * _of(target(later[part]), next_moves[part])
        loss = torch.nn.functional.smooth_l1_loss(_of(net(seen[part]), taken[part]), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return float(_of(net(seen), torch.as_tensor(here)).mean())


def _of(values: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    return values.gather(1, moves[:, None])[:, 0]


def _network(size: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(size, UNITS),
        torch.nn.ReLU(),
        torch.nn.Linear(UNITS, UNITS),
        torch.nn.ReLU(),
        torch.nn.Linear(UNITS, len(MOVES)),
    )
