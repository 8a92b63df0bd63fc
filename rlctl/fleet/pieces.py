"""A fleet of simulated hosts as a rollout sees it: time passes, and hosts are put under another policy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlctl.fleet.config import TICK_SECONDS
from rlctl.fleet.hosts import FleetHosts, Roster
from rlctl.fleet.plan import RolloutPlan
from rlctl.fleet.simulation import Controlled, Tally
from rlctl.work.workforce import Workforce


class SimulatedFleet:
    """A fleet in pieces, which travel to whoever simulates them and come back after every stretch of time.

    Args:
        plan: What is rolled out, and how.
        policies: Names; all hosts begin under the first.
    """

    def __init__(self, plan: RolloutPlan, roster: Roster, policies: tuple[str, ...], workforce: Workforce) -> None:
        self.minutes, self._workforce = plan.begin_minutes, workforce
        count = len(roster.places)
        edges = np.linspace(0, count, min(workforce.count, count) + 1).round().astype(int).tolist()
        self._spans = [slice(first, end) for first, end in pairwise(edges)]
        self._pieces = [
            Controlled(FleetHosts(plan.fleet, roster.part(span), 60.0 * plan.begin_minutes), policies, plan.shield)
            for span in self._spans
        ]

    def put_under(self, policy: int, which: NDArray[np.bool_]) -> None:
        """Give the hosts in `which` to another policy, by its place among `policies`."""
        for piece, span in zip(self._pieces, self._spans, strict=True):
            piece.seats.put_under(policy, which[span])

    def watch(self, minutes: float) -> Tally:
        """Let time pass on all hosts, and count what happens."""
        ticks = round(60.0 * minutes / TICK_SECONDS)
        results = self._workforce.map(_simulated, [(piece, ticks) for piece in self._pieces])
        self._pieces = [piece for piece, _ in results]
        self.minutes += minutes
        return Tally.beside([tally for _, tally in results])


def _simulated(work: tuple[Controlled, int]) -> tuple[Controlled, Tally]:
    """Hosts after so many ticks, and what happened meanwhile."""
    controlled, ticks = work
    return controlled, controlled.run(ticks)
