"""The arrays that the floors hand one another; their shapes stand where they are made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def gaps_filled(values: Array) -> Array:
    """Values in which each NaN is the last number before it, or the first of all; at least one must be known."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    filled: Array = np.where(np.isfinite(values[last]), values[last], values[known][0])
    return filled
