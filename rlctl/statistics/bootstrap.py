"""The bootstrap over seeds: a seed is the unit of repetition, the windows of one run are not independent."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rlctl.statistics.intervals import student_t

__all__ = ["RESAMPLES", "bca_interval", "expanded_z", "resample_weights"]

RESAMPLES = 10_000
"""Bootstrap samples: the ends of a 95 % interval then rest on 250 samples each."""

_NORMAL = NormalDist()


@functools.lru_cache(maxsize=8)
def resample_weights(seeds: int, seed: int = 0, resamples: int = RESAMPLES) -> NDArray[np.float64]:
    """How often each seed is drawn in each bootstrap sample, divided by their number; shape (resamples, seeds).

    A row times the values is the mean of one bootstrap sample. The same rows serve every comparison.
    """
    rng = np.random.default_rng(seed)
    weights: NDArray[np.float64] = rng.multinomial(seeds, np.full(seeds, 1.0 / seeds), size=resamples) / seeds
    weights.setflags(write=False)
    return weights


@functools.lru_cache(maxsize=64)
def expanded_z(seeds: int, confidence: float = 0.95) -> float:
    """Normal quantile that makes a bootstrap interval of the mean as wide as Student's (Hesterberg 2015).

    The bootstrap divides by n where the variance wants n - 1, and knows no t: at 30 seeds plain intervals are 6 % too
    narrow.

    Args:
        seeds: At least 2.
        confidence: Share of the intervals that cover the truth, in (0, 1).
    """
    return math.sqrt(seeds / (seeds - 1)) * student_t(confidence, seeds - 1)


def bca_interval(
    estimate: float, samples: NDArray[np.float64], left_out: NDArray[np.float64], z: float
) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval (Efron 1987).

    Args:
        estimate: The statistic of all seeds.
        samples: The statistic of each bootstrap sample, shape (resamples,).
        left_out: The statistic with one seed left out, shape (seeds,).
        z: Normal quantile of the interval's upper end: 1.96 for the plain one, `expanded_z` for few seeds.
    """
    below = float(np.mean(samples < estimate) + 0.5 * np.mean(samples == estimate))
    edge = 0.5 / len(samples)
    bias = _NORMAL.inv_cdf(min(max(below, edge), 1.0 - edge))
    away = np.mean(left_out) - left_out
    spread = float(np.sum(away**2)) ** 1.5
    acceleration = float(np.sum(away**3)) / (6.0 * spread) if spread > 0.0 else 0.0

    def level(end: float) -> float:
        shifted = bias + end
        return _NORMAL.cdf(bias + shifted / max(1.0 - acceleration * shifted, 1e-9))

    low, high = np.quantile(samples, [level(-z), level(z)])
    return float(low), float(high)
