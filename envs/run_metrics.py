"""What a run is worth: one definition for simulated and live runs, in benchmarks and in training.

A window is one control period. It held the target when its latency was at most the target: the larger of the tail
latency and the age of the oldest outstanding request. A window without a latency did not. Simulated runs are judged on
the truth, not on what their sensors reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from rlctl.envs.arrays import Array, Flags

SAMPLE_SECONDS = 15.0
"""The thesis looks at one window each 15 s (5.1)."""

METRICS: Mapping[str, float] = MappingProxyType(
    {
        "qos_guarantee_percent": 100.0,
        "qos_15s_percent": 100.0,
        "be_throughput_percent": np.inf,
        "emu_percent": np.inf,
        "worst_window_over_target": np.inf,
        "time_to_recover_seconds": np.inf,
        "suspensions": np.inf,
        "reconfigurations": np.inf,
        "shield_override_percent": 100.0,
        "frozen_percent": 100.0,
        "lc_cpus": np.inf,
    }
)
"""Every metric of a run with the largest value that it can have; the least is 0. They follow from the seed alone."""

TIMINGS = ("decision_seconds_p99", "decision_seconds_mean")
"""Metrics that the machine decides which runs it; never the same twice."""


class Truth(NamedTuple):
    """One window of n hosts as it was, whatever sensors made of it; arrays of shape (n,).

    Attributes:
        latency_ratio: The latency as a multiple of the target.
        load_ratio: Requests that arrived, as a share of the LC's maximum.
        be_work_ratio: BE work done, as a share of BE running alone.
        lc_cpus: CPUs that the LC kept busy.
    """

    latency_ratio: Array
    load_ratio: Array
    be_work_ratio: Array
    lc_cpus: Array

    @property
    def missed(self) -> Flags:
        """Where the window did not hold the target."""
        return ~(self.latency_ratio <= 1.0)


class Windows(NamedTuple):
    """Some runs, window by window; arrays of shape (ticks, runs), NaN where a live run has no reading.

    Attributes:
        latency_ratio, load_ratio, be_work_ratio, lc_cpus: As in `Truth`; BE's work has one row where no more is known.
        decision_seconds: Time that it took to observe, decide and rule.
        overridden: The shield did not let the proposal through as it was.
        frozen: BE was suspended by the decision after the window.
        suspended: It was not suspended before that decision.
    """

    latency_ratio: Array
    load_ratio: Array
    be_work_ratio: Array
    lc_cpus: Array
    decision_seconds: Array
    overridden: Flags
    frozen: Flags
    suspended: Flags
    changed: Flags

    @classmethod
    def none(cls, ticks: int, runs: int) -> Self:
        """Room for so many windows of so many runs."""
        shape = (ticks, runs)
        return cls._make(np.zeros(shape, kind) for kind in [np.float64] * 5 + [np.bool_] * 4)

    def see(self, tick: int, truth: Truth) -> None:
        """Note how one window was."""
        for column, value in zip(self[:4], truth, strict=True):
            column[tick] = value


def per_run(windows: Windows, tick_seconds: float) -> dict[str, Array]:
    """Every metric of METRICS and TIMINGS, each of shape (runs,).

    Computed column by column: numpy adds a block in another order than a single column, and a run's last digits must
    not depend on which others stand beside it.
    """
    held = windows.latency_ratio <= 1.0
    apart = max(round(SAMPLE_SECONDS / tick_seconds), 1)
    be = 100.0 * _means(windows.be_work_ratio)
    return {
        "qos_guarantee_percent": 100.0 * _shares(held),
        "qos_15s_percent": 100.0 * _shares(held[min(apart, len(held)) - 1 :: apart]),
        "be_throughput_percent": be,
        "emu_percent": be + 100.0 * _means(windows.load_ratio),
        "worst_window_over_target": np.fmax.reduce(windows.latency_ratio, axis=0, initial=0.0),
        "time_to_recover_seconds": tick_seconds * _longest(~held),
        "suspensions": windows.suspended.sum(axis=0).astype(float),
        "reconfigurations": windows.changed.sum(axis=0).astype(float),
        "shield_override_percent": 100.0 * _shares(windows.overridden),
        "frozen_percent": 100.0 * _shares(windows.frozen),
        "lc_cpus": _means(windows.lc_cpus),
        "decision_seconds_p99": np.quantile(windows.decision_seconds, 0.99, axis=0, method="higher"),
        "decision_seconds_mean": _means(windows.decision_seconds),
    }


def _means(columns: Array) -> Array:
    """Mean of each column's numbers; 0 where it has none."""
    known = [column[~np.isnan(column)] for column in np.ascontiguousarray(columns.T)]
    return np.array([column.mean() if len(column) else 0.0 for column in known])


def _shares(columns: Flags) -> Array:
    return np.asarray(columns.sum(axis=0) / len(columns), float)


def _longest(flags: Flags) -> Array:
    """The longest stretch of true in each column."""
    length = longest = np.zeros(flags.shape[1])
    for row in flags:
        length = (length + 1.0) * row
        longest = np.maximum(longest, length)
    return longest
