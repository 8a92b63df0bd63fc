"""Scores of simulated runs: each metric seed by seed from the truth, then a mean with its interval over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.bench.score import Score
from rlctl.statistics.intervals import Estimate, mean_interval, share_over_seeds

__all__ = ["METRICS", "TIMINGS", "Record", "SimScore", "per_seed", "score"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SAMPLE_SECONDS = 15.0
"""The thesis looks at one window each 15 s (5.1)."""

METRICS = (
    "qos_guarantee_percent",
    "qos_15s_percent",
    "be_throughput_percent",
    "emu_percent",
    "worst_window_over_target",
    "time_to_recover_seconds",
    "suspensions",
    "reconfigurations",
    "shield_override_percent",
    "frozen_percent",
    "lc_cpus",
)
"""What a seed is scored by; all follow from the seed alone, so a second run has the same."""

TIMINGS = ("decision_seconds_p99", "decision_seconds_mean")
"""What the machine that ran it decides; never the same twice."""


@dataclass(frozen=True, slots=True)
class Record:
    """One manager on some seeds, window by window; arrays of shape (ticks, seeds) but for the counts, (seeds,).

    Attributes:
        tick_seconds: Length of a window.
        latency_ratio: The truth: the larger of the tail and the oldest outstanding request, by the target.
        load_ratio: Arrivals that came, as a share of the LC's maximum.
        be_work_ratio: BE work, as a share of BE running alone.
        lc_cpus: CPUs that the LC kept busy.
        frozen: BE was suspended by the decision after the window.
        overridden: The shield did not let the decision through as it was.
        suspensions, reconfigurations: How often BE was suspended; how often anything changed.
        decision_seconds: Time to observe, decide and rule.
    """

    tick_seconds: float
    latency_ratio: Floats
    load_ratio: Floats
    be_work_ratio: Floats
    lc_cpus: Floats
    frozen: Flags
    overridden: Flags
    suspensions: Floats
    reconfigurations: Floats
    decision_seconds: Floats


@dataclass(frozen=True, slots=True)
class SimScore(Score):
    """One manager over all seeds: the live `Score`, and QoS as the thesis sampled it."""

    qos_15s_percent: Estimate


def per_seed(record: Record) -> dict[str, Floats]:
    """Every metric of METRICS and TIMINGS, shape (seeds,).

    Computed column by column: numpy adds a block in another order than a single column, and a seed's last digits must
    not depend on which others it ran with.
    """
    met = record.latency_ratio <= 1.0
    ticks = len(met)
    first = min(_samples_apart(record.tick_seconds), ticks) - 1
    be = 100.0 * _means(record.be_work_ratio)
    return {
        "qos_guarantee_percent": 100.0 * _shares(met),
        "qos_15s_percent": 100.0 * _shares(met[first :: _samples_apart(record.tick_seconds)]),
        "be_throughput_percent": be,
        "emu_percent": be + 100.0 * _means(record.load_ratio),
        "worst_window_over_target": record.latency_ratio.max(axis=0),
        "time_to_recover_seconds": record.tick_seconds * _longest(~met),
        "suspensions": record.suspensions,
        "reconfigurations": record.reconfigurations,
        "shield_override_percent": 100.0 * _shares(record.overridden),
        "frozen_percent": 100.0 * _shares(record.frozen),
        "lc_cpus": _means(record.lc_cpus),
        "decision_seconds_p99": np.quantile(record.decision_seconds, 0.99, axis=0, method="higher"),
        "decision_seconds_mean": _means(record.decision_seconds),
    }


def score(values: Mapping[str, Floats], ticks: int, tick_seconds: float) -> SimScore:
    """Score one manager.

    QoS is a share of windows. Those of one run depend on one another, seeds do not, and near 100 % Student's t has no
    width, or leaves [0, 100]. So its interval is Wilson's at the effective number of windows, `share_over_seeds`; the
    rest is Student's t over seeds.

    Args:
        values: Its metrics by name, each of shape (seeds,).
        ticks: Windows of each seed.
        tick_seconds: Length of a window.
    """

    def mean(name: str, high: float = np.inf) -> Estimate:
        return mean_interval(values[name], 0.0, high)

    apart = _samples_apart(tick_seconds)
    sampled = 1 + (ticks - min(apart, ticks)) // apart
    return SimScore(
        qos_guarantee_percent=share_over_seeds(values["qos_guarantee_percent"], ticks),
        qos_15s_percent=share_over_seeds(values["qos_15s_percent"], sampled),
        be_throughput_percent=mean("be_throughput_percent"),
        emu_percent=mean("emu_percent"),
        worst_window_over_target=mean("worst_window_over_target"),
        time_to_recover_seconds=mean("time_to_recover_seconds"),
        suspensions=mean("suspensions"),
        reconfigurations=mean("reconfigurations"),
        shield_override_percent=mean("shield_override_percent", 100.0),
        frozen_percent=mean("frozen_percent", 100.0),
        lc_cpus=mean("lc_cpus"),
        decision_seconds_p99=float(values["decision_seconds_p99"].mean()),
        controller_cpu_percent=100.0 * float(values["decision_seconds_mean"].mean()) / tick_seconds,
        missed_deadlines=0,
        samples=ticks * len(values["lc_cpus"]),
    )


def _samples_apart(tick_seconds: float) -> int:
    return max(round(SAMPLE_SECONDS / tick_seconds), 1)


def _means(columns: Floats) -> Floats:
    return np.array([column.mean() for column in np.ascontiguousarray(columns.T)])


def _shares(columns: Flags) -> Floats:
    return np.asarray(columns.sum(axis=0) / len(columns), float)


def _longest(flags: Flags) -> Floats:
    """The longest stretch of true in each column."""
    length = longest = np.zeros(flags.shape[1])
    for row in flags:
        length = (length + 1.0) * row
        longest = np.maximum(longest, length)
    return longest
