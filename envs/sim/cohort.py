"""Simulated hosts that began their episodes together, so that one clock serves them all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocations import Allocations
from rlctl.envs.sim.hosts import Hosts, Orders
from rlctl.envs.sim.loads_training import training_load, training_loads
from rlctl.envs.sim.plant import LoadModel
from rlctl.envs.sim.profile import Constants, HostProfile
from rlctl.envs.sim.sensing import Sensors
from rlctl.envs.sim.vector_observation import Readings, read
from rlctl.envs.workload import Weight

__all__ = ["Cohort", "SimSetup"]

Array = NDArray[np.float64]


class SimSetup:
    """What all hosts of a vector environment have in common.

    Args:
        profile: Of all hosts.
        load: The load over time.
        ticks: Length of the load; a longer episode repeats it.
        used_ticks: How many of them an episode uses at most.
        tick_seconds: Control period.
        vary: Draw each host's constants from the profile's ranges.
        weight: BE's CPU weight against the LC's.
    """

    def __init__(
        self,
        profile: HostProfile,
        load: LoadModel,
        ticks: int,
        used_ticks: int,
        tick_seconds: float,
        *,
        vary: bool,
        weight: Weight,
    ) -> None:
        self.profile = profile if vary else profile.model_copy(update={"ranges": {}})
        self.load, self.tick_seconds, self.weight = load, tick_seconds, weight
        self._ticks = ticks
        # A training load begins alike whatever its length; others may not.
        self._made_ticks = min(ticks, used_ticks) if load is training_load else ticks

    def hosts(self, keys: NDArray[np.uint64]) -> tuple[Hosts, Sensors]:
        """New hosts with these seeds, and their sensors."""
        constants = Constants.drawn(self.profile, keys)
        return Hosts(constants, keys, self.tick_seconds), Sensors(constants, self.tick_seconds)

    def loads(self, keys: NDArray[np.uint64]) -> Array:
        """Share of the maximum, shape (ticks, n)."""
        if self.load is training_load:
            return training_loads(keys, self._made_ticks, self.tick_seconds)
        each = [self.load(int(key), self._made_ticks, self.tick_seconds) for key in keys]
        return np.ascontiguousarray(np.stack(each, axis=1))


class Cohort:
    """Hosts under one clock.

    A host that is reset before the others leaves for a new cohort; its place here computes on in vain until the others'
    episode ends. So each host lives exactly the run that it would live alone.

    Args:
        setup: What they have in common.
        places: Their numbers in the environment, shape (m,).
        keys: Their seeds, shape (m,).
    """

    def __init__(self, setup: SimSetup, places: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        self.places = places
        self.here = np.ones(len(places), np.bool_)
        self.hosts, self._sensors = setup.hosts(keys)
        self._rates_rps = setup.loads(keys) * self.hosts.constants.max_load_rps
        equal = setup.weight is Weight.EQUAL
        self._weights = np.ones(len(places)) if equal else self.hosts.constants.minimum_weight_ratio

    @property
    def steps(self) -> int:
        """Of the episode; the period before the first step, which a reset lets pass, does not count."""
        return self.hosts.tick - 1

    def leave(self, which: NDArray[np.bool_]) -> None:
        """Some hosts of the environment, shape (n,), belong elsewhere from now on."""
        self.here &= ~which[self.places]

    def step(self, allocations: Allocations) -> Readings:
        """Let one control period pass.

        Args:
            allocations: Of these hosts, in the order of `places`.
        """
        orders = Orders(
            allocations.quota_cpus, allocations.cpuset_cpus.astype(np.float64), allocations.frozen, self._weights
        )
        rates = self._rates_rps[self.hosts.tick % len(self._rates_rps)]
        window = self.hosts.step(rates, orders)
        self._sensors.take(window)
        return read(self._sensors, window, self.hosts.tick * self.hosts.tick_seconds)

    def spread(self, readings: Readings, over: Readings) -> Readings:
        """The environment's readings `over`, with the new ones of the hosts that are still here put in."""
        places = self.places[self.here]
        made: list[NDArray[Any]] = [array.copy() for array in over]
        for array, new in zip(made, readings, strict=True):
            array[places] = new[self.here]
        return Readings(*made)
