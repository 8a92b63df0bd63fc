"""All scenarios and seeds in one number: interquartile mean and probability of improvement, with intervals.

The formulas are those of rliable (Agarwal et al. 2021), whose package is archived and brings four libraries. Intervals
are percentiles of a bootstrap that draws seeds anew within each scenario.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.bench.comparison import Interval
from rlctl.bench.sim_outcome import SimOutcome

RESAMPLES = 1000

Runs = Sequence[NDArray[np.float64]]
"""A metric scenario by scenario, each of shape (seeds,)."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A number over scenarios and seeds with its 95 % interval, endless for a single seed."""

    value: float
    bootstrap95: Interval


def interquartile_mean(runs: Runs) -> float:
    """Mean of the middle half of all runs: a fourth of them is left out at each end."""
    values = np.sort(np.concatenate(runs))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def improvement_share(one: Runs, other: Runs) -> float:
    """How often a run of one is above a run of the other on the same scenario; equal ones count half.

    It is Mann and Whitney's U as a share of the pairs, mean over scenarios.
    """
    shares = []
    for ours, theirs in zip(one, other, strict=True):
        ranked = np.sort(theirs)
        below = np.searchsorted(ranked, ours, "left") + np.searchsorted(ranked, ours, "right")
        shares.append(below.mean() / (2 * len(theirs)))
    return float(np.mean(shares))


def aggregate(results: Sequence[SimOutcome], manager: str, metric: str) -> Aggregate:
    """A manager's interquartile mean of a metric."""
    return _with_interval(interquartile_mean, [one.managers[manager][metric] for one in results])


def improvement(results: Sequence[SimOutcome], manager: str, baseline: str, metric: str) -> Aggregate:
    """Probability that a run of a manager has more of a metric than one of the baseline."""
    ours, theirs = ([one.managers[name][metric] for one in results] for name in (manager, baseline))
    return _with_interval(improvement_share, ours, theirs)


def _with_interval(statistic: Callable[..., float], *samples: Runs) -> Aggregate:
    """The statistic of one or two managers' runs; the seeds of each are drawn by themselves."""
    rng = np.random.default_rng(0)
    if any(len(values) < 2 for runs in samples for values in runs):
        return Aggregate(statistic(*samples), (-math.inf, math.inf))

    def drawn(runs: Runs) -> Runs:
        return [values[rng.integers(len(values), size=len(values))] for values in runs]

    resampled = [statistic(*map(drawn, samples)) for _ in range(RESAMPLES)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Aggregate(statistic(*samples), (float(low), float(high)))
