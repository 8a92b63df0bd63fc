"""A learned policy held to what its host has taught: it neither tries again what missed, nor gives less than held.

A network that was trained on other hosts takes this one for one of those. What it asks for is therefore cut to what is
known here of a load that is higher by AHEAD_RATIO: at most the highest level that nothing speaks against there, and,
while latency is well, at least what held there. Where nothing is known the network alone decides, and so explores.
"""

from __future__ import annotations

import numpy as np

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits, moved
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.evidence import levels_of
from rlctl.envs.experience import AHEAD_RATIO, HOLD_RATIO, Experience


def narrowed(
    mask: Flags, current: Allocations, limits: Limits | VectorLimits, experience: Experience, load: Array, ratio: Array
) -> Flags:
    """The moves of a mask that experience leaves; never none where the mask has some.

    Args:
        mask: Moves that may be taken, shape (n, len(MOVES)).
        load: Share of the LC's maximum on each host, NaN where it is missing: there the mask stays as it is.
        ratio: Latency by the target; NaN likewise.
    """
    result = moved(current, limits)
    share = np.minimum(result.quota_cpus, result.cpuset_cpus) / limits.cpus
    level = np.where(result.frozen, -1, levels_of(share)).T
    there = ~np.isnan(load) & ~np.isnan(ratio)
    known = experience.evidence.known(AHEAD_RATIO * np.where(there, load, 0.0)[:, None])

    # The minimum may run whatever missed: a miss beside it is the LC's own. And where all moves of the mask are above
    # what is bearable, the lowest of them are the best there is.
    lowest = np.where(mask, level, np.iinfo(level.dtype).max).min(axis=1)
    least = np.maximum(lowest, levels_of(limits.min_quota_cpus / np.asarray(limits.cpus, np.float64)))
    left = mask & (level <= np.maximum(known.bearable[:, 0], least)[:, None])
    # A rise takes several ticks, so the floor is what can be reached in this one.
    highest = np.where(left, level, -1).max(axis=1)
    floor = np.where(ratio <= HOLD_RATIO, np.minimum(known.level[:, 0], highest), -1)
    left &= level >= floor[:, None]
    narrow: Flags = np.where(there[:, None], left, mask)
    return narrow
