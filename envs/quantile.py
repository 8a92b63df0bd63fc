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
    rank = math.ceil(q * (sample.size - 1) - 1e-9)  # 0.95 * 20 must not become rank 20 by rounding
    return float(np.partition(sample, rank)[rank])
