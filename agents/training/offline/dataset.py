"""Transitions as a Minari dataset: where it is, what it says of itself, and how learners read it.

    place = dataset_folder("nginx-v0")
    read_origin(place).policies["heracles"].qos_percent        # the metadata alone, which need no Minari
    data = read(place)

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

import json
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rlctl.agents.served.network import first_line
from rlctl.envs.actions import MOVES, MOVES_VERSION
from rlctl.envs.allocation import Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError, PermissionMissing, require_installed
from rlctl.envs.observation import LAGS, VERSION, Observer
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict, validate

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]

TERMS = ("qos", "severity", "be_work", "reconfiguration", "override")
"""Columns of `reward_terms`, the parts of `rlctl.envs.reward.RewardTerms`."""

KEY = "rlctl"
"""Of the metadata that is ours."""

_ID = re.compile(r"(?:[A-Za-z0-9_][-\w]*/)*[A-Za-z0-9_][-\w]*-v\d+", re.ASCII)


class Source(Strict):
    """Where transitions are from.

    Attributes:
        kind, name: What it is, and its file, folder, scenario or kind of host.
        sha256: Digest of the files; of simulated runs that of everything that they follow from.
        host, host_digest: The simulated host's profile; of a log the host's limits in words.
        weight, work: BE's CPU weight, and what its work is worth by a violation to those who learn on such hosts in the
            simulator. Of a log they are not known.
        shield, shield_digest: The safety profile in force; empty for none.
        absent: Sensors that simulated hosts lacked; of a log they are not known.
        hosts: Number of hosts, or of runs that a log holds.
        ticks, transitions: How many control periods there were, and how many are in the dataset.
    """

    kind: Literal["simulator", "tick log", "train-live"]
    name: str
    sha256: str
    host: str
    host_digest: str = ""
    weight: Weight | None = None
    work: float | None = None
    shield: str = ""
    shield_digest: str = ""
    absent: tuple[str, ...] = ()
    hosts: int = Field(ge=1)
    ticks: int = Field(ge=0)
    transitions: int = Field(ge=0)


class PolicyCounts(Strict):
    """What one policy's transitions came to, over all sources.

    Attributes:
        qos_percent: Share of them that held the target.
        override_percent, explored_percent: Shares that the shield changed, and that were exploration.
    """

    transitions: int
    qos_percent: float
    be_percent: float
    override_percent: float
    explored_percent: float


class Origin(Strict):
    """What a dataset says of itself.

    Attributes:
        rlctl, code: Version and commit that wrote it.
        observation_version, moves_version, lags: What its numbers mean.
        sha256: Digest over all episodes: the dataset's own identity, wherever it is copied to.
        ticks: Control periods of the recordings, more than there are transitions.
        censored: Ticks or breaks by reason, for which episodes were cut; see `rlctl.learn.transitions`.
        policies: Who decided, in the order of the numbers in `policy`.
    """

    schema_version: Literal[1] = 1
    rlctl: str
    code: str
    observation_version: int
    moves_version: int
    lags: tuple[int, ...]
    tick_seconds: float
    sha256: str
    episodes: int
    ticks: int
    transitions: int
    censored: dict[str, int]
    policies: dict[str, PolicyCounts]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """Where a dataset is, or is to be: its folder, with the data in `data/` below."""

    name: str
    folder: Path

    @property
    def data(self) -> Path:
        """The folder that `minari.MinariDataset` opens."""
        return self.folder / "data"


@dataclass(frozen=True, slots=True)
class Dataset:
    """All transitions in memory, row by row.

    Attributes:
        observations, masks: Of every state, shape (states, size) and (states, len(MOVES)).
        state: State in which transition i begins, shape (n,) as all that follow; it ends in the state after that.
        episode: The episode's number.
        actions, proposed: Moves that were executed, and that the policy wanted.
        policy: Place in `origin.policies` of who decided.
    """

    name: str
    origin: Origin
    observations: Floats
    masks: Flags
    state: Whole
    episode: Whole
    actions: Whole
    proposed: Whole
    terms: Floats
    policy: Whole

    def __len__(self) -> int:
        return len(self.actions)


def require_minari() -> None:
    """Raise ConfigError where Minari is not installed."""
    require_installed("a dataset", "data", "minari", "h5py")


def dataset_folder(named: str) -> DatasetFolder:
    """An id such as `nginx-v0` or `rlctl/nginx-v0` is Minari's to place, anything else is a folder.

    Minari's folder is MINARI_DATASETS_PATH or ~/.minari/datasets. A folder that looks like an id is written with ./
    in front.
    """
    if _ID.fullmatch(named):
        root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        return DatasetFolder(named, Path(root) / named)
    folder = Path(named)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-") or "dataset"
    return DatasetFolder(plain if re.search(r"-v\d+$", plain) else f"{plain}-v0", folder)


def read_origin(place: DatasetFolder) -> Origin:
    """What a dataset says of itself; ConfigError where it is none of an rlctl with these observations and moves."""
    file = place.data / "metadata.json"
    if not file.is_file():
        raise ConfigError("holds no dataset; `rlctl dataset export` and `record` write them", place.folder)
    try:
        said = json.loads(file.read_text())
    except PermissionError as error:
        raise PermissionMissing(f"{file}: may not be read; run as a user who may") from error
    except (OSError, ValueError) as error:
        raise ConfigError("cannot be read; export it again from its sources", file) from error
    if not isinstance(said, dict) or KEY not in said:
        raise ConfigError("is no dataset of rlctl's: its metadata do not say what its numbers mean", file)
    origin = validate(Origin, said[KEY], file)
    here = (VERSION, MOVES_VERSION, LAGS)
    if (origin.observation_version, origin.moves_version, origin.lags) != here:
        raise ConfigError(
            f"is of observations {origin.observation_version} and moves {origin.moves_version}, this rlctl has "
            f"{VERSION} and {MOVES_VERSION}; export it again from its sources",
            file,
        )
    return origin


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
    if not (held := sum(len(part["actions"]) for part in parts)) or held != origin.transitions:
        raise ConfigError(f"holds {held} of {origin.transitions} transitions; copy it again", place.data)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # An episode has one state more than it has transitions, and its number is that of the episodes before it.
    columns["state"] = np.arange(len(columns["actions"])) + columns["episode"]
    return Dataset(place.name, origin, **columns)


def _columns(episode: Any, number: int) -> dict[str, NDArray[Any]]:
    """One episode's arrays; ValueError where they are not what an episode of ours has."""
    infos, steps = episode.infos, len(episode.actions)
    wanted: dict[str, tuple[Any, type, tuple[int, ...]]] = {
        "observations": (episode.observations, np.float32, (steps + 1, Observer(Limits(1), 1.0).size)),
        "masks": (infos["action_mask"], np.bool_, (steps + 1, len(MOVES))),
        "actions": (episode.actions, np.int64, (steps,)),
        "proposed": (infos["proposed"], np.int64, (steps,)),
        "terms": (infos["reward_terms"], np.float32, (steps, len(TERMS))),
        "policy": (infos["policy"], np.int64, (steps,)),
    }
    columns: dict[str, NDArray[Any]] = {name: np.asarray(given, kind) for name, (given, kind, _) in wanted.items()}
    if wrong := [name for name, (_, _, shape) in wanted.items() if columns[name].shape != shape]:
        raise ValueError(f"episode {number}: {wrong[0]} of shape {columns[wrong[0]].shape}")
    if any(((columns[name] < 0) | (columns[name] >= len(MOVES))).any() for name in ("actions", "proposed")):
        raise ValueError(f"episode {number}: a move that is none")
    return columns | {"episode": np.full(steps, number)}
