"""Hosts of a fleet under their controllers, and what is counted of them: sums per host, never the ticks themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.many.batch import batch_policy
from rlctl.agents.seats import Seats
from rlctl.envs.sim.hosts import Window
from rlctl.fleet.config import TICK_SECONDS
from rlctl.fleet.hosts import FleetHosts
from rlctl.safety.profile import Profile

__all__ = ["NEW", "OLD", "Controlled", "Tally"]

Array = NDArray[np.float64]

OLD, NEW = 0, 1
"""Places of the policies: all hosts begin under the first."""


@dataclass(slots=True)
class Tally:
    """What happened on each host over a stretch of ticks; arrays of shape (n,), or with leading axes of stretches.

    Attributes:
        missed: Windows that did not hold the target; the truth, not what sensors said.
        worst_ratio: The longest latency by the target.
        be_work, load: Sums over ticks of BE's work by BE running alone, and of the load by the maximum.
        overridden: Ticks in which the shield did not let the proposal through as it was.
        frozen: Ticks in which BE was suspended.
        failed, strange: Ticks without a usable answer, and unlike the policy's training.
    """

    missed: Array
    worst_ratio: Array
    be_work: Array
    load: Array
    overridden: Array
    frozen: Array
    failed: Array
    strange: Array

    @classmethod
    def none(cls, count: int) -> Tally:
        """Before the first tick of a stretch."""
        return cls(*(np.zeros(count) for _ in fields(cls)))

    @classmethod
    def stacked(cls, stretches: Sequence[Tally]) -> Tally:
        """One stretch after another, shape (stretches, n)."""
        return cls(*(np.stack([getattr(one, part.name) for one in stretches]) for part in fields(cls)))

    @classmethod
    def beside(cls, tallies: Sequence[Tally]) -> Tally:
        """Hosts side by side."""
        return cls(*(np.concatenate([getattr(one, part.name) for one in tallies], axis=-1) for part in fields(cls)))


class Controlled:
    """Some hosts, each under one of some policies, behind the shield where the policy is judged behind one.

    Args:
        hosts: The hosts, before their first tick.
        policies: Names, as `rlctl.agents.many.batch.batch_policy` takes them; all hosts begin under the first.
        shield: The shield's constants.

    Raises:
        PolicyError: An unknown name, or a bundle that cannot be served.
    """

    def __init__(self, hosts: FleetHosts, policies: Sequence[str], shield: Profile) -> None:
        self.hosts = hosts
        self.seats = Seats([batch_policy(name, hosts.limits, TICK_SECONDS) for name in policies], shield, hosts.limits)
        self._current = self.seats.begin()

    def run(self, ticks: int) -> Tally:
        """Let some ticks pass."""
        tally = Tally.none(self.hosts.count)
        for _ in range(ticks):
            self._look(tally, self.hosts.step(self._current))
            decided = self.seats.decide(self.hosts.read(), self._current, self.hosts.telemetry)
            self._current = decided.allocations
            tally.overridden += decided.overridden
            tally.frozen += decided.allocations.frozen
            tally.failed += decided.failed
            tally.strange += decided.strange
        return tally

    def _look(self, tally: Tally, window: Window) -> None:
        c = self.hosts.constants
        ratio = window.latency_seconds * (1.0 / c.target_seconds)
        tally.missed += ratio > 1.0
        np.maximum(tally.worst_ratio, ratio, out=tally.worst_ratio)
        tally.be_work += window.be_work_ratio
        tally.load += window.offered_rps * (1.0 / c.max_load_rps)
