"""Recordings become a dataset, whole or not at all.

    write(dataset_folder("nginx-v0"), [Recording(source, tick_seconds=1.0, episodes=episodes)], code_version())

What it holds then says `dataset`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlctl import __version__
from rlctl.agents.served import bundle
from rlctl.agents.training.host_kinds import validation_seed
from rlctl.agents.training.offline.dataset import (
    KEY,
    TERMS,
    DatasetFolder,
    Floats,
    Origin,
    PolicyCounts,
    Source,
    Whole,
    require_minari,
)
from rlctl.envs.actions import MOVES, MOVES_VERSION, discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.observation import LAGS, VERSION, Observer
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.envs.yaml_edge import configs_folder

REFERENCE_EPISODES, REFERENCE_SEED = 16, validation_seed(0)
"""Of the reference scores: each episode meets another host, on seeds that nothing is recorded on."""

INFOS = ("action_mask", "proposed", "overridden", "explored", "reward_terms", "be_work_ratio")
DIGESTED = ("observations", "action_mask", "actions", "proposed", "reward_terms")
"""Columns of an episode that stand in its infos as they are, and those that with policies make a dataset's identity."""

ROOM_BYTES = 64 << 20
"""Free before each episode: more than one of a day takes, with ticks of a second."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Consecutive transitions; fields as in the text of `dataset`, with names of policies in place of numbers.

    Attributes:
        observations, action_mask: Arrays of T + 1 rows; all others have T.
    """

    observations: Floats
    action_mask: Flags
    actions: Whole
    proposed: Whole
    overridden: Flags
    explored: Flags
    policy: tuple[str, ...]
    reward_terms: NDArray[np.float64]
    be_work_ratio: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Recording:
    """What one source gave; `censored` says why and how often episodes were cut."""

    source: Source
    tick_seconds: float
    episodes: tuple[Episode, ...]
    censored: Mapping[str, int] = field(default_factory=dict)


def write(place: DatasetFolder, recordings: Iterable[Recording], code: str) -> Origin:
    """Write a dataset, whole or not at all.

    Args:
        recordings: One after the other; they are held in memory one at a time.

    Raises:
        ConfigError: There is a dataset, recordings do not fit together, no transition is left, or Minari is not
            installed.
        HostError: The disk is all but full.
    """
    require_minari()
    if place.data.exists():
        raise ConfigError("holds a dataset already; give another --out", place.folder)
    partial = place.folder.absolute() / "data.part"  # Minari puts a relative one before itself
    shutil.rmtree(partial, ignore_errors=True)
    was_there = place.folder.is_dir()
    partial.mkdir(parents=True)
    try:
        origin = _store(partial, place.name, recordings, code)
        _make_namespace(place)
        partial.rename(place.data)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if not was_there:
            with contextlib.suppress(OSError):
                place.folder.rmdir()
        raise
    return origin


def _store(folder: Path, name: str, recordings: Iterable[Recording], code: str) -> Origin:
    """Minari's own files of a dataset."""
    from minari import __version__ as minari_version
    from minari.dataset.minari_storage import MinariStorage

    spaces = {"observation_space": Observer(Limits(1), 1.0).space, "action_space": discrete_space()}
    storage, tally = MinariStorage.new(folder, **spaces), _Tally()
    storage.update_episodes(_while_room(tally.buffers(recordings), folder))
    origin = tally.origin(code)
    who, spec = ", ".join(origin.policies), _env_spec(origin)
    simulated = any(one.kind == "simulator" for one in origin.sources)
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": minari_version,
            "algorithm_name": who,
            "description": f"{origin.transitions} transitions of {who}; written by rlctl {__version__}",
            "author": {f"rlctl {__version__}"},
            "env_spec": spec,
            **(_reference_scores(spec) if simulated else {}),  # any other host is only a stand-in for the recorded one
            KEY: origin.model_dump(mode="json"),
        }
    )
    return origin


def _env_spec(origin: Origin) -> str:
    """The environment that `recover_environment` makes: the simulated host with the most transitions.

    Where there is none, or its profile does not ship, it is a default host with the same observations and moves.
    """
    simulated = [one for one in origin.sources if one.kind == "simulator"]
    shipped = [one for one in simulated if (configs_folder("plants") / f"{one.host}.yaml").is_file()]
    kwargs: dict[str, Any] = {"tick_seconds": origin.tick_seconds, "lags": list(origin.lags)}
    if shipped:
        kwargs["profile"] = max(shipped, key=lambda one: one.transitions).host
    spec = copy.deepcopy(gymnasium.spec("rlctl/SimHost-v0"))
    spec.kwargs.update(kwargs)
    return spec.to_json()


@functools.cache
def _reference_scores(spec: str) -> dict[str, float]:
    """Mean returns by which `minari.get_normalized_score` divides: of random moves, and of the `ppo` that ships.

    They are of whole episodes of the environment that `recover_environment` makes, where policies are then compared.
    """
    ppo, dice = bundle.load(configs_folder("bundles") / "ppo"), np.random.default_rng(0)

    def mean_return(choose: Callable[[Floats, SimHostVectorEnv], Whole]) -> float:
        hosts = SimHostVectorEnv(REFERENCE_EPISODES, **json.loads(spec)["kwargs"])
        observations, returns = hosts.reset(seed=REFERENCE_SEED)[0], np.zeros(REFERENCE_EPISODES)
        for _ in range(hosts.max_episode_steps):
            observations, rewards, *_ = hosts.step(choose(observations, hosts))
            returns += rewards
        hosts.close()
        return float(returns.mean())

    return {
        "ref_min_score": mean_return(lambda seen, _: dice.integers(len(MOVES), size=len(seen))),
        "ref_max_score": mean_return(
            lambda seen, hosts: np.where(hosts.action_masks(), ppo.logits(seen), -np.inf).argmax(axis=1)
        ),
    }


def _while_room(buffers: Iterable[Any], folder: Path) -> Iterator[Any]:
    """HDF5 takes the process down where it cannot write, so the disk must not get full beneath it."""
    for buffer in buffers:
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            said = f"less than {ROOM_BYTES >> 20} MiB are free there; make room, or give another --out"
            raise HostError(f"{folder.parent}: {said}")
        yield buffer


class _Tally:
    """Counts what is written, while it is written."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._policies: dict[str, NDArray[np.float64]] = {}
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
        """What the dataset says of itself; ConfigError where no transition was written."""
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

        count, infos = len(episode), {name: getattr(episode, name) for name in INFOS}
        for name in DIGESTED:
            self._digest.update(np.ascontiguousarray(getattr(episode, name)).tobytes())
        self._digest.update("\n".join(episode.policy).encode())
        return EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.reward_terms.sum(axis=1),
            terminations=np.zeros(count, np.bool_),
            truncations=np.arange(count) == count - 1,
            infos=infos | {"policy": self._numbered(episode)},
        )

    def _numbered(self, episode: Episode) -> NDArray[np.int16]:
        held = episode.reward_terms[:, TERMS.index("qos")] > -1.0
        ones = np.ones(len(episode))
        sums = np.stack([ones, held, episode.be_work_ratio, episode.overridden, episode.explored])
        who = np.array(episode.policy)
        for name in dict.fromkeys(episode.policy):
            of_it = self._policies.setdefault(name, np.zeros(len(sums)))
            of_it += sums[:, who == name].sum(axis=1)
        numbers = {name: place for place, name in enumerate(self._policies)}
        return np.array([numbers[name] for name in episode.policy], np.int16)


def _counts(sums: NDArray[np.float64]) -> PolicyCounts:
    qos, be, overridden, explored = (round(float(value), 4) for value in 100.0 * sums[1:] / sums[0])
    return PolicyCounts(
        transitions=int(sums[0]), qos_percent=qos, be_percent=be, override_percent=overridden, explored_percent=explored
    )


def _make_namespace(place: DatasetFolder) -> None:
    """Minari lists datasets of a namespace only where it is declared."""
    if "/" not in place.name:
        return
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = place.name.rpartition("/")[0]
    if namespace not in list_local_namespaces():
        create_namespace(namespace)
