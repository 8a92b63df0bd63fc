"""The allocator: which application of BE runs in which working mode on which cluster, within BE's budget.

BarbequeRTRM's order-and-select heuristic (paper 4.2; plugins/schedpol/yams_schedpol.cc). One priority level after the
other: every (application, mode, cluster) gets a metric from the four contributions, the list is sorted, and from its
top each application gets the first that still fits. As in the source the metrics are computed once per level, not
after each pick, and once more when all applications with a goal gap are placed. Equal metrics are told apart by goal
gap, then mode value, then cluster, so that like applications fill one cluster before the next and leave the last idle,
as in the paper (5.3). Ours are the budget over all clusters, turns among deferred applications, and that BE's budget
never lies wholly unused. What the chosen modes leave of it is `stretch`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rlctl.agents.allocator.contributions import AS_PUBLISHED, Weights, metric
from rlctl.agents.allocator.ledger import Ledger
from rlctl.envs.applications import Application, Cluster, Placement
from rlctl.envs.errors import ConfigError

DIGITS = 9
"""Of a metric, and of a sum of them: what rounding alone tells apart is equal."""


class Candidate(NamedTuple):
    """One (application, mode, cluster), in the order of being tried.

    Attributes:
        turn: Of the application; before all others only where some have waited for a turn.
        metric: Negative, rounded: the greatest comes first.
        gapless: False, and so earlier, for an application with a goal gap.
        cluster, name, mode: Of the cluster, of the application, index of the mode.
    """

    turn: Turn
    metric: float
    gapless: bool
    worth: float
    cluster: str
    name: str
    mode: int


def allocate(
    applications: Sequence[Application],
    clusters: Sequence[Cluster],
    budget_cpus: float,
    weights: Weights = AS_PUBLISHED,
) -> dict[str, Placement]:
    """Place applications in working modes on clusters.

    Where not even the least mode of any application of the first level fits, the application in turn runs in its least
    mode with what there is.

    Args:
        applications: Their order does not matter.
        clusters: Their order does not matter.
        budget_cpus: CPU time per second of wall clock that BE as a whole may have, 0 or more.

    Returns:
        A placement for each application that runs, by name; one that is absent is deferred.

    Raises:
        ConfigError: Two applications, or two clusters, of one name.
    """
    by_name = {application.name: application for application in applications}
    if len(by_name) < len(applications):
        raise ConfigError("two applications have one name; the allocator tells them apart by it")
    ledger = Ledger(clusters, budget_cpus)
    placed: dict[str, Placement] = {}
    if clusters and budget_cpus > 0.0:
        for level in levels(applications):
            _place_level(level, ledger, weights, placed)
            if not placed:
                squeeze(level, clusters, ledger, placed)
    return placed


def levels(applications: Sequence[Application]) -> list[list[Application]]:
    """Applications of one priority together, the first served first, each level by name."""
    ordered = sorted(applications, key=lambda one: (one.priority, one.name))
    return [list(level) for _, level in groupby(ordered, key=lambda one: one.priority)]


def _place_level(level: list[Application], ledger: Ledger, weights: Weights, placed: dict[str, Placement]) -> None:
    """Place what fits of one priority level."""
    shares, turn_of = ledger.shares(len(level)), turns(level)
    waiting = {application.name: application for application in level}
    while waiting and _select(_ranked(waiting.values(), ledger, shares, weights, turn_of), waiting, ledger, placed):
        pass


def _ranked(
    waiting: Iterable[Application],
    ledger: Ledger,
    shares: tuple[float, float],
    weights: Weights,
    turn_of: Mapping[str, Turn],
) -> list[Candidate]:
    """The ordering step: all that would fit now, the best first."""
    return sorted(
        Candidate(
            turn=turn_of[application.name],
            metric=round(-metric(application, index, room, weights), DIGITS),
            gapless=application.gap_percent <= 0.0,
            worth=-mode.value,
            cluster=room.cluster,
            name=application.name,
            mode=index,
        )
        for room in ledger.rooms(shares)
        for application in waiting
        for index, mode in enumerate(application.modes)
        if ledger.fits(mode, room.cluster)
    )


def _select(
    candidates: list[Candidate], waiting: dict[str, Application], ledger: Ledger, placed: dict[str, Placement]
) -> bool:
    """The selection step; True when those with a goal gap are all placed and the rest is to be evaluated anew."""
    gaps = {application.name for application in waiting.values() if application.gap_percent > 0.0}
    for turn, group in groupby(candidates, key=lambda candidate: candidate.turn):
        passed = set()
        for candidate in group:
            application = waiting.get(candidate.name)
            if application is None:
                continue
            mode = application.modes[candidate.mode]
            if not ledger.fits(mode, candidate.cluster):
                passed.add(candidate.name)
                continue
            cpus = ledger.take(mode, candidate.cluster)
            placed[candidate.name] = Placement(candidate.mode, candidate.cluster, cpus)
            del waiting[candidate.name]
            if gaps and not (gaps := gaps - {candidate.name}):
                return True
        if turn[0] == DUE and not waiting.keys().isdisjoint(passed):
            return False  # whose turn it is waits for room; were others let in, they would take it again and again
    return False


def squeeze(
    level: list[Application], clusters: Sequence[Cluster], ledger: Ledger, placed: dict[str, Placement]
) -> None:
    """Nothing fits at all: place the application of a level in turn, in its least mode with what there is.

    It is the one that runs, or has waited for a turn; then one with a goal gap. Memory cannot be squeezed: one that no
    cluster has the memory for is passed over.
    """
    turn_of = turns(level)
    in_turn = sorted(level, key=lambda one: (turn_of[one.name], one.current is None, -one.gap_percent, one.name))
    for application in in_turn:
        least = application.modes[0]
        stay = application.current.cluster if application.current else ""
        held = [cluster.name for cluster in clusters if ledger.holds(least, cluster.name)]
        if held:
            where = min(held, key=lambda name: (-ledger.available_cpus(name), name != stay, name))
            placed[application.name] = Placement(0, where, ledger.take(least, where))
            return


TURN_SECONDS = 60.0
"""Long against what a change of mode costs, short against a batch job."""

Turn = tuple[int, float]
"""Sorts applications of a level: who is in its turn, who has waited for one (the longest first), all others."""

IN_TURN, DUE, OTHER = 0, 1, 2


def turns(level: Sequence[Application]) -> dict[str, Turn]:
    """The turn of each application of a priority level, by name, so that none is deferred for ever.

    In BarbequeRTRM a deferred application can wait as long as those in place run, for whom the reconfiguration
    contribution speaks. Here who has waited for a turn goes before those that have had theirs, the longest waiting
    first; who has not had a whole turn yet stays before them. As long as nobody has waited so long, the metric decides.
    """
    anyone_due = any(_has_waited(application) for application in level)
    return {application.name: _turn(application, anyone_due) for application in level}


def _turn(application: Application, anyone_due: bool) -> Turn:
    if _has_waited(application):
        return DUE, -application.since_seconds
    is_running = application.current is not None
    return (IN_TURN if anyone_due and is_running and application.since_seconds < TURN_SECONDS else OTHER), 0.0


def _has_waited(application: Application) -> bool:
    return application.current is None and application.since_seconds >= TURN_SECONDS
