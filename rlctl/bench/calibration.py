"""Calibration of the simulator: fit a profile to a testbed's sweep, and say how far off it is."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from rlctl.bench.sweep import Sweep
from rlctl.envs.errors import HostError
from rlctl.envs.reins import Rein
from rlctl.envs.sim.fit import LINK, OWN, SHARED, fit
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.residuals import WINDOW_SECONDS, Residual, agreement, by_regime
from rlctl.envs.sim.surface import Cell, read_surface, region_of, set_aside
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.whole_file import write_whole

START = {"memcached": "two-core-host", "nginx": "two-core-nginx"}
"""Profile from which a fit begins where LC and BE share CPU time alone, by the LC's kind."""
RANGES = {"service_seconds": 0.1, "slice_seconds": 0.3}
"""Constants that differ from host to host in training, and by how much either way (docs/measured/simulator.md, 6)."""
LINK_RANGES = {"link_bytes_per_second": 0.3}
"""The same, where there is a link or disk: what another provider sells."""
RESIDUALS = (
    "cells", "number", "p95 within 2x %", "side of target %", "BE within .1 CPU %", "LC within .1 CPU %", "median x",
)  # fmt: skip
CELL_HEADER = ("cell", "regime", "measured ms", "simulated ms", "x", "BE", "BE sim", "LC", "LC sim", "misses")


def fitted_profile(
    path: Path, scenario: LiveScenario, max_load_rps: float, name: str
) -> tuple[HostProfile, HostProfile]:
    """The profile before and after a fit to a sweep's cells that are not set aside; ConfigError: it cannot be used."""
    cells = read_surface(path)
    begin = _begin(scenario, cells, max_load_rps, name)
    training, _ = set_aside(cells)
    service = cells[0].service
    names = LINK if begin.link else _identifiable(cells)
    best = fit(training, {service: begin}, shared=(), own=names).profiles[service]
    values = {key: float(f"{value:.4g}") for key, value in best.values().items()}
    fitted = best.but(**{key: values[key] for key in names})
    differs = {**RANGES, **(LINK_RANGES if begin.link else {})}
    spread = {key: (values[key] * (1.0 - by), values[key] * (1.0 + by)) for key, by in differs.items()}
    ranges = {key: (float(f"{low:.4g}"), float(f"{high:.4g}")) for key, (low, high) in spread.items()}
    return begin, fitted.model_copy(update={"fitted": region_of(training), "ranges": ranges})


def unfitted(plan: Sweep) -> str:
    """Why a sweep makes no profile, only a table; empty where one is fitted."""
    scenario = plan.scenario
    if plan.rein is not Rein.CPU:
        return f"a profile is of a host whose CPUs move BE's level, and here its {plan.rein} does"
    if scenario.tick_seconds != WINDOW_SECONDS:
        return f"its windows are of {scenario.tick_seconds:g} s, and those of the fit of {WINDOW_SECONDS:g} s"
    return "" if _start(scenario) else f"the fit has no profile of {scenario.lc.kind} to begin with"


def _start(scenario: LiveScenario) -> str:
    """The profile from which a fit begins; empty where there is none."""
    if scenario.link or scenario.disk:
        return "capped-link" if scenario.link else "capped-disk"
    return START.get(scenario.lc.kind, "")


def write_profile(profile: HostProfile, path: Path) -> None:
    """Write a profile as YAML, whole or not at all."""
    data = profile.model_dump(mode="json", exclude_none=True)
    write_whole(path, "# Written by `rlctl calibrate`.\n" + yaml.safe_dump(data, sort_keys=False, width=120))


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
    start = load_profile(_start(scenario)).but(**constants, **_provisioned(scenario))
    source = f"rlctl calibrate of {scenario.name}, {len(cells)} cells, Linux {platform.release()}"
    return start.model_copy(update={"name": name, "description": scenario.description, "source": source})


def _provisioned(scenario: LiveScenario) -> Mapping[str, float]:
    """What the testbed itself provisioned: of a rate that changes its first one."""
    if scenario.link:
        (_, megabits), *_ = scenario.link.rates
        bucket = scenario.link.burst_kilobytes * 1024
        return {"link_bytes_per_second": megabits * 1e6 / 8.0, "link_bucket_bytes": bucket}
    return {"link_bytes_per_second": scenario.disk.megabytes * 1e6} if scenario.disk else {}


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
