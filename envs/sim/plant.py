"""The simulated host as a Plant, and a batch of them that pass their control periods together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.sim.hosts import Hosts, Orders, Window
from rlctl.envs.sim.profile import Constants, HostProfile
from rlctl.envs.sim.sensing import Sensors
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

__all__ = ["LoadModel", "SimBatch", "SimPlant"]

LoadModel = Callable[[int, int, float], NDArray[np.float64]]
"""(seed, ticks, tick_seconds) -> configured load in each tick as a share of the LC's maximum, shape (ticks,)."""


class SimBatch:
    """n simulated hosts under one clock: `read`, `apply`, `step`, again and again.

    Args:
        profile: Of all hosts; its ranges are drawn per seed when `vary`.
        seeds: One per host; decides its constants, its noise, and its load.
        load: The load over time.
        ticks: Length of the run; a longer one repeats the load.
        tick_seconds: Control period.
        vary: Draw each host's constants from the profile's ranges.

    Attributes:
        limits: Range of allocations, the same on all hosts.
        allocations: In force, host by host.
        window: What happened in the last period: the truth by which runs are scored.
    """

    def __init__(
        self,
        profile: HostProfile,
        seeds: Sequence[int],
        load: LoadModel,
        ticks: int,
        tick_seconds: float = 1.0,
        *,
        vary: bool = False,
    ) -> None:
        self.profile = profile
        self.limits = profile.limits()
        self.tick_seconds = tick_seconds
        self._load, self._ticks = load, ticks
        self._vary = vary
        self.weights = np.ones(len(seeds))
        self.reset(seeds)

    @property
    def count(self) -> int:
        """How many hosts."""
        return self.hosts.count

    @property
    def time_seconds(self) -> float:
        """The plant's clock."""
        return self.hosts.tick * self.tick_seconds

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin anew: BE at the safe allocation, no reading yet."""
        keys = np.array(seeds, np.uint64)
        alike = [self.profile] * len(seeds)
        constants = Constants.drawn(self.profile, keys) if self._vary else Constants.stack(alike)
        self.hosts = Hosts(constants, keys, self.tick_seconds)
        self.sensors = Sensors(constants, self.tick_seconds)
        by_seed = {seed: self._load(seed, self._ticks, self.tick_seconds) for seed in set(seeds)}
        self._loads = np.stack([by_seed[seed] for seed in seeds])
        self.window: Window | None = None
        self.apply([self.limits.safe] * len(seeds))

    def set_weight(self, host: int, weight: Weight) -> None:
        """BE's CPU weight against the LC's on one host."""
        minimum = float(self.hosts.constants.minimum_weight_ratio[host])
        self.weights[host] = 1.0 if weight is Weight.EQUAL else minimum

    def apply(self, allocations: Sequence[Allocation]) -> None:
        """What BE may use from now on, host by host; clipped to what the hosts have."""
        self.allocations = [self.limits.clip(allocation) for allocation in allocations]

    def rate_rps(self, tick: int) -> NDArray[np.float64]:
        """Configured arrivals per second in a tick, shape (n,); the run's length later they are the same again."""
        load = self._loads[:, tick % self._loads.shape[1]]
        return np.asarray(load * self.hosts.constants.max_load_rps)

    def step(self) -> Window:
        """Let one control period pass on all hosts."""
        asked = self.allocations
        orders = Orders(
            np.array([one.quota_cpus for one in asked]),
            np.array([float(one.cpuset_cpus) for one in asked]),
            np.array([one.frozen for one in asked]),
            self.weights,
        )
        self.window = self.hosts.step(self.rate_rps(self.hosts.tick), orders)
        self.sensors.take(self.window)
        return self.window

    def read(self) -> list[Telemetry]:
        """Each host's readings; before the first period nothing has arrived."""
        if self.window is None:
            targets = self.hosts.constants.target_seconds.tolist()
            return [Telemetry(0.0, target) for target in targets]
        return self.sensors.telemetry(self.window, self.time_seconds)


class SimPlant:
    """One simulated host as a Plant; no time passes but in `wait`.

    Args:
        profile: The host.
        load: The load over time.
        ticks: Length of a run.
        tick_seconds: Control period.
        seed: Until `reset` gives another.
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
        self.limits: Limits = profile.limits()
        self.tick_seconds = tick_seconds
        self._profile, self._load, self._ticks, self._vary = profile, load, ticks, vary
        self._seed = seed
        self._weight = Weight.EQUAL
        self.batch = self._batch()
        self.batch.apply([self.limits.full])

    @property
    def current(self) -> Allocation:
        """The allocation in force."""
        return self.batch.allocations[0]

    def reset(self, seed: int | None = None) -> None:
        """Begin anew, from the given seed or from the last one; the allocation and the weight stay."""
        self._seed = self._seed if seed is None else seed
        current = self.current
        self.batch = self._batch()
        self.batch.set_weight(0, self._weight)
        self.batch.apply([current])

    def read(self) -> Telemetry:
        """All sensors, now."""
        return self.batch.read()[0]

    def apply(self, allocation: Allocation) -> Allocation:
        """Takes effect at once; a freeze takes the profile's few milliseconds."""
        self.batch.apply([allocation])
        return self.current

    def set_weight(self, weight: Weight) -> None:
        """Set BE's CPU weight against the LC's."""
        self._weight = weight
        self.batch.set_weight(0, weight)

    def wait(self) -> int:
        """Let the control period pass; no deadline is ever missed."""
        self.batch.step()
        return 0

    def close(self) -> None:
        """BE gets everything back."""
        self.batch.apply([self.limits.full])

    def _batch(self) -> SimBatch:
        return SimBatch(self._profile, [self._seed], self._load, self._ticks, self.tick_seconds, vary=self._vary)
