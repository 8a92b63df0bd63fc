"""Differences and ratios of two samples on common random numbers: what differs is the manager, the seeds are the same.

Every seed gives both managers the same load and noise, so their difference varies less than either of them. Each
interval holds for its own comparison; with 40 of them two are expected to miss the truth at 95 %. Nothing here corrects
for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.statistics.bootstrap import RESAMPLES, bca_interval, expanded_z, resample_weights
from rlctl.statistics.intervals import mean_interval

__all__ = [
    "Difference",
    "Ratio",
    "paired_difference",
    "ratio_of_means",
]

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of the per-seed differences, in the metric's unit.

    Attributes:
        mean: One manager less the other.
        t95: Student's t interval, 95 %.
        bootstrap95: BCa bootstrap interval, 95 %, expanded for few seeds. Both are too narrow where
            differences are much skewed, as they are near 100 % QoS.
        seeds: How many.
    """

    mean: float
    t95: Interval
    bootstrap95: Interval
    seeds: int

    @property
    def is_clear(self) -> bool:
        """True when both intervals leave out zero."""
        return all(low > 0.0 or high < 0.0 for low, high in (self.t95, self.bootstrap95))

    def as_json(self) -> dict[str, object]:
        """Means and bounds by name; an endless bound (a single seed) is null."""
        return {"mean": round(self.mean, 6), "t95": _bounds(self.t95), "bootstrap95": _bounds(self.bootstrap95)}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Mean of one manager by the mean of the other, with its bootstrap interval.

    Attributes:
        ratio: The quotient; NaN when the other's mean is zero.
        bootstrap95: BCa bootstrap interval, 95 %, seeds drawn in pairs.
    """

    ratio: float
    bootstrap95: Interval

    def as_json(self) -> dict[str, object]:
        """By name; what is not a number is null."""
        ratio = round(self.ratio, 6) if math.isfinite(self.ratio) else None
        return {"ratio": ratio, "bootstrap95": _bounds(self.bootstrap95)}


def paired_difference(one: NDArray[np.float64], other: NDArray[np.float64], seed: int = 0) -> Difference:
    """Mean of `one - other` over seeds with its intervals; a single seed has endless ones.

    Args:
        one: Values of a manager, shape (seeds,).
        other: Values of the other on the same seeds in the same order.
        seed: Of the bootstrap.

    Raises:
        ValueError: Of different length, or empty.
    """
    _check(one, other)
    differences = np.asarray(one, float) - np.asarray(other, float)
    estimate = mean_interval(differences)
    number = len(differences)
    if number == 1:
        return Difference(estimate.mean, estimate.ci95, (-math.inf, math.inf), 1)
    samples = resample_weights(number, seed, RESAMPLES) @ differences
    left_out = (differences.sum() - differences) / (number - 1)
    bootstrap = bca_interval(estimate.mean, samples, left_out, expanded_z(number))
    return Difference(estimate.mean, estimate.ci95, bootstrap, number)


def ratio_of_means(one: NDArray[np.float64], other: NDArray[np.float64], seed: int = 0) -> Ratio:
    """Mean of `one` by mean of `other`, both positive, with a paired bootstrap interval.

    Bootstrap samples whose denominator is zero count as infinitely large ones.

    Args:
        one: Values of a manager, shape (seeds,), not negative.
        other: Values of the other on the same seeds in the same order, not negative.
        seed: Of the bootstrap.

    Raises:
        ValueError: Of different length, or empty.
    """
    _check(one, other)
    number = len(one)
    if not np.mean(other) > 0.0:
        return Ratio(math.nan, (-math.inf, math.inf))
    ratio = float(np.mean(one) / np.mean(other))
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = (np.sum(one) - one) / (np.sum(other) - other)
        weights = resample_weights(number, seed, RESAMPLES)
        samples = np.nan_to_num((weights @ one) / (weights @ other), nan=np.inf, posinf=np.inf)
    if number == 1 or not np.isfinite(left_out).all() or not np.isfinite(samples).all():
        return Ratio(ratio, (0.0, math.inf))
    return Ratio(ratio, bca_interval(ratio, samples, left_out, expanded_z(number)))


def _check(one: NDArray[np.float64], other: NDArray[np.float64]) -> None:
    if one.shape != other.shape or one.ndim != 1 or not len(one):
        raise ValueError(f"paired values need one length, got {one.shape} and {other.shape}")


def _bounds(interval: Interval) -> list[float | None]:
    return [round(bound, 6) if math.isfinite(bound) else None for bound in interval]
