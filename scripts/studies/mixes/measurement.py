"""Measurements of mixes, managed and unmanaged: the plan, the runs, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlctl.envs.errors import TestbedError
from rlctl.envs.host.apps.registry import AppMode, Description
from rlctl.envs.host.cgroup.values import PERIOD_US
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher
from scripts.studies.mixes.config import ApplicationSpec, MeasureConfig
from scripts.studies.mixes.plan import Cell, Log, Record, Turn, turns
from scripts.studies.mixes.platform import Ground
from scripts.studies.mixes.run import Arena, Instance
from scripts.studies.mixes.table import CellMetrics, sides_of
from scripts.studies.mixes.tunable import TunableResult, parse_result, tunable_command

RUN_SECONDS, INSTANCE_SECONDS = 0.25, 0.06
"""About what a run takes beside its work, and for each instance: interpreters that hold commands back, perf, groups."""

TRIAL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Which applications are measured in which cells, where, and how often.

    Attributes:
        leftover: `share` or `idle`: what becomes of CPU time that chosen modes do not ask for, as in `Sharing`.
    """

    config: MeasureConfig
    cells: tuple[Cell, ...]
    ground: Ground
    runs: int
    leftover: str = "share"
    quota_period_us: int = PERIOD_US
    seed: int = 0

    @property
    def cpus_scale(self) -> float:
        """CPUs here for one CPU of the published machine."""
        return self.ground.quota_cpus / self.config.published_cpus

    def as_plan(self) -> dict[str, Any]:
        """What the log holds: only runs of the same plan may be added later, of any number."""
        return {
            "applications": {name: spec.model_dump(mode="json") for name, spec in self.config.applications.items()},
            "published_cpus": self.config.published_cpus,
            "cells": [asdict(cell) for cell in self.cells],
            "clusters": [[cluster.name, sorted(cluster.cpus), cluster.quota_cpus] for cluster in self.ground.clusters],
            "leftover": self.leftover,
            "quota_period_us": self.quota_period_us,
            "seed": self.seed,
        }


def trials(measurement: Measurement) -> dict[str, TunableResult]:
    """Run each benchmark once, alone and with a single thread: its CPU time, and the digest that all others must have.

    Raises:
        TestbedError: It cannot be compiled or fails.
    """
    needed = {name for cell in measurement.cells for name in cell.instances}
    results: dict[str, TunableResult] = {}
    with Janitor() as janitor, Launcher(janitor.make_folder(), None, janitor) as launcher:
        for name, one in measurement.config.applications.items():
            if name in needed and one.workload is not None:
                process = launcher.start(name, tunable_command(one.workload, one.work, 1))
                if (code := process.wait(TRIAL_SECONDS)) is None:
                    raise TestbedError(
                        f"{name} alone takes more than {TRIAL_SECONDS:g} s: give it less `work` in the file"
                    )
                if code != 0:
                    raise TestbedError(f"{name} alone ended with code {code}: {process.tail()}")
                results[name] = parse_result(process.output.read_text(errors="replace"))
    return results


def estimated_seconds(measurement: Measurement, tried: Mapping[str, TunableResult]) -> float | None:
    """About how long all runs take if no CPU lies idle; None when there is a command, whose time nobody knows."""
    total = 0.0
    for cell in measurement.cells:
        if not cell.instances.keys() <= tried.keys():
            return None
        work = sum(count * tried[name].cpu_seconds for name, count in cell.instances.items())
        total += work / measurement.ground.quota_cpus + RUN_SECONDS + INSTANCE_SECONDS * sum(cell.instances.values())
    return 2.0 * measurement.runs * total


def run_all(
    measurement: Measurement,
    tried: Mapping[str, TunableResult],
    log: Log,
    advance: Callable[[str], None] = lambda name: None,
) -> None:
    """Make all runs that the log does not have yet; each is in the log when it is over.

    Raises:
        TestbedError: An instance failed, or computed something else than when it ran alone.
        PermissionMissing: Not root.
        HostError: A CPU controller is missing, or a group of that name exists.
    """
    sets = {cell.name: tuple(_instances(measurement, cell, tried)) for cell in measurement.cells}
    done = {record.turn for record in log.records}
    with Arena(measurement.ground, measurement.leftover, measurement.quota_period_us) as arena:
        for turn in turns(measurement.cells, measurement.runs, measurement.seed):
            if turn not in done:
                log.add(arena.run(turn, sets[turn.cell]))
            advance(f"{turn.cell} {'managed' if turn.managed else 'unmanaged'} #{turn.repeat + 1}")


def pairs_of(log: Log, cell: Cell, runs: int) -> list[tuple[Record, Record]]:
    """Unmanaged and managed run of each repeat of which there are both."""
    by_turn = {record.turn: record for record in log.records}
    pairs = ([by_turn.get(Turn(cell.name, repeat, side)) for side in (False, True)] for repeat in range(runs))
    return [(unmanaged, managed) for unmanaged, managed in pairs if unmanaged and managed]


def sides_by_cell(measurement: Measurement, log: Log) -> dict[str, CellMetrics]:
    """Metrics of all cells of which there is a pair."""
    by_cell = {cell.name: pairs_of(log, cell, measurement.runs) for cell in measurement.cells}
    return {name: sides_of([(u.metrics, m.metrics) for u, m in pairs]) for name, pairs in by_cell.items() if pairs}


def _instances(measurement: Measurement, cell: Cell, tried: Mapping[str, TunableResult]) -> Iterator[Instance]:
    for name, count in cell.instances.items():
        one = measurement.config.applications[name]
        modes = tuple(
            AppMode(cpus=mode.cpus, threads=mode.threads, value=mode.value)
            for mode in one.working_modes(measurement.cpus_scale)
        )
        command = _command(one, tried.get(name))
        for number in range(1, count + 1):
            yield Instance(f"{name}-{number}", command, Description(name=name, modes=modes))


def _command(application: ApplicationSpec, alone: TunableResult | None) -> tuple[str, ...]:
    if application.workload is None or alone is None:
        return application.command or ()
    return tuple(tunable_command(application.workload, application.work, application.threads, alone.digest))
