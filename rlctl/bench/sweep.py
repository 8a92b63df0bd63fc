"""Sweeps of a host cell by cell: the LC's latency and BE's work beside each allocation, and what held, for `table`."""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlctl.agents.managers.table import Level, Levels, QuotaTable
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import HOLD_RATIO
from rlctl.envs.host.cgroup.values import PERIOD_US
from rlctl.envs.host.decode import format_cpus
from rlctl.envs.host.reins.reins import Reins
from rlctl.envs.reins import USE, Rein
from rlctl.envs.sim import seeds
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.surface import Cell, read_surface, write_surface
from rlctl.envs.telemetry import Telemetry, Value, number
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.traces import MOST_RATIO, constant
from rlctl.envs.workload import Weight

LOADS = (0.2, 0.4, 0.55, 0.7, 0.85)
"""Of the LC's maximum: below, around and above its fair share of a CPU, and near the knee."""
QUOTAS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Of BE's CPUs; 1 lifts the quota."""
WINDOWS = 6
OVERHEAD_SECONDS = 2.0  # per cell, until the queue of the last one is empty
SEEN_LOAD, SEEN_WINDOWS = 0.5, 10
LEAST_LOAD = 0.005  # less is none once it is rounded


@dataclass(frozen=True, slots=True)
class Point:
    """One cell to measure: a load as a share of the LC's maximum, beside one allocation."""

    load_ratio: float
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Sweep:
    """The grid of loads and BE allocations to measure.

    Attributes:
        loads: Shares of the LC's maximum load.
        quotas: Shares of BE's CPUs; 1 lifts the quota. BE absent is measured at every load besides.
        windows: Per cell and sweep; the first is not settled and is left out of the fit.
        repeats: Sweeps one after the other: what a host does in a minute is chance, and a cell is the median of all.
        rein: What moves BE's level; under another than the CPUs' quotas are shares of everything.

    Raises:
        ConfigError: Numbers that cannot be.
    """

    scenario: LiveScenario
    loads: tuple[float, ...] = LOADS
    quotas: tuple[float, ...] = QUOTAS
    windows: int = WINDOWS
    repeats: int = 1
    rein: Rein = Rein.CPU

    def __post_init__(self) -> None:
        if not self.loads or not all(LEAST_LOAD <= load <= MOST_RATIO for load in self.loads):
            raise ConfigError(
                f"--loads are shares of the LC's maximum load, {LEAST_LOAD} at least, such as 0.2,0.5,0.8"
            )
        if not all(0.0 < quota <= 1.0 for quota in self.quotas):
            raise ConfigError("--quotas are shares of BE's CPUs, above 0 and up to 1, such as 0.1,0.5,1")
        if self.windows < 2:
            raise ConfigError("--windows must be 2 at least: the first of a cell is not settled")
        if self.repeats < 1:
            raise ConfigError("--repeats must be 1 at least")
        if not getattr(self.scenario, self.rein, True):
            raise ConfigError(f"--rein {self.rein}: {self.scenario.name} has no such thing")

    @property
    def points(self) -> tuple[Point, ...]:
        """All cells in the order of measuring: shuffled, so that the host's drift is not taken for the load's doing."""
        cpus = len(self.scenario.be.cpus)
        allocations = [Allocation(UNLIMITED, cpus, frozen=True), *swept(cpus, self.quotas)]
        grid = [Point(load, allocation) for load in self.loads for allocation in allocations]
        return tuple(grid[place] for place in np.random.default_rng(0).permutation(len(grid)))

    @property
    def seconds(self) -> float:
        """About how long it takes, the search for the maximum load included."""
        return self.scenario.start_seconds + self.measuring_seconds

    @property
    def measuring_seconds(self) -> float:
        """About how long all cells take on a testbed that runs."""
        return self.repeats * len(self.points) * (self.windows * self.scenario.tick_seconds + OVERHEAD_SECONDS)


def sizes(cpus: int) -> list[int]:
    """Cpusets that are swept: powers of two, and all CPUs."""
    return sorted({*(1 << power for power in range(cpus.bit_length())), cpus})


def swept(cpus: int, quotas: Sequence[float] = QUOTAS) -> list[Allocation]:
    """Each of some quotas, as shares of a cpuset, on each size of it; 1 lifts the quota."""
    return [Allocation(UNLIMITED if q == 1.0 else q * size, size) for size in sizes(cpus) for q in quotas]


def sweep(plan: Sweep, bed: Testbed, path: Path, done: Callable[[str], None] = lambda _: None) -> None:
    """Measure all cells and write them as CSV, after each cell anew: what is measured is not lost.

    The testbed runs, without BE. `done` is called after each cell with its name, for progress.
    """
    rows: list[dict[str, object]] = []
    bed.plant.set_weight(plan.scenario.be.weight)
    with bed.reins({}) if plan.rein is not Rein.CPU else contextlib.nullcontext() as reins:
        bed.start_be()
        try:
            if reins:  # BE is free for some windows: shares are of the most that was seen
                bed.follow(constant(SEEN_LOAD))
                for _ in range(SEEN_WINDOWS):
                    bed.plant.wait()
                    bed.plant.read()
            for repeat, point in itertools.product(range(plan.repeats), plan.points):
                rows += [{**row, "rep": repeat} for row in _measured(plan, point, bed, reins)]
                write_surface(path, rows)
                done(f"{point.load_ratio:g} of the maximum load, BE {point.allocation}")
        finally:
            bed.stop_be()


def _measured(plan: Sweep, point: Point, bed: Testbed, reins: Reins | None) -> list[dict[str, object]]:
    """The windows of one cell, from an empty queue: BE frozen, the queue drained, then load and BE at once."""
    plant = bed.plant

    def apply(allocation: Allocation) -> None:
        if reins:
            reins.restore_state({"in_hand": plan.rein, "most": {}})
        plant.apply(allocation)

    apply(point.allocation.but(frozen=True))
    bed.settle(constant(0.0))
    apply(point.allocation)
    bed.follow(constant(point.load_ratio))
    plant.reset()
    rows = []
    for window in range(plan.windows):
        plant.wait()
        row = _row(plant.read(), window)
        if row is not None:
            absent = {"be_cpu": 0.0} if point.allocation.frozen else {}  # nobody used a level there
            rows.append({**_place(plan, point, bed.slo.max_load_rps), **row, **absent})
        if reins:  # on the link a level is a share of what the others left in the last period
            apply(point.allocation)
    return rows


def _place(plan: Sweep, point: Point, max_load_rps: float) -> dict[str, object]:
    """The columns that say which cell; CPUs are renumbered with the LC's first."""
    scenario = plan.scenario
    allocation, lc = point.allocation, scenario.lc.cpus
    others = [cpu for cpu in scenario.be.cpus if cpu not in lc]
    number = {cpu: place for place, cpu in enumerate((*lc, *others))}
    lifted = math.isinf(allocation.quota_cpus)
    return {
        "cfg": "-".join((scenario.lc.kind, *["link"] * bool(scenario.link), *["rein"] * (plan.rein is not Rein.CPU))),
        "rate": round(point.load_ratio * max_load_rps, 1),
        "be": "none" if allocation.frozen else scenario.be.kind,
        "cpuset": "-"
        if allocation.frozen
        else format_cpus(number[cpu] for cpu in scenario.be.cpus[: allocation.cpuset_cpus]),
        "quota": 0 if allocation.frozen else -1 if lifted else round(100.0 * allocation.quota_cpus, 3),
        "period": PERIOD_US,
        "shares": 1024 if scenario.be.weight is Weight.EQUAL else 2,
        "lc_cpus": len(lc),
        "rein": "" if plan.rein is Rein.CPU else str(plan.rein),
    }


def _row(telemetry: Telemetry, window: int) -> dict[str, object] | None:
    """One window's figures; None when the load, the latency or a CPU time did not arrive."""
    tail = telemetry.tail_latency_seconds
    latency = tail if isinstance(tail, Value) else telemetry.latency_seconds
    offered = telemetry.counter("offered_rps")
    used = telemetry.be_cpus if telemetry.rein == Rein.CPU else telemetry.counters[USE[Rein(telemetry.rein)]]
    figures = [number(reading) for reading in (offered, latency, telemetry.lc_cpus, used)]
    if None in figures:
        return None
    sent, p95, lc, be = (figure or 0.0 for figure in figures)
    oldest = number(telemetry.oldest_request_seconds) or 0.0
    latencies = {"sent": round(sent, 1), "p95": round(1e6 * p95, 1), "oldest": round(1e6 * oldest, 1)}
    return {"win": window, **latencies, "lc_cpu": round(lc, 4), "be_cpu": round(be, 4)}


HELD_WINDOWS_RATIO = 0.8
"""Share of a cell's windows that must hold: one of the five of a live cell may be missed by chance. It was chosen with
the scores of `two-core` and `two-core-nginx` in sight, so its rows there are not quite those of an unseen host."""

SIM_LOADS = tuple(round(0.05 * step, 2) for step in range(1, 21))
SIM_HOSTS, SIM_WINDOWS = 16, 6
"""Hosts per cell, each with its own drift and noise; windows as in a live sweep, of which the first is not settled."""

LIVE_LOADS, LIVE_WINDOWS, BEYOND_RATIO = 6, 6, 0.05
"""Loads of a benchmark's own sweep, evenly from a trace's lowest to so much above its highest; windows per cell,
of which the first is not settled."""


def needs_sweep(managers: Collection[str], scenario: LiveScenario | SimScenario) -> bool:
    """True where `table` takes part, and the scenario names no file for it."""
    return "table" in managers and not scenario.managers.get("table")


def table_options(name: str, scenario: LiveScenario | SimScenario, levels: Levels) -> Mapping[str, object]:
    """What a sweep tells the manager of this name: `table` its levels, all others nothing."""
    return {"levels": levels} if needs_sweep((name,), scenario) else {}


def held_levels(held: Mapping[tuple[float, int, float], bool]) -> Levels:
    """The largest quota at each load that held, all smaller ones on the same CPUs included.

    A cell that is not there did not hold: no latency arrived in it. Of equal quotas that on fewer CPUs is taken.

    Args:
        held: Whether a cell of a sweep with BE running did: load ratio, CPUs, and the quota, UNLIMITED if lifted.
    """
    grid = sorted({(cpus, quota) for _, cpus, quota in held})
    levels = []
    for load in sorted({load for load, _, _ in held}):
        best, failed = (0.0, 1), set[int]()
        for cpus, quota in grid:
            if cpus in failed or not held.get((load, cpus, quota), False):
                failed.add(cpus)
            elif (most := min(quota, float(cpus))) > best[0]:
                best = (most, cpus)
        levels.append((load, *best))
    return tuple(levels)


def measured_levels(cells: Sequence[Cell], target_seconds: float, max_load_rps: float) -> Levels:
    """The levels of a testbed's sweep; a window without a latency did not hold."""
    windows = max(len(cell.windows) for cell in cells)
    held = {}
    for cell in cells:
        if not cell.frozen:
            good = sum(window.tail_latency_seconds <= HOLD_RATIO * target_seconds for window in cell.windows)
            load, cpus = round(cell.rate_rps / max_load_rps, 3), round(cell.own_cpus + cell.shared_cpus)
            held[load, cpus, cell.quota_cpus] = good >= HELD_WINDOWS_RATIO * windows
    return held_levels(held)


def measured_table(path: Path, plan: Sweep, max_load_rps: float) -> QuotaTable:
    """The table of a sweep's CSV.

    Raises:
        ConfigError: The sweep cannot be used.
    """
    scenario, target = plan.scenario, plan.scenario.slo.target_milliseconds
    levels = measured_levels(read_surface(path), target / 1e3, max_load_rps)
    return QuotaTable(
        source=f"rlctl calibrate of {scenario.name} on {platform.node()}, Linux {platform.release()}",
        target_milliseconds=target,
        max_load_rps=round(max_load_rps, 1),
        be_weight=scenario.be.weight,
        lc_cpus=len(scenario.lc.cpus),
        be_cpus=len(scenario.be.cpus),
        rein=plan.rein,
        levels=tuple(Level(load_ratio=load, quota_cpus=quota, cpuset_cpus=cpus) for load, quota, cpus in levels),
    )


def bench_sweep(scenario: LiveScenario) -> Sweep:
    """The sweep that a live benchmark begins with for `table`: of its loads, on its link or disk if there is one."""
    rates = [scenario.trace.rate(float(second)) for second in range(round(scenario.duration_seconds) + 1)]
    low, high = max(min(rates), BEYOND_RATIO), min(max(rates) + BEYOND_RATIO, MOST_RATIO)
    loads = tuple(round(float(load), 3) for load in np.linspace(low, high, LIVE_LOADS))
    rein = Rein.LINK if scenario.link else Rein.DISK if scenario.disk else Rein.CPU
    return Sweep(scenario, tuple(dict.fromkeys(loads)), QUOTAS, LIVE_WINDOWS, rein=rein)


def swept_levels(scenario: LiveScenario, bed: Testbed) -> Levels:
    """Sweep a running testbed for the levels of `table`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.csv"
        sweep(bench_sweep(scenario), bed, path)
        return measured_levels(read_surface(path), bed.slo.target_seconds, bed.slo.max_load_rps)


def simulated_levels(host: HostProfile, weight: Weight, tick_seconds: float = 1.0) -> Levels:
    """Sweep a simulated host of this profile, on training seeds: the same levels each time."""
    limits = host.limits()
    cells = swept(limits.cpus)
    keys = [seeds.training(number) for number in range(SIM_HOSTS)] * len(cells)
    held = {}
    for load in SIM_LOADS:
        steady = from_config({"kind": "constant", "rate": load})
        hosts = SimBatch(host, keys, steady, SIM_WINDOWS, tick_seconds, weight=weight)
        hosts.apply([cell for cell in cells for _ in range(SIM_HOSTS)])
        good = np.zeros(len(keys))
        for window in range(SIM_WINDOWS):
            hosts.take_reins()  # before somebody missed nothing is held by them, nor is it afterwards by the CPUs
            hosts.step()
            good += (hosts.truth().latency_ratio <= HOLD_RATIO) * (window > 0)
        shares = good.reshape(len(cells), SIM_HOSTS).mean(axis=1) / (SIM_WINDOWS - 1)
        for cell, share in zip(cells, shares.tolist(), strict=True):
            held[load, cell.cpuset_cpus, cell.quota_cpus] = share >= HELD_WINDOWS_RATIO
    return held_levels(held)
