"""The level of one allocation, for tests that look at one host."""

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.experience import level_in_force


def level_of(allocation: Allocation, limits: Limits) -> int:
    """The level that an allocation has reached; -1 where BE is frozen."""
    return level_in_force(*allocation.numbers, limits.cpus)[1]
