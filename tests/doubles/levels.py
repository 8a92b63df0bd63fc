"""The level of one allocation, for tests that look at one host."""

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.allocations import Allocations
from rlctl.envs.experience import levels_reached


def level_of(allocation: Allocation, limits: Limits) -> int:
    """The level that an allocation has reached; -1 where BE is frozen."""
    return int(levels_reached(Allocations.same(allocation, 1), limits)[0])
