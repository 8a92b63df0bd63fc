"""A fleet under each of some managers: host by host and stretch by stretch, whoever did what on how many processes."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.fleet.config import TICK_SECONDS, Fleet
from rlctl.fleet.control import Controlled, Tally
from rlctl.fleet.hosts import FleetHosts, Roster
from rlctl.fleet.tasks import Run
from rlctl.safety.profile import Profile

__all__ = ["STRETCH_SECONDS", "Cost", "FleetOutcome", "FleetPlan", "ManagerRun", "run_fleet"]

STRETCH_SECONDS = 900.0
"""What is counted together: a point of the day's curves."""

MOST_HOSTS = 1000
"""Of a piece of work: more at a time no longer cost less each."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What to simulate.

    Attributes:
        fleet: The fleet.
        hosts: How many hosts.
        hours: For how long; whole stretches.
        managers: Names; learned policies by name or folder.
        shield: Of those that are judged behind one.
        seed: Of the fleet.
    """

    fleet: Fleet
    hosts: int
    hours: float
    managers: tuple[str, ...]
    shield: Profile
    seed: int = 0

    @property
    def stretches(self) -> int:
        """Whole ones, at least one."""
        return max(round(3600.0 * self.hours / STRETCH_SECONDS), 1)

    @property
    def windows(self) -> int:
        """Of each host."""
        return round(self.stretches * STRETCH_SECONDS / TICK_SECONDS)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work: one manager on some hosts for the whole time."""

    plan: FleetPlan
    manager: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took, which no two runs share.

    Attributes:
        cpu_seconds: Of the process, for this piece.
        peak_bytes: Most memory that its process ever had resident.
    """

    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class PieceResult:
    """What came of a piece: tallies of shape (stretches, hosts)."""

    tally: Tally
    remarks: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True, slots=True)
class ManagerRun:
    """A manager on all hosts.

    Attributes:
        tally: Shape (stretches, hosts).
        remarks: What a reader must know.
        costs: Of each piece.
    """

    tally: Tally
    remarks: tuple[str, ...]
    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """What came of a plan.

    Attributes:
        plan: The plan.
        roster: Who the hosts are.
        alone_cpus: CPUs that BE keeps busy when it runs alone, shape (hosts,).
        runs: By manager, in the plan's order.
        wall_seconds: From the first piece to the last result.
        workers: Pieces that were done at a time.
    """

    plan: FleetPlan
    roster: Roster
    alone_cpus: NDArray[np.float64]
    runs: Mapping[str, ManagerRun]
    wall_seconds: float
    workers: int


def run_fleet(plan: FleetPlan, workers: int, run: Run, *, most: int = MOST_HOSTS) -> FleetOutcome:
    """Simulate the fleet under every manager.

    Args:
        plan: What to simulate.
        workers: Pieces that are done at a time; no number of the result depends on it.
        run: Who does the pieces.
        most: Hosts that a piece holds at most; none depends on it either.

    Raises:
        PolicyError: A manager that there is not, or a bundle that cannot be served.
    """
    pieces = list(pieces_of(plan, workers, most))
    begun = time.perf_counter()
    results = run(run_piece, pieces)
    wall_seconds = time.perf_counter() - begun
    runs = {}
    for name in plan.managers:
        mine = [result for piece, result in zip(pieces, results, strict=True) if piece.manager == name]
        runs[name] = ManagerRun(
            Tally.beside([one.tally for one in mine]), mine[0].remarks, tuple(one.cost for one in mine)
        )
    roster = Roster.drawn(plan.fleet, plan.seed, range(plan.hosts))
    c = FleetHosts(plan.fleet, roster).constants
    alone_cpus = np.minimum(c.threads, c.own_cpus + c.shared_cpus)
    return FleetOutcome(plan, roster, alone_cpus, runs, wall_seconds, workers)


def pieces_of(plan: FleetPlan, workers: int, most: int) -> Iterator[Piece]:
    """As few pieces as keep all workers busy: a tick of many hosts costs little more than one of few."""
    parts = max(-(-workers // len(plan.managers)), -(-plan.hosts // most))
    edges = np.linspace(0, plan.hosts, min(parts, plan.hosts) + 1).round().astype(int)
    for name in plan.managers:
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            yield Piece(plan, name, first, end - first)


def run_piece(piece: Piece) -> PieceResult:
    """One manager on some hosts."""
    begun, plan = time.process_time(), piece.plan
    roster = Roster.drawn(plan.fleet, plan.seed, range(piece.first, piece.first + piece.count))
    controlled = Controlled(FleetHosts(plan.fleet, roster, manager=piece.manager), (piece.manager,), plan.shield)
    ticks = round(STRETCH_SECONDS / TICK_SECONDS)
    tally = Tally.stacked([controlled.run(ticks) for _ in range(plan.stretches)])
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return PieceResult(tally, controlled.seats.remarks, Cost(time.process_time() - begun, peak_bytes))
