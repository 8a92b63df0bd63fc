"""QoS first, then BE throughput, as one number: what the schedulers of a search compare trials by while they run.

A trial's shortfall, the points of QoS that it lacks summed over the courses, is counted in whole steps of
RESOLUTION_POINTS, rounded up: nothing short is step 0, anything short at least step 1. BE takes what lies between two
steps, so no BE throughput makes up for a step, and within one step more BE is better. Equal steps and equal BE are a
tie. Nothing needs a cap: a shortfall is 100 points a course at most.

The step is what managers and policies are allowed to fall short by. Finer ones would have chance decide: a window is
0.01 points of a course on 16 seeds of 600 s. Only the order of these numbers means anything; they choose who goes on,
not who wins (`rlctl.training.search_choice`).
"""

from __future__ import annotations

import math

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS

RESOLUTION_POINTS = ALLOWANCE_POINTS

DIGITS = 6
"""Of a shortfall by the resolution: what is left of a difference of floats is not a step."""

MOST_BE_PERCENT = 100.0


def steps(shortfall_points: float) -> int:
    """A shortfall in whole steps; 0 only where nothing is short.

    Args:
        shortfall_points: Points of QoS, not negative, summed over the courses.
    """
    return math.ceil(round(shortfall_points / RESOLUTION_POINTS, DIGITS))


def score(shortfall_points: float, be_percent: float) -> float:
    """The larger is the better: the steps, negative, and BE as a share of one.

    Args:
        be_percent: BE work by BE running alone, mean over the courses.
    """
    return min(max(be_percent, 0.0), MOST_BE_PERCENT) / (MOST_BE_PERCENT + 1.0) - steps(shortfall_points)
