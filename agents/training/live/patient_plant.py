"""A live plant on which a freeze that does not come at once ends nothing."""

from __future__ import annotations

import logging

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import CgroupBusy
from rlctl.envs.plant import Plant
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

__all__ = ["PatientPlant"]

log = logging.getLogger(__name__)

BUSY_IN_A_ROW = 10
"""So many refused freezes in a row end it."""


class PatientPlant:
    """A live plant that takes it when a freeze does not come at once: a task deep in the kernel stops a little later.

    Args:
        plant: The host; it stays its owner's, who closes it.
    """

    def __init__(self, plant: Plant) -> None:
        self._plant, self._busy = plant, 0
        self.limits, self.tick_seconds = plant.limits, plant.tick_seconds

    @property
    def current(self) -> Allocation:
        """The allocation in force."""
        return self._plant.current

    def reset(self, seed: int | None = None) -> None:
        """As the plant's."""
        self._plant.reset(seed)

    def read(self) -> Telemetry:
        """As the plant's."""
        return self._plant.read()

    def apply(self, allocation: Allocation) -> Allocation:
        """Write it; where the freezer is busy the safe allocation, and what is in force if that is not yet.

        Raises:
            CgroupError: As the plant's; for a busy freezer only when it stays so.
        """
        for one in (allocation, self.limits.safe):
            try:
                applied = self._plant.apply(one)
            except CgroupBusy as error:
                log.warning("not in force yet: %s", error)
                failure = error
            else:
                self._busy = 0
                return applied
        self._busy += 1
        if self._busy >= BUSY_IN_A_ROW:
            raise failure
        return self._plant.current

    def set_weight(self, weight: Weight) -> None:
        """As the plant's."""
        self._plant.set_weight(weight)

    def wait(self) -> int:
        """As the plant's."""
        return self._plant.wait()

    def close(self) -> None:
        """As the plant's."""
        self._plant.close()
