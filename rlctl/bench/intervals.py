"""Means with intervals: Wilson for shares of windows, Student's t for the rest. numpy is all it takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % and 99 % confidence intervals, in the unit of the samples."""

    mean: float
    ci95: tuple[float, float]
    ci99: tuple[float, float]

    @property
    def half95(self) -> float:
        """Half-width of the 95 % interval; infinite for a single sample."""
        return self.ci95[1] - self.mean

    def as_json(self) -> dict[str, float | list[float | None]]:
        """As in the JSON of `rlctl bench`; an infinite bound (a single repeat) is null."""
        return {
            "mean": round(self.mean, 4),
            "ci95": finite_bounds(self.ci95, 4),
            "ci99": finite_bounds(self.ci99, 4),
        }


def finite_bounds(interval: tuple[float, float], decimals: int) -> list[float | None]:
    """Both ends of an interval for JSON, rounded; null where one is infinite."""
    return [round(bound, decimals) if math.isfinite(bound) else None for bound in interval]


def span(interval: tuple[float, float], form: str, endless: str, between: str = " to ") -> str:
    """`LOW to HIGH`, each in this format; `endless` where there is no such end."""
    low, high = interval
    return f"{low:{form}}{between}{high:{form}}" if math.isfinite(low) and math.isfinite(high) else endless


def share_interval(hits: int, total: int) -> Estimate:
    """Share of windows that hit, in percent, with Wilson intervals: they stay within [0, 100] and never have width 0.

    Windows of one run are not independent (a queue has memory), so the interval is a lower bound on the doubt.

    Raises:
        ValueError: No window at all.
    """
    if total < 1:
        raise ValueError("a share of no windows")
    share = hits / total
    return Estimate(100.0 * share, wilson(share, total, 0.95), wilson(share, total, 0.99))


def share_over_seeds(percent: NDArray[np.float64], windows_per_seed: int) -> Estimate:
    """A share of windows with Wilson's interval at the effective number of windows; shares have shape (seeds,).

    Windows of a run depend on one another and seeds differ. So the effective number is that which explains the spread
    between seeds, p (1 - p) / var, and never more than there were windows. As Korn and Graubard (1998) do for surveys,
    it is scaled by the squared ratio of the t quantiles of windows and of seeds. The interval stays within [0, 100],
    and no miss in n windows still leaves doubt.

    Raises:
        ValueError: No value, or no window.
    """
    if not len(percent) or windows_per_seed < 1:
        raise ValueError("a share of no windows")
    seeds, total = len(percent), float(len(percent) * windows_per_seed)
    share = float(np.mean(percent)) / 100.0
    variance = float(np.var(percent, ddof=1)) / 1e4 / seeds if seeds > 1 else 0.0
    return clustered_share(share, variance, seeds, total)


def clustered_share(share: float, variance: float, clusters: int, most: float, least: float = 0.0) -> Estimate:
    """A share in percent with Wilson's interval at the effective number of trials, which depend on one another.

    Args:
        variance: Of the share, by the spread between clusters: seeds, or blocks of ticks.
        most: The effective number if all trials were independent.
        least: Below it that number does not go.
    """
    if clusters < 2:  # one shows no spread: a share between 0 and 1 may be that of a single event
        most, variance = (1.0 if 0.0 < share < 1.0 else most), 0.0

    def effective(confidence: float) -> float:
        if variance <= share * (1.0 - share) / most:
            return most
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        fewer = share * (1.0 - share) / variance * (z / student_t(confidence, clusters - 1)) ** 2
        return max(min(most, fewer), least)

    ci95, ci99 = (wilson(share, effective(confidence), confidence) for confidence in (0.95, 0.99))
    return Estimate(100.0 * share, ci95, ci99)


def wilson(share: float, number: float, confidence: float) -> tuple[float, float]:
    """Wilson's interval in percent of a share in [0, 1]; it never leaves out the share itself.

    The number of independent trials need not be whole: it may be an effective one.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = share + z * z / (2 * number)
    half = z * math.sqrt(max(share * (1 - share), 0.0) / number + z * z / (4 * number * number))
    scale = 100.0 / (1 + z * z / number)
    low, high = max(0.0, (centre - half) * scale), min(100.0, (centre + half) * scale)
    return min(low, 100.0 * share), max(high, 100.0 * share)  # the last bit may be on the wrong side


def mean_interval(
    samples: Sequence[float] | NDArray[np.float64],
    low: float = -math.inf,
    high: float = math.inf,
    strata: Sequence[str] = (),
) -> Estimate:
    """Mean over repeats with Student's t intervals, clipped to [low, high]; one repeat has an infinite interval.

    Args:
        strata: Where each sample was taken, such as its host; empty is all in one place. What differs between them is
            no doubt about the mean over these: only the spread within counts, and each costs a degree of freedom.

    Raises:
        ValueError: No sample.
    """
    if len(samples) == 0:
        raise ValueError("a mean of no samples")
    values = np.asarray(samples, float)
    mean = float(values.mean())
    degrees = len(values) - max(len(set(strata)), 1)
    if degrees == 0:
        return Estimate(mean, (low, high), (low, high))
    middle = np.full(len(values), mean)
    if strata:
        _, place = np.unique(strata, return_inverse=True)
        middle = (np.bincount(place, values) / np.bincount(place))[place]
    squares = (values - middle) ** 2
    error = math.sqrt(float(squares.sum()) / degrees) / math.sqrt(len(values))
    halves = [student_t(confidence, degrees) * error for confidence in (0.95, 0.99)]
    ci95, ci99 = ((max(low, mean - half), min(high, mean + half)) for half in halves)
    return Estimate(mean, ci95, ci99)


@functools.cache
def student_t(confidence: float, degrees: int) -> float:
    """Two-sided Student's t quantile by bisection on the regularised incomplete beta function's integrand.

    scipy has it, but scipy is 100 MB for one number; the error is below 1e-4 for every degree of freedom.
    """
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_mass(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def t_mass(t: float, degrees: int) -> float:
    """P(|T| < t): with tan(theta) = t / sqrt(degrees) the density becomes a power of cos(theta)."""
    theta = np.linspace(0.0, math.atan(t / math.sqrt(degrees)), 2001)
    norm = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return 2.0 * norm * float(np.trapezoid(np.cos(theta) ** (degrees - 1), theta))
