"""The Gymnasium environment over one simulated host, with a new load and new noise in every episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action, index_of
from rlctl.envs.allocation import Allocation
from rlctl.envs.allocations import Allocations
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.host_env import HostEnv
from rlctl.envs.late_info import LateInfo
from rlctl.envs.observation import LAGS
from rlctl.envs.readings import Readings
from rlctl.envs.reward import WORK, RewardTerms
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.physics import Window
from rlctl.envs.sim.plant import LoadModel, SimPlant
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.seeds import EVALUATION_BIT, kind_of, training
from rlctl.envs.sim.tick import NO_MOVES, TickLoop, TickRows
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
    # Never one of evaluation: nobody shall learn on what results are scored by.
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
        self._loop = TickLoop(plant.limits, tick_seconds, lags)

    def step(self, action: Action) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """As `HostEnv.step`, in one loop over its laws, and with an info that is made when somebody looks at it."""
        tick, moves = self._loop.new_tick(), NO_MOVES
        if isinstance(action, Allocation):
            asked = self.plant.limits.clip(action).numbers
            tick.proposed[0] = tick.allocations[0] = asked
        else:
            moves = np.array([index_of(action)])
        tick.overridden[0] = self.overridden
        assert self._loop.latest is not None, "call reset() first"
        self._show(self._loop.step(tick, self._loop.latest.allocations, moves))
        return tick.observations[0], float(tick.rewards[0]), False, False, LateInfo(partial(_outcome, tick, self._tell))

    def filter_moves(self, mask: Flags) -> Flags:
        """The moves of a mask that what this host has taught leaves, as `HostEnv.filter_moves` has it."""
        assert self._loop.latest is not None, "call reset() first"
        readings, current = Readings.of(self._loop.latest.readings), Allocations.of_rows(self._loop.latest.allocations)
        left: Flags = self._loop.observer.filter_moves(mask[None], readings, current)[0]
        return left

    def _begin(self) -> NDArray[np.float32]:
        tick = self._loop.begin(self.plant.batch, np.ones(1), WORK)
        self._show(tick)
        return tick.observations[0]

    def _show(self, tick: TickRows) -> None:
        """Have the plant and its telemetry be as after a tick."""
        batch = self.plant.batch
        batch.allocations = [Allocation(*tick.allocations[0].item())]
        tell = batch.sensors.teller(Window(tick.windows), tick.readings)
        self._told = self._tell = cache(lambda: tell()[0])  # a shield knows a tick by its object
        if self._timeline is not None and self.telemetry is not None:
            self._timeline.add(self.telemetry, self.plant.current, self.plant.limits)


def _outcome(tick: TickRows, tell: Callable[[], Telemetry]) -> dict[str, Any]:
    """The info of a step."""
    terms = RewardTerms(*tick.terms[0].tolist())
    return {
        "telemetry": tell(), "allocation": Allocation(*tick.allocations[0].item()), "missed_deadlines": 0,
        "reward": terms._asdict(), "cost": float(terms.missed),
    }  # fmt: skip


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
