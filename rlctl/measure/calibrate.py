"""Calibration of the simulator: sweep a testbed cell by cell, fit a profile to the sweep, say how far off it is."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.quota import PERIOD_US
from rlctl.envs.host.cpulist import format_cpus
from rlctl.envs.sim.fit import OWN, SHARED, fit
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.residuals import Residual, agreement, by_regime
from rlctl.envs.sim.surface import Cell, read_surface, region_of, set_aside, write_surface
from rlctl.envs.telemetry import Reading, Telemetry, Value
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.traces import constant
from rlctl.envs.whole_file import write_whole
from rlctl.envs.workload import Weight
from rlctl.scenarios.live import LiveScenario

LOADS = (0.2, 0.4, 0.55, 0.7, 0.85)
"""Of the LC's maximum: below, around and above its fair share of a CPU, and near the knee."""
QUOTAS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Of BE's CPUs; 1 lifts the quota."""
WINDOWS = 6
OVERHEAD_SECONDS = 2.0  # per cell, until the queue of the last one is empty
START_SECONDS = 100.0  # the search for the maximum load, and BE's start
START = {"memcached": "two-core-host", "nginx": "two-core-nginx"}
"""Profile from which a fit begins, by the LC's kind."""
RANGES = {"service_seconds": 0.1, "slice_seconds": 0.3}
"""Constants that differ from host to host in training, and by how much either way (docs/measured/simulator.md, 6)."""
RESIDUALS = (
    "cells", "number", "p95 within 2x %", "side of target %", "BE within .1 CPU %", "LC within .1 CPU %", "median x",
)  # fmt: skip
CELL_HEADER = ("cell", "regime", "measured ms", "simulated ms", "x", "BE", "BE sim", "LC", "LC sim", "misses")


@dataclass(frozen=True, slots=True)
class Point:
    """One cell to measure: a load as a share of the LC's maximum, beside one allocation."""

    load_ratio: float
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Sweep:
    """The grid of loads and BE allocations to measure.

    Attributes:
        scenario: The testbed, with its tick and BE's weight.
        loads: Shares of the LC's maximum load.
        quotas: Shares of BE's CPUs; 1 lifts the quota. BE absent is measured at every load besides.
        windows: Per cell; the first is not settled and is left out of the fit.

    Raises:
        ConfigError: Numbers that cannot be.
    """

    scenario: LiveScenario
    loads: tuple[float, ...] = LOADS
    quotas: tuple[float, ...] = QUOTAS
    windows: int = WINDOWS

    def __post_init__(self) -> None:
        if not self.loads or not all(0.0 < load <= 1.5 for load in self.loads):
            raise ConfigError("--loads are shares of the LC's maximum load, such as 0.2,0.5,0.8")
        if not all(0.0 < quota <= 1.0 for quota in self.quotas):
            raise ConfigError("--quotas are shares of BE's CPUs, above 0 and up to 1, such as 0.1,0.5,1")
        if self.windows < 2:
            raise ConfigError("--windows must be 2 at least: the first of a cell is not settled")

    @property
    def points(self) -> tuple[Point, ...]:
        """All cells in the order of measuring: shuffled, so that the host's drift is not taken for the load's doing."""
        cpus = len(self.scenario.be.cpus)
        running = [
            Allocation(UNLIMITED if quota == 1.0 else quota * size, size)
            for size in range(1, cpus + 1)
            for quota in self.quotas
        ]
        allocations = [Allocation(UNLIMITED, cpus, frozen=True), *running]
        grid = [Point(load, allocation) for load in self.loads for allocation in allocations]
        return tuple(grid[place] for place in np.random.default_rng(0).permutation(len(grid)))

    @property
    def seconds(self) -> float:
        """About how long it takes, the search for the maximum load included."""
        each = self.windows * self.scenario.tick_seconds + OVERHEAD_SECONDS
        return START_SECONDS + each * len(self.points)


def sweep(plan: Sweep, bed: Testbed, path: Path, done: Callable[[str], None] = lambda _: None) -> None:
    """Measure all cells and write them as CSV, after each cell anew: what is measured is not lost.

    The testbed runs, without BE. `done` is called after each cell with its name, for progress.
    """
    rows: list[dict[str, object]] = []
    bed.plant.set_weight(plan.scenario.be.weight)
    bed.start_be()
    try:
        for point in plan.points:
            rows += _measured(plan, point, bed)
            write_surface(path, rows)
            done(f"{point.load_ratio:g} of the maximum load, BE {point.allocation}")
    finally:
        bed.stop_be()


def fitted_profile(
    path: Path, scenario: LiveScenario, max_load_rps: float, name: str
) -> tuple[HostProfile, HostProfile]:
    """The profile before and after a fit to the cells of a sweep's CSV that are not set aside.

    Raises:
        ConfigError: The sweep cannot be used.
    """
    cells = read_surface(path)
    begin = _begin(scenario, cells, max_load_rps, name)
    training, _ = set_aside(cells)
    service = cells[0].service
    best = fit(training, {service: begin}, shared=(), own=_identifiable(cells)).profiles[service]
    values = {key: float(f"{value:.4g}") for key, value in best.values().items()}
    fitted = best.but(**{key: values[key] for key in (*OWN, *SHARED)})
    spread = {key: (values[key] * (1.0 - by), values[key] * (1.0 + by)) for key, by in RANGES.items()}
    ranges = {key: (float(f"{low:.4g}"), float(f"{high:.4g}")) for key, (low, high) in spread.items()}
    return begin, fitted.model_copy(update={"fitted": region_of(training), "ranges": ranges})


def write_profile(profile: HostProfile, path: Path) -> None:
    """Write a profile as YAML, whole or not at all."""
    data = profile.model_dump(mode="json")
    write_whole(path, "# Written by `rlctl calibrate`.\n" + yaml.safe_dump(data, sort_keys=False, width=120))


def _measured(plan: Sweep, point: Point, bed: Testbed) -> list[dict[str, object]]:
    """The windows of one cell, from an empty queue: BE frozen, the queue drained, then load and BE at once."""
    plant = bed.plant
    plant.apply(point.allocation.but(frozen=True))
    bed.settle(constant(0.0))
    plant.apply(point.allocation)
    bed.follow(constant(point.load_ratio))
    plant.reset()
    rows = []
    for window in range(plan.windows):
        plant.wait()
        row = _row(plant.read(), window)
        if row is not None:
            rows.append({**_place(plan.scenario, point, bed.slo.max_load_rps), **row})
    return rows


def _place(scenario: LiveScenario, point: Point, max_load_rps: float) -> dict[str, object]:
    """The columns that say which cell; CPUs are renumbered with the LC's first."""
    allocation, lc = point.allocation, scenario.lc.cpus
    others = [cpu for cpu in scenario.be.cpus if cpu not in lc]
    number = {cpu: place for place, cpu in enumerate((*lc, *others))}
    lifted = math.isinf(allocation.quota_cpus)
    return {
        "cfg": scenario.lc.kind,
        "rate": round(point.load_ratio * max_load_rps, 1),
        "be": "none" if allocation.frozen else scenario.be.kind,
        "cpuset": "-"
        if allocation.frozen
        else format_cpus(number[cpu] for cpu in scenario.be.cpus[: allocation.cpuset_cpus]),
        "quota": 0 if allocation.frozen else -1 if lifted else round(100.0 * allocation.quota_cpus, 3),
        "period": PERIOD_US,
        "shares": 1024 if scenario.be.weight is Weight.EQUAL else 2,
        "lc_cpus": len(lc),
    }


def _row(telemetry: Telemetry, window: int) -> dict[str, object] | None:
    """One window's figures; None when the load, the latency or a CPU time did not arrive."""
    tail = telemetry.tail_latency_seconds
    latency = tail if isinstance(tail, Value) else telemetry.latency_seconds
    offered = telemetry.counters.get("offered_rps")
    figures = [_value(reading) for reading in (offered, latency, telemetry.lc_cpus, telemetry.be_cpus)]
    if None in figures:
        return None
    sent, p95, lc, be = (number or 0.0 for number in figures)
    oldest = _value(telemetry.oldest_request_seconds) or 0.0
    latencies = {"sent": round(sent, 1), "p95": round(1e6 * p95, 1), "oldest": round(1e6 * oldest, 1)}
    return {"rep": 0, "win": window, **latencies, "lc_cpu": round(lc, 4), "be_cpu": round(be, 4)}


def _value(reading: Reading | None) -> float | None:
    return reading.value if isinstance(reading, Value) else None


def _begin(scenario: LiveScenario, cells: Sequence[Cell], max_load_rps: float, name: str) -> HostProfile:
    """Where the fit begins: this LC's shipped profile on this testbed's CPUs, with CPU times as measured."""
    lc, be = scenario.lc.cpus, scenario.be
    alone = sorted((cell for cell in cells if cell.frozen), key=lambda cell: cell.sent_rps)
    if not alone:
        raise HostError("the sweep has no cell with BE absent: no latency arrived; run it again")
    quiet, busy = (cell.lc_busy_cpus / max(cell.sent_rps, 1e-9) for cell in (alone[0], alone[-1]))
    shared = len([cpu for cpu in be.cpus if cpu in lc])
    constants: Mapping[str, float] = {
        "lc_cpus": len(lc),
        "threads": be.workers,
        "own_cpus": len(be.cpus) - shared,
        "shared_cpus": shared,
        "host_cpus": len(be.cpus),
        "target_seconds": scenario.slo.target_milliseconds / 1e3,
        "quantile_ratio": scenario.slo.quantile_percent / 100.0,
        "max_load_rps": round(max_load_rps, 1),
        "service_seconds": 0.9 * busy,
        "wake_seconds": max(quiet - 0.9 * busy, 0.05 * busy),
    }
    start = load_profile(START[scenario.lc.kind]).but(**constants)
    source = f"rlctl calibrate of {scenario.name}, {len(cells)} cells, Linux {platform.release()}"
    return start.model_copy(update={"name": name, "description": scenario.description, "source": source})


def _identifiable(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The constants that a sweep can say something about; the others stay as they are."""
    running = [cell for cell in cells if not cell.frozen]
    silent = set()
    if len({cell.period_seconds for cell in running}) < 2:
        silent.add("period_exponent")
    if len({(cell.own_cpus, cell.weight_ratio) for cell in running if cell.shared_cpus}) < 2:
        silent.add("slice_weight_exponent")
    if not any(cell.own_cpus for cell in running):
        silent |= {"client_cpus", "client_cpu_seconds"}
    return tuple(name for name in (*OWN, *SHARED) if name not in silent)


def regime_rows(parts: Mapping[str, Sequence[Residual]]) -> list[tuple[str, ...]]:
    """Header, then all cells, then each part with its regimes."""
    everything = [residual for part in parts.values() for residual in part]
    rows: list[tuple[str, ...]] = [RESIDUALS, _agreement_row("all", everything)]
    for name, part in parts.items():
        rows.append(_agreement_row(name, part))
        rows += [_agreement_row(f"{name}: {regime}", some) for regime, some in by_regime(part).items()]
    return rows


def cell_rows(part: Sequence[Residual]) -> list[tuple[str, ...]]:
    """Header, then a row per cell; `misses`: p95 beyond a factor of two, or the target's other side."""
    rows: list[tuple[str, ...]] = [CELL_HEADER]
    for residual in part:
        cell = residual.cell
        misses = " ".join(word for word, fine in (("p95", residual.within), ("side", residual.same_side)) if not fine)
        times = (1e3 * cell.tail_latency_seconds, 1e3 * residual.tail_latency_seconds, residual.ratio)
        cpus = (cell.be_busy_cpus, residual.be_cpus, cell.lc_busy_cpus, residual.lc_cpus)
        rows.append((str(cell), str(residual.regime), *(f"{number:.2f}" for number in (*times, *cpus)), misses))
    return rows


def _agreement_row(name: str, part: Sequence[Residual]) -> tuple[str, ...]:
    one = agreement(part)
    shares = (one.within_percent, one.side_percent, one.be_percent, one.lc_percent)
    return (name, str(one.cells), *(f"{share:.1f}" for share in shares), f"{one.median_ratio:.2f}")
