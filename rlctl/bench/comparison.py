"""Differences and ratios of two samples on common random numbers: what differs is the manager, the seeds are the same.

Every seed gives both managers the same load and noise, so their difference varies less than either of them. Intervals
are bootstrapped over seeds: a seed is the unit of repetition, the windows of one run are not independent. Each interval
holds for its own comparison; with 40 of them two are expected to miss the truth at 95 %. What is claimed of several is
therefore corrected: see `correct`.

`aggregate` and `improvement` put all scenarios and seeds in one number. The formulas are those of rliable (Agarwal et
al. 2021), whose package is archived and brings four libraries. Intervals are percentiles of a bootstrap that draws
seeds anew within each scenario.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rlctl.bench.intervals import finite_bounds, mean_interval, student_t, t_mass
from rlctl.bench.score import SimOutcome
from rlctl.envs.arrays import Array

RESAMPLES = 10_000
"""Bootstrap samples: the ends of a 95 % interval then rest on 250 samples each."""

ROUNDED = 2e-4
"""Differences of percentages, each rounded to four decimals, may be so far apart and be one."""

Interval = tuple[float, float]
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of the per-seed differences, in the metric's unit: one manager less the other.

    Attributes:
        t95: Student's t interval, 95 %.
        bootstrap95: BCa bootstrap interval, 95 %, expanded for few seeds. Both are too narrow where
            differences are much skewed, as they are near 100 % QoS.
        p: Of Student's paired test; among several comparisons as `correct` leaves it.
    """

    mean: float
    t95: Interval
    bootstrap95: Interval
    seeds: int
    p: float

    @property
    def is_clear(self) -> bool:
        """True when both intervals leave out zero, and p is below 0.05 after the correction."""
        return self.p < 0.05 and all(low > 0.0 or high < 0.0 for low, high in (self.t95, self.bootstrap95))

    def as_json(self) -> dict[str, object]:
        """Means and bounds by name; an endless bound (a single seed) is null."""
        bounds = {"t95": finite_bounds(self.t95, 6), "bootstrap95": finite_bounds(self.bootstrap95, 6)}
        return {"mean": round(self.mean, 6), **bounds, "p": round(self.p, 6)}


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """A number with its bootstrap interval, 95 %, endless for a single seed; NaN where there is no number."""

    value: float
    bootstrap95: Interval


def paired_difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> Difference:
    """Mean of `one - other` on the same seeds, with intervals, endless for a single one; ValueError: no pairs."""
    _check_pairs(one, other)
    differences = np.asarray(one, float) - np.asarray(other, float)
    estimate = mean_interval(differences)
    number = len(differences)
    if number == 1:
        return Difference(estimate.mean, estimate.ci95, (-math.inf, math.inf), 1, 1.0)
    samples = resample_weights(number, RESAMPLES) @ differences
    left_out = (differences.sum() - differences) / (number - 1)
    bootstrap = bca_interval(estimate.mean, samples, left_out, expanded_z(number))
    # The same difference each time, but for how it was rounded, says no more than its sign does.
    if np.ptp(differences) <= ROUNDED:
        p = 2.0 ** (1 - number) if abs(estimate.mean) > ROUNDED else 1.0
    else:
        error = float(differences.std(ddof=1)) / math.sqrt(number)
        p = 1.0 - t_mass(abs(estimate.mean) / error, number - 1)
    return Difference(estimate.mean, estimate.ci95, bootstrap, number, max(p, 0.0))


def ratio_of_means(one: NDArray[np.float64], other: NDArray[np.float64]) -> Bootstrapped:
    """Mean of `one` by mean of `other`, none negative, with a paired bootstrap interval; arguments as above.

    Bootstrap samples whose denominator is zero count as infinitely large ones.

    Raises:
        ValueError: Of different length, or empty.
    """
    _check_pairs(one, other)
    number = len(one)
    if not np.mean(other) > 0.0:
        return Bootstrapped(math.nan, (-math.inf, math.inf))
    ratio = float(np.mean(one) / np.mean(other))
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = (np.sum(one) - one) / (np.sum(other) - other)
        weights = resample_weights(number, RESAMPLES)
        samples = np.nan_to_num((weights @ one) / (weights @ other), nan=np.inf, posinf=np.inf)
    if number == 1 or not np.isfinite(left_out).all() or not np.isfinite(samples).all():
        return Bootstrapped(ratio, (0.0, math.inf))
    return Bootstrapped(ratio, bca_interval(ratio, samples, left_out, expanded_z(number)))


def _check_pairs(one: NDArray[np.float64], other: NDArray[np.float64]) -> None:
    if one.shape != other.shape or one.ndim != 1 or not len(one):
        raise ValueError(f"paired values need one length, got {one.shape} and {other.shape}")


@functools.lru_cache(maxsize=8)
def resample_weights(seeds: int, resamples: int) -> NDArray[np.float64]:
    """How often each seed is drawn in each bootstrap sample, divided by their number; shape (resamples, seeds).

    A row times the values is the mean of one bootstrap sample. The same rows serve every comparison.
    """
    rng = np.random.default_rng(0)
    weights: NDArray[np.float64] = rng.multinomial(seeds, np.full(seeds, 1.0 / seeds), size=resamples) / seeds
    weights.setflags(write=False)
    return weights


@functools.lru_cache(maxsize=64)
def expanded_z(seeds: int) -> float:
    """Normal quantile that makes a bootstrap interval of the mean as wide as Student's, for 2 seeds or more.

    The bootstrap divides by n where the variance wants n - 1, and knows no t: at 30 seeds plain intervals are 6 % too
    narrow (Hesterberg 2015).
    """
    return math.sqrt(seeds / (seeds - 1)) * student_t(0.95, seeds - 1)


def bca_interval(
    estimate: float, samples: NDArray[np.float64], left_out: NDArray[np.float64], z: float
) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval (Efron 1987).

    Args:
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


LEAST_BE_PERCENT = 0.5
"""Less BE throughput than this is next to none, and a multiple of it means nothing."""

COMPARED = ("qos_guarantee_percent", "qos_15s_percent", "be_throughput_percent")
"""Metrics that comparisons are about."""

BASELINES = ("prm-hybrid-tuned", "frozen")
"""Managers that others are compared with by default: the thesis' best, and the most QoS that the LC can have."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One manager against the baseline.

    Attributes:
        differences: Of each of COMPARED that was measured, by its name, in percentage points.
        be_ratio: BE throughput as a multiple of the baseline's; NaN where that is below `LEAST_BE_PERCENT`.
    """

    manager: str
    differences: Mapping[str, Difference]
    be_ratio: Bootstrapped

    def as_json(self) -> dict[str, object]:
        """All differences by the metrics' names."""
        each = {metric: difference.as_json() for metric, difference in self.differences.items()}
        ratio, bounds = self.be_ratio.value, finite_bounds(self.be_ratio.bootstrap95, 6)
        plain = {"ratio": round(ratio, 6) if math.isfinite(ratio) else None, "bootstrap95": bounds}
        return {**each, "be_throughput_ratio": plain}


def compare(result: SimOutcome, baseline: str) -> tuple[Comparison, ...]:
    """Every other manager against the baseline, in the result's order; KeyError: the baseline was not measured."""
    base = result.managers[baseline]
    return correct([compare_runs(name, runs, base) for name, runs in result.managers.items() if name != baseline])


def compare_runs(name: str, runs: Mapping[str, Array], base: Mapping[str, Array]) -> Comparison:
    """One manager's metrics less others on the same seeds, not corrected; each has a value per seed."""
    differences = {metric: paired_difference(runs[metric], base[metric]) for metric in COMPARED if metric in runs}
    be, base_be = runs[COMPARED[-1]], base[COMPARED[-1]]
    none = Bootstrapped(math.nan, (-math.inf, math.inf))
    return Comparison(name, differences, none if np.mean(base_be) < LEAST_BE_PERCENT else ratio_of_means(be, base_be))


def correct(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The same with p of all their differences corrected for their number."""
    ps = iter(holm([difference.p for one in comparisons for difference in one.differences.values()]))
    return tuple(
        replace(one, differences={metric: replace(each, p=next(ps)) for metric, each in one.differences.items()})
        for one in comparisons
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Values of p that may be read together (Holm 1979): the smallest times their number, the next times one less.

    None is below a smaller one's, nor above 1.
    """
    order = np.argsort(ps, kind="stable")
    scaled = np.asarray(ps, float)[order] * np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()


def present_baselines(result: SimOutcome, against: str = "") -> tuple[str, ...]:
    """The baseline asked for, or the default ones that were measured and have somebody to be compared with."""
    wanted = (against,) if against else BASELINES
    return tuple(name for name in wanted if name in result.managers and len(result.managers) > 1)


DRAWS = 1000
"""Bootstrap samples of an aggregate."""

Runs = Sequence[NDArray[np.float64]]
"""A metric scenario by scenario, each of shape (seeds,)."""


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


def aggregate(results: Sequence[SimOutcome], manager: str, metric: str) -> Bootstrapped:
    """A manager's interquartile mean of a metric."""
    return _with_interval(interquartile_mean, [one.managers[manager][metric] for one in results])


def improvement(results: Sequence[SimOutcome], manager: str, baseline: str, metric: str) -> Bootstrapped:
    """Probability that a run of a manager has more of a metric than one of the baseline."""
    ours, theirs = ([one.managers[name][metric] for one in results] for name in (manager, baseline))
    return _with_interval(improvement_share, ours, theirs)


def _with_interval(statistic: Callable[..., float], *samples: Runs) -> Bootstrapped:
    """The statistic of one or two managers' runs; the seeds of each are drawn by themselves."""
    rng = np.random.default_rng(0)
    if any(len(values) < 2 for runs in samples for values in runs):
        return Bootstrapped(statistic(*samples), (-math.inf, math.inf))

    def drawn(runs: Runs) -> Runs:
        return [values[rng.integers(len(values), size=len(values))] for values in runs]

    resampled = [statistic(*map(drawn, samples)) for _ in range(DRAWS)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Bootstrapped(statistic(*samples), (float(low), float(high)))
