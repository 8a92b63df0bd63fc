"""A fleet of simulated hosts as a rollout sees it: time passes, and hosts are put under another policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.fleet.config import TICK_SECONDS, RolloutPlan
from rlctl.fleet.control import Controlled, Tally
from rlctl.fleet.hosts import FleetHosts, Roster
from rlctl.fleet.tasks import Run

__all__ = ["SimulatedFleet", "Stretch", "run_stretch"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of work: some hosts for some ticks."""

    controlled: Controlled
    ticks: int


def run_stretch(stretch: Stretch) -> tuple[Controlled, Tally]:
    """The hosts afterwards, and what happened."""
    return stretch.controlled, stretch.controlled.run(stretch.ticks)


class SimulatedFleet:
    """A fleet, in pieces that go to whoever simulates them and come back.

    Attributes:
        minutes: Of the day.
        workers, run: As in `rlctl.fleet.canary.roll_out`.
    """

    def __init__(self, plan: RolloutPlan, roster: Roster, policies: tuple[str, ...], workers: int, run: Run) -> None:
        self.minutes, self.workers, self.run = plan.begin_minutes, workers, run
        count = len(roster.places)
        self._edges = np.linspace(0, count, min(workers, count) + 1).round().astype(int)
        self._pieces = [
            Controlled(
                FleetHosts(plan.fleet, _part(roster, first, end), 60.0 * plan.begin_minutes), policies, plan.shield
            )
            for first, end in self._spans()
        ]

    def put_under(self, policy: int, which: NDArray[np.bool_]) -> None:
        """Give some hosts to another policy."""
        for piece, (first, end) in zip(self._pieces, self._spans(), strict=True):
            piece.seats.put_under(policy, which[first:end])

    def watch(self, minutes: float) -> Tally:
        """Let time pass."""
        ticks = round(60.0 * minutes / TICK_SECONDS)
        results = self.run(run_stretch, [Stretch(piece, ticks) for piece in self._pieces])
        self._pieces = [piece for piece, _ in results]
        self.minutes += minutes
        return Tally.beside([tally for _, tally in results])

    def _spans(self) -> list[tuple[int, int]]:
        return list(zip(self._edges[:-1].tolist(), self._edges[1:].tolist(), strict=True))


def _part(roster: Roster, first: int, end: int) -> Roster:
    return Roster(*(getattr(roster, name)[first:end] for name in Roster.__slots__))
