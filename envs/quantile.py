"""The quantile of latencies of which each stands for several requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def weighted_quantile(
    values: Sequence[float] | NDArray[np.float64], weights: Sequence[int] | NDArray[np.int64], q: float
) -> float:
    """The value at rank ceil(q (n - 1)), 0 the smallest, of the n that there are if each stands as often as it weighs.

    It equals `numpy.quantile(..., method="higher")` of that sample, which is not made. It is always a latency that some
    request really had, never an average of two. Of few it is the worse one, the safe side of an SLO.

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
    rank = math.ceil(q * (total - 1) - 1e-9)  # 0.95 * 20 must not become rank 20 by rounding
    return float(sample[order[np.searchsorted(ends, rank, side="right")]])
