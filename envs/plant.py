"""The seam between what decides and what is controlled: a live host, a simulated one, a recording."""

from __future__ import annotations

from typing import Protocol

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight


class Plant(Protocol):
    """A host with one LC and one BE budget, in ticks. Nothing above `envs` can tell which kind it has."""

    limits: Limits
    tick_seconds: float

    @property
    def current(self) -> Allocation:
        """The allocation in force, as last read back."""

    def reset(self, seed: int | None = None) -> None:
        """Begin a run: a simulated host starts over from the seed; on a live one the next period begins now."""

    def read(self) -> Telemetry:
        """All sensors, now. Never raises for a missing reading; HostError: the plant as a whole is gone."""

    def apply(self, allocation: Allocation) -> Allocation:
        """Write the allocation, read it back, and return what is in force.

        Raises:
            CgroupError, PermissionMissing: A write failed; `current` is then what was read back.
        """

    def set_weight(self, weight: Weight) -> None:
        """Set BE's CPU weight against the LC's, once, before a run; CgroupError: as for apply."""

    def wait(self) -> int:
        """Let the current control period end; returns how many deadlines were missed since the last call."""

    def close(self) -> None:
        """Put back every knob that was touched. Idempotent."""
