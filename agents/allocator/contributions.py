"""The four contributions to the metric of (application, working mode, cluster): pure, 0 to 1, the higher the better.

After BarbequeRTRM (derkling/barbeque, plugins/schedpol/contrib, 2012-2013; paper section 4.2). Constants are those of
its shipped configuration (config/bbque.conf.in), which is where the published weights stand too; what the source
defaults to is told beside each. Both CPUs and memory count where a cluster limits them, and the worse of the two
decides congestion and fairness. The source counts in integer percents and truncates fair parts; here they are floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from rlctl.envs.applications import Application, WorkingMode
from rlctl.envs.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
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
        if not all(_is_weight(part) for part in parts) or not 0.0 < sum(parts) < math.inf:
            raise ConfigError(f"the allocator's weights are numbers from 0 up and not all 0, not {self}")

    @property
    def normalised(self) -> tuple[float, float, float, float]:
        """Value, reconfiguration, congestion and fairness, with a sum of 1."""
        total = self.value + self.reconfiguration + self.congestion + self.fairness
        return self.value / total, self.reconfiguration / total, self.congestion / total, self.fairness / total


def _is_weight(part: object) -> bool:
    return isinstance(part, (int, float)) and not isinstance(part, bool) and math.isfinite(part) and part >= 0.0


AS_PUBLISHED = Weights()


HAIR = 1e-9
"""Absorbs the rounding of sums and quotients where a limit is met exactly."""

VALUE_SHARE, GAP_SHARE = 0.4, 0.6
"""Of the mode's own value and of the goal gap (sc_value.cc; 0.2 and 0.8 in a version before)."""

MIGRATION_FACTOR = 5.0
"""A migration counts 1 + this times as much as a change of mode (reconfig.migfact; the source defaults to 4)."""

CPU_SATURATION, MEMORY_SATURATION = 0.75, 0.90
"""Use from which a resource counts as saturating (msl.pe, msl.mem; the source defaults to 0.90 and 0.70)."""

CONGESTION_PENALTY = 0.25
"""Lost where a request takes all that is free (congestion.penalty; the source defaults to 0.75 CPU, 0.50 memory)."""

FAIRNESS_PENALTY = 0.10
"""Lost where a request takes exactly its fair part (fairness.penalty; the source defaults to 0.05)."""

FAIRNESS_BASE = 5.0
"""Of the exponential beyond the fair part (fairness.expbase; the source defaults to 2)."""


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


def metric(application: Application, index: int, room: Room, weights: Weights) -> float:
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
    shares = [wanted / stock.total if wanted else 0.0 for wanted, stock in _wanted(application.modes[index], room)]
    effort = (1.0 + MIGRATION_FACTOR * migrates) / (1.0 + MIGRATION_FACTOR)
    return 1.0 - effort * min(sum(shares) / len(shares), 1.0)


def congestion(mode: WorkingMode, room: Room) -> float:
    """L: 1 while the cluster stays below saturation, from there linearly down by the penalty; 0 where it does not fit.

    The source has an exponential branch beyond what is free, which its own check for that comes before: never reached.
    """
    return min(_congestion(wanted, stock) for wanted, stock in _wanted(mode, room))


def fairness(mode: WorkingMode, room: Room) -> float:
    """F: linearly down by the penalty at the fair part of the cluster, beyond it exponentially to 0 at all there is."""
    return min(_fairness(wanted, stock) for wanted, stock in _wanted(mode, room))


def fair_part(available: float, share: float) -> float:
    """The fair part of one cluster: what is available there in the fewest equal parts, none above the share.

    Args:
        available: In this cluster.
        share: What is available in all of them per application that competes.
    """
    return available / max(math.ceil(available / share - HAIR), 1) if available else 0.0


def _wanted(mode: WorkingMode, room: Room) -> Iterator[tuple[float, Stock]]:
    yield mode.cpus, room.cpus
    if room.memory is not None:
        yield mode.memory_bytes, room.memory


def _congestion(wanted: float, stock: Stock) -> float:
    if wanted > stock.free + HAIR:
        return 0.0
    unsaturated = max(stock.free - (1.0 - stock.saturation_ratio) * stock.total, 0.0)
    if wanted <= unsaturated + HAIR:
        return 1.0
    return 1.0 - CONGESTION_PENALTY * min((wanted - unsaturated) / (stock.free - unsaturated), 1.0)


def _fairness(wanted: float, stock: Stock) -> float:
    if wanted > stock.available + HAIR:
        return 0.0
    if wanted <= stock.part + HAIR:
        return 1.0 - FAIRNESS_PENALTY * min(wanted / stock.part, 1.0) if wanted else 1.0
    beyond = max(stock.available - wanted, 0.0) / (stock.available - stock.part)
    return (1.0 - FAIRNESS_PENALTY) * (math.pow(FAIRNESS_BASE, beyond) - 1.0) / (FAIRNESS_BASE - 1.0)
