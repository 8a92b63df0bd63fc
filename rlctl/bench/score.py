"""Scores of managers: the metrics of `rlctl.envs.run_metrics` over live repeats, each with its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from rlctl.envs.run_metrics import METRICS, Windows, per_run
from rlctl.envs.telemetry import number_or_nan
from rlctl.loop.record import Tick
from rlctl.statistics.intervals import Estimate, mean_interval, share_interval


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One manager on one repeat of a live scenario.

    Attributes:
        ticks: All ticks in order; the readings of a tick describe the window before it.
        be_work_ratio: BE work done, as a share of BE running alone on the host for as long.
        controller_cpu_ratio: CPU time of the controlling process per second of wall clock.
    """

    manager: str
    ticks: tuple[Tick, ...]
    be_work_ratio: float
    controller_cpu_ratio: float


@dataclass(frozen=True, slots=True)
class Score:
    """One manager over all repeats or seeds; the field names and units are those of `rlctl bench --json`.

    EMU adds the load offered to the LC, also in overload. `frozen_percent` and `lc_cpus` are there to see why a score
    is what it is. Only simulated runs are long enough for `qos_15s_percent`.
    """

    qos_guarantee_percent: Estimate
    be_throughput_percent: Estimate
    emu_percent: Estimate
    worst_window_over_target: Estimate
    time_to_recover_seconds: Estimate
    suspensions: Estimate
    reconfigurations: Estimate
    shield_override_percent: Estimate
    frozen_percent: Estimate
    lc_cpus: Estimate
    decision_seconds_p99: float
    controller_cpu_percent: float
    missed_deadlines: int
    samples: int
    qos_15s_percent: Estimate | None = None

    def as_json(self) -> dict[str, object]:
        """All fields by name, estimates with their intervals."""
        pairs = ((name, getattr(self, name)) for name in (field.name for field in fields(self)))
        return {
            name: value.as_json() if isinstance(value, Estimate) else value
            for name, value in pairs
            if value is not None
        }


def score(runs: Sequence[LiveRun], hosts: Sequence[str] = ()) -> Score:
    """Score one manager over its repeats.

    Args:
        runs: One for each repeat, of at least two ticks each.
        hosts: Host of each run, the strata of the intervals; empty when all are of one host.

    Raises:
        ValueError: No run.
    """
    if not runs:
        raise ValueError("a score of no runs")
    windows = [windows_of(run) for run in runs]
    each = [per_run(part, period_seconds(run)) for part, run in zip(windows, runs, strict=True)]
    values = {name: np.concatenate([metrics[name] for metrics in each]) for name in METRICS}
    estimates = {
        name: mean_interval(values[name], 0.0, high, hosts)
        for name, high in METRICS.items()
        if not name.startswith("qos_")
    }
    held = np.concatenate([part.latency_ratio <= 1.0 for part in windows])
    decisions = np.concatenate([part.decision_seconds for part in windows])
    return Score(
        qos_guarantee_percent=share_interval(int(held.sum()), len(held)),
        **estimates,
        decision_seconds_p99=float(np.quantile(decisions, 0.99, method="higher")),
        controller_cpu_percent=100.0 * float(np.mean([run.controller_cpu_ratio for run in runs])),
        missed_deadlines=sum(run.ticks[-1].missed_deadlines for run in runs),  # counted since each run's start
        samples=len(held),
    )


def windows_of(run: LiveRun) -> Windows:
    """A live run window by window; arrays of shape (ticks, 1)."""
    ticks = run.ticks
    telemetry = [tick.telemetry for tick in ticks]
    latency_ratio = [number_or_nan(each.latency_seconds) / each.target_seconds for each in telemetry]
    return Windows(
        latency_ratio=_column(latency_ratio),
        load_ratio=_column([number_or_nan(each.load_ratio) for each in telemetry]),
        be_work_ratio=_column([run.be_work_ratio]),
        lc_cpus=_column([number_or_nan(each.lc_cpus) for each in telemetry]),
        decision_seconds=_column([tick.decision_seconds for tick in ticks]),
        overridden=_column([tick.verdict.overridden for tick in ticks]).astype(bool),
        frozen=_column([tick.applied.frozen for tick in ticks]).astype(bool),
        suspended=_column([tick.applied.frozen and not tick.before.frozen for tick in ticks]).astype(bool),
        changed=_column([tick.applied != tick.before for tick in ticks]).astype(bool),
    )


def period_seconds(run: LiveRun) -> float:
    """Control period as it was: the median time between two ticks."""
    return float(np.median(np.diff([tick.telemetry.time_seconds for tick in run.ticks])))


def _column(values: Sequence[float]) -> np.ndarray:
    return np.array(values, float)[:, None]
