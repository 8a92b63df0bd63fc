"""Real bundles whose networks behave until the load is high, and then answer what is no number."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlctl.agents.served.network import Network
from rlctl.envs.actions import MOVES
from rlctl.envs.features import FEATURES
from rlctl.envs.observation import LAGS

LOAD_RATIO = 0.7
"""Above it they break; beyond the middle of the load's range, which is what a bundle is tried with."""

HUGE = 3e38
"""Ten of these are infinite in float32."""

_BREAKS = {"grows": (0.0, 0.0), "infinite": (HUGE, HUGE), "nan": (HUGE, -HUGE)}
"""By behaviour, what two equal and large numbers are weighted with in the last layer: inf + inf, inf - inf."""


def make(behaviour: str, folder: Path) -> Path:
    """Write a bundle that asks for all of the host.

    Args:
        behaviour: `grows`, `infinite` or `nan`.
        folder: Is made.

    Returns:
        The folder.
    """
    from rlctl.agents.served.bundle_writer import save
    from rlctl.agents.served.card import CardParts, Training

    training = Training(total_timesteps=0, wall_seconds=0.0, seed=0, code="the fault matrix", training_id="0" * 64)
    parts = CardParts(algorithm="PPO", tick_seconds=1.0, lags=LAGS, training=training)
    save(folder, behaviour, parts, _network(behaviour))
    return folder


def _network(behaviour: str) -> Network:
    """Two layers: `hidden = relu(k (load - LOAD_RATIO))`, twice; `logits = wish + hidden @ weights`."""
    from rlctl.agents.served.card import ObservationTable

    size, moves = ObservationTable.here(LAGS).size, len(MOVES)
    load = FEATURES[(names := [one.name for one in FEATURES]).index("load")]
    place = size - size // len(LAGS) + names.index("load")  # in the newest frame
    seen = 2.0 * (LOAD_RATIO - load.low) / (load.high - load.low) - 1.0
    first = np.zeros((2, size), np.float32)
    first[:, place] = 100.0
    second = np.repeat(np.array(_BREAKS[behaviour], np.float32)[None, :], moves, axis=0)
    wish = np.array([move.name == "quota-100%" for move in MOVES], np.float32)
    return Network((first, second), (np.full(2, -100.0 * seen, np.float32), wish), "relu")
