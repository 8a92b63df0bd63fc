"""Every manager of a scenario against a baseline, seed by seed: QoS, BE throughput, and how many times as much BE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.bench.paired import Difference, Ratio, paired_difference, ratio_of_means
from rlctl.bench.sim_outcome import SimOutcome

LEAST_BE_PERCENT = 0.5
"""Less BE throughput than this is next to none, and a multiple of it means nothing."""

BASELINES = ("prm-hybrid-tuned", "frozen")
"""Managers that others are compared with by default: the thesis' best, and the most QoS that the LC can have."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One manager against the baseline.

    Attributes:
        qos: Difference of the QoS guarantee over all windows, percentage points.
        qos_15s: Difference of the QoS guarantee over one window in 15 s, percentage points.
        be: Difference of BE throughput, percentage points.
        be_ratio: BE throughput as a multiple of the baseline's; NaN where that is below `LEAST_BE_PERCENT`.
    """

    manager: str
    qos: Difference
    qos_15s: Difference
    be: Difference
    be_ratio: Ratio

    def as_json(self) -> dict[str, object]:
        """All differences by the metrics' names."""
        return {
            "qos_guarantee_percent": self.qos.as_json(),
            "qos_15s_percent": self.qos_15s.as_json(),
            "be_throughput_percent": self.be.as_json(),
            "be_throughput_ratio": self.be_ratio.as_json(),
        }


def compare(result: SimOutcome, baseline: str) -> tuple[Comparison, ...]:
    """Every other manager against the baseline, in the result's order; KeyError: the baseline was not measured."""
    base = result.managers[baseline]

    def against(metric: str, name: str) -> Difference:
        return paired_difference(result.managers[name][metric], base[metric])

    return tuple(
        Comparison(
            name,
            against("qos_guarantee_percent", name),
            against("qos_15s_percent", name),
            against("be_throughput_percent", name),
            _be_ratio(result.managers[name]["be_throughput_percent"], base["be_throughput_percent"]),
        )
        for name in result.managers
        if name != baseline
    )


def present_baselines(result: SimOutcome) -> tuple[str, ...]:
    """The default baselines that were measured and have somebody to be compared with."""
    return tuple(name for name in BASELINES if name in result.managers and len(result.managers) > 1)


def _be_ratio(one: NDArray[np.float64], other: NDArray[np.float64]) -> Ratio:
    if np.mean(other) < LEAST_BE_PERCENT:
        return Ratio(math.nan, (-math.inf, math.inf))
    return ratio_of_means(one, other)
