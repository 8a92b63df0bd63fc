"""What the log alone can tell of a shadow: shares, and BE's gain.

Ticks are autocorrelated: what held in one tick mostly holds in the next. So no interval here counts ticks. The log is
cut into blocks, longer than what guards and managers remember, and the intervals come from the spread between blocks:
Student's t over blocks for means, Wilson's interval at the effective number of ticks for shares. Beyond that, ticks
within `APART_SECONDS` never count as more than one, so that a share of 0 or 100 % has an honest interval too. All of it
holds for loads that the log has seen, and says nothing of others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.bench.intervals import Estimate, clustered_share, student_t
from rlctl.envs.arrays import Array
from rlctl.report.shadow_columns import Columns, ShadowColumns

BLOCK_SECONDS = 300.0
"""The longest cool-down that ships (Heracles, Hybrid PRM as published)."""

APART_SECONDS = 10.0

BOUND_RATIO = 0.9
"""BE that uses more of what it may is taken to have been held by the quota: it would have used more."""

Blocks = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Gain:
    """CPU time that BE would have used more under a shadow.

    Attributes:
        points: Mean use under the shadow less that under the acting policy, in points of BE's CPUs.
        assumed_percent: Share of the ticks in which it rests on an assumption about BE's demand.
    """

    points: Estimate
    assumed_percent: float
    ticks: int


def blocks_of(columns: Columns) -> Blocks:
    """Number of each tick's block, shape (ticks,)."""
    long = max(round(BLOCK_SECONDS / columns.subject.tick_seconds), 1)
    return np.arange(columns.ticks) // long


def mean_over_blocks(values: Array, blocks: Blocks, low: float = -math.inf) -> Estimate:
    """Mean of a column (NaN where a tick has no value) with Student's t over blocks, not below `low`.

    With fewer than two blocks the interval is endless.
    """
    mean, error, number = _spread(values, blocks)
    if number < 2:
        return Estimate(mean, (-math.inf, math.inf), (-math.inf, math.inf))
    ends = [student_t(confidence, number - 1) * error for confidence in (0.95, 0.99)]
    intervals = [(max(mean - end, low), mean + end) for end in ends]
    return Estimate(mean, intervals[0], intervals[1])


def share_over_blocks(values: Array, blocks: Blocks, apart: float) -> Estimate:
    """Share of a column of 0 and 1 in percent, with Wilson's interval at the effective number of ticks.

    Of `apart` ticks in a row at most one counts; NaN stands where a tick has no value.
    """
    share, error, number = _spread(values, blocks)
    most = max(float(np.isfinite(values).sum()) / max(apart, 1.0), 1.0)
    return clustered_share(share, error**2, number, most, least=1.0)


def be_gain(columns: Columns, shadow: ShadowColumns) -> Gain | None:
    """What BE would have used more than it did, tick by tick, each taken by itself; None when nothing can be said.

    A tick's allocation holds for the period that the next tick describes. There BE used `used` of the `had` CPUs that
    it could use, and could have used `got` under the shadow:

    - It was not held by the quota (`used` below `BOUND_RATIO` of `had`): it would have used as much, up to `got`.
    - It was, and `got` is less: what it used of `had`, in proportion. Nothing is assumed in either case.
    - It was, and `got` is more; or it was frozen and would not have been: as much of `got` as it used of `had`, or
      as it mostly uses of what it has. That BE would have taken the rest is an assumption; its share is told.

    The shield allowed the shadow no more than one step beyond what was in force. So a shadow that would give BE ever
    more is credited with one step only, while one that would take it all away is charged with all of it: the
    estimate is a cautious one.
    """
    after = np.flatnonzero(columns.follows[1:]) + 1
    used, had = columns.be_cpus[after], columns.applied_cpus[after - 1]
    got, known = shadow.got_cpus[after - 1], np.isfinite(columns.be_cpus[after])
    if not known.any():
        return None
    after, used, had, got = after[known], used[known], had[known], got[known]
    running = had > 0.0
    held = running & (used >= BOUND_RATIO * had)
    mostly = min(float(used[running].sum() / had[running].sum()), 1.0) if running.any() else 1.0
    taken = np.where(held, np.minimum(used / np.where(running, had, 1.0), 1.0), mostly)
    would = np.where(running & ~held, np.minimum(used, got), taken * got)
    now = np.where(held, taken * had, np.minimum(used, had))
    points = 100.0 * (would - now) / columns.subject.limits.cpus
    assumed = (held & (got > had)) | (~running & (got > 0.0))
    estimate = mean_over_blocks(points, blocks_of(columns)[after])
    return Gain(estimate, 100.0 * float(assumed.mean()), len(points))


def _spread(values: Array, blocks: Blocks) -> tuple[float, float, int]:
    """Mean, its standard error by the spread between blocks, and the number of blocks that have values.

    The mean is a ratio of sums, for blocks may have different numbers of values; its variance is that of the sums'
    residuals (as for clusters in a survey).
    """
    known = np.isfinite(values)
    if not known.any():
        raise ValueError("a mean of no values")
    counts = np.bincount(blocks[known])
    sums = np.bincount(blocks[known], weights=values[known])
    mean = float(values[known].mean())
    number = int((counts > 0).sum())
    if number < 2:
        return mean, math.inf, number
    residuals = sums - mean * counts
    variance = number / (number - 1) * float((residuals**2).sum()) / float(known.sum()) ** 2
    return mean, math.sqrt(variance), number
