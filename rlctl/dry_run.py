"""A plant that is only looked at: everything is read, nothing is written."""

from __future__ import annotations

import logging

from rlctl.envs.allocation import Allocation
from rlctl.envs.plant import Plant
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

__all__ = ["DryRun"]

log = logging.getLogger(__name__)


class DryRun:
    """Another plant, with its writes put into words.

    The allocation in force is imagined: it follows what would have been written, so that policy and shield go on as
    if it had been. The readings remain those of a host that nobody controls.

    Args:
        plant: The plant beneath; it is read, never written.
    """

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self.limits = plant.limits
        self.tick_seconds = plant.tick_seconds
        self._current = plant.current

    @property
    def current(self) -> Allocation:
        """What would be in force."""
        return self._current

    def reset(self, seed: int | None = None) -> None:
        """As the plant beneath."""
        self._plant.reset(seed)

    def read(self) -> Telemetry:
        """As the plant beneath."""
        return self._plant.read()

    def apply(self, allocation: Allocation) -> Allocation:
        """Say what would be written, when that is a change."""
        wanted = self.limits.clip(allocation)
        if wanted != self._current:
            log.info("dry run: would set BE from %s to %s", self._current, wanted)
        self._current = wanted
        return wanted

    def set_weight(self, weight: Weight) -> None:
        """Say what would be written."""
        log.info("dry run: would give BE %s weight", weight)

    def wait(self) -> int:
        """As the plant beneath."""
        return self._plant.wait()

    def close(self) -> None:
        """As the plant beneath, which has nothing to put back."""
        self._plant.close()
