"""The largest quota that held at each load, for the manager `table`: from a sweep of a testbed or of the simulator."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlctl.agents.managers.table import Level, Levels, QuotaTable
from rlctl.bench.sim_scenario import SimScenario
from rlctl.bench.sweep import QUOTAS, Sweep, sweep, swept
from rlctl.envs.experience import HOLD_RATIO
from rlctl.envs.sim import seeds
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.surface import Cell, read_surface
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.traces import MOST_RATIO
from rlctl.envs.workload import Weight

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


def measured_table(path: Path, scenario: LiveScenario, max_load_rps: float) -> QuotaTable:
    """The table of a sweep's CSV.

    Raises:
        ConfigError: The sweep cannot be used.
    """
    target = scenario.slo.target_milliseconds
    levels = measured_levels(read_surface(path), target / 1e3, max_load_rps)
    return QuotaTable(
        source=f"rlctl calibrate of {scenario.name} on {platform.node()}, Linux {platform.release()}",
        target_milliseconds=target,
        max_load_rps=round(max_load_rps, 1),
        be_weight=scenario.be.weight,
        lc_cpus=len(scenario.lc.cpus),
        be_cpus=len(scenario.be.cpus),
        levels=tuple(Level(load_ratio=load, quota_cpus=quota, cpuset_cpus=cpus) for load, quota, cpus in levels),
    )


def bench_sweep(scenario: LiveScenario) -> Sweep:
    """The sweep that a live benchmark begins with for `table`: of the loads that its trace brings."""
    rates = [scenario.trace.rate(float(second)) for second in range(round(scenario.duration_seconds) + 1)]
    low, high = max(min(rates), BEYOND_RATIO), min(max(rates) + BEYOND_RATIO, MOST_RATIO)
    loads = tuple(round(float(load), 3) for load in np.linspace(low, high, LIVE_LOADS))
    return Sweep(scenario, tuple(dict.fromkeys(loads)), QUOTAS, LIVE_WINDOWS)


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
