"""A measured surface: windows of co-location on a real host, cell by cell, as CSV.

A cell is one service under one load beside one BE allocation; its windows follow each other from an empty queue. The
columns, in the unit that the sweep of docs/measured/simulator.md wrote them in:

========== ===========================================================================================================
cfg        name of the service; cells are matched with a host profile by how it begins
rate       configured requests per second
be         `none` where BE is absent
cpuset     CPUs that BE may run on; the LC's are the first ones, so on two CPUs 0 is the LC's and 1 is the other
quota      of BE, percent of one CPU; -1 is unlimited
period     of the quota, microseconds
shares     BE's cpu.shares, with the LC's at 1024
rep        number of the sweep, where there were several; without the column one
win        number of the window; window 0 is not settled and is left out
sent       requests that arrived, per second
p95        of the window, microseconds
lc_cpu     CPUs that the LC kept busy; so `be_cpu`
lc_cpus    CPUs that the LC may run on; without the column 1. `cfg` ending in `_both` has 2, one of them the client's
rein       where `link` or `disk` moves BE's level: `quota` and `be_cpu` are of that level
========== ===========================================================================================================
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.decode import parse_cpus
from rlctl.envs.reins import Rein
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.whole_file import write_whole

COLUMNS = (
    "cfg", "rate", "be", "cpuset", "quota", "period", "shares", "rep", "win", "sent", "done", "mean", "p50", "p90",
    "p95", "p99", "max", "oldest", "lc_cpu", "be_cpu", "bogo_s", "nr_throttled", "lc_cpus",
    "rein",
)  # fmt: skip
"""What is written; what a sweep does not measure stays empty."""

NEEDED = ("cfg", "rate", "be", "cpuset", "quota", "period", "shares", "win", "sent", "p95", "lc_cpu", "be_cpu")
LC_SHARES = 1024.0
# Without a quota there is no burst and its period has no meaning; the model's own unit of it has no effect.
UNQUOTAED_PERIOD_SECONDS = 0.010
# One cell in so many is set aside from a fit.
EVERY = 3


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """What one settled window of a cell showed: arrivals per second, its p95, and CPUs kept busy; in which sweep."""

    sent_rps: float
    tail_latency_seconds: float
    lc_cpus: float
    be_cpus: float
    sweep: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the surface.

    Attributes:
        service: Name of the service, column `cfg`.
        own_cpus: CPUs that BE has for itself.
        beside_client: One of these is the CPU of the load's client.
        quota_cpus: BE's quota, infinite when lifted.
        weight_ratio: BE's CPU weight by the LC's.
        rein: What moved BE's level.
    """

    service: str
    rate_rps: float
    frozen: bool
    own_cpus: float
    shared_cpus: float
    lc_cpus: float
    beside_client: bool
    quota_cpus: float
    period_seconds: float
    weight_ratio: float
    windows: tuple[MeasuredWindow, ...]
    rein: Rein = Rein.CPU

    @property
    def settled_windows(self) -> int:
        """How many each sweep had, at most."""
        return max(Counter(window.sweep for window in self.windows).values())

    @property
    def sent_rps(self) -> float:
        """Load that really came, the mean over the settled windows."""
        return float(np.mean([window.sent_rps for window in self.windows]))

    @property
    def tail_latency_seconds(self) -> float:
        """Median p95 of the settled windows."""
        return float(np.median([window.tail_latency_seconds for window in self.windows]))

    @property
    def lc_busy_cpus(self) -> float:
        """CPUs that the LC kept busy, the median."""
        return float(np.median([window.lc_cpus for window in self.windows]))

    @property
    def be_busy_cpus(self) -> float:
        """CPUs that BE kept busy, the median."""
        return float(np.median([window.be_cpus for window in self.windows]))

    def __str__(self) -> str:
        if self.frozen:
            return f"{self.service} {self.rate_rps:g} rps, BE absent"
        quota = "no quota" if math.isinf(self.quota_cpus) else f"{100 * self.quota_cpus:g} %"
        if self.rein is not Rein.CPU:
            return f"{self.service} {self.rate_rps:g} rps, {quota} on the {self.rein}"
        burst = "" if math.isinf(self.quota_cpus) else f" of {1e3 * self.period_seconds:g} ms"
        place = f"{self.own_cpus:g} own + {self.shared_cpus:g} shared CPU"
        weight = "" if self.weight_ratio == 1.0 else f", weight {self.weight_ratio:.3g}"
        return f"{self.service} {self.rate_rps:g} rps, {quota}{burst} on {place}{weight}"


def read_surface(path: Path) -> tuple[Cell, ...]:
    """The cells of a file, in the order of load, place, quota, period and weight of each service.

    Raises:
        ConfigError: The file cannot be read, a column is missing, or a line holds what cannot be.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in NEEDED if name not in (rows.fieldnames or ())]:
                raise ConfigError(f"has no column {', '.join(missing)}; a surface has {','.join(NEEDED)}", path, 1)
            windows = list(_rows(rows, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot be read: {error}", path) from error
    cells: dict[tuple[str, ...], tuple[Cell, list[MeasuredWindow]]] = {}
    for key, cell, window in windows:
        cells.setdefault(key, (cell, []))[1].append(window)
    if not cells:
        raise ConfigError("holds no settled window (win 1 and later)", path)
    settled = (replace(cell, windows=tuple(windows)) for cell, windows in cells.values())
    return tuple(sorted(settled, key=_order))


def set_aside(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """The cells to fit and those set aside: of each service, in the order of `read_surface`, every third is aside."""
    fitted: list[Cell] = []
    aside: list[Cell] = []
    for service in dict.fromkeys(cell.service for cell in cells):
        of_service = [cell for cell in cells if cell.service == service]
        for number, cell in enumerate(of_service):
            # By place and not by chance: every region of the surface is in both parts.
            (aside if number % EVERY == EVERY - 1 else fitted).append(cell)
    return tuple(fitted), tuple(aside)


def write_surface(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows of `COLUMNS`, whole or not at all."""
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, table.getvalue())


def _rows(rows: csv.DictReader[str], path: Path) -> Iterator[tuple[tuple[str, ...], Cell, MeasuredWindow]]:
    for row in rows:
        try:
            # The first window begins with an empty queue and is no steady state.
            if _number(row, "win") < 1.0:
                continue
            cell = _cell(row)
            figures = (
                _number(row, "sent"),
                _number(row, "p95", least=1e-3) / 1e6,
                _number(row, "lc_cpu"),
                _number(row, "be_cpu"),
            )
            window = MeasuredWindow(*figures, row.get("rep") or "")
        except ValueError as error:
            raise ConfigError(str(error), path, rows.line_num) from error
        yield (*(row[name] for name in NEEDED[:7]), cell.rein), cell, window


def _cell(row: Mapping[str, str]) -> Cell:
    beside_client = row["cfg"].endswith("_both")
    lc_cpus = _number(row, "lc_cpus") if row.get("lc_cpus") else 2.0 if beside_client else 1.0
    frozen = row["be"] == "none"
    places = [] if frozen else sorted(parse_cpus(row["cpuset"].strip("-")))
    if not frozen and not places:
        raise ValueError("cpuset is empty; where BE is absent, `be` is `none`")
    quota = _number(row, "quota", least=-1.0)
    if quota == 0.0 and not frozen:
        raise ValueError("quota is 0; where BE is absent, `be` is `none`")
    # Where BE is absent its quota means nothing, whatever the row says.
    lifted = quota < 0.0 or frozen
    # The LC's CPUs are the first ones, by the sweep's convention.
    shared = float(sum(cpu < lc_cpus for cpu in places))
    return Cell(
        service=row["cfg"],
        rate_rps=_number(row, "rate"),
        frozen=frozen,
        own_cpus=len(places) - shared,
        shared_cpus=shared,
        lc_cpus=lc_cpus,
        beside_client=beside_client,
        quota_cpus=math.inf if lifted else quota / 100.0,
        period_seconds=UNQUOTAED_PERIOD_SECONDS if lifted else _number(row, "period", least=1.0) / 1e6,
        weight_ratio=_number(row, "shares", least=2.0) / LC_SHARES,
        windows=(),
        rein=Rein(row.get("rein") or Rein.CPU),
    )


def _number(row: Mapping[str, str], name: str, least: float = 0.0) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {row[name]!r}, not a number") from None
    if not least <= value < math.inf:
        raise ValueError(f"{name} is {row[name]}; it is at least {least:g}")
    return value


def _order(cell: Cell) -> tuple[object, ...]:
    place = (cell.own_cpus, cell.shared_cpus, cell.frozen)
    return (cell.service, cell.rate_rps, *place, cell.quota_cpus, cell.period_seconds, cell.weight_ratio)


LOAD, QUOTA = "load_rps", "quota_cpus"
# Loads are compared with this much room: a configured load is never met to the request.
SLACK_RATIO = 0.02


def region_of(cells: Sequence[Cell]) -> dict[str, tuple[float, float]]:
    """The region that cells cover: `load_rps`, and `quota_cpus` where BE was there; no quota counts as all its CPUs."""
    loads = [cell.rate_rps for cell in cells]
    region = {LOAD: (min(loads), max(loads))}
    # Without a quota BE is bounded by its CPUs alone.
    quotas = [min(cell.quota_cpus, cell.own_cpus + cell.shared_cpus) for cell in cells if not cell.frozen]
    if quotas:
        region[QUOTA] = (min(quotas), max(quotas))
    return region


def outside(profile: HostProfile, load_low: float, load_high: float) -> list[str]:
    """What a run with loads from low to high (shares of the LC's maximum) asks of a profile beyond where it was fitted.

    One line each, for the user. A profile without `fitted` is not from a sweep: it has no region to leave.
    """
    low, high = profile.fitted.get(LOAD, (0.0, math.inf))
    most = profile.lc.max_load_rps
    lines = []
    if load_low * most < low * (1.0 - SLACK_RATIO):
        lines.append(
            f"the load falls to {load_low * most:.0f} rps; profile {profile.name} was fitted from {low:.0f} rps on"
        )
    if load_high * most > high * (1.0 + SLACK_RATIO):
        lines.append(
            f"the load rises to {load_high * most:.0f} rps; profile {profile.name} was fitted up to {high:.0f} rps"
        )
    return lines
