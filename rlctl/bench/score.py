"""What came of managers: metrics of live repeats and of simulated seeds, each with its intervals, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from rlctl.bench.intervals import Estimate, mean_interval, share_interval, share_over_seeds
from rlctl.envs.arrays import Array
from rlctl.envs.run_metrics import METRICS, SAMPLE_SECONDS, Windows, per_run
from rlctl.envs.telemetry import Missing, Telemetry, Value, number_or_nan, offered_rps
from rlctl.envs.testbed.generator_source import as_client_saw
from rlctl.log.reader import usual_gap
from rlctl.log.record import Tick


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One manager on one repeat of a live scenario.

    Attributes:
        ticks: All ticks in order; the readings of a tick describe the window before it.
        be_work_ratio: BE work done, as a share of BE running alone on the host for as long.
        controller_cpu_ratio: CPU time of the controlling process, and of what it ran, per second of wall clock.
        header: Of its tick log; empty where nothing is known of the host.
        experience: What the host had taught until its end, on each rein and of a maximum load that nobody told, as
            the `state_dict` of who learned it, by its name.
        guards: What the shield's guards remembered at its end, see `Shield.state`.
        reins: What was known of the link and the disks at its end, see `Reins.state_dict`.
    """

    manager: str
    ticks: tuple[Tick, ...]
    be_work_ratio: float
    controller_cpu_ratio: float
    header: Mapping[str, object] = field(default_factory=dict)
    experience: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guards: Mapping[str, object] = field(default_factory=dict)
    reins: Mapping[str, object] = field(default_factory=dict)

    @property
    def telemetry(self) -> tuple[Telemetry, ...]:
        """The windows as the LC's client saw them, by which a run is judged."""
        return tuple(as_client_saw(tick.telemetry) for tick in self.ticks)

    @property
    def request_cpu_seconds(self) -> float:
        """CPU time of the LC by the requests that it served, or by those that came; nan where neither is known."""
        pairs = []
        for each in self.telemetry:
            done = each.counters.get("done_rps")  # those that wait have cost nothing yet
            served = done if isinstance(done, Value) else offered_rps(each.counters)
            pairs.append((number_or_nan(each.lc_cpus), number_or_nan(served)))
        cpus, rps = np.array(pairs)[~np.isnan(pairs).any(axis=1)].sum(axis=0)
        return float(cpus / rps) if rps else math.nan


@dataclass(frozen=True, slots=True)
class Score:
    """One manager over all repeats or seeds; the field names and units are those of `rlctl bench --json`.

    EMU adds the load offered to the LC, also in overload. `frozen_percent` and `lc_cpus` are there to see why a score
    is what it is. Only simulated runs are long enough for `qos_15s_percent`. Of live runs `request_cpu_microseconds` is
    the LC's CPU time by its requests. `request_cpu_ratio` is that by the one under `frozen` in the same repeat: what
    BE costs the LC beyond CPU time, whatever the host's speed was meanwhile.
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
    request_cpu_microseconds: Estimate | None = None
    request_cpu_ratio: Estimate | None = None

    def as_json(self) -> dict[str, object]:
        """All fields by name, estimates with their intervals."""
        pairs = ((name, getattr(self, name)) for name in (field.name for field in fields(self)))
        return {
            name: value.as_json() if isinstance(value, Estimate) else value
            for name, value in pairs
            if value is not None
        }


def score(runs: Sequence[LiveRun], hosts: Sequence[str] = (), alone: Sequence[float] = ()) -> Score:
    """Score one manager over its repeats.

    Args:
        runs: One for each repeat, of at least two ticks each.
        hosts: Host of each run, the strata of the intervals; empty when all are of one host.
        alone: The LC's CPU time by its requests with BE absent in each of these repeats; nan where it is not known.

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
    request = np.array([run.request_cpu_seconds for run in runs])
    ratio = request / (np.array(alone) if len(alone) else math.nan)
    return Score(
        qos_guarantee_percent=share_interval(int(held.sum()), len(held)),
        **estimates,
        decision_seconds_p99=float(np.quantile(decisions, 0.99, method="higher")),
        controller_cpu_percent=100.0 * float(np.mean([run.controller_cpu_ratio for run in runs])),
        missed_deadlines=sum(run.ticks[-1].missed_deadlines for run in runs),  # counted since each run's start
        samples=len(held),
        request_cpu_microseconds=_of_known(1e6 * request, hosts),
        request_cpu_ratio=_of_known(ratio, hosts),
    )


def _of_known(values: Array, hosts: Sequence[str]) -> Estimate | None:
    """The mean over the repeats in which it was measured; None: in none of them."""
    known = np.isfinite(values)
    if not known.any():
        return None
    return mean_interval(values[known], 0.0, np.inf, [host for host, there in zip(hosts, known, strict=False) if there])


def windows_of(run: LiveRun) -> Windows:
    """A live run window by window; arrays of shape (ticks, 1)."""
    ticks, telemetry = run.ticks, run.telemetry
    latency_ratio = [
        0.0 if idle(each) else number_or_nan(each.latency_seconds) / each.target_seconds for each in telemetry
    ]
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


def held_percent(run: LiveRun) -> float:
    """Share of a run's windows that held the target."""
    return 100.0 * float(np.mean(windows_of(run).latency_ratio <= 1.0))


def idle(telemetry: Telemetry) -> bool:
    """Whether nobody asked in a window, was answered or waits: it holds then, as in the simulator."""
    if not isinstance(telemetry.latency_seconds, Missing):
        return False
    readings = telemetry.counters.get("offered_rps"), telemetry.oldest_request_seconds
    return all(isinstance(one, Value) and one.value == 0.0 for one in readings)


def period_seconds(run: LiveRun) -> float:
    """Control period as it was: the median time between two ticks."""
    return usual_gap([tick.telemetry.time_seconds for tick in run.ticks])


def _column(values: Sequence[float]) -> np.ndarray:
    return np.array(values, float)[:, None]


@dataclass(frozen=True, slots=True)
class SimOutcome:
    """All managers on one simulated scenario, on the same seeds in the same order; managers go by their labels.

    Attributes:
        caption: What it takes to reproduce it: seeds, profile and shield with their digests, durations.
        managers: Manager -> metric -> values, shape (seeds,): the metrics of `rlctl.envs.run_metrics.METRICS`, and for
            `score` those of `TIMINGS`.
        traces: Manager -> its run on the first seed alone; managers may be missing.
        tick_seconds: Length of a window; with the duration it says how many windows a share is of.
        facts: What was measured and with what, for the JSON, so that it can be run again.
        names: Manager -> the name that it was built from, where that is another than its label.
    """

    scenario: str
    description: str
    caption: str
    managers: Mapping[str, Mapping[str, Array]]
    traces: Mapping[str, Windows]
    duration_seconds: float
    tick_seconds: float = 1.0
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse, by ValueError, what would give a wrong table: no manager, no metric, another length, no number."""
        if not self.managers:
            raise ValueError(f"{self.scenario}: no manager")
        for name, metrics in self.managers.items():
            for metric in METRICS:
                if metric not in metrics:
                    raise ValueError(f"{self.scenario}: {name} lacks {metric}")
                if metrics[metric].shape != (self.seeds,) or not self.seeds:
                    raise ValueError(f"{self.scenario}: {name} has {metric} of shape {metrics[metric].shape}")
                if not np.isfinite(metrics[metric]).all():
                    raise ValueError(f"{self.scenario}: {name} has a {metric} that is not finite")

    @property
    def seeds(self) -> int:
        """Number of seeds of every manager."""
        return len(next(iter(self.managers.values()))["qos_guarantee_percent"])

    @property
    def ticks(self) -> int:
        """Windows of one run."""
        return max(round(self.duration_seconds / self.tick_seconds), 1)

    def estimate(self, manager: str, metric: str) -> Estimate:
        """A metric's mean over seeds with its intervals, which stay within the metric's range.

        QoS is a share of windows. Those of one run depend on one another, seeds do not, and near 100 % Student's t has
        no width, or leaves [0, 100]. So its interval is Wilson's at the effective number of windows,
        `share_over_seeds`; the rest is Student's t over seeds.
        """
        values = self.managers[manager][metric]
        if metric == "qos_guarantee_percent":
            return share_over_seeds(values, self.ticks)
        if metric == "qos_15s_percent":
            return share_over_seeds(values, max(self.ticks // max(round(SAMPLE_SECONDS / self.tick_seconds), 1), 1))
        return mean_interval(values, 0.0, METRICS[metric])

    def score(self, manager: str) -> Score:
        """All metrics of one manager with their intervals."""
        values = self.managers[manager]
        return Score(
            **{metric: self.estimate(manager, metric) for metric in METRICS},
            decision_seconds_p99=float(values["decision_seconds_p99"].mean()),
            controller_cpu_percent=100.0 * float(values["decision_seconds_mean"].mean()) / self.tick_seconds,
            missed_deadlines=0,
            samples=self.ticks * self.seeds,
        )

    @property
    def scores(self) -> dict[str, Score]:
        """All managers' scores, in the plan's order."""
        return {name: self.score(name) for name in self.managers}

    def as_json(self) -> dict[str, object]:
        """For `rlctl bench --json`, with what `bench verify` and paired statistics need; managers by their names."""
        managers = {self.names.get(label, label): self._manager_as_json(label) for label in self.managers}
        return {"schema": 1, "plant": "sim", "scenario": self.scenario, **self.facts, "managers": managers}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Self:
        """What paired statistics take, from `as_json`; KeyError, TypeError or ValueError where it is none."""
        managers = {
            name: {metric: np.array(row["per_seed"][metric], float) for metric in METRICS}
            for name, row in told["managers"].items()
        }
        scenario, seconds = told["scenario"], told["duration_seconds"]
        return cls(scenario, "", "", managers, {}, seconds, tick_seconds=told["tick_seconds"])

    def _manager_as_json(self, manager: str) -> dict[str, object]:
        values = self.managers[manager]
        per_seed = {metric: [round(value, 6) for value in values[metric].tolist()] for metric in METRICS}
        remarks = list(self.remarks.get(manager, ()))
        return {**self.score(manager).as_json(), "per_seed": per_seed, "remarks": remarks}
