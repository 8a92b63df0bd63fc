"""Simulated hosts that pass their control periods together under one clock, and one of them as a Plant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.allocations import Allocations
from rlctl.envs.arrays import Array
from rlctl.envs.readings import Readings
from rlctl.envs.reins import CPU
from rlctl.envs.run_metrics import Truth
from rlctl.envs.sim.loads_training import load_rows, training_load, training_loads
from rlctl.envs.sim.physics import HostOrders, Hosts, Window
from rlctl.envs.sim.profile import Constants, HostProfile
from rlctl.envs.sim.reins import take_rein
from rlctl.envs.sim.sensing import Sensors
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

MADE_AHEAD = 512
"""Loads of ticks and hosts that are made at once."""

LoadModel = Callable[[int, int, float], Array]
"""(seed, ticks, tick_seconds) -> configured load in each tick as a share of the LC's maximum, shape (ticks,)."""


class SimHosts(ABC):
    """n simulated hosts under one clock, with their load and their sensors: `step` and `read`, again and again.

    Args:
        seeds: One per host, shape (n,): its noise follows from it.
        weights: BE's CPU weight by the LC's on each host, shape (n,), from `weight_ratios`.

    Attributes:
        window: What happened in the last period: the truth by which runs are scored. None before the first.
    """

    def __init__(
        self,
        constants: Constants,
        seeds: NDArray[np.uint64],
        weights: Array,
        tick_seconds: float,
    ) -> None:
        self.constants, self.weights, self.tick_seconds = constants, weights, tick_seconds
        self.hosts = Hosts(constants, seeds, tick_seconds)
        self.sensors = Sensors(self.hosts.constant_rows, tick_seconds)
        self.window: Window | None = None

    @property
    def count(self) -> int:
        """Number of hosts, n."""
        return self.hosts.count

    @property
    def time_seconds(self) -> float:
        """The clock; 0 at the start."""
        return self.hosts.tick * self.tick_seconds

    @abstractmethod
    def load_ratio(self, tick: int) -> Array:
        """Configured load in a tick as a share of each LC's maximum, shape (n,)."""

    def keep_to_cpus(self) -> None:
        """From now on BE's level is moved by the CPUs alone, as for policies that do not move reins."""
        self.hosts.constant_rows["rein"] = CPU

    def take_reins(self) -> None:
        """Have the hosts' other reins in hand, on those that have one."""
        take_rein(self.hosts.rows, self.hosts.constant_rows)

    def rate_rps(self, tick: int) -> Array:
        """The configured load in requests per second, shape (n,)."""
        return self.load_ratio(tick) * self.constants.max_load_rps

    def step(self, allocations: Allocations) -> Window:
        """Let one control period pass with these allocations in force."""
        cpuset_cpus = allocations.cpuset_cpus.astype(np.float64)
        orders = HostOrders(allocations.quota_cpus, cpuset_cpus, allocations.frozen, self.weights)
        # The load of the period that begins now, under the orders that are in force now.
        self.window = self.hosts.step(self.rate_rps(self.hosts.tick), orders)
        self.sensors.take(self.window)
        return self.window

    def truth(self) -> Truth:
        """The last period as it was, by which runs are scored."""
        window, c = self.window, self.constants
        assert window is not None, "nothing has happened before the first period"
        # As products, not quotients: both round, and a window in 10**16 would be judged otherwise.
        latency_ratio = window.latency_seconds * (1.0 / c.target_seconds)
        return Truth(latency_ratio, window.offered_rps * (1.0 / c.max_load_rps), window.be_work_ratio, window.lc_cpus)

    def read(self) -> Readings:
        """The sensors' readings after a period."""
        assert self.window is not None, "nothing to read before the first period"
        return self.sensors.readings(self.window, self.time_seconds)

    def telemetry(self) -> list[Telemetry]:
        """The same host by host; before the first period nothing has arrived."""
        if self.window is None:
            return [Telemetry(0.0, target) for target in self.constants.target_seconds.tolist()]
        return self.sensors.telemetry(self.window, self.time_seconds)


class SimBatch(SimHosts):
    """Simulated hosts of one profile, which keep the allocations that are in force on them.

    Args:
        profile: Of all hosts; its ranges are drawn from for each seed when `vary`.
        seeds: One per host; decides its constants, its noise, and its load.
        ticks: Length of the load; a longer run repeats it.
        vary: Draw each host's constants from the profile's ranges.
        limits: Range of allocations; the profile's when None.

    Attributes:
        allocations: In force, host by host; at first the safe ones.
    """

    def __init__(
        self,
        profile: HostProfile,
        seeds: Sequence[int] | NDArray[np.uint64],
        load: LoadModel,
        ticks: int,
        tick_seconds: float = 1.0,
        *,
        vary: bool = False,
        weight: Weight = Weight.EQUAL,
        limits: Limits | None = None,
    ) -> None:
        # One number a host: its constants, its noise and its load all follow from it.
        keys = np.array(seeds, np.uint64)
        constants = Constants.drawn(profile, keys) if vary else Constants.stack([profile] * len(keys))
        # A training load is made as it is met: few episodes see all of it.
        self._shapes = load_rows(keys) if load is training_load else None
        self._ticks, self._made = ticks, range(0)
        if self._shapes is None:
            self._loads, self._made = _loads(load, keys, ticks, tick_seconds), range(ticks)
        super().__init__(constants, keys, weight_ratios(weight, constants), tick_seconds)
        self.limits = limits or profile.limits(weight)
        self.allocations = [self.limits.safe] * len(keys)

    def set_weight(self, weight: Weight) -> None:
        """BE's CPU weight against the LC's, from now on."""
        self.limits = replace(self.limits, least_weight=weight.is_least)
        self.weights = weight_ratios(weight, self.constants)

    def apply(self, allocations: Sequence[Allocation]) -> None:
        """What BE may use from now on, host by host; clipped to what the hosts have."""
        self.allocations = [self.limits.clip(allocation) for allocation in allocations]

    def step(self, allocations: Allocations | None = None) -> Window:
        """Let one control period pass on all hosts, with what was applied last or with these allocations instead."""
        return super().step(Allocations.of(self.allocations) if allocations is None else allocations)

    def load_ratio(self, tick: int) -> Array:
        """Configured load in a tick; the run's length later it is the same again."""
        # A run that is longer than its load sees the load again, and not silence.
        place = tick % self._ticks
        if place not in self._made:
            assert self._shapes is not None, "any other load is made whole"
            self._made = range(place, min(place + max(MADE_AHEAD // self.count, 1), self._ticks))
            self._loads = training_loads(self._shapes, place, len(self._made), self.tick_seconds)
        load: Array = self._loads[place - self._made.start]
        return load


def weight_ratios(weight: Weight | Sequence[Weight], constants: Constants) -> Array:
    """BE's CPU weight by the LC's on each host, shape (n,): 1 where they are equal, else the host's minimum."""
    # Only two weights are modelled, equal and the kernel's least: no manager asks for one between them.
    weights = [weight] * len(constants.lc_cpus) if isinstance(weight, Weight) else weight
    return np.where([each is Weight.EQUAL for each in weights], 1.0, constants.minimum_weight_ratio)


def _loads(load: LoadModel, seeds: NDArray[np.uint64], ticks: int, tick_seconds: float) -> Array:
    """The loads of all seeds as shares of the maximum, shape (ticks, n)."""
    # A model is called once for each distinct seed.
    by_seed = {seed: load(seed, ticks, tick_seconds) for seed in set(seeds.tolist())}
    return np.ascontiguousarray(np.stack([by_seed[seed] for seed in seeds.tolist()], axis=1))


class SimPlant:
    """One simulated host as a Plant; no time passes but in `wait`.

    Args:
        ticks: Length of the load; a longer run repeats it.
        seed: Decides noise and load until `reset` gives another.
        vary: Draw the constants from the profile's ranges by the seed.
    """

    def __init__(
        self,
        profile: HostProfile,
        load: LoadModel,
        ticks: int = 3000,
        tick_seconds: float = 1.0,
        *,
        seed: int = 0,
        vary: bool = False,
    ) -> None:
        self.tick_seconds = tick_seconds
        self._host = partial(SimBatch, profile, load=load, ticks=ticks, tick_seconds=tick_seconds, vary=vary)
        self._seed, self._weight = seed, Weight.EQUAL
        self._begin(profile.limits().full)

    @property
    def current(self) -> Allocation:
        """The allocation in force."""
        return self.batch.allocations[0]

    def reset(self, seed: int | None = None) -> None:
        """Begin anew, from the given seed or from the last one; the allocation and the weight stay."""
        self._seed = self._seed if seed is None else seed
        self._begin(self.current)

    def read(self) -> Telemetry:
        """What all sensors say now."""
        return self.batch.telemetry()[0]

    def apply(self, allocation: Allocation) -> Allocation:
        """Takes effect at once; a freeze takes the profile's few milliseconds."""
        self.batch.apply([allocation])
        return self.current

    def set_weight(self, weight: Weight) -> None:
        """Set BE's CPU weight against the LC's."""
        # Limits carry the weight, since policies are told whether BE has the least one.
        self._weight = weight
        self.batch.set_weight(weight)
        self.limits = self.batch.limits

    def wait(self) -> int:
        """Let the control period pass; no deadline is ever missed."""
        self.batch.step()
        return 0

    def close(self) -> None:
        """Give BE everything back."""
        self.batch.apply([self.limits.full])

    def _begin(self, allocation: Allocation) -> None:
        # A new batch forgets the weight and the allocation; both belong to whoever holds the plant.
        self.batch = self._host(seeds=[self._seed], weight=self._weight)
        self.limits = self.batch.limits
        self.batch.apply([allocation])
