"""The actions of learned policies, and what each asks for on a given host.

Canonical is a small `Discrete` table of moves relative to the current allocation, because DQN-type learners take
nothing else; the `MultiDiscrete` variant names quota level, cpuset size and freeze outright. Heuristic managers
answer with an `Allocation`. `decode` turns all three into an Allocation; it never consults the shield.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError

__all__ = ["MOVES", "Action", "Move", "decode", "discrete_space", "multi_discrete_space"]

Action = int | np.integer | Sequence[int] | np.ndarray | Allocation


@dataclass(frozen=True, slots=True)
class Move:
    """One row of the discrete action table.

    Attributes:
        name: Stable name; bundles record the table by these.
        of: Maps the current allocation to the proposed one.
    """

    name: str
    of: Callable[[Allocation, Limits], Allocation]


def _quota(levels: int) -> Callable[[Allocation, Limits], Allocation]:
    def move(current: Allocation, limits: Limits) -> Allocation:
        return current.but(quota_cpus=limits.quota_at(limits.level_of(current.quota_cpus) + levels))

    return move


def _cpuset(cpus: int) -> Callable[[Allocation, Limits], Allocation]:
    def move(current: Allocation, limits: Limits) -> Allocation:
        return current.but(cpuset_cpus=min(max(current.cpuset_cpus + cpus, 1), limits.cpus))

    return move


MOVES: tuple[Move, ...] = (
    Move("keep", lambda current, limits: current),
    Move("quota-1", _quota(-1)),
    Move("quota-2", _quota(-2)),
    Move("quota+1", _quota(+1)),
    Move("quota+2", _quota(+2)),
    Move("quota-floor", lambda current, limits: current.but(quota_cpus=limits.min_quota_cpus)),
    Move("cpuset-1", _cpuset(-1)),
    Move("cpuset+1", _cpuset(+1)),
    Move("freeze", lambda current, limits: current.but(frozen=True)),
    Move("thaw", lambda current, limits: current.but(frozen=False)),
)
"""The discrete action table, in the order of its indices; a change of order or meaning is a new version."""


def discrete_space() -> spaces.Discrete:
    """The canonical action space: an index into MOVES."""
    return spaces.Discrete(len(MOVES))


def multi_discrete_space(limits: Limits) -> spaces.MultiDiscrete:
    """(quota level 0..levels, cpuset size minus one, frozen 0/1), shape (3,)."""
    return spaces.MultiDiscrete([limits.levels + 1, limits.cpus, 2])


def decode(action: Action, current: Allocation, limits: Limits) -> Allocation:
    """What an action asks for.

    Args:
        action: Index into MOVES, a (level, cpuset - 1, frozen) triple, or an Allocation.
        current: The allocation in force.
        limits: This host's range.

    Returns:
        An allocation that this host has.

    Raises:
        PolicyError: An index or a component out of range, or a type that is no action.
    """
    if isinstance(action, Allocation):
        return limits.clip(action)
    if isinstance(action, (int, np.integer)) and not isinstance(action, bool):
        return _decode_index(int(action), current, limits)
    array = np.asarray(action)
    if array.ndim == 0 and np.issubdtype(array.dtype, np.integer):
        return _decode_index(int(array), current, limits)
    if array.shape == (3,) and np.issubdtype(array.dtype, np.integer):
        return _decode_triple(array, limits)
    raise PolicyError(f"{action!r} is no action: an index below {len(MOVES)}, three integers, or an Allocation")


def _decode_index(index: int, current: Allocation, limits: Limits) -> Allocation:
    if not 0 <= index < len(MOVES):
        raise PolicyError(f"action {index} is outside the table of {len(MOVES)} moves")
    return MOVES[index].of(current, limits)


def _decode_triple(triple: np.ndarray, limits: Limits) -> Allocation:
    level, cpus, frozen = (int(part) for part in triple)
    if not (0 <= level <= limits.levels and 0 <= cpus < limits.cpus and frozen in (0, 1)):
        raise PolicyError(f"action ({level}, {cpus}, {frozen}) is outside {limits.levels} levels, {limits.cpus} CPUs")
    return Allocation(limits.quota_at(level), cpus + 1, bool(frozen))
