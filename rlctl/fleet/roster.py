"""The hosts of a fleet: who host k is, and any of them under one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rlctl.agents import catalogue
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.arrays import Array
from rlctl.envs.sim.loads_day import day_loads
from rlctl.envs.sim.noise import uniforms
from rlctl.envs.sim.plant import SimHosts, weight_ratios
from rlctl.envs.sim.profile import Constants
from rlctl.envs.sim.seeds import evaluation
from rlctl.envs.sim.sim_env import episode_keys
from rlctl.fleet.config import TICK_SECONDS, Fleet

GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
"""The golden ratio's fractional part. Host k's kind is drawn at (offset + k * GOLDEN) modulo 1, a sequence of low
discrepancy: among the first n hosts, for any n, the kinds have nearly their shares."""

KIND, REGION = 6000, 6001
"""Channels of the noise generator."""

LOAD_TICKS = 600
"""Ticks of load that are computed at a time."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who some hosts of a fleet are; arrays of shape (n,).

    Attributes:
        keys: Evaluation seeds, from which all chance on the hosts follows.
        kinds: The place of each host's kind in `Fleet.kinds`.
    """

    places: NDArray[np.intp]
    keys: NDArray[np.uint64]
    kinds: NDArray[np.intp]
    ahead_hours: Array

    @classmethod
    def drawn(cls, fleet: Fleet, seed: int, places: Sequence[int] | NDArray[np.intp]) -> Self:
        """Draw hosts; host k follows from the seed and k alone."""
        numbers = np.asarray(places, np.intp)
        base = np.full(len(numbers), evaluation(seed), np.uint64)
        keys = episode_keys(base, numbers.astype(np.uint64))
        at = (uniforms(base, 0, 1, KIND)[0] + GOLDEN * numbers) % 1.0
        regions = list(fleet.regions.values())
        region_of = _picked([region.share for region in regions], uniforms(keys, 0, 1, REGION)[0])
        ahead = np.array([region.ahead_hours for region in regions])[region_of]
        return cls(numbers, keys, _picked([kind.share for kind in fleet.kinds], at), ahead)

    def part(self, span: slice) -> Roster:
        """Some of these hosts."""
        return Roster(*(getattr(self, name)[span] for name in self.__slots__))

    def by_kind(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Each kind that occurs, and where in the roster its hosts stand."""
        for kind in np.unique(self.kinds):
            yield int(kind), np.flatnonzero(self.kinds == kind)


def _picked(shares: Sequence[float], at: Array) -> NDArray[np.intp]:
    """The place of the share that each number between 0 and 1 falls into."""
    ends = np.cumsum(shares) / np.sum(shares)
    return np.searchsorted(ends[:-1], at, side="right")


class FleetHosts(SimHosts):
    """Some hosts of a fleet under one clock; a few managers have a BE weight of their own, `catalogue.OWN_WEIGHTS`."""

    def __init__(self, fleet: Fleet, roster: Roster, begin_seconds: float = 0.0, manager: str = "") -> None:
        kinds = [fleet.kinds[kind] for kind in roster.kinds]
        self.limits = VectorLimits([kind.drawn_from.limits(kind.weight) for kind in kinds])
        constants = _constants(fleet, roster)
        weights = weight_ratios([catalogue.OWN_WEIGHTS.get(manager, kind.weight) for kind in kinds], constants)
        self._fleet, self._roster, self._begin_seconds = fleet, roster, begin_seconds
        super().__init__(constants, roster.keys, weights, TICK_SECONDS)

    def load_ratio(self, tick: int) -> Array:
        """Configured load in a tick; to be called tick after tick."""
        row = tick % LOAD_TICKS
        if row == 0:
            begin, r = self._begin_seconds + tick * TICK_SECONDS, self._roster
            self._loads: Array = np.zeros((LOAD_TICKS, self.count))
            for kind, here in r.by_kind():
                load = self._fleet.kinds[kind].load
                self._loads[:, here] = day_loads(
                    load, r.keys[here], r.ahead_hours[here], begin, LOAD_TICKS, TICK_SECONDS
                )
        load_ratio: Array = self._loads[row]
        return load_ratio


def _constants(fleet: Fleet, roster: Roster) -> Constants:
    """Constants of each host, drawn from the ranges of its kind."""
    columns: dict[str, Array] = {}
    for kind, here in roster.by_kind():
        for name, column in vars(Constants.drawn(fleet.kinds[kind].drawn_from, roster.keys[here])).items():
            columns.setdefault(name, np.zeros(len(roster.places)))[here] = column
    return Constants(**columns)
