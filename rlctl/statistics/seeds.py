"""Shares over seeds: a seed is the unit of repetition, the windows of one run are not independent."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rlctl.statistics.intervals import Estimate, student_t, wilson

__all__ = ["share_over_seeds"]


def share_over_seeds(percent: NDArray[np.float64], windows_per_seed: int) -> Estimate:
    """A share of windows with Wilson's interval at the effective number of windows.

    Windows of a run depend on one another and seeds differ, so the effective number is that which explains the spread
    between seeds, p (1 - p) / var, and never more than there were windows. As Korn and Graubard (1998) do for
    surveys, it is scaled by the squared ratio of the t quantiles of windows and of seeds. The interval stays within
    [0, 100], and no miss in n windows still leaves doubt.

    Args:
        percent: Share per seed in percent, shape (seeds,).
        windows_per_seed: Windows that each share is of.

    Raises:
        ValueError: No value, or no window.
    """
    if not len(percent) or windows_per_seed < 1:
        raise ValueError("a share of no windows")
    share = float(np.mean(percent)) / 100.0
    intervals = [wilson(share, _effective(percent, windows_per_seed, c), c) for c in (0.95, 0.99)]
    return Estimate(100.0 * share, intervals[0], intervals[1])


def _effective(percent: NDArray[np.float64], windows_per_seed: int, confidence: float) -> float:
    """The effective number of windows at this confidence."""
    seeds, total = len(percent), float(len(percent) * windows_per_seed)
    if seeds == 1:
        return float(windows_per_seed)  # nothing is known of the spread between seeds
    share = float(np.mean(percent)) / 100.0
    variance = float(np.var(percent, ddof=1)) / 1e4 / seeds
    if variance <= share * (1.0 - share) / total:
        return total
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return min(total, share * (1.0 - share) / variance * (z / student_t(confidence, seeds - 1)) ** 2)
