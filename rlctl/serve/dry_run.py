"""A plant that is only looked at: everything is read, nothing is written."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.live import LiveHost
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

log = logging.getLogger(__name__)


class DryRun:
    """A live host whose knobs write nothing, with the writes put into words.

    The allocation in force is imagined: it follows what would have been written, so that policy and shield go on as
    if it had been. The readings remain those of a host that nobody controls.
    """

    def __init__(self, host: LiveHost) -> None:
        self._host = host
        self.limits = host.limits
        self.tick_seconds = host.tick_seconds
        # The allocation that would be in force.
        self.current = host.current

    def reset(self, seed: int | None = None) -> None:
        """As the plant beneath."""
        self._host.reset(seed)

    def read(self) -> Telemetry:
        """As the plant beneath."""
        return self._host.read()

    def apply(self, allocation: Allocation) -> Allocation:
        """Say what would be written, when that is a change."""
        controls, full = self._host.actuator.controls, self.limits.full
        # What a write would read back: a knob that BE lacks stays wide open.
        wanted = self.limits.clip(allocation).but(
            quota_cpus=None if "cpu" in controls else full.quota_cpus,
            cpuset_cpus=None if "cpuset" in controls else full.cpuset_cpus,
            frozen=None if "freezer" in controls else False,
        )
        # Compared as printed: a step too small to see is not worth a line.
        now, then = str(self.current), str(wanted)
        if now != then:
            log.info("dry run: would set BE from %s to %s", now, then)
            # No group is left to write to.
            with contextlib.suppress(RlctlError):
                for step in self._host.actuator.plan(wanted):
                    log.info("dry run: would %s", step)
        self.current = wanted
        return wanted

    def set_weight(self, weight: Weight) -> None:
        """Say what would be written."""
        log.info("dry run: would give BE %s weight", weight)
        self._host.set_weight(weight)
        # Where other groups' weights decide, BE's own is void: policies are told the same as in service.
        self.limits = replace(self.limits, least_weight=self._host.limits.least_weight)

    def wait(self) -> int:
        """As the plant beneath."""
        return self._host.wait()

    def close(self) -> None:
        """As the plant beneath, which has nothing to put back."""
        self._host.close()
