"""What a run is worth: QoS over windows, BE work, the worst window, recovery, and what deciding cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from rlctl.envs.telemetry import Missing, Value
from rlctl.loop.record import Tick
from rlctl.statistics.intervals import Estimate, mean_interval, share_interval

__all__ = ["Run", "Score", "score"]


@dataclass(frozen=True, slots=True)
class Run:
    """One manager on one repeat of a scenario.

    Attributes:
        manager: Its name.
        ticks: In order; the readings of a tick describe the window before it.
        be_work_ratio: BE work done, as a share of BE running alone on the host for as long.
        controller_cpu_ratio: CPU time of the controlling process per second of wall clock.
    """

    manager: str
    ticks: tuple[Tick, ...]
    be_work_ratio: float
    controller_cpu_ratio: float


@dataclass(frozen=True, slots=True)
class Score:
    """One manager over all repeats; the field names and units are those of the contract's JSON.

    EMU adds the load offered to the LC, also in overload. `frozen_percent` and `lc_cpus` are there to see why a score
    is what it is.
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

    def as_json(self) -> dict[str, object]:
        """By name; estimates with their intervals."""
        pairs = ((name, getattr(self, name)) for name in (one.name for one in fields(self)))
        return {name: value.as_json() if isinstance(value, Estimate) else value for name, value in pairs}


def score(runs: Sequence[Run], hosts: Sequence[str] = ()) -> Score:
    """Score one manager.

    Args:
        runs: Its repeats; each of at least two ticks.
        hosts: Where each was, the strata of the intervals; empty is all on one.

    Raises:
        ValueError: No run.
    """

    def mean(values: Sequence[float], high: float = math.inf) -> Estimate:
        return mean_interval(values, 0.0, high, hosts)

    windows = [[met(tick) for tick in run.ticks] for run in runs]
    flat = list(itertools.chain.from_iterable(windows))
    be = [100.0 * run.be_work_ratio for run in runs]
    return Score(
        qos_guarantee_percent=share_interval(sum(flat), len(flat)),
        be_throughput_percent=mean(be),
        emu_percent=mean([b + 100.0 * _mean_load(run) for b, run in zip(be, runs, strict=True)]),
        worst_window_over_target=mean([max(map(over_target, run.ticks)) for run in runs]),
        time_to_recover_seconds=mean([_longest_violation_seconds(run) for run in runs]),
        suspensions=mean([_suspensions(run) for run in runs]),
        reconfigurations=mean([_reconfigurations(run) for run in runs]),
        shield_override_percent=mean(
            [100.0 * _share([tick.verdict.overridden for tick in run.ticks]) for run in runs], 100.0
        ),
        frozen_percent=mean([100.0 * _share([tick.applied.frozen for tick in run.ticks]) for run in runs], 100.0),
        lc_cpus=mean([_mean_reading([t.telemetry.lc_cpus for t in run.ticks]) for run in runs]),
        decision_seconds_p99=float(
            np.quantile([tick.decision_seconds for run in runs for tick in run.ticks], 0.99, method="higher")
        ),
        controller_cpu_percent=100.0 * float(np.mean([run.controller_cpu_ratio for run in runs])),
        missed_deadlines=sum(run.ticks[-1].missed_deadlines for run in runs),  # counted since each run's start
        samples=len(flat),
    )


def met(tick: Tick) -> bool:
    """True when the window held its target; a window that nobody measured did not."""
    slack = tick.telemetry.slack_ratio
    return slack is not None and slack >= 0.0


def over_target(tick: Tick) -> float:
    """Latency as a multiple of the target; 0 where it is missing."""
    latency = tick.telemetry.latency_seconds
    return 0.0 if isinstance(latency, Missing) else latency.value / tick.telemetry.target_seconds


def _longest_violation_seconds(run: Run) -> float:
    """The longest stretch of windows in a row that missed the target."""
    times = [tick.telemetry.time_seconds for tick in run.ticks]
    period = float(np.median(np.diff(times)))
    return max((len(list(group)) for good, group in itertools.groupby(run.ticks, met) if not good), default=0) * period


def _suspensions(run: Run) -> float:
    return sum(tick.applied.frozen and not tick.before.frozen for tick in run.ticks)


def _reconfigurations(run: Run) -> float:
    return sum(tick.applied != tick.before for tick in run.ticks)


def _mean_load(run: Run) -> float:
    return _mean_reading([tick.telemetry.load_ratio for tick in run.ticks])


def _mean_reading(readings: Sequence[Value | Missing]) -> float:
    values = [reading.value for reading in readings if isinstance(reading, Value)]
    return float(np.mean(values)) if values else 0.0


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
