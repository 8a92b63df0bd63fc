"""What all heuristic managers share: the Policy protocol around one `begin` and one `decide`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from rlctl.agents.policy import Policy
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

HAIR = 1e-9
"""Added to or taken off thresholds, so that the rounding of sums and quotients does not decide."""

MOST_TIME_SCALE = 1000.0
"""A published minute in 60 ms; beyond it a fast loop would fire thousands of times in a tick."""


class Manager(Policy, ABC):
    """A heuristic policy. It keeps its own settings, as the published programs do, and reads physical units only.

    Attributes:
        limits: Range of allocations of the host that it was started on.
    """

    name: str = ""
    shielded: bool = False
    weight: Weight = Weight.EQUAL
    masked: bool = False
    needs: tuple[str, ...] = ()
    limits: Limits
    _note: str = "not started"

    @abstractmethod
    def begin(self) -> Allocation:
        """Forget everything and return the allocation to begin with on `self.limits`."""

    @abstractmethod
    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The next allocation, and why in a few words."""

    def start(self, limits: Limits) -> Allocation:
        """Forget everything and return the allocation to begin with on this host."""
        self.limits, self._note = limits, "start"
        return limits.clip(self.begin())

    def act(self, observation: Observation) -> Allocation:
        """The next allocation, one that this host has."""
        decided = self.decide(observation.telemetry)
        try:
            allocation, self._note = decided
        except (TypeError, ValueError) as error:
            raise TypeError(f"decide returned {decided}; return (Allocation, reason)") from error
        return self.limits.clip(allocation)

    @property
    def note(self) -> str:
        """Why the last action was taken."""
        return self._note

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of this manager's results must know, complete once it has run; by default nothing."""
        return ()


def require(
    manager: Manager,
    *,
    positive: Sequence[str] = (),
    share: Sequence[str] = (),
    among: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Check constructor parameters, given by their names.

    Args:
        manager: The one whose parameters they are.
        positive: Names of those that must be finite and above 0; `time_scale` may not exceed MOST_TIME_SCALE either.
        share: Names of those that must lie in [0, 1].
        among: Words that each of these parameters may be.

    Raises:
        PolicyError: A parameter is out of its range; names the first such.
    """
    for key in positive:
        value, most = getattr(manager, key), MOST_TIME_SCALE if key == "time_scale" else math.inf
        if not (_is_number(value) and 0.0 < value <= most and math.isfinite(value)):
            _refuse(manager, key, "a positive number" + _up_to(most))
    for key in share:
        value = getattr(manager, key)
        if not (_is_number(value) and 0.0 <= value <= 1.0):
            _refuse(manager, key, "a share from 0 to 1")
    for key, words in among.items():
        if getattr(manager, key) not in words:
            _refuse(manager, key, " or ".join(words))


def _refuse(manager: Manager, key: str, wanted: str) -> NoReturn:
    raise PolicyError(f"{manager.name}: {key} is {getattr(manager, key)!r}; give {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _up_to(most: float) -> str:
    return f" up to {most:g}" if math.isfinite(most) else ""
