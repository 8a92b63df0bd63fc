"""A live host on which a freeze that does not come at once ends nothing."""

from __future__ import annotations

import logging

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import CgroupBusy
from rlctl.envs.host_env import HostEnv

__all__ = ["PatientEnv"]

log = logging.getLogger(__name__)

BUSY_IN_A_ROW = 10
"""So many refused freezes in a row are an error."""


class PatientEnv(HostEnv):
    """Goes on when the freezer is busy: a task deep in the kernel stops a little later.

    BE is at the safe allocation then, or at what is in force where that has to wait, too.
    """

    _refused = 0

    def _apply(self, allocation: Allocation) -> None:
        try:
            super()._apply(allocation)
            self._refused = 0
        except CgroupBusy as error:
            log.warning("not in force yet: %s", error)
            self._refused = 0 if self.current == self.plant.limits.safe else self._refused + 1
            if self._refused >= BUSY_IN_A_ROW:
                raise
