"""The allocator: which application of BE runs in which working mode on which cluster, within BE's budget.

BarbequeRTRM's order-and-select heuristic (ACM TECS 2015, section 4.2; derkling/barbeque, plugins/schedpol, 2012-2013).
It takes one priority level after the other. Every (application, mode, cluster) gets a metric from four contributions.
From the top of the sorted list each application gets the first that still fits. As in the source the metrics are
computed once per level, not after each pick, and once more when all applications with a goal gap are placed. Equal
metrics are told apart by goal gap, then mode value, then cluster, so that like applications fill one cluster before the
next and leave the last idle (paper 5.3). Constants are those of the shipped configuration (config/bbque.conf.in); the
source counts in integer percents and truncates fair parts, here they are floats.

Ours are the budget over all clusters, turns among deferred applications, that BE's budget never lies wholly unused, and
`stretch_placements`, which gives away what the chosen modes leave of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby

from rlctl.envs.applications import Application, CpuCluster, Placement, WorkingMode
from rlctl.envs.errors import ConfigError

HAIR = 1e-9
"""Absorbs the rounding of sums and quotients where a limit is met exactly."""

DIGITS = 9
"""Of a metric, and of a sum of them: what rounding alone tells apart is equal."""

TURN_SECONDS = 60.0
"""Long against what a change of mode costs, short against a batch job."""

# Of the mode's own value and of the goal gap (sc_value.cc; 0.2 and 0.8 in a version before).
VALUE_SHARE, GAP_SHARE = 0.4, 0.6
# A migration counts 1 + this times as much as a change of mode (reconfig.migfact; the source defaults to 4).
MIGRATION_FACTOR = 5.0
# Use from which a resource counts as saturating (msl.pe, msl.mem; the source defaults to 0.90 and 0.70).
CPU_SATURATION, MEMORY_SATURATION = 0.75, 0.90
# Lost where a request takes all that is free (congestion.penalty; the source defaults to 0.75 CPU, 0.50 memory).
CONGESTION_PENALTY = 0.25
# Lost where a request takes exactly its fair part (fairness.penalty), and the base of the exponential beyond
# (fairness.expbase); the source defaults to 0.05 and 2.
FAIRNESS_PENALTY, FAIRNESS_BASE = 0.10, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionWeights:
    """As BarbequeRTRM's shipped configuration has them; in its source all four default to 0. Only ratios matter.

    Attributes:
        value: Of what a working mode is worth to the user.
        reconfiguration: Of leaving an application as and where it is.
        congestion: Of clusters that are not close to saturation.
        fairness: Of modes within the fair part of what is there.

    Raises:
        ConfigError: A weight that is no number from 0 up, or none above 0.
    """

    value: float = 20.0
    reconfiguration: float = 5.0
    congestion: float = 5.0
    fairness: float = 10.0

    def __post_init__(self) -> None:
        parts = astuple(self)
        numbers = all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in parts)
        if not numbers or not all(0.0 <= part < math.inf for part in parts) or not 0.0 < sum(parts) < math.inf:
            raise ConfigError(f"the allocator's weights are numbers from 0 up and not all 0, not {self}")

    @property
    def normalised(self) -> tuple[float, float, float, float]:
        """Value, reconfiguration, congestion and fairness, with a sum of 1."""
        total = self.value + self.reconfiguration + self.congestion + self.fairness
        return self.value / total, self.reconfiguration / total, self.congestion / total, self.fairness / total


AS_PUBLISHED = ContributionWeights()


@dataclass(frozen=True, slots=True)
class Stock:
    """One resource of one cluster at the time of an evaluation, in CPUs or bytes.

    Attributes:
        total: What applications may have of it at all.
        available: What one more may take: what is free, of CPUs within what is left of BE's budget.
        part: The fair part of what is available, from `fair_part`.
        saturation_ratio: Use, as a share of the total, from which it saturates.
    """

    total: float
    free: float
    available: float
    part: float
    saturation_ratio: float


@dataclass(frozen=True, slots=True)
class Room:
    """What one cluster has at the time of an evaluation; no memory where it sets no limit."""

    cluster: str
    cpus: Stock
    memory: Stock | None = None

    def demands(self, mode: WorkingMode) -> Iterator[tuple[float, Stock]]:
        """What a mode takes of each resource; the worse of the two decides congestion and fairness."""
        yield mode.cpus, self.cpus
        if self.memory is not None:
            yield mode.memory_bytes, self.memory


def metric(application: Application, index: int, room: Room, weights: ContributionWeights) -> float:
    """How good a choice for an application is, from 0 to 1: the four contributions, weighted."""
    mode = application.modes[index]
    of_value, of_reconfiguration, of_congestion, of_fairness = weights.normalised
    return (
        of_value * value(application, index)
        + of_reconfiguration * reconfiguration(application, index, room)
        + of_congestion * congestion(mode, room)
        + of_fairness * fairness(mode, room)
    )


def value(application: Application, index: int) -> float:
    """V: what the mode is worth, and with a goal gap all modes that are worth more than the present one.

    The mode's value counts relative to the application's best. A goal gap counts as in the source, from 0 to 100 % and
    for a running application only; a negative one (better than its goal) is none.
    """
    modes, current = application.modes, application.current
    worth = VALUE_SHARE * modes[index].value / (max(mode.value for mode in modes) or 1.0)
    if current is None or modes[index].value <= modes[current.mode].value:
        return worth
    return worth + GAP_SHARE * min(max(application.gap_percent, 0.0), 100.0) / 100.0


def reconfiguration(application: Application, index: int, room: Room) -> float:
    """R: 1 for staying as it is; else less by the share of the cluster that has to be set up, more for a migration.

    An application that does not run pays for a start as for a change of mode.
    """
    current = application.current
    migrates = current is not None and current.cluster != room.cluster
    if current is not None and current.mode == index and not migrates:
        return 1.0
    shares = [wanted / stock.total if wanted else 0.0 for wanted, stock in room.demands(application.modes[index])]
    effort = (1.0 + MIGRATION_FACTOR * migrates) / (1.0 + MIGRATION_FACTOR)
    return 1.0 - effort * min(sum(shares) / len(shares), 1.0)


def congestion(mode: WorkingMode, room: Room) -> float:
    """L: 1 while the cluster stays below saturation, from there linearly down by the penalty; 0 where it does not fit.

    The source has an exponential branch beyond what is free, which its own check for that comes before: never reached.
    """
    return min(_congestion(wanted, stock) for wanted, stock in room.demands(mode))


def _congestion(wanted: float, stock: Stock) -> float:
    if wanted > stock.free + HAIR:
        return 0.0
    unsaturated = max(stock.free - (1.0 - stock.saturation_ratio) * stock.total, 0.0)
    if wanted <= unsaturated + HAIR:
        return 1.0
    return 1.0 - CONGESTION_PENALTY * min((wanted - unsaturated) / (stock.free - unsaturated), 1.0)


def fairness(mode: WorkingMode, room: Room) -> float:
    """F: linearly down by the penalty at the fair part of the cluster, beyond it exponentially to 0 at all there is."""
    return min(_fairness(wanted, stock) for wanted, stock in room.demands(mode))


def _fairness(wanted: float, stock: Stock) -> float:
    if wanted > stock.available + HAIR:
        return 0.0
    if wanted <= stock.part + HAIR:
        return 1.0 - FAIRNESS_PENALTY * min(wanted / stock.part, 1.0) if wanted else 1.0
    beyond = max(stock.available - wanted, 0.0) / (stock.available - stock.part)
    return (1.0 - FAIRNESS_PENALTY) * (math.pow(FAIRNESS_BASE, beyond) - 1.0) / (FAIRNESS_BASE - 1.0)


def fair_part(available: float, share: float) -> float:
    """The fair part of one cluster: what is available there in the fewest equal parts, none above the share.

    The share is what is available in all clusters per application that competes.
    """
    return available / max(math.ceil(available / share - HAIR), 1) if available else 0.0


class Ledger:
    """Free CPU time and memory by cluster, and the rest of the budget; ConfigError: two clusters of one name."""

    def __init__(self, clusters: Sequence[CpuCluster], budget_cpus: float) -> None:
        self._clusters = {cluster.name: cluster for cluster in sorted(clusters, key=lambda cluster: cluster.name)}
        if len(self._clusters) < len(clusters):
            raise ConfigError("two clusters have one name; names in a platform are unique")
        self._budget_cpus = budget_cpus
        self._free_cpus = {name: cluster.quota_cpus for name, cluster in self._clusters.items()}
        self._free_bytes = {one.name: one.memory_bytes for one in clusters if one.memory_bytes is not None}

    def available_cpus(self, cluster: str) -> float:
        """What one more application could take of a cluster within the budget."""
        return min(self._free_cpus[cluster], self._budget_cpus)

    def shares(self, applications: int) -> tuple[float, float]:
        """CPUs, and bytes where memory is limited, that are left for each of so many applications."""
        cpus = min(sum(self._free_cpus.values()), self._budget_cpus)
        return cpus / applications, sum(self._free_bytes.values()) / applications

    def rooms(self, shares: tuple[float, float]) -> list[Room]:
        """What is left of each cluster, by name, where an application's fair share is the given one."""
        rooms = []
        for name, cluster in self._clusters.items():
            available, memory = self.available_cpus(name), None
            part = fair_part(available, shares[0])
            cpus = Stock(cluster.quota_cpus, self._free_cpus[name], available, part, CPU_SATURATION)
            if cluster.memory_bytes is not None:
                free = self._free_bytes[name]
                memory = Stock(cluster.memory_bytes, free, free, fair_part(free, shares[1]), MEMORY_SATURATION)
            rooms.append(Room(name, cpus, memory))
        return rooms

    def fits(self, mode: WorkingMode, cluster: str) -> bool:
        """Whether there is enough left of a cluster and of the budget."""
        return mode.cpus <= self.available_cpus(cluster) + HAIR and self.holds(mode, cluster)

    def holds(self, mode: WorkingMode, cluster: str) -> bool:
        """Whether there is enough memory left."""
        return mode.memory_bytes <= self._free_bytes.get(cluster, mode.memory_bytes)

    def take(self, mode: WorkingMode, cluster: str) -> float:
        """Book a mode; returns its CPU time, or what there is of it."""
        cpus = min(mode.cpus, self.available_cpus(cluster))
        self._free_cpus[cluster] -= cpus
        self._budget_cpus -= cpus
        if cluster in self._free_bytes:
            self._free_bytes[cluster] -= mode.memory_bytes
        return cpus


def allocate(
    applications: Sequence[Application],
    clusters: Sequence[CpuCluster],
    budget_cpus: float,
    weights: ContributionWeights = AS_PUBLISHED,
) -> dict[str, Placement]:
    """Place applications in working modes on clusters; the order of neither matters.

    Where not even the least mode of any application of the first level fits, the application in turn runs in its least
    mode with what there is.

    Args:
        budget_cpus: CPU time per second of wall clock that BE as a whole may have, 0 or more.

    Returns:
        A placement for each application that runs, by name; one that is absent is deferred.

    Raises:
        ConfigError: Two applications, or two clusters, of one name.
    """
    if len({application.name for application in applications}) < len(applications):
        raise ConfigError("two applications have one name; the allocator tells them apart by it")
    ledger = Ledger(clusters, budget_cpus)
    placed: dict[str, Placement] = {}
    if clusters and budget_cpus > 0.0:
        for level in levels(applications):
            shares, turn_of = ledger.shares(len(level)), turns(level)
            waiting = {application.name: application for application in level}
            while waiting:
                candidates = _ranked(waiting.values(), ledger, shares, weights, turn_of)
                if not _select(candidates, waiting, ledger, placed):
                    break
            if not placed:
                squeeze(level, clusters, ledger, placed)
    return placed


def levels(applications: Sequence[Application]) -> list[list[Application]]:
    """Applications of one priority together, the first served first, each level by name."""
    ordered = sorted(applications, key=lambda one: (one.priority, one.name))
    return [list(level) for _, level in groupby(ordered, key=lambda one: one.priority)]


Turn = tuple[int, float]
"""Sorts applications of a level: who is in its turn, who has waited for one (the longest first), all others."""

IN_TURN, DUE, OTHER = 0, 1, 2

Candidate = tuple[Turn, float, bool, float, str, str, int]
"""Turn, the metric (negative, rounded: the greatest comes first), False for a goal gap, the mode's value (negative),
cluster, application, index of the mode: in the order of being tried."""


def _ranked(
    waiting: Iterable[Application],
    ledger: Ledger,
    shares: tuple[float, float],
    weights: ContributionWeights,
    turn_of: Mapping[str, Turn],
) -> list[Candidate]:
    """The ordering step: all that would fit now, the best first."""
    return sorted(
        (
            turn_of[application.name],
            round(-metric(application, index, room, weights), DIGITS),
            application.gap_percent <= 0.0,
            -mode.value,
            room.cluster,
            application.name,
            index,
        )
        for room in ledger.rooms(shares)
        for application in waiting
        for index, mode in enumerate(application.modes)
        if application.may_run_on(room.cluster) and ledger.fits(mode, room.cluster)
    )


def _select(
    candidates: list[Candidate], waiting: dict[str, Application], ledger: Ledger, placed: dict[str, Placement]
) -> bool:
    """The selection step; True when those with a goal gap are all placed and the rest is to be evaluated anew."""
    gaps = {application.name for application in waiting.values() if application.gap_percent > 0.0}
    for turn, group in groupby(candidates, key=lambda candidate: candidate[0]):
        passed = set()
        for *_, cluster, name, index in group:
            application = waiting.get(name)
            if application is None:
                continue
            mode = application.modes[index]
            if not ledger.fits(mode, cluster):
                passed.add(name)
                continue
            placed[name] = Placement(index, cluster, ledger.take(mode, cluster))
            del waiting[name]
            if gaps and not (gaps := gaps - {name}):
                return True
        if turn[0] == DUE and not waiting.keys().isdisjoint(passed):
            return False  # whose turn it is waits for room; were others let in, they would take it again and again
    return False


def squeeze(
    level: list[Application], clusters: Sequence[CpuCluster], ledger: Ledger, placed: dict[str, Placement]
) -> None:
    """Nothing fits at all: place the application of a level in turn, in its least mode with what there is.

    It is the one that runs, or has waited for a turn; then one with a goal gap. Memory cannot be squeezed: one that no
    cluster it may run on has the memory for is passed over.
    """
    turn_of = turns(level)
    in_turn = sorted(level, key=lambda one: (turn_of[one.name], one.current is None, -one.gap_percent, one.name))
    for application in in_turn:
        least = application.modes[0]
        stay = application.current.cluster if application.current else ""
        allowed = [cluster.name for cluster in clusters if application.may_run_on(cluster.name)]
        held = [name for name in allowed if ledger.holds(least, name)]
        if held:
            where = min(held, key=lambda name: (-ledger.available_cpus(name), name != stay, name))
            placed[application.name] = Placement(0, where, ledger.take(least, where))
            return


def turns(level: Sequence[Application]) -> dict[str, Turn]:
    """The turn of each application of a priority level, by name, so that none is deferred for ever.

    In BarbequeRTRM a deferred application can wait as long as those in place run, for whom the reconfiguration
    contribution speaks. Here who has waited for a turn goes before those that have had theirs, the longest waiting
    first; who has not had a whole turn yet stays before them. As long as nobody has waited so long, the metric decides.
    """
    due = {one.name for one in level if one.current is None and one.since_seconds >= TURN_SECONDS}
    found: dict[str, Turn] = {}
    for one in level:
        is_in_turn = bool(due) and one.current is not None and one.since_seconds < TURN_SECONDS
        found[one.name] = (DUE, -one.since_seconds) if one.name in due else (IN_TURN if is_in_turn else OTHER, 0.0)
    return found


def stretch_placements(
    placements: Mapping[str, Placement],
    applications: Sequence[Application],
    clusters: Sequence[CpuCluster],
    budget_cpus: float,
) -> dict[str, Placement]:
    """Give what is left of the budget to those placed, so that none of it lies idle; modes and clusters stay.

    Priorities are served in order, and within one all grow in proportion to their modes. No application gets more than
    its mode has threads while another could use it. BarbequeRTRM leaves what its modes do not ask for idle, to save
    power; that is `placements` as it is.

    Returns:
        The same applications: none has less, and neither the budget nor a cluster's quota is exceeded.
    """
    cpus = {name: placement.cpus for name, placement in placements.items()}
    budget_cpus -= sum(cpus.values())
    free_cpus = {cluster.name: cluster.quota_cpus for cluster in clusters}
    for placement in placements.values():
        free_cpus[placement.cluster] -= placement.cpus
    ranks = [[app for app in level if app.name in placements] for level in levels(applications)]
    for is_bounded, level in [(True, level) for level in ranks] + [(False, level) for level in ranks]:
        modes = {app.name: app.modes[placements[app.name].mode] for app in level}
        most = {name: float(mode.threads) if is_bounded else math.inf for name, mode in modes.items()}
        # Raise all of a level in proportion to their modes, until each has its most or nothing is left for it.
        while pace := {
            name: mode.cpus
            for name, mode in modes.items()
            if min(budget_cpus, free_cpus[placements[name].cluster], most[name] - cpus[name]) > HAIR
        }:
            together = dict.fromkeys((placements[name].cluster for name in pace), 0.0)
            for name, speed in pace.items():
                together[placements[name].cluster] += speed
            factor = min(
                budget_cpus / sum(pace.values()),
                *(free_cpus[cluster] / speed for cluster, speed in together.items()),
                *((most[name] - cpus[name]) / speed for name, speed in pace.items()),
            )
            for name, speed in pace.items():
                cpus[name] += factor * speed
                budget_cpus -= factor * speed
                free_cpus[placements[name].cluster] -= factor * speed
    return {name: replace(placement, cpus=cpus[name]) for name, placement in placements.items()}
