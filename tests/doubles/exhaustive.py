"""The best assignment there is, by branch and bound: what the heuristic is measured against, on small instances.

The objective looks at a finished assignment, since what was free when an application was picked says nothing about how
things ended. At one priority level it is the sum, over the applications placed, of the heuristic's own metric:

- value and reconfiguration as they are, since neither depends on the others;
- congestion with all others of its own and of higher levels in place, as if this one had been picked last;
- fairness against the level's fair share and against what each cluster had left when the level began, as the heuristic
  counts it.

A deferred application adds 0, and so does one that runs with less than its least mode, so placing more is better as
long as nobody pays too much for it. Priority levels are compared in order: a higher level's total is never traded for
a lower one's. The rule that squeezes one in where nothing fits holds for both; turns, and the order among those with a
goal gap, are the heuristic's and not the objective's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from rlctl.agents.allocator import (
    AS_PUBLISHED,
    DIGITS,
    HAIR,
    ContributionWeights,
    Ledger,
    Room,
    Stock,
    levels,
    metric,
    squeeze,
)
from rlctl.envs.applications import Application, CpuCluster, Placement


@dataclass(frozen=True, slots=True)
class Choice:
    """One application in one mode on one cluster.

    Attributes:
        cluster: Name of the cluster, as in the problem's clusters.
    """

    application: Application
    mode: int
    cluster: str


def totals(
    placements: Mapping[str, Placement],
    applications: Sequence[Application],
    clusters: Sequence[CpuCluster],
    budget_cpus: float,
    weights: ContributionWeights = AS_PUBLISHED,
) -> tuple[float, ...]:
    """The objective's value of an assignment: one total per priority level, the first served first; more is better."""
    ledger, result = Ledger(clusters, budget_cpus), []
    for level in levels(applications):
        stage, chosen = _Stage(level, ledger, weights), []
        for application in level:
            if placed := placements.get(application.name):
                mode = application.modes[placed.mode]
                ledger.take(mode, placed.cluster)
                if placed.cpus >= mode.cpus - HAIR:
                    chosen.append(Choice(application, placed.mode, placed.cluster))
        result.append(stage.total(chosen))
    return tuple(result)


def gap(found: tuple[float, ...], optimum: tuple[float, ...]) -> float:
    """How far an assignment falls short, as a share of the optimum: at the first level where the totals differ.

    Below that level the two had different amounts to place with and do not compare.
    """
    pairs = zip(found, optimum, strict=True)
    return next(((most - mine) / most for mine, most in pairs if mine != most), 0.0)


def best(
    applications: Sequence[Application],
    clusters: Sequence[CpuCluster],
    budget_cpus: float,
    weights: ContributionWeights = AS_PUBLISHED,
) -> dict[str, Placement]:
    """An assignment that no other beats by `totals`. Time grows exponentially: for up to six applications or so.

    Args:
        applications: As for `allocate`.
        clusters: As for `allocate`.
        budget_cpus: As for `allocate`.
        weights: As for `allocate`.

    Returns:
        As `allocate`.
    """
    if not clusters or not budget_cpus > 0.0:
        return {}
    search = _Search(levels(applications), clusters, weights)
    search.descend(Ledger(clusters, budget_cpus), {}, ())
    return search.placements


class _Stage:
    """One priority level, with the clusters as it finds them."""

    def __init__(self, level: list[Application], ledger: Ledger, weights: ContributionWeights) -> None:
        self._weights = weights
        self._rooms = {room.cluster: room for room in ledger.rooms(ledger.shares(len(level)))}
        alone = [(self._metric(one, self._rooms[one.cluster]), one) for one in self._open(level, ledger)]
        self.choices = {
            application.name: [
                one for _, one in sorted(alone, key=lambda pair: -pair[0]) if one.application is application
            ]
            for application in level
        }
        most = {application.name: 0.0 for application in level}
        for reached, one in alone:
            most[one.application.name] = max(most[one.application.name], reached)
        self.bounds = [sum(most[later.name] for later in level[index:]) for index in range(len(level) + 1)]

    def total(self, chosen: Sequence[Choice]) -> float:
        """Of a level's applications, all in place."""
        return round(math.fsum(self._metric(one, self._beside(one, chosen)) for one in chosen), DIGITS)

    def _open(self, level: list[Application], ledger: Ledger) -> list[Choice]:
        return [
            Choice(application, index, name)
            for application in level
            for index, mode in enumerate(application.modes)
            for name in self._rooms
            if ledger.fits(mode, name)
        ]

    def _metric(self, one: Choice, room: Room) -> float:
        return metric(one.application, one.mode, room, self._weights)

    def _beside(self, one: Choice, chosen: Sequence[Choice]) -> Room:
        """Its cluster with the level's others in it, and with the fair share of the beginning."""
        room = self._rooms[one.cluster]
        others = [
            other.application.modes[other.mode] for other in chosen if other.cluster == one.cluster and other is not one
        ]
        cpus = _less(room.cpus, sum(mode.cpus for mode in others))
        memory = room.memory and _less(room.memory, sum(mode.memory_bytes for mode in others))
        return Room(room.cluster, cpus, memory)


def _less(stock: Stock, used: float) -> Stock:
    return replace(stock, free=stock.free - used)


class _Search:
    """Depth first, level by level and application by application, the most promising choice first."""

    def __init__(
        self, ranks: list[list[Application]], clusters: Sequence[CpuCluster], weights: ContributionWeights
    ) -> None:
        self._ranks, self._clusters, self._weights = ranks, clusters, weights
        self._most: tuple[float, ...] = (-math.inf,) * len(ranks)
        self.placements: dict[str, Placement] = {}

    def descend(self, ledger: Ledger, placed: dict[str, Placement], done: tuple[float, ...]) -> None:
        """All assignments of the levels to come, after those before them came to these totals."""
        if len(done) == len(self._ranks):
            if done > self._most:
                self._most, self.placements = done, placed
            return
        level = self._ranks[len(done)]
        self._assign(_Stage(level, ledger, self._weights), level, [], ledger, placed, done)

    def _assign(
        self,
        stage: _Stage,
        level: list[Application],
        chosen: list[Choice],
        ledger: Ledger,
        placed: dict[str, Placement],
        done: tuple[float, ...],
        index: int = 0,
    ) -> None:
        total = stage.total(chosen)
        if self._is_hopeless(done, total + stage.bounds[index]):
            return
        if index == len(level):
            if not placed:
                squeeze(level, self._clusters, ledger, placed)
            self.descend(ledger, placed, (*done, total))
            return
        for choice in stage.choices[level[index].name]:
            mode = choice.application.modes[choice.mode]
            if ledger.fits(mode, choice.cluster):
                rest = deepcopy(ledger)
                cpus = rest.take(mode, choice.cluster)
                now = {**placed, choice.application.name: Placement(choice.mode, choice.cluster, cpus)}
                self._assign(stage, level, [*chosen, choice], rest, now, done, index + 1)
        self._assign(stage, level, chosen, deepcopy(ledger), dict(placed), done, index + 1)

    def _is_hopeless(self, done: tuple[float, ...], bound: float) -> bool:
        """Whether not even the bound of this level makes up for what the best has."""
        reached = (*done, round(bound, DIGITS))
        most = self._most[: len(reached)]
        return reached < most or (reached == most and len(reached) == len(self._most))
