"""The Gymnasium environment over one simulated host, with a new load and new noise in every episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.host_env import HostEnv
from rlctl.envs.observation import LAGS
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import LoadModel, SimPlant
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.seeds import EVALUATION_BIT, kind_of, training
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


class SimHost(HostEnv):
    """`rlctl/SimHost-v0`: `HostEnv` over a simulated host.

    A reset with a seed begins the first episode of that seed; one without goes on to the next episode. Each episode has
    its own load, its own noise, and (where the profile gives ranges) its own host.

    Args:
        profile: A shipped profile by name, a YAML file, or a profile.
        load: The load over time, for each episode by its key.
        vary: Draw each episode's host from the profile's ranges.
        ticks: Length of the load; a longer episode repeats it.
        lags: Ticks back that the observation shows, oldest first.
        render_mode: None or "ansi".

    Raises:
        ConfigError: There is no such profile.
    """

    def __init__(
        self,
        profile: str | HostProfile = "thesis-host",
        load: LoadModel = training_load,
        *,
        vary: bool = True,
        tick_seconds: float = 1.0,
        ticks: int = LOAD_TICKS,
        lags: Sequence[int] = LAGS,
        weight: Weight = Weight.EQUAL,
        render_mode: str | None = None,
    ) -> None:
        plant = _EpisodePlant(as_profile(profile), load, ticks, tick_seconds, vary=vary)
        plant.set_weight(weight)
        super().__init__(plant, lags, render_mode)


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
