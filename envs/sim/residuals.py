"""How far the simulator is from a measured surface, cell by cell and by regime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rlctl.envs.arrays import Array
from rlctl.envs.errors import ConfigError
from rlctl.envs.reins import CARRIED_RATIO, CPU, DISK_CARRIED_RATIO, REINS, Rein
from rlctl.envs.sim.physics import HostOrders, Hosts
from rlctl.envs.sim.profile import Constants, HostProfile
from rlctl.envs.sim.reins import take_rein
from rlctl.envs.sim.sharing import fair_share
from rlctl.envs.sim.surface import Cell

# Hosts simulated per cell, the same for all: a cell's figure does not depend on which others are simulated.
SEEDS = 48
WINDOW_SECONDS = 1.0
"""Of a sweep."""
MANY_SEEDS = 500
"""For figures to be quoted: with 48 the share on the target's side moves by 3 % from one set of seeds to the next."""
WITHIN_RATIO = 2.0
WITHIN_CPUS = 0.1
# From this weight on BE is a competitor; below it cells are of the regime `weights`.
FULL_WEIGHT_RATIO = 0.5


class Regime(StrEnum):
    """What rules the LC's tail in a cell; by what LC and BE demand of CPU time or of a shared link, without noise."""

    ALONE = "BE absent"
    OTHER_CPU = "other CPU"
    WEIGHTS = "weights"
    BELOW = "below fair share"
    BETWEEN = "between"
    OVERLOAD = "overload"
    LINK = "link below saturation"
    LINK_FULL = "link saturated"


@dataclass(frozen=True, slots=True)
class Residual:
    """One cell, simulated and measured.

    Attributes:
        tail_latency_seconds: Simulated median p95; so `lc_cpus` and `be_cpus`.
        target_seconds: The line on whose side both should be.
    """

    cell: Cell
    regime: Regime
    tail_latency_seconds: float
    lc_cpus: float
    be_cpus: float
    target_seconds: float

    @property
    def ratio(self) -> float:
        """Simulated by measured p95."""
        return self.tail_latency_seconds / self.cell.tail_latency_seconds

    @property
    def within(self) -> bool:
        """The p95 is right within a factor of two."""
        return 1.0 / WITHIN_RATIO <= self.ratio <= WITHIN_RATIO

    @property
    def same_side(self) -> bool:
        """Both hold the target, or both miss it."""
        return (self.tail_latency_seconds <= self.target_seconds) == (
            self.cell.tail_latency_seconds <= self.target_seconds
        )

    @property
    def be_error_cpus(self) -> float:
        """Simulated less measured CPUs of BE."""
        return self.be_cpus - self.cell.be_busy_cpus

    @property
    def lc_error_cpus(self) -> float:
        """Simulated less measured CPUs of the LC."""
        return self.lc_cpus - self.cell.lc_busy_cpus


@dataclass(frozen=True, slots=True)
class Agreement:
    """Some cells together, in percent of them.

    Attributes:
        within_percent: p95 right within a factor of two.
        side_percent: On the measured side of the target.
        be_percent: BE's CPUs right within 0.1.
        lc_percent: The LC's CPUs right within 0.1.
        median_ratio: Median of simulated by measured p95.
    """

    cells: int
    within_percent: float
    side_percent: float
    be_percent: float
    lc_percent: float
    median_ratio: float


Residuals = tuple[Residual, ...]


def residuals(cells: Sequence[Cell], profiles: Mapping[str, HostProfile], seeds: int = SEEDS) -> Residuals:
    """Simulate every cell on some hosts and set it beside its measurement.

    Profiles go by the beginning of the service's name; topology and period come from the cell.

    Raises:
        ConfigError: A cell has no profile.
    """
    values = [_values(cell, profiles[service_of(cell, profiles)]) for cell in cells]
    rows = {name: np.array([row[name] for row in values]) for name in values[0]}
    tail, lc, be = _simulate(cells, rows, seeds)
    return tuple(
        Residual(cell, regime_of(cell, row), *simulated, row["target_seconds"])
        for cell, row, simulated in zip(
            cells, values, zip(tail.tolist(), lc.tolist(), be.tolist(), strict=True), strict=True
        )
    )


def agreement(rows: Sequence[Residual]) -> Agreement:
    """The shares of cells that agree; ValueError: there is no cell."""
    if not rows:
        raise ValueError("the agreement of no cells")

    def percent(flags: list[bool]) -> float:
        return 100.0 * sum(flags) / len(flags)

    return Agreement(
        len(rows),
        percent([row.within for row in rows]),
        percent([row.same_side for row in rows]),
        percent([abs(row.be_error_cpus) <= WITHIN_CPUS for row in rows]),
        percent([abs(row.lc_error_cpus) <= WITHIN_CPUS for row in rows]),
        float(np.median([row.ratio for row in rows])),
    )


def against_itself(cells: Sequence[Cell], target_seconds: float) -> tuple[int, float, float] | None:
    """How well one sweep foretells another: no model can be held to more.

    Returns:
        Cells that were measured in more than one sweep, and in percent of them those whose p95, the medians of the
        first and the last sweep, are within a factor of two and on one side of the target; None where there is no such.
    """
    pairs = []
    for cell in cells:
        tails: dict[str, list[float]] = {}
        for window in cell.windows:
            tails.setdefault(window.sweep, []).append(window.tail_latency_seconds)
        if len(tails) > 1:
            first, *_, last = (np.median(some) for some in tails.values())
            pairs.append((first, last))
    if not pairs:
        return None
    one, other = np.array(pairs).T
    # Ratios are judged on a logarithm's scale: half and twice are equally far.
    near = np.abs(np.log(one / other)) <= math.log(WITHIN_RATIO)
    side = (one <= target_seconds) == (other <= target_seconds)
    return len(pairs), 100.0 * float(near.mean()), 100.0 * float(side.mean())


def by_regime(rows: Sequence[Residual]) -> dict[Regime, Residuals]:
    """The cells of each regime that has any, in the order of `Regime`."""
    parts = {regime: tuple(row for row in rows if row.regime is regime) for regime in Regime}
    return {regime: part for regime, part in parts.items() if part}


def service_of(cell: Cell, profiles: Mapping[str, HostProfile]) -> str:
    """The key of a cell's profile: the first with which the name of its service begins; ConfigError: there is none."""
    for beginning in profiles:
        if cell.service.startswith(beginning):
            return beginning
    raise ConfigError(f"the surface's service {cell.service!r} begins with none of {', '.join(profiles)}")


def regime_of(cell: Cell, values: Mapping[str, float]) -> Regime:
    """The regime of a cell, by the constants of its host."""
    if cell.frozen:
        return Regime.ALONE
    if math.isfinite(rate := values["link_bytes_per_second"]):
        idle = cell.own_cpus + values["shared_cpus"] - cell.sent_rps * values["service_seconds"]
        lc, be = cell.sent_rps * values["link_lc_bytes"], min(cell.quota_cpus, idle) * values["link_be_bytes"]
        if cell.rein is not Rein.CPU:
            carried_ratio = DISK_CARRIED_RATIO if cell.rein is Rein.DISK else CARRIED_RATIO
            be = min(cell.quota_cpus, 1.0) * (carried_ratio * rate - lc)
        return Regime.LINK if lc + be < rate else Regime.LINK_FULL
    if cell.shared_cpus == 0.0:
        return Regime.OTHER_CPU
    if cell.weight_ratio < FULL_WEIGHT_RATIO:
        return Regime.WEIGHTS
    spread = min(cell.own_cpus + values["shared_cpus"], values["threads"])
    lc_cpus, shared = values["lc_cpus"], values["shared_cpus"]
    fair = fair_share(cell.weight_ratio, lc_cpus, spread)
    # The LC is below its fair part, above it, or beyond what BE leaves: three laws, three regimes.
    demand = cell.sent_rps * values["service_seconds"] / lc_cpus
    if demand <= fair:
        return Regime.BELOW
    pressed = (1.0 - fair) * shared
    burning = min(1.0, cell.quota_cpus / (cell.own_cpus + pressed))
    return Regime.BETWEEN if demand < 1.0 - burning * pressed / lc_cpus else Regime.OVERLOAD


def _values(cell: Cell, profile: HostProfile) -> dict[str, float]:
    """The profile's constants on the cell's CPUs.

    The client has a real-time priority: on a CPU that it shares with the LC, LC and BE have what it leaves.
    """
    # A client with a real-time priority takes its CPU first; LC and BE share what is left.
    values = profile.values()
    client = values["client_cpus"] + values["client_cpu_seconds"] * cell.sent_rps if cell.beside_client else 0.0
    values.update(
        own_cpus=1.0 if cell.frozen else cell.own_cpus,
        lc_cpus=cell.lc_cpus - client,
        period_seconds=cell.period_seconds,
        rein=float(REINS.index(cell.rein)),
    )
    return {**values, "shared_cpus": max(cell.shared_cpus - client, 0.0)}


def _simulate(cells: Sequence[Cell], rows: Mapping[str, Array], seeds: int) -> tuple[Array, Array, Array]:
    """Median p95, LC CPUs and BE CPUs of each cell over seeds and settled windows."""

    def spread(column: Sequence[float] | Array) -> Array:
        return np.repeat(np.asarray(column, float), seeds)

    keys = np.tile(np.arange(1, seeds + 1, dtype=np.uint64), len(cells))
    hosts = Hosts(Constants(**{name: spread(column) for name, column in rows.items()}), keys, WINDOW_SECONDS)
    frozen = np.repeat([cell.frozen for cell in cells], seeds)
    orders = HostOrders(
        spread([cell.quota_cpus for cell in cells]),
        spread(rows["own_cpus"] + rows["shared_cpus"]),
        frozen,
        spread([cell.weight_ratio for cell in cells]),
    )
    rate = spread([cell.sent_rps for cell in cells])
    # As many windows from an empty queue as in the sweep, since a backlog grows; the first is left out on both sides.
    settled = [cell.settled_windows for cell in cells]
    windows = []
    for _ in range(1 + max(settled)):
        take_rein(hosts.rows, hosts.constant_rows)
        windows.append(hosts.step(rate, orders))
    windows = windows[1:]

    def median(name: str) -> Array:
        values = np.stack([getattr(window, name) for window in windows]).reshape(len(windows), len(cells), seeds)
        return np.array([np.median(values[:count, place]) for place, count in enumerate(settled)])

    used = np.where(rows["rein"] == CPU, median("be_cpus"), median("be_used_ratio"))
    return median("tail_latency_seconds"), median("lc_cpus"), used
