"""The hosts of a fleet: who host k is, and any of them under one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.sim.hosts import Hosts, Orders, Window
from rlctl.envs.sim.loads_day import day_loads
from rlctl.envs.sim.noise import uniforms
from rlctl.envs.sim.profile import Constants
from rlctl.envs.sim.seeds import evaluation
from rlctl.envs.sim.sensing import Sensors
from rlctl.envs.sim.sim_env import episode_keys
from rlctl.envs.sim.vector_observation import Readings, read
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight
from rlctl.fleet.config import TICK_SECONDS, Fleet

__all__ = ["FleetHosts", "Roster"]

Array = NDArray[np.float64]

GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
"""Steps of this part of a circle never fall into step with themselves: any number of first hosts has the kinds by
their shares, nearly."""

KIND, REGION = 6000, 6001  # noise channels

LOAD_TICKS = 600
"""Load that is computed at a time."""

WEIGHTS = {"weights": Weight.MINIMUM, "none": Weight.EQUAL}
"""Managers whose point BE's weight is."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who some hosts of a fleet are; arrays of shape (n,).

    Attributes:
        places: Their numbers in the fleet.
        keys: Their seeds, from which all chance follows; evaluation seeds.
        kinds: Places of their kinds in `Fleet.kinds`.
        ahead_hours: By how much their clocks are ahead.
    """

    places: NDArray[np.intp]
    keys: NDArray[np.uint64]
    kinds: NDArray[np.intp]
    ahead_hours: Array

    @classmethod
    def drawn(cls, fleet: Fleet, seed: int, places: Sequence[int] | NDArray[np.intp]) -> Self:
        """Host k follows from the seed and k alone.

        Args:
            fleet: What hosts are drawn from.
            seed: The fleet's, 0 or more.
            places: Numbers of the hosts.
        """
        numbers = np.asarray(places, np.intp)
        base = np.full(len(numbers), evaluation(seed), np.uint64)
        keys = episode_keys(base, numbers.astype(np.uint64))
        at = (uniforms(base, 0, 1, KIND)[0] + GOLDEN * numbers) % 1.0
        regions = list(fleet.regions.values())
        region = _picked([one.share for one in regions], uniforms(keys, 0, 1, REGION)[0])
        ahead = np.array([one.ahead_hours for one in regions])[region]
        return cls(numbers, keys, _picked([one.share for one in fleet.kinds], at), ahead)


def _picked(shares: Sequence[float], at: Array) -> NDArray[np.intp]:
    """Which of some shares numbers between 0 and 1 fall into."""
    ends = np.cumsum(shares) / np.sum(shares)
    return np.searchsorted(ends[:-1], at, side="right")


class FleetHosts:
    """Some hosts of a fleet under one clock: `step`, look, and decide, again and again.

    Args:
        fleet: The fleet.
        roster: The hosts.
        begin_seconds: Time of the day when it begins.
        manager: Who decides on them: of two managers BE's weight is the point.

    Attributes:
        limits: Range of allocations of each.
        window: What happened in the last period: the truth.
    """

    window: Window

    def __init__(self, fleet: Fleet, roster: Roster, begin_seconds: float = 0.0, manager: str = "") -> None:
        self._fleet, self._roster, self._begin_seconds = fleet, roster, begin_seconds
        constants = self._drawn()
        self._hosts = Hosts(constants, roster.keys, TICK_SECONDS)
        self._sensors = Sensors(constants, TICK_SECONDS)
        self.limits = VectorLimits([fleet.kinds[kind].host.limits() for kind in roster.kinds])
        weights = [WEIGHTS.get(manager, fleet.kinds[kind].weight) for kind in roster.kinds]
        self._weights = np.where([one is Weight.EQUAL for one in weights], 1.0, constants.minimum_weight_ratio)
        self._loads: Array = np.zeros((0, self.count))

    @property
    def count(self) -> int:
        """How many."""
        return len(self._roster.places)

    @property
    def constants(self) -> Constants:
        """Of each host."""
        return self._hosts.constants

    @property
    def time_seconds(self) -> float:
        """The clock; 0 at the begin."""
        return self._hosts.tick * TICK_SECONDS

    def step(self, current: Allocations) -> Window:
        """Let one control period pass."""
        rates = self._load() * self.constants.max_load_rps
        cpuset_cpus = current.cpuset_cpus.astype(np.float64)
        self.window = self._hosts.step(rates, Orders(current.quota_cpus, cpuset_cpus, current.frozen, self._weights))
        self._sensors.take(self.window)
        return self.window

    def read(self) -> Readings:
        """What the sensors say."""
        return read(self._sensors, self.window, self.time_seconds)

    def telemetry(self) -> list[Telemetry]:
        """The same host by host."""
        return self._sensors.telemetry(self.window, self.time_seconds)

    def _load(self) -> Array:
        row = self._hosts.tick % LOAD_TICKS
        if row == 0:
            begin, loads = self._begin_seconds + self.time_seconds, np.zeros((LOAD_TICKS, self.count))
            for kind, here in self._by_kind():
                r = self._roster
                load = self._fleet.kinds[kind].load
                loads[:, here] = day_loads(load, r.keys[here], r.ahead_hours[here], begin, LOAD_TICKS, TICK_SECONDS)
            self._loads = loads
        load_ratio: Array = self._loads[row]
        return load_ratio

    def _drawn(self) -> Constants:
        columns = {one.name: np.zeros(self.count) for one in fields(Constants)}
        for kind, here in self._by_kind():
            drawn = Constants.drawn(self._fleet.kinds[kind].host, self._roster.keys[here])
            for name, column in columns.items():
                column[here] = getattr(drawn, name)
        return Constants(**columns)

    def _by_kind(self) -> list[tuple[int, NDArray[np.intp]]]:
        kinds = self._roster.kinds
        return [(int(kind), np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)]
