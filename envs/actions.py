"""The actions of learned policies, and what each asks for on a given host.

A `Discrete` table of moves, most of them towards a quota, because DQN-type learners take nothing else. Heuristic
managers answer with an `Allocation`. `decode` turns both into an Allocation; it never consults the shield.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.law import law

if TYPE_CHECKING:
    from gymnasium import spaces

Action = int | np.integer | np.ndarray | Allocation

MOVES_VERSION = 3
"""Bumped on any change of order or meaning of MOVES; bundles name it."""


RISE_RATIO = 0.10
"""Most by which a move raises the quota in one tick, as a share of BE's CPUs. The shipped safety profiles allow this
growth, so the shield need not step in for a target far above."""

LEAP_RATIO = 0.50
"""The same of `leap`, and most by which that opens the cpuset: within what `measured` lets grow where all was well for
long. Elsewhere the shield masks it, or lets less of it through."""

NO_FRACTION = 2.0**52
"""Numbers from here on have no fraction."""

ALL_CPUS = 1 << 20
"""More than any host has: takes the cpuset to one CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One row of the discrete action table.

    A move towards a quota goes down at once and up by at most its rise a tick, and opens one CPU more, or its rise of
    them, where the cpuset could not hold the quota; all but those to the minimum thaw, too. A target, unlike a step,
    says the same whatever is in force: a policy's most likely choice is its answer, where the most likely of many small
    steps may be to stay for ever.

    Attributes:
        name: Stable name; bundles record the table by these.
        quota_ratio: Share of BE's CPUs that the quota moves towards; 0 is the minimum, None leaves it.
        frozen: What becomes of the freezer; None leaves it.
        rise_ratio: Most by which it raises the quota in a tick, as a share of BE's CPUs.
    """

    name: str
    quota_ratio: float | None = None
    cpuset_cpus: int = 0
    frozen: bool | None = None
    rise_ratio: float = RISE_RATIO

    def of(self, current: Allocation, limits: Limits) -> Allocation:
        """The allocation that the move asks for."""
        return Allocation(*_move(*self.numbers, *current.numbers, limits.cpus, limits.min_quota_cpus))

    @property
    def numbers(self) -> tuple[float, int, float, int]:
        """Its row of the tables that laws read; -1 for None."""
        ratio, frozen = self.quota_ratio, self.frozen
        return -1.0 if ratio is None else ratio, self.cpuset_cpus, self.rise_ratio, -1 if frozen is None else frozen


@law
def _move(
    quota_ratio: float, cpuset_step: int, rise_ratio: float, freezes: int,
    quota_cpus: float, cpuset_cpus: int, frozen: bool, cpus: int, min_quota_cpus: float,
) -> tuple[float, int, bool]:  # fmt: skip
    """What a move asks for where the numbers before the last two are in force."""
    cpuset_cpus = cpuset_cpus + cpuset_step
    if quota_ratio >= 0.0:
        highest = whole_nano(min(float(cpus), quota_cpus) + rise_ratio * cpus)
        quota_cpus = min(max(whole_nano(quota_ratio * cpus), min_quota_cpus), highest)
        if 0 < cpuset_cpus < quota_cpus:
            opens = max(1, math.floor(rise_ratio * cpus)) if rise_ratio > RISE_RATIO else 1
            cpuset_cpus = min(cpuset_cpus + opens, math.ceil(quota_cpus))
    return quota_cpus, min(max(cpuset_cpus, 1), cpus), frozen if freezes < 0 else freezes > 0


@law
def whole_nano(cpus: float) -> float:
    """To nano-CPUs, so that the same target is the same quota, to the last bit, on the way up and down."""
    # What is added and taken away again has no bits below 1: halves go to the even number, as `round` has them.
    return (cpus * 1e9 + NO_FRACTION - NO_FRACTION) / 1e9


TARGET_PERCENTS = (
    1, 1.2, 1.4, 1.7, 2, 2.4, 2.8, 3.4, 4, 4.7, 5.6, 6.7, 8, 9.5,
    11, 13, 15.5, 18, 21, 25, 30, 36, 43, 51, 60, 71, 84, 100,
)  # fmt: skip
"""Quotas that can be aimed at, as percent of BE's CPUs: each about a fifth above the one before. What BE can use
may be all of a small host or a few CPUs of a large one, and is met as finely in both."""

MOVES: tuple[Move, ...] = (
    Move(name="keep"),
    Move(name="freeze", quota_ratio=0.0, cpuset_cpus=-ALL_CPUS, frozen=True),
    Move(name="thaw", frozen=False),
    Move(name="minimum", quota_ratio=0.0, cpuset_cpus=-ALL_CPUS),
    *(Move(name=f"quota-{percent:g}%", quota_ratio=percent / 100.0, frozen=False) for percent in TARGET_PERCENTS),
    Move(name="leap", quota_ratio=1.0, frozen=False, rise_ratio=LEAP_RATIO),
    Move(name="cpuset-1", cpuset_cpus=-1),
    Move(name="cpuset+1", cpuset_cpus=1),
)
"""The discrete action table, in the order of its indices. `freeze` is the safe allocation, which every shield lets
through, and `thaw` goes on from there; `minimum` is the least that runs, which all let through that do not suspend."""

KEEP = 0
"""Index of `keep`."""

_QUOTA_RATIOS, _CPUSET_STEPS, _RISE_RATIOS, _FREEZES = zip(*(move.numbers for move in MOVES), strict=True)

EVERYTHING = next(move for move in MOVES if move.rise_ratio == LEAP_RATIO)
"""Towards no quota at all, as fast as can be."""


@law
def apply_move(
    index: int, quota_cpus: float, cpuset_cpus: int, frozen: bool, cpus: int, min_quota_cpus: float
) -> tuple[float, int, bool]:
    """Quota, cpuset and freezer that the move of an index asks for.

    Args:
        cpus, min_quota_cpus: As in `Limits`; what stands before them is in force.
    """
    return _move(
        _QUOTA_RATIOS[index], _CPUSET_STEPS[index], _RISE_RATIOS[index], _FREEZES[index],
        quota_cpus, cpuset_cpus, frozen, cpus, min_quota_cpus,
    )  # fmt: skip


@lru_cache(maxsize=8)  # the shield's mask and a policy ask in the same tick, and what is in force seldom changes
def asked_by_each(current: Allocation, limits: Limits) -> tuple[Allocation, ...]:
    """What each of MOVES asks for."""
    return tuple(move.of(current, limits) for move in MOVES)


def discrete_space() -> spaces.Discrete:
    """The canonical action space: an index into MOVES."""
    from gymnasium import spaces  # here only: the daemon needs no Gymnasium

    return spaces.Discrete(len(MOVES))


def decode(action: Action, current: Allocation, limits: Limits) -> Allocation:
    """What an action asks for.

    Args:
        action: Index into MOVES, also as an array of no dimension, or an Allocation.

    Returns:
        An allocation that this host has.

    Raises:
        PolicyError: An index out of range, or a type that is no action.
    """
    if isinstance(action, Allocation):
        return limits.clip(action)
    return MOVES[index_of(action)].of(current, limits)


def index_of(action: Action) -> int:
    """The index into MOVES that an action is; PolicyError: it is none."""
    array = np.asarray(action)
    if array.ndim or array.dtype.kind not in "iu":
        raise PolicyError(f"{action!r} is no action: an index below {len(MOVES)} or an Allocation")
    index = int(array)
    if not 0 <= index < len(MOVES):
        raise PolicyError(f"action {index} is outside the table of {len(MOVES)} moves")
    return index
