"""Seeds of training and of evaluation, apart by construction: one bit tells which a seed is.

A policy that was trained or tuned on a seed has seen its noise and its load. So whatever is reported comes from
evaluation seeds, and whatever learns takes training seeds.
"""

from __future__ import annotations

from enum import StrEnum

from rlctl.envs.errors import ConfigError

# The highest bit below 2**63: seeds stay non-negative in a signed 64-bit number, as Gymnasium wants them.
EVALUATION_BIT = 1 << 62

FIRST_UNOPENED = 1 << 40
"""Number of the first evaluation seed that nobody looks at before a release: laws are tuned by what the others show."""


class SeedKind(StrEnum):
    """What a seed is for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


def training(number: int) -> int:
    """The training seed of this number, from 0 on; ConfigError: a number that is negative, or 2**62 or more."""
    return _check_number(number)


def evaluation(number: int) -> int:
    """The evaluation seed of this number, from 0 on; ConfigError: a number that is negative, or 2**62 or more."""
    return _check_number(number) | EVALUATION_BIT


def kind_of(seed: int) -> SeedKind:
    """Which kind a seed is; ConfigError: a seed that is negative, or 2**63 or more."""
    if not 0 <= seed < 2 * EVALUATION_BIT:
        raise ConfigError(f"{seed} is no seed; seeds are whole numbers from 0 to 2**63 - 1")
    return SeedKind.EVALUATION if seed & EVALUATION_BIT else SeedKind.TRAINING


def _check_number(number: int) -> int:
    if not 0 <= number < EVALUATION_BIT:
        raise ConfigError(f"there is no seed number {number}; they go from 0 to 2**62 - 1")
    return number
