"""What came of a simulated scenario: each manager's metrics seed by seed, the trace of one run, scores and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from rlctl.bench.intervals import Estimate, mean_interval, share_over_seeds
from rlctl.bench.score import Score
from rlctl.envs.arrays import Array
from rlctl.envs.run_metrics import METRICS, SAMPLE_SECONDS, Windows


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
