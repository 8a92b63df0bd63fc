"""Transitions as a Minari dataset: what is written, from where it is, and how learners read it.

A dataset is a folder with `data/`, in Minari's own format: `minari.load_dataset` and any library that reads Minari take
it. An episode has T moves and T + 1 observations; none is ever terminated, and each ends where the recording was cut.
Beside observations, actions and rewards its infos hold, with names of policies and guards in the metadata (`Origin`):

    action_mask          moves that the shield let through, (T + 1, moves): of every observation
    proposed             the move that the policy wanted, (T,); `actions` are the moves that were executed
    proposed_allocation  quota in CPUs, cpuset size, frozen: what was asked for, (T, 3)
    ruled_allocation     what the shield let through, (T, 3)
    applied_allocation   what was then in force, (T, 3)
    overridden, explored the shield changed it; it was not the policy's own choice, (T,)
    guard, policy        who overruled it, -1 for nobody; who asked for it: places in `Origin.guards`, `Origin.policies`
    reward_terms         by the names of `TERMS`, (T, 5); their sum is the reward
    be_work_ratio        BE's work of the following tick, by BE running alone, (T,)

Minari is the extra `data`; only `write` and `read` need it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rlctl import __version__
from rlctl.envs.actions import MOVES, MOVES_VERSION, discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.observation import LAGS, VERSION, Observer
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import validated

__all__ = [
    "TERMS",
    "Dataset",
    "Episode",
    "Origin",
    "Place",
    "PolicyCounts",
    "Recording",
    "Source",
    "place_of",
    "read",
    "read_origin",
    "require_minari",
    "write",
]

TERMS = ("qos", "severity", "be_work", "reconfiguration", "override")
"""Columns of `reward_terms`, the parts of `rlctl.envs.reward.RewardTerms`."""

KEY = "rlctl"
"""Of the metadata that is ours."""

_ID = re.compile(r"(?:[A-Za-z0-9_][-\w]*/)*[A-Za-z0-9_][-\w]*-v\d+", re.ASCII)

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(_Strict):
    """Where transitions are from.

    Attributes:
        kind, name: What it is, and its file, folder, scenario or kind of host.
        sha256: Of the files; of simulated runs of everything that they follow from.
        host, host_digest: The simulated host's profile; of a log the host's limits in words.
        weight, work: BE's CPU weight, and what its work is worth by a violation to those who learn on such hosts in the
            simulator; of a log they are not known.
        shield, shield_digest: The safety profile in force; empty for none.
        hosts: How many, or how many runs a log holds.
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
    hosts: int = Field(ge=1)
    ticks: int = Field(ge=0)
    transitions: int = Field(ge=0)


class PolicyCounts(_Strict):
    """What one policy's transitions came to, over all sources.

    Attributes:
        transitions: How many.
        qos_percent: Of them held the target.
        be_percent: BE's work, by BE running alone.
        override_percent, explored_percent: Of them the shield changed, and were exploration.
    """

    transitions: int
    qos_percent: float
    be_percent: float
    override_percent: float
    explored_percent: float


class Origin(_Strict):
    """What a dataset says of itself.

    Attributes:
        schema_version: Of this.
        rlctl, code: Version and commit that wrote it.
        observation_version, moves_version, lags: What its numbers mean.
        tick_seconds: Control period.
        sha256: Over all episodes: the dataset's own identity, wherever it is copied to.
        episodes, ticks, transitions: How many; `ticks` of the recordings.
        censored: Ticks or breaks by reason, for which episodes were cut; see `rlctl.transitions`.
        policies: Who decided, in the order of the numbers in `policy`.
        guards: Who overruled, in the order of the numbers in `guard`.
        sources: From where it is.
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
    guards: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """Consecutive transitions; fields as in the module's text, with names in place of numbers.

    Attributes:
        observations: float32, shape (T + 1, size).
        masks: Shape (T + 1, len(MOVES)).
        actions, proposed: Moves, shape (T,).
        terms: Shape (T, 5).
        allocations: Proposed, ruled and applied, shape (T, 3, 3).
        be_work_ratio, overridden, explored: Shape (T,).
        policies, guards: Names, T of them; a guard's is empty where none overruled.
    """

    observations: Floats
    masks: Flags
    actions: Whole
    proposed: Whole
    terms: NDArray[np.float64]
    allocations: NDArray[np.float64]
    be_work_ratio: NDArray[np.float64]
    overridden: Flags
    explored: Flags
    policies: tuple[str, ...]
    guards: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Recording:
    """What one source gave.

    Attributes:
        source: The source.
        tick_seconds: Its control period.
        episodes: Its transitions.
        censored: Why and how often episodes were cut.
    """

    source: Source
    tick_seconds: float
    episodes: tuple[Episode, ...]
    censored: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset is, or is to be.

    Attributes:
        name: Minari's id.
        folder: Its folder; the data are in `data/` below.
    """

    name: str
    folder: Path

    @property
    def data(self) -> Path:
        """What `minari.MinariDataset` opens."""
        return self.folder / "data"


@dataclass(frozen=True, slots=True)
class Dataset:
    """All transitions in memory, row by row.

    Attributes:
        name: Minari's id.
        origin: What it says of itself.
        observations, masks: Of every state, shape (states, size) and (states, len(MOVES)).
        state: Where transition i begins; it ends in the state after that. Shape (n,).
        last: The last state of its episode, shape (n,).
        episode: Which one that is, shape (n,).
        actions, proposed: Moves, shape (n,).
        terms: Of the rewards, shape (n, 5).
        policy: Place in `origin.policies`, shape (n,).
        explored: Shape (n,).
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


def require_minari() -> None:
    """Check that Minari is installed.

    Raises:
        ConfigError: It is not.
    """
    if lacking := [name for name in ("minari", "h5py") if find_spec(name) is None]:
        raise ConfigError(
            f"datasets need {' and '.join(lacking)}: pip install 'rlctl[data]', or in a checkout "
            "scripts/install dev,train,data"
        )


def place_of(named: str) -> Place:
    """An id such as `nginx-v0` or `rlctl/nginx-v0` is Minari's to place, anything else is a folder.

    Minari's folder is MINARI_DATASETS_PATH or ~/.minari/datasets. A folder that looks like an id is written with ./
    in front.
    """
    if _ID.fullmatch(named):
        root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        return Place(named, Path(root) / named)
    folder = Path(named)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-") or "dataset"
    return Place(plain if re.search(r"-v\d+$", plain) else f"{plain}-v0", folder)


def write(place: Place, recordings: Iterable[Recording], code: str) -> Origin:
    """Write a dataset, whole or not at all.

    Args:
        place: Where it goes; nothing may be there.
        recordings: One after the other; they are held in memory one at a time.
        code: rlctl's commit or version.

    Raises:
        ConfigError: There is a dataset, recordings do not fit together, no transition is left, or Minari is not
            installed.
    """
    require_minari()
    from minari import __version__ as minari_version
    from minari.dataset.minari_storage import MinariStorage

    if place.data.exists():
        raise ConfigError("holds a dataset already; give another --out", place.folder)
    partial = place.folder.absolute() / "data.part"  # Minari puts a relative one before itself
    shutil.rmtree(partial, ignore_errors=True)
    was_there = place.folder.is_dir()
    partial.mkdir(parents=True)
    try:
        spaces = {"observation_space": Observer(Limits(1), 1.0).space, "action_space": discrete_space()}
        storage = MinariStorage.new(partial, **spaces)
        tally = _Tally()
        storage.update_episodes(tally.buffers(recordings))
        origin = tally.origin(code)
        who = ", ".join(origin.policies)
        storage.update_metadata(
            {
                "dataset_id": place.name,
                "minari_version": minari_version,
                "algorithm_name": who,
                "description": f"{origin.transitions} transitions of {who}; written by rlctl {__version__}",
                "author": {f"rlctl {__version__}"},
                KEY: origin.model_dump(mode="json"),
            }
        )
        _make_namespace(place)
        partial.rename(place.data)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if not was_there:
            with contextlib.suppress(OSError):
                place.folder.rmdir()
        raise
    return origin


def read_origin(place: Place) -> Origin:
    """What a dataset says of itself; needs no Minari.

    Raises:
        ConfigError: There is none, it is not of rlctl, or of an rlctl with other observations or moves.
    """
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
    origin = validated(Origin, said[KEY], file)
    here = (VERSION, MOVES_VERSION, LAGS)
    if (origin.observation_version, origin.moves_version, origin.lags) != here:
        raise ConfigError(
            f"is of observations {origin.observation_version} and moves {origin.moves_version}, this rlctl has "
            f"{VERSION} and {MOVES_VERSION}; export it again from its sources",
            file,
        )
    return origin


def read(place: Place) -> Dataset:
    """A dataset of rlctl's, all of it in memory: half a kilobyte for each transition.

    Raises:
        ConfigError: As `read_origin`; or Minari is not installed, or the data are damaged.
    """
    require_minari()
    origin = read_origin(place)
    from minari import MinariDataset

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari's own, about requirements
            stored = MinariDataset(place.data)
            parts = [_columns(episode, number) for number, episode in enumerate(stored.iterate_episodes())]
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"cannot be read: {said}; export it again from its sources", place.data) from error
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    states = np.cumsum([0] + [len(part["observations"]) for part in parts])
    steps = np.array([len(part["actions"]) for part in parts])
    columns["state"] += np.repeat(states[:-1], steps)
    made = Dataset(place.name, origin, last=np.repeat(states[1:] - 1, steps), **columns)
    if len(made) != origin.transitions:
        raise ConfigError(f"holds {len(made)} of {origin.transitions} transitions; copy it again", place.data)
    return made


def _columns(episode: Any, number: int) -> dict[str, NDArray[Any]]:
    """One episode's arrays.

    Raises:
        ValueError: They are not what an episode of ours has.
    """
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


class _Tally:
    """Counts what is written, while it is written."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._policies: dict[str, NDArray[np.float64]] = {}
        self._guards: dict[str, int] = {}
        self._censored: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._tick_seconds: float | None = None
        self._episodes = 0

    def buffers(self, recordings: Iterable[Recording]) -> Iterator[Any]:
        """As Minari writes them."""
        for recording in recordings:
            self._begin(recording)
            for episode in recording.episodes:
                self._episodes += 1
                yield self._buffer(episode)

    def origin(self, code: str) -> Origin:
        """What was written.

        Raises:
            ConfigError: Nothing was.
        """
        transitions = sum(one.transitions for one in self._sources)
        if not transitions or self._tick_seconds is None:
            why = ", ".join(f"{count} x {reason}" for reason, count in self._censored.most_common(3))
            raise ConfigError(
                f"no transition is left to write ({why or 'no tick is recorded'}); give a longer recording"
            )
        return Origin(
            rlctl=__version__,
            code=code,
            observation_version=VERSION,
            moves_version=MOVES_VERSION,
            lags=LAGS,
            tick_seconds=self._tick_seconds,
            sha256=self._digest.hexdigest(),
            episodes=self._episodes,
            ticks=sum(one.ticks for one in self._sources),
            transitions=transitions,
            censored=dict(self._censored.most_common()),
            policies={name: _counts(sums) for name, sums in self._policies.items()},
            guards=tuple(self._guards),
            sources=tuple(self._sources),
        )

    def _begin(self, recording: Recording) -> None:
        if self._tick_seconds not in (None, recording.tick_seconds):
            raise ConfigError(
                f"{recording.source.name} has ticks of {recording.tick_seconds:g} s and those before it of "
                f"{self._tick_seconds:g} s; write a dataset of each"
            )
        self._tick_seconds = recording.tick_seconds
        self._sources.append(recording.source)
        self._censored.update(recording.censored)

    def _buffer(self, episode: Episode) -> Any:
        from minari.data_collector import EpisodeBuffer

        rewards = episode.terms.sum(axis=1)
        for part in (episode.observations, episode.actions, rewards):
            self._digest.update(np.ascontiguousarray(part).tobytes())
        over = np.zeros(len(episode), np.bool_)
        ends = over.copy()
        ends[-1] = True
        return EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            rewards=rewards,
            terminations=over,
            truncations=ends,
            infos={
                "action_mask": episode.masks,
                "proposed": episode.proposed,
                "proposed_allocation": episode.allocations[:, 0],
                "ruled_allocation": episode.allocations[:, 1],
                "applied_allocation": episode.allocations[:, 2],
                "overridden": episode.overridden,
                "explored": episode.explored,
                "guard": np.array([self._guard(name) for name in episode.guards], np.int8),
                "policy": self._numbered(episode),
                "reward_terms": episode.terms,
                "be_work_ratio": episode.be_work_ratio,
            },
        )

    def _guard(self, name: str) -> int:
        return self._guards.setdefault(name, len(self._guards)) if name else -1

    def _numbered(self, episode: Episode) -> NDArray[np.int16]:
        held = episode.terms[:, TERMS.index("qos")] > -1.0
        ones = np.ones(len(episode))
        sums = np.stack([ones, held, episode.be_work_ratio, episode.overridden, episode.explored])
        who = np.array(episode.policies)
        for name in dict.fromkeys(episode.policies):
            of_it = self._policies.setdefault(name, np.zeros(len(sums)))
            of_it += sums[:, who == name].sum(axis=1)
        numbers = {name: place for place, name in enumerate(self._policies)}
        return np.array([numbers[name] for name in episode.policies], np.int16)


def _counts(sums: NDArray[np.float64]) -> PolicyCounts:
    qos, be, overridden, explored = (round(float(value), 4) for value in 100.0 * sums[1:] / sums[0])
    return PolicyCounts(
        transitions=int(sums[0]),
        qos_percent=qos,
        be_percent=be,
        override_percent=overridden,
        explored_percent=explored,
    )


def _make_namespace(place: Place) -> None:
    """Minari lists datasets of a namespace only where it is declared."""
    if "/" not in place.name:
        return
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = place.name.rpartition("/")[0]
    if namespace not in list_local_namespaces():
        create_namespace(namespace)
