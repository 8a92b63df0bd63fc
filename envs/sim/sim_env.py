"""The Gymnasium environment over one simulated host, with a new load and new noise in every episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action, decode
from rlctl.envs.allocations import Allocations
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.features import latency_of
from rlctl.envs.host_env import HostEnv
from rlctl.envs.observation import LAGS
from rlctl.envs.observations import VectorObserver
from rlctl.envs.readings import Readings
from rlctl.envs.reward import WORK, RewardTerms, judge_latency, reward_of
from rlctl.envs.rows import ALLOCATION
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import LoadModel, SimPlant
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.seeds import EVALUATION_BIT, kind_of, training
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

EPISODE_STEPS = 300  # after which an episode is truncated, by default
LOAD_TICKS = 3001  # length of a load, by default; a longer episode repeats it

_NEXT = np.uint64(0x9E3779B97F4A7C15)  # odd and far from small: episodes of neighbouring seeds do not meet
_KIND = np.uint64(EVALUATION_BIT)
_NUMBER = np.uint64(EVALUATION_BIT - 1)


def episode_keys(seeds: NDArray[np.uint64], episodes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The simulator's seeds for the given episodes of environments with the given seeds, shape (n,).

    Episode 0 is the seed itself. All episodes of a training seed are training seeds, and likewise for evaluation.
    """
    with np.errstate(over="ignore"):
        # The bit that tells evaluation from training is kept; the number steps through all others.
        return (seeds & _KIND) | ((seeds + episodes * _NEXT) & _NUMBER)


def fresh_seed() -> int:
    """A training seed from the operating system, for those who give none."""
    return training(int(np.random.default_rng().integers(EVALUATION_BIT // 2)))  # half: others are counted up from it


def as_profile(profile: str | HostProfile) -> HostProfile:
    """A profile by its name or file, or itself."""
    return load_profile(profile) if isinstance(profile, str) else profile


def as_load(load: LoadModel | Mapping[str, Any]) -> LoadModel:
    """A load model by the mapping of a scenario's file, or itself; ConfigError: the mapping is none."""
    return from_config(load) if isinstance(load, Mapping) else load


def as_weight(weight: Weight | str) -> Weight:
    """A CPU weight by its name, or itself; ConfigError: there is no such one."""
    try:
        return Weight(weight)
    except ValueError:
        raise ConfigError(f"weight {weight!r}: {', '.join(Weight)} are known") from None


class SimHost(HostEnv):
    """`rlctl/SimHost-v0`: `HostEnv` over a simulated host.

    A reset with a seed begins the first episode of that seed; one without goes on to the next episode. Each episode has
    its own load, its own noise, and (where the profile gives ranges) its own host.

    Args:
        profile: A shipped profile by name, a YAML file, or a profile.
        load: The load over time, for each episode by its key; or the mapping `load` of a scenario's file.
        vary: Draw each episode's host from the profile's ranges.
        ticks: Length of the load; a longer episode repeats it.
        lags, render_mode: As of `HostEnv`.
        weight: BE's CPU weight, or its name.

    Raises:
        ConfigError: There is no such profile, load, weight or render mode.
    """

    def __init__(
        self,
        profile: str | HostProfile = "thesis-host",
        load: LoadModel | Mapping[str, Any] = training_load,
        *,
        vary: bool = True,
        tick_seconds: float = 1.0,
        ticks: int = LOAD_TICKS,
        lags: Sequence[int] = LAGS,
        weight: Weight | str = Weight.EQUAL,
        render_mode: str | None = None,
    ) -> None:
        plant = _EpisodePlant(as_profile(profile), as_load(load), ticks, tick_seconds, vary=vary)
        plant.set_weight(as_weight(weight))
        super().__init__(plant, lags, render_mode)
        self.plant: SimPlant = plant
        self._many = VectorObserver(plant.limits, tick_seconds, lags)

    def step(self, action: Action) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """As `HostEnv.step`, by the laws in machine code where there are some; its telemetry is made when asked for."""
        plant, before = self.plant, self.plant.current
        self._apply(decode(action, before, plant.limits))
        plant.wait()
        # The reward is that of `HostEnv`, from a row of numbers in place of a telemetry.
        observation, reading = self._observation(), self._readings[0]
        over = judge_latency(latency_of(reading), reading["target_seconds"], reading["lost"])
        work = float(reading["be_work_rate"])
        terms = RewardTerms(*reward_of(over, work, before != plant.current, self.overridden, WORK, self._first))
        self._first = False
        info: dict[str, Any] = {"telemetry": None, "allocation": plant.current, "missed_deadlines": 0}
        info |= {"reward": terms._asdict(), "cost": float(terms.missed)}
        return observation, float(terms.total), False, False, LateInfo(info, self._tell)

    def filter_moves(self, mask: Flags) -> Flags:
        """The moves of a mask that what this host has taught leaves, as `HostEnv.filter_moves` has it."""
        current = Allocations.of_rows(self._in_force)
        left: Flags = self._many.filter_moves(mask[None], Readings.of(self._readings), current)[0]
        return left

    def _observation(self, *, begins: bool = False) -> NDArray[np.float32]:
        now = self.plant.current
        self._readings, tell = self.plant.batch.read_rows()
        self._in_force = np.array([(now.quota_cpus, now.cpuset_cpus, now.frozen)], ALLOCATION)
        self._told = self._tell = cache(lambda: tell()[0])  # a shield knows a tick by its object
        if self._timeline is not None and self.telemetry is not None:
            self._timeline.add(self.telemetry, now, self.plant.limits)
        if begins:
            self._many.forget(1)
        seen: NDArray[np.float32] = self._many.see(self._readings, self._in_force, begins=begins)[0]
        return seen


class LateInfo(dict[str, Any]):
    """The info of a step, whose telemetry is made when somebody looks at it."""

    __slots__ = ("_tell",)

    def __init__(self, known: dict[str, Any], tell: Callable[[], Telemetry]) -> None:
        super().__init__(known)
        self._tell = tell

    def __getitem__(self, name: str) -> Any:
        if name == "telemetry" and super().__getitem__(name) is None:
            self[name] = self._tell()
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self["telemetry"]
        return super().__iter__()

    def __or__(self, other: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return dict(self) | other

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def __deepcopy__(self, memory: dict[int, Any]) -> LateInfo:
        known = dict(zip(self.keys(), super().values(), strict=True))  # what is in it nobody changes
        return LateInfo(known, self._tell)

    def copy(self) -> dict[str, Any]:
        """The same as a plain dict, with its telemetry."""
        return dict(self)

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict.get`, with its telemetry."""
        return self[name] if name in self else default  # noqa: SIM401 - it is `get`

    def items(self) -> Any:
        """As `dict.items`, with its telemetry."""
        return dict(self).items()

    def values(self) -> Any:
        """As `dict.values`, with its telemetry."""
        return dict(self).values()


class _EpisodePlant(SimPlant):
    """A SimPlant that takes the next episode's key where `SimPlant` would repeat the run."""

    _base: int | None = None
    _episode = 0

    def reset(self, seed: int | None = None) -> None:
        """The first episode of a seed, or the next one."""
        if seed is not None:
            kind_of(seed)
        if seed is not None or self._base is None:
            self._base, self._episode = fresh_seed() if seed is None else seed, 0
        else:
            self._episode += 1
        # The same keys as the vector environment's: host i of it equals this one with seed + i.
        key = episode_keys(np.array([self._base], np.uint64), np.array([self._episode], np.uint64))
        super().reset(int(key[0]))
