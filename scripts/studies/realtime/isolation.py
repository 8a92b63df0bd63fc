"""The real-time isolation matrix: conditions by loads, each cell the wake-up latency of one real-time task.

The study of 2011 that docs/measured/realtime.md repeats compares no cgroups, cpuset, blkio and both, under no load,
computing threads, 270 threads that sleep 1 us at a time, and 50 that write 4 KB and sync. Here rlctl is a fifth
condition: the load is BE under its control loop, with the task's own wake-up latency as the tail to be held.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.log.record import Tick
from rlctl.report.page import render
from rlctl.safety.profile import Profile
from scripts.studies.realtime.rtgroups import Condition
from scripts.studies.realtime.rtload import Load

AROUND_SECONDS = 1.0
"""About what goes by before and after each run: groups are made, threads start and are ended."""

LEGEND = (
    "us; wake-ups measured; work: what the load got done (cpu: 10 000 steps of a generator, sched: one sleep of 1 us,\n"
    "io: 4 KB written and synced), and that in percent of the same load under no cgroups"
)
"""What the columns mean, beneath a table in a terminal."""


class Cell(NamedTuple):
    """One cell of the matrix."""

    condition: Condition
    load: Load

    def __str__(self) -> str:
        return f"{self.condition}, load {self.load}"


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """What rlctl does in its condition: the policy by its name, the shield, and the objective.

    Attributes:
        profile: Shield profile, already on the time scale.
        target_us: The task's tail latency that rlctl is to hold; None: twice what the task has alone.
        quantile_ratio: The tail as a quantile, 0.99 for p99.
        warm_up_seconds: Before anything is measured: BE begins with nothing, and grows as fast as the shield lets it.
    """

    policy: str
    profile: Profile
    target_us: float | None = None
    quantile_ratio: float = 0.99
    tick_seconds: float = 0.5
    warm_up_seconds: float = 10.0
    time_scale: float = 15.0

    @property
    def words(self) -> str:
        """A line for the foot of a table."""
        target = "no target" if self.target_us is None else f"p{100 * self.quantile_ratio:g} <= {self.target_us:g} us"
        return (
            f"rlctl: {self.policy} under shield {self.profile.name} ({self.profile.digest}), "
            f"{target} in {self.tick_seconds:g} s, measured after "
            f"{self.warm_up_seconds:g} s; published periods / {self.time_scale:g}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Which cells to measure, and how: conditions and loads in the order of the table.

    Attributes:
        rounds: Each measures every cell once, in an order of its own: the machine drifts.
    """

    conditions: tuple[Condition, ...]
    loads: tuple[Load, ...]
    wake_ups: int
    rounds: int
    interval_us: int
    threads: Mapping[Load, int]
    folder: Path
    control: ControlPlan

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of the matrix, load by load."""
        return tuple(Cell(condition, load) for load, condition in product(self.loads, self.conditions))

    def as_json(self) -> dict[str, object]:
        """The settings that cells are measured with."""
        control = self.control
        return {
            "schema": 1,
            "scenario": "cyclictest",
            "interval_us": self.interval_us,
            "wake_ups": self.wake_ups,
            "rounds": self.rounds,
            "threads": {str(load): self.threads[load] for load in self.loads if load in self.threads},
            "policy": control.policy,
            "shield": control.profile.name,
            "shield_digest": control.profile.digest,
            "target_us": control.target_us,
            "quantile_percent": 100.0 * control.quantile_ratio,
            "tick_seconds": control.tick_seconds,
            "warm_up_seconds": control.warm_up_seconds,
            "time_scale": control.time_scale,
        }

    @property
    def run_wake_ups(self) -> int:
        """Wake-ups that one run measures."""
        return -(-self.wake_ups // self.rounds)

    def order(self, number: int) -> tuple[Cell, ...]:
        """The cells of one round, shuffled."""
        return tuple(random.Random(number).sample(self.cells, len(self.cells)))

    def warm_up_seconds(self, cell: Cell) -> float:
        """What goes by before a run is measured; without a load there is nothing to grow."""
        growing = cell.condition is Condition.RLCTL and cell.load is not Load.NONE
        return self.control.warm_up_seconds if growing else 0.0

    @property
    def run_seconds(self) -> float:
        """Length of one run's measurement."""
        return self.run_wake_ups * self.interval_us * 1e-6

    @property
    def seconds(self) -> float:
        """About how long all rounds take."""
        each = (self.run_seconds + AROUND_SECONDS + self.warm_up_seconds(cell) for cell in self.cells)
        return self.rounds * sum(each)


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one cell: at least one latency, rounds of the load per second, and rlctl's ticks."""

    cell: Cell
    latencies_ns: NDArray[np.int64]
    work_rate: float
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True)
class CellResult:
    """All runs of one cell, at least one."""

    runs: tuple[Run, ...]

    @property
    def latencies_us(self) -> NDArray[np.float64]:
        """Latency of every wake-up, shape (n,)."""
        return np.concatenate([run.latencies_ns for run in self.runs]) / 1e3

    @property
    def work_rate(self) -> float:
        """Rounds of the load per second: the mean over runs."""
        return fmean(run.work_rate for run in self.runs)

    @property
    def histogram_us(self) -> dict[int, int]:
        """Wake-ups by their latency in whole microseconds, rounded down; none is left out."""
        latencies, counts = np.unique(self.latencies_us.astype(np.int64), return_counts=True)
        return dict(zip(latencies.tolist(), counts.tolist(), strict=True))

    def figures(self) -> dict[str, float]:
        """Mean, quantiles and maximum in microseconds."""
        latencies = self.latencies_us
        tails = {name: float(np.quantile(latencies, ratio, method="higher")) for name, ratio in _TAILS.items()}
        return {"average_us": float(latencies.mean()), **tails, "max_us": float(latencies.max())}

    def allocation(self) -> dict[str, float]:
        """Ticks of rlctl with BE suspended, and those over the target, in percent; empty without rlctl."""
        ticks = [tick for run in self.runs for tick in run.ticks]
        if not ticks:
            return {}
        slacks = [tick.telemetry.slack_ratio for tick in ticks]
        over = sum(slack is None or slack < 0.0 for slack in slacks)  # without a latency no target was held
        frozen = sum(tick.before.frozen for tick in ticks)
        return {"be_frozen_percent": 100.0 * frozen / len(ticks), "over_target_percent": 100.0 * over / len(ticks)}


_TAILS = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan: its runs in the order of time.

    Attributes:
        remarks: What a reader must know of how conditions were brought about.
        interrupted: Why it ended early; empty when it is complete.
    """

    plan: Plan
    runs: Sequence[Run]
    missing: Mapping[Cell, str]
    remarks: tuple[str, ...]
    host: Mapping[str, str] = field(default_factory=dict)
    interrupted: str = ""

    @property
    def results(self) -> dict[Cell, CellResult]:
        """By cell, in the plan's order; those without a run are absent."""
        by_cell = {cell: tuple(run for run in self.runs if run.cell == cell) for cell in self.plan.cells}
        return {cell: CellResult(runs) for cell, runs in by_cell.items() if runs}

    def work_percent(self, cell: Cell) -> float | None:
        """The load's work in percent of that under no cgroups; None where there is no load, or nothing to compare."""
        results = self.results
        free = results.get(Cell(Condition.NONE, cell.load))
        if cell.load is Load.NONE or free is None or not free.work_rate:
            return None
        return 100.0 * results[cell].work_rate / free.work_rate

    def table(self) -> str:
        """A row for each cell, below the header."""
        rows: list[tuple[str, ...]] = [
            ("load", "condition", "wake-ups", "avg", "p99", "p99.9", "max", "work/s", "work %")
        ]
        results = self.results
        for cell in self.plan.cells:
            if (result := results.get(cell)) is None:
                rows.append((cell.load, cell.condition, "missing" if cell in self.missing else "0", *["-"] * 6))
                continue
            figures, percent = result.figures(), self.work_percent(cell)
            tails = [f"{figures[name]:.0f}" for name in ("p99_us", "p999_us", "max_us")]
            work = "-" if cell.load is Load.NONE else f"{result.work_rate:.0f}"
            shown = [str(len(result.latencies_us)), f"{figures['average_us']:.1f}", *tails, work]
            rows.append((cell.load, cell.condition, *shown, "-" if percent is None else f"{percent:.1f}"))
        return render(rows)

    def notes(self) -> list[str]:
        """Lines for the foot of the table: missing cells, rlctl's settings, remarks, and why it is incomplete."""
        by_reason: dict[str, list[str]] = {}
        for cell, why in self.missing.items():
            by_reason.setdefault(why, []).append(str(cell))
        lines = [f"missing ({'; '.join(cells)}): {why}" for why, cells in by_reason.items()]
        if Condition.RLCTL in self.plan.conditions:
            lines.append(self.plan.control.words)
        return [*lines, *self.remarks, *([f"INCOMPLETE: {self.interrupted}"] if self.interrupted else [])]

    def as_json(self) -> dict[str, object]:
        """Settings, figures and histograms of all cells."""
        return {
            **self.plan.as_json(),
            "host": dict(self.host),
            "remarks": list(self.remarks),
            "interrupted": self.interrupted,
            "cells": [self._cell_as_json(cell, self.results.get(cell)) for cell in self.plan.cells],
        }

    def _cell_as_json(self, cell: Cell, result: CellResult | None) -> dict[str, object]:
        named: dict[str, object] = {"condition": str(cell.condition), "load": str(cell.load)}
        if result is None:
            return {**named, "wake_ups": 0, "missing": self.missing.get(cell, self.interrupted)}
        percent = self.work_percent(cell)
        each = [
            {**_rounded(CellResult((run,)).figures()), "work_per_second": round(run.work_rate, 2)}
            for run in result.runs
        ]
        return {
            **named,
            "wake_ups": len(result.latencies_us),
            **_rounded(result.figures()),
            "work_per_second": round(result.work_rate, 2),
            "work_percent": None if percent is None else round(percent, 2),
            **_rounded(result.allocation()),
            "runs": each,
            "histogram_us": {str(latency): count for latency, count in result.histogram_us.items()},
        }


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figure, 3) for name, figure in figures.items()}
