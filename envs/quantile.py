"""The one estimator of a quantile of finitely many latencies; sources, testbed and simulator share it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def quantile(values: Sequence[float] | NDArray[np.float64], q: float) -> float:
    """The higher order statistic: the value at rank ceil(q (n - 1)) of the sorted sample, rank 0 being the smallest.

    It is always a latency that some request really had, never an average of two; with few samples it errs towards
    the worse one, which is the safe side of an SLO. Same as `numpy.quantile(..., method="higher")`.

    Args:
        values: Latencies in seconds, in any order, finite, shape (n,) with n >= 1.
        q: Which quantile, in [0, 1].

    Raises:
        ValueError: No values, or q outside [0, 1].
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0 or not 0.0 <= q <= 1.0:
        raise ValueError(f"no quantile {q!r} of {sample.size} values")
    rank = _rank(sample.size, q)
    return float(np.partition(sample, rank)[rank])


def weighted_quantile(
    values: Sequence[float] | NDArray[np.float64], weights: Sequence[int] | NDArray[np.int64], q: float
) -> float:
    """As `quantile` of a sample in which each value stands as many times as its weight says; that sample is not made.

    Args:
        values: Latencies in seconds, in any order, infinite ones too, shape (n,).
        weights: How many requests each stands for, none of them negative, shape (n,); one of them is above 0.
        q: Which quantile, in [0, 1].

    Raises:
        ValueError: No weight above 0, or q outside [0, 1].
    """
    sample, counts = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.int64)
    total = int(counts.sum())
    if total < 1 or not 0.0 <= q <= 1.0:
        raise ValueError(f"no quantile {q!r} of {total} values")
    order = np.argsort(sample)
    ends = np.cumsum(counts[order])  # the ranks of a value are those below its end, from the end before it on
    return float(sample[order[np.searchsorted(ends, _rank(total, q), side="right")]])


def _rank(count: int, q: float) -> int:
    return math.ceil(q * (count - 1) - 1e-9)  # 0.95 * 20 must not become rank 20 by rounding
