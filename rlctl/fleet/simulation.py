"""A fleet under each of some managers, and what is counted of every host: sums over stretches, never the ticks."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.many.batch import batch_policy
from rlctl.agents.seats import Decisions, Seats
from rlctl.envs.arrays import Array
from rlctl.envs.run_metrics import Truth
from rlctl.fleet.config import TICK_SECONDS
from rlctl.fleet.plan import STRETCH_SECONDS, FleetPlan, RolloutPlan
from rlctl.fleet.roster import FleetHosts, Roster
from rlctl.safety.profile import Profile
from rlctl.work.workforce import HERE, Workforce

MOST_HOSTS = 1000
"""Hosts of one piece of work: with more of them a tick costs no less per host."""


@dataclass(slots=True)
class Tally:
    """What happened on each host over a stretch of ticks; arrays of shape (n,), or with leading axes of stretches.

    Attributes:
        missed: Windows that did not hold the target, by the truth and not by what sensors reported.
        worst_ratio: The longest latency as a multiple of the target.
        be_work: Sum over ticks of BE's work as a share of BE running alone.
        load: Sum over ticks of the load as a share of the LC's maximum.
        overridden: Ticks in which the shield did not let the proposal through as it was.
        failed, strange: Ticks without a usable answer of the policy, and those unlike its training data.
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
        """A tally of so many hosts before the first tick."""
        return cls(*(np.zeros(count) for _ in fields(cls)))

    @classmethod
    def stacked(cls, stretches: Sequence[Tally]) -> Tally:
        """One stretch after another, shape (stretches, n)."""
        return cls(*(np.stack([getattr(tally, part.name) for tally in stretches]) for part in fields(cls)))

    @classmethod
    def beside(cls, tallies: Sequence[Tally]) -> Tally:
        """The hosts of several tallies side by side."""
        return cls(*(np.concatenate([getattr(tally, part.name) for tally in tallies], -1) for part in fields(cls)))

    @classmethod
    def total(cls, stretches: Sequence[Tally]) -> Tally:
        """Several stretches as one: sums, and of the worst ratios the worst."""
        stacked = cls.stacked(stretches)
        sums = {part.name: getattr(stacked, part.name).sum(axis=0) for part in fields(cls)}
        return cls(**sums | {"worst_ratio": stacked.worst_ratio.max(axis=0)})

    def add(self, truth: Truth, decisions: Decisions) -> None:
        """Count one more tick."""
        self.missed += truth.missed
        np.maximum(self.worst_ratio, truth.latency_ratio, out=self.worst_ratio)
        self.be_work += truth.be_work_ratio
        self.load += truth.load_ratio
        self.overridden += decisions.overridden
        self.frozen += decisions.allocations.frozen
        self.failed += decisions.failed
        self.strange += decisions.strange


class Controlled:
    """Some hosts of a fleet with those who decide on them.

    Args:
        policies: Names, as `rlctl.agents.many.batch.batch_policy` takes them; all hosts begin under the first.

    Raises:
        PolicyError: An unknown name, or a bundle that cannot be served.
    """

    def __init__(self, hosts: FleetHosts, policies: Sequence[str], shield: Profile) -> None:
        self.hosts = hosts
        self.seats = Seats(
            [batch_policy(name, hosts.limits, TICK_SECONDS) for name in policies], shield, hosts.limits, TICK_SECONDS
        )
        self._current = self.seats.begin()

    def run(self, ticks: int) -> Tally:
        """Let some ticks pass."""
        tally = Tally.none(self.hosts.count)
        for _ in range(ticks):
            self.hosts.step(self._current)
            decisions = self.seats.decide(self.hosts.read(), self._current, self.hosts.telemetry)
            self._current = decisions.allocations
            tally.add(self.hosts.truth(), decisions)
        return tally


@dataclass(frozen=True, slots=True)
class Cost:
    """What a piece of work took, which no two runs share; of memory the most that the process ever had resident."""

    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ManagerResult:
    """A manager on all hosts, or on those of one piece of work; the tally has the shape (stretches, hosts)."""

    tally: Tally
    remarks: tuple[str, ...]
    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """What came of a plan.

    Attributes:
        alone_cpus: CPUs that BE keeps busy when it runs alone, shape (hosts,).
        wall_seconds: From the first piece of work to the last result.
    """

    plan: FleetPlan
    roster: Roster
    alone_cpus: Array
    results: Mapping[str, ManagerResult]
    wall_seconds: float
    workers: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work: one manager on the hosts `first` to `first + count - 1` for the whole time."""

    plan: FleetPlan
    manager: str
    first: int
    count: int


def run_fleet(
    plan: FleetPlan,
    workforce: Workforce = HERE,
    *,
    most: int = MOST_HOSTS,
    done: Callable[[Piece], object] = lambda _: None,
) -> FleetOutcome:
    """Simulate the fleet under every manager.

    Args:
        workforce: Who does the pieces of work; no number of the result depends on it.
        most: Hosts of one piece at most; no number depends on it either.
        done: Told of each piece.

    Raises:
        PolicyError: A manager that there is not, or a bundle that cannot be served.
    """
    pieces = list(pieces_of(plan, workforce.count, most))
    begun = time.perf_counter()
    found = workforce.map(run_piece, pieces, done)
    wall_seconds = time.perf_counter() - begun
    results = {}
    for name in plan.managers:
        parts = [result for piece, result in zip(pieces, found, strict=True) if piece.manager == name]
        costs = tuple(cost for part in parts for cost in part.costs)
        results[name] = ManagerResult(Tally.beside([part.tally for part in parts]), parts[0].remarks, costs)
    roster = Roster.drawn(plan.fleet, plan.seed, range(plan.hosts))
    c = FleetHosts(plan.fleet, roster).constants
    alone_cpus = np.minimum(c.threads, c.own_cpus + c.shared_cpus)
    return FleetOutcome(plan, roster, alone_cpus, results, wall_seconds, workforce.count)


def pieces_of(plan: FleetPlan, workers: int, most: int = MOST_HOSTS) -> Iterator[Piece]:
    """As few pieces as keep all workers busy: a tick of many hosts costs little more than one of few."""
    parts = max(-(-workers // len(plan.managers)), -(-plan.hosts // most))
    edges = np.linspace(0, plan.hosts, min(parts, plan.hosts) + 1).round().astype(int)
    for name in plan.managers:
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            yield Piece(plan, name, first, end - first)


def run_piece(piece: Piece) -> ManagerResult:
    """Simulate one manager on some hosts."""
    begun, plan = time.process_time(), piece.plan
    roster = Roster.drawn(plan.fleet, plan.seed, range(piece.first, piece.first + piece.count))
    controlled = Controlled(FleetHosts(plan.fleet, roster, manager=piece.manager), (piece.manager,), plan.shield)
    ticks = round(STRETCH_SECONDS / TICK_SECONDS)
    tally = Tally.stacked([controlled.run(ticks) for _ in range(plan.stretches)])
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cost = Cost(time.process_time() - begun, peak_bytes)
    return ManagerResult(tally, controlled.seats.remarks, (cost,))


class SimulatedFleet:
    """A fleet in pieces that travel to whoever simulates them and back; all hosts begin under the first policy."""

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
