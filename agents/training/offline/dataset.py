"""Transitions as a Minari dataset: what is written, from where it is, and how learners read it.

A dataset is a folder with `data/`, in Minari's own format: `minari.load_dataset` and any library that reads Minari take
it. An episode has T moves and T + 1 observations; none is ever terminated, and each ends where the recording was cut.
Beside observations, actions and rewards its infos hold, with names of policies in the metadata (`Origin`):

    action_mask           moves that the shield let through, (T + 1, moves): of every observation
    proposed              the move that the policy wanted, (T,); `actions` are the moves that were executed
    overridden, explored  the shield changed it; it was not the policy's own choice, (T,)
    policy                who asked for it, a place in `Origin.policies`, (T,)
    reward_terms          by the names of `TERMS`, (T, 5); their sum is the reward
    be_work_ratio         BE's work of the following tick, by BE running alone, (T,)

Minari is the extra `data`; only `writer.write` and `read` need it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.served.network import first_line
from rlctl.agents.training.offline.origin import TERMS, DatasetFolder, Origin, read_origin, require_minari
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import Observer

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """All transitions in memory, row by row.

    Attributes:
        observations, masks: Of every state, shape (states, size) and (states, len(MOVES)).
        state: State in which transition i begins, shape (n,) as all that follow; it ends in the state after that.
        last, episode: The last state of its episode, and the episode's number.
        actions, proposed: Moves that were executed, and that the policy wanted.
        policy: Place in `origin.policies` of who decided.
        explored: True where it was not the policy's own choice.
    """

    name: str
    origin: Origin
    observations: Floats
    masks: Flags
    state: Whole
    last: Whole
    episode: Whole
    actions: Whole
    proposed: Whole
    terms: Floats
    policy: Whole
    explored: Flags

    def __len__(self) -> int:
        return len(self.actions)


def read(place: DatasetFolder) -> Dataset:
    """A dataset of rlctl's in memory, half a kilobyte for each transition; ConfigError where it cannot be read."""
    require_minari()
    origin = read_origin(place)
    from minari import MinariDataset

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari's own, about requirements
            stored = MinariDataset(place.data)
            parts = [_columns(episode, number) for number, episode in enumerate(stored.iterate_episodes())]
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ConfigError(
            f"cannot be read: {first_line(error)}; export it again from its sources", place.data
        ) from error
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    states = np.cumsum([0] + [len(part["observations"]) for part in parts])
    steps = np.array([len(part["actions"]) for part in parts])
    columns["state"] += np.repeat(states[:-1], steps)
    made = Dataset(place.name, origin, last=np.repeat(states[1:] - 1, steps), **columns)
    if len(made) != origin.transitions:
        raise ConfigError(f"holds {len(made)} of {origin.transitions} transitions; copy it again", place.data)
    return made


def _columns(episode: Any, number: int) -> dict[str, NDArray[Any]]:
    """One episode's arrays; ValueError where they are not what an episode of ours has."""
    infos, steps = episode.infos, len(episode.actions)
    columns = {
        "observations": np.asarray(episode.observations, np.float32),
        "masks": np.asarray(infos["action_mask"], np.bool_),
        "state": np.arange(steps),
        "episode": np.full(steps, number),
        "actions": np.asarray(episode.actions, np.int64),
        "proposed": np.asarray(infos["proposed"], np.int64),
        "terms": np.asarray(infos["reward_terms"], np.float32),
        "policy": np.asarray(infos["policy"], np.int64),
        "explored": np.asarray(infos["explored"], np.bool_),
    }
    wanted: dict[str, tuple[int, ...]] = {
        "observations": (steps + 1, Observer(Limits(1), 1.0).size),
        "masks": (steps + 1, len(MOVES)),
    }
    wanted |= {"terms": (steps, len(TERMS)), "proposed": (steps,), "policy": (steps,), "explored": (steps,)}
    if wrong := [name for name, shape in wanted.items() if columns[name].shape != shape]:
        raise ValueError(f"episode {number}: {wrong[0]} of shape {columns[wrong[0]].shape}")
    if any(((columns[name] < 0) | (columns[name] >= len(MOVES))).any() for name in ("actions", "proposed")):
        raise ValueError(f"episode {number}: a move that is none")
    return columns
