"""Moves that aim at neighbouring quotas learn together.

The last layer has a row of weights for each move, and nothing tells it that 36 % lies next to 43 %. Left alone
a policy settles on the few targets that it happened to try early, and jumps between them. So the gradient of each row
is shared with the rows of nearby targets, which is what a layer over smooth functions of the target would do; the layer
itself stays what it is, and so do the files that hold it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlctl.envs.actions import MOVES

WIDTH = 2.0
"""Standard deviation of the sharing, in targets: each is about a fifth above the one before."""


def kernel(width: float = WIDTH) -> NDArray[np.float64]:
    """How much of a move's gradient another one takes: 1 for itself, less for nearby targets, else 0.

    Shape (len(MOVES), len(MOVES)), symmetric and positive definite.
    """
    place = np.array([np.nan if not move.quota_ratio else float(index) for index, move in enumerate(MOVES)])
    apart = place[:, None] - place[None, :]
    shared = np.where(np.isnan(apart), 0.0, np.exp(-0.5 * (apart / width) ** 2))
    np.fill_diagonal(shared, 1.0)
    return shared


def share_gradients(layer: torch.nn.Linear) -> None:
    """Have a layer's rows learn from their neighbours: a row for each move, or for each quantile of each move."""
    repeats, rest = divmod(layer.out_features, len(MOVES))
    assert not rest, "a layer whose rows are not those of the moves"
    shared = torch.as_tensor(np.kron(np.eye(repeats), kernel()), dtype=layer.weight.dtype)
    for weights in (layer.weight, layer.bias):
        hook: Any = weights.register_hook  # untyped in torch
        hook(lambda gradient: shared @ gradient)
