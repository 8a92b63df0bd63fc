"""`rlctl calibrate`: the simulator against measurement, on this machine or from a file."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from rlctl.bench.scenarios import live_scenario
from rlctl.bench.sweep import LOADS, QUOTAS, WINDOWS, Sweep, measured_table, sizes, sweep
from rlctl.commands.arguments import number
from rlctl.commands.outputs import add_json, check_outputs, write_json
from rlctl.envs.errors import ConfigError, HostError, require_installed
from rlctl.envs.reins import Rein
from rlctl.envs.sim.fit import LINK, OWN, SHARED, fit
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.sim.residuals import (
    MANY_SEEDS,
    WINDOW_SECONDS,
    Agreement,
    Residual,
    against_itself,
    agreement,
    by_regime,
    residuals,
    service_of,
)
from rlctl.envs.sim.surface import Cell, read_surface, region_of, set_aside
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.whole_file import write_whole
from rlctl.log.progress import progress, say
from rlctl.report.page import render

EXAMPLES = """examples:
  rlctl calibrate --config live-nginx --out nginx.yaml --dry-run
  rlctl calibrate --config live-nginx --out nginx.yaml
  rlctl calibrate --surface nginx.csv --profile nginx=nginx.yaml --cells

With --config a live testbed is swept (load x BE quota x cpuset), the table of the manager `table` is written, a
profile is fitted to two cells of three, and the residuals of these and of the third kept aside are printed. With
--surface and --profile nothing is swept: those of a file are printed.
"""

MOST_SECONDS = 900.0


SHARES = number(lambda text: tuple(map(float, text.split(","))), bool, "is not a list of numbers such as 0.2,0.5,1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="NAME|FILE", help="live scenario whose testbed is swept")
    what.add_argument("--surface", type=Path, metavar="CSV", help="a sweep; nothing is measured")
    parser.add_argument("--out", type=Path, metavar="PROFILE", help="with --config: the profile, a .yaml file")
    parser.add_argument("--loads", type=SHARES, metavar="A,B,...", help="shares of the LC's maximum load")
    parser.add_argument("--quotas", type=SHARES, metavar="A,B,...", help="shares of BE's CPUs; 1 lifts the quota")
    parser.add_argument("--windows", type=int, metavar="N", help="windows per cell, the first is left out (default: 6)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="sweeps, one after the other (default: 1)")
    parser.add_argument("--rein", choices=list(map(str, Rein)), default="cpu", help="what moves BE's level (cpu)")
    parser.add_argument("--force", action="store_true", help="with --config: replace files of an earlier sweep")
    parser.add_argument("--dry-run", action="store_true", help="with --config: print the plan and touch nothing")
    parser.add_argument(
        "--profile",
        action="append",
        metavar="SERVICE=NAME|FILE",
        help="with --surface: profile of services that begin so, such as nginx=two-core-nginx",
    )
    parser.add_argument("--cells", action="store_true", help="print every cell too")
    add_json(parser, "residuals as JSON")


def run(args: argparse.Namespace) -> int:
    """Sweep a testbed and fit its profile, or print what a file says; ConfigError: it cannot be."""
    check_outputs(args)
    if args.config:
        return _sweep(args)
    sweeping = args.out or args.loads or args.quotas or args.windows or args.repeats != 1 or args.rein != Rein.CPU
    if sweeping or args.dry_run or args.force:
        raise ConfigError(
            "--out, --loads, --quotas, --windows, --repeats, --rein, --force and --dry-run go with --config"
        )
    if not args.profile:
        raise ConfigError("--surface needs --profile SERVICE=NAME|FILE, such as nginx=two-core-nginx")
    report(args, read_surface(args.surface), profiles_of(args.profile))
    return 0


def _sweep(args: argparse.Namespace) -> int:
    plan = _plan(args)
    say(_effective(plan))
    if args.dry_run:
        return 0
    if not unfitted(plan):
        require_installed("a fit", "cli", "scipy")  # said after the sweep it would cost the sweep
    table = args.out.with_suffix(".csv")
    with Testbed(plan.scenario, say) as bed:
        with progress(plan.repeats * len(plan.points), "cells") as done:
            sweep(plan, bed, table, done)
        most = bed.slo.max_load_rps
    quotas = args.out.with_suffix(".table.yaml")
    measured_table(table, plan, most).write(quotas)
    say(f"{quotas}: for the manager `table`, the largest quota that held at each load")
    if why := unfitted(plan):
        say(f"{table}: {len(plan.points)} cells; {args.out} is not written: {why}")
        return 0
    say(f"{table}: {len(plan.points)} cells; fitting ...")
    _, profile = fitted_profile(table, plan.scenario, most, args.out.stem)
    write_profile(profile, args.out)
    say(f"{args.out}: profile {profile.name} ({profile.digest})")
    report(args, read_surface(table), {plan.scenario.lc.kind: profile})
    return 0


def _plan(args: argparse.Namespace) -> Sweep:
    if args.profile:
        raise ConfigError("--profile goes with --surface")
    if args.out is None or args.out.suffix not in {".yaml", ".yml"}:
        raise ConfigError("--config needs --out PROFILE, a .yaml file; the sweep is written beside it as .csv")
    folder = args.out.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder}: is not a folder that may be written; name another --out")
    if args.out.resolve() == Path(args.config).resolve():
        raise ConfigError("--out is the file of --config: name another for the profile", args.out)
    for file in () if args.force else (args.out, args.out.with_suffix(".csv"), args.out.with_suffix(".table.yaml")):
        if file.exists():
            raise ConfigError("is there already; name another --out, or give --force to replace it", file)
    windows = WINDOWS if args.windows is None else args.windows
    grid = args.loads or LOADS, args.quotas or QUOTAS, windows, args.repeats, Rein(args.rein)
    plan = Sweep(live_scenario(args.config), *grid)
    if (why := unfitted(plan)) and (args.json or args.cells):
        raise ConfigError(f"--json and --cells: there are no residuals: {why}")
    if plan.seconds > MOST_SECONDS:
        say(f"this takes more than {MOST_SECONDS / 60:g} min; fewer --loads, --quotas or --windows take less")
    return plan


def _effective(plan: Sweep) -> str:
    s = plan.scenario
    why, cpusets = unfitted(plan), ", ".join(map(str, sizes(len(s.be.cpus))))
    return (
        f"{s.name}: {s.description}\n"
        f"{len(plan.points)} cells of {plan.windows} x {s.tick_seconds:g} s"
        + (f", {plan.repeats} times" if plan.repeats > 1 else "")
        + ", in a fixed random order, about "
        f"{plan.seconds / 60:.0f} min with the search for the maximum load\n"
        f"loads {', '.join(f'{load:g}' for load in plan.loads)} of the maximum; BE absent, and quotas "
        f"{', '.join(f'{quota:g}' for quota in plan.quotas)} of each of its cpusets of {cpusets} CPU; "
        f"BE weight {s.be.weight}" + (f"\na table and no profile: {why}" if why else "")
    )


def profiles_of(asked: Sequence[str]) -> dict[str, HostProfile]:
    """The profile of each service, from `SERVICE=NAME|FILE`; ConfigError: one is not so, or is no profile."""
    pairs = [one.partition("=") for one in asked]
    if wrong := [service for service, equals, _ in pairs if not equals or not service]:
        raise ConfigError(f"--profile {wrong[0]}: say SERVICE=PROFILE, such as nginx=two-core-nginx")
    return {service: load_profile(name) for service, _, name in pairs}


def report(args: argparse.Namespace, cells: Sequence[Cell], profiles: Mapping[str, HostProfile]) -> Agreement:
    """Print the residuals of the cells that were fitted to and of those kept aside; what all cells together reach."""
    parts = dict(zip(("fitted", "kept aside"), set_aside(cells), strict=True))
    found = {name: residuals(part, profiles, MANY_SEEDS) for name, part in parts.items() if part}
    digests = {service: profile.digest for service, profile in profiles.items()}
    write_json(args.json, {"schema": 1, "profiles": digests, **_as_json(found)})
    if args.json != "-":
        for name, part in found.items() if args.cells else ():
            print(f"{name}\n{render(cell_rows(part))}\n")
        print(render(regime_rows(found)))
        for service, profile in profiles.items():
            own = [cell for cell in cells if service_of(cell, profiles) == service]
            if repeated := against_itself(own, profile.lc.target_seconds):
                counts = "{0} cells were swept more than once: p95 within 2x {1:.1f} %, side of target {2:.1f} %"
                print(f"{service}* against itself: " + counts.format(*repeated))
        print("profiles: " + ", ".join(f"{key}* {one.name} ({one.digest})" for key, one in profiles.items()))
    return agreement([residual for part in found.values() for residual in part])


def _as_json(found: Mapping[str, Sequence[Residual]]) -> dict[str, object]:
    return {
        name.replace(" ", "_"): {
            "all": asdict(agreement(part)),
            **{regime.value: asdict(agreement(some)) for regime, some in by_regime(part).items()},
        }
        for name, part in found.items()
    }


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
