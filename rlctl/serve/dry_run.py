"""A plant that is only looked at: everything is read, nothing is written."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.group import KNOBS
from rlctl.envs.plant import Plant
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

log = logging.getLogger(__name__)


class DryRun:
    """Another plant, with its writes put into words.

    The allocation in force is imagined: it follows what would have been written, so that policy and shield go on as
    if it had been. The readings remain those of a host that nobody controls.

    Args:
        controls: What BE can be restricted by; another knob stays wide open, as it would.
        plan: The steps that would bring an allocation about, each of them a write to a group or the wait for it.
    """

    def __init__(
        self,
        plant: Plant,
        controls: Collection[str] = KNOBS,
        plan: Callable[[Allocation], Sequence[object]] = lambda _: (),
        weigh: Callable[[Weight], object] = lambda _: None,
    ) -> None:
        self._plant, self._plan, self._weigh = plant, plan, weigh
        self.limits = plant.limits
        self.tick_seconds = plant.tick_seconds
        self.current = plant.current  # what would be in force
        self._controls = frozenset(controls)

    def reset(self, seed: int | None = None) -> None:
        """As the plant beneath."""
        self._plant.reset(seed)

    def read(self) -> Telemetry:
        """As the plant beneath."""
        return self._plant.read()

    def apply(self, allocation: Allocation) -> Allocation:
        """Say what would be written, when that is a change."""
        full = self.limits.full
        wanted = self.limits.clip(allocation).but(  # what would read back
            quota_cpus=None if "cpu" in self._controls else full.quota_cpus,
            cpuset_cpus=None if "cpuset" in self._controls else full.cpuset_cpus,
            frozen=None if "freezer" in self._controls else False,
        )
        now, then = str(self.current), str(wanted)
        if now != then:
            log.info("dry run: would set BE from %s to %s", now, then)
            with contextlib.suppress(RlctlError):  # no group is left to write to
                for step in self._plan(wanted):
                    log.info("dry run: would %s", step)
        self.current = wanted
        return wanted

    def set_weight(self, weight: Weight) -> None:
        """Say what would be written."""
        log.info("dry run: would give BE %s weight", weight)
        self._weigh(weight)
        self.limits = replace(self.limits, least_weight=weight.is_least)

    def wait(self) -> int:
        """As the plant beneath."""
        return self._plant.wait()

    def close(self) -> None:
        """As the plant beneath, which has nothing to put back."""
        self._plant.close()
