"""What simulator benchmarks hand to reports: each manager's metrics seed by seed, and the trace of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rlctl.statistics.intervals import Estimate, mean_interval, share_over_seeds

__all__ = ["BOUNDS", "METRICS", "SHARES", "SHIELDED_BOUNDS", "SuiteResult", "Trace"]

Samples = NDArray[np.float64]

METRICS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "qos_guarantee_percent": (0.0, 100.0),
        "qos_15s_percent": (0.0, 100.0),
        "be_throughput_percent": (0.0, np.inf),
        "emu_percent": (0.0, np.inf),
        "worst_window_over_target": (0.0, np.inf),
        "time_to_recover_seconds": (0.0, np.inf),
        "suspensions": (0.0, np.inf),
        "reconfigurations": (0.0, np.inf),
        "shield_override_percent": (0.0, 100.0),
        "frozen_percent": (0.0, 100.0),
    }
)
"""Every metric with the range that its values and intervals stay within."""

SHARES: Mapping[str, float] = MappingProxyType({"qos_guarantee_percent": 1.0, "qos_15s_percent": 15.0})
"""Metrics that are shares of windows, with the seconds from one window to the next; less than a tick is a tick."""

BOUNDS = frozenset({"oracle", "oracle-model", "oracle-shielded"})
"""Managers that know what no manager can: drawn and listed, never on the Pareto front."""

SHIELDED_BOUNDS = frozenset({"oracle-shielded"})
"""Those of them that run behind the shield."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One manager on one seed, tick by tick; each array has the shape (ticks,).

    Attributes:
        load: Offered load as a share of the LC's maximum.
        tail_over_target: Tail latency of the window as a multiple of the target.
        be_work: BE work done in the tick, as a share of BE running alone for as long.
        frozen: True where BE was suspended.
        tick_seconds: Control period.
    """

    load: Samples
    tail_over_target: Samples
    be_work: Samples
    frozen: NDArray[np.bool_]
    tick_seconds: float

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.load, self.tail_over_target, self.be_work, self.frozen)}
        if len(shapes) != 1 or self.load.ndim != 1 or not self.load.size:
            raise ValueError(f"a trace needs arrays of one length, got {sorted(shapes)}")


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """All managers on one scenario of the simulator, on the same seeds in the same order.

    Attributes:
        scenario: Its name.
        description: What it is, in a sentence.
        caption: What it takes to reproduce it: seeds, profile and shield with their digests, durations.
        managers: Manager -> metric -> values, shape (seeds,); the metrics are those of `METRICS`.
        traces: Manager -> its run on the first seed; managers may be missing.
        duration_seconds: Length of one run.
        tick_seconds: Length of a window; with the duration it says how many windows a share is of.
        remarks: Manager -> what a reader of its row must know.
        facts: What else the JSON says of the scenario; it wins over what is computed here.
    """

    scenario: str
    description: str
    caption: str
    managers: Mapping[str, Mapping[str, Samples]]
    traces: Mapping[str, Trace]
    duration_seconds: float
    tick_seconds: float = 1.0
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would give a wrong table.

        Raises:
            ValueError: No manager, a missing metric, arrays of different length, or a value that is not a number.
        """
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
        """Seeds of every manager."""
        return len(next(iter(self.managers.values()))["qos_guarantee_percent"])

    def estimate(self, manager: str, metric: str) -> Estimate:
        """A metric's mean over seeds with its intervals, which stay within the metric's range.

        Shares of windows have the interval of `share_over_seeds`, everything else Student's t.
        """
        values = self.managers[manager][metric]
        if metric in SHARES:
            return share_over_seeds(values, self.windows(metric))
        return mean_interval(values, *METRICS[metric])

    def windows(self, metric: str) -> int:
        """Windows of one run that a share is of."""
        apart = max(round(SHARES[metric] / self.tick_seconds), 1)
        return max(round(self.duration_seconds / self.tick_seconds) // apart, 1)

    def as_json(self) -> dict[str, object]:
        """The contract's JSON of one scenario, with the values seed by seed beneath `per_seed`."""
        return {
            "schema": 1,
            "plant": "sim",
            "scenario": self.scenario,
            "seeds": self.seeds,
            "duration_seconds": self.duration_seconds,
            "managers": {name: self._manager_json(name) for name in self.managers},
            **self.facts,
        }

    def _manager_json(self, name: str) -> dict[str, object]:
        estimates = {metric: self.estimate(name, metric).as_json() for metric in METRICS}
        per_seed = {metric: [round(value, 6) for value in self.managers[name][metric].tolist()] for metric in METRICS}
        return {**estimates, "samples": self.seeds * self.windows("qos_guarantee_percent"), "per_seed": per_seed}
