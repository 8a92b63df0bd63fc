"""Koordinator's CPU suppress (koordlet): BE gets what non-BE leaves of 65 % of the node.

After pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go. It reads no latency; it shrinks BE at once and grows
it slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlctl.agents.managers.manager import HAIR, Every, Manager
from rlctl.agents.managers.options import NotNegative, Positive, Share, TimeScale
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.telemetry import Telemetry, number

MIN_QUOTA_CPUS = 0.02
"""beMinQuota: 2000 us of a period of 100 ms."""

MIN_CPUSET_CPUS = 2
"""beMinCPUSetCores."""


@dataclass(kw_only=True, eq=False)
class KoordSuppress(Manager):
    """BE = capacity * 65 % - LC's use - max(rest of the host, reserve), by a quota or by a cpuset.

    The node's capacity is here the number of BE's CPUs; non-BE pods are the LC, and what else is busy is the system.
    The knob of the other policy is left open.

    Args:
        time_scale: Divides the period.
        interval_seconds: Period of the control loop.
        policy: `quota` (cfsQuota) or `cpuset`, which is Koordinator's default.
        threshold_ratio: CPUSuppressThresholdPercent, as a share.
        floor_ratio: CPUSuppressMinPercent, as a share; not set by default.
        reserved_cpus: CPUs that the node reserves for the system.
        growth_ratio: Largest growth of a step.
        ignored_ratio: Quota changes below it are not written.
        busy: What counts against BE besides the LC: everything on the `host`, as published, or nothing (`workloads`),
            for a testbed whose client runs on CPUs beside BE's.
    """

    name = "koord-suppress"
    needs = ("lc_cpus", "be_cpus", "host_cpus")
    time_scale: TimeScale = 1.0
    interval_seconds: Positive = 1.0
    policy: Literal["quota", "cpuset"] = "quota"
    threshold_ratio: Share = 0.65
    floor_ratio: Share = 0.0
    reserved_cpus: NotNegative = 0.0
    growth_ratio: Share = 0.10
    ignored_ratio: Share = 0.01
    busy: Literal["host", "workloads"] = "host"

    def begin(self) -> Allocation:
        """BE begins without any restriction."""
        self._loop = Every(self.interval_seconds / self.time_scale)
        self._current = self.limits.full
        self._why = "start unrestricted"
        return self._current

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """One suppression per elapsed interval."""
        steps = self._loop.due(telemetry.time_seconds)
        if steps:
            self._suppress(telemetry, steps)
        return self._current, self._why

    @property
    def remarks(self) -> tuple[str, ...]:
        """The policy, and that it keeps a setting whose readings are gone."""
        return (
            f"{self.policy} policy; the node is BE's CPUs, non-BE use by {self.busy}; a missing reading keeps the last "
            f"setting, as published; no eviction",
        )

    def _suppress(self, telemetry: Telemetry, steps: int) -> None:
        non_be_cpus = self._non_be(telemetry)
        # A missing reading returns early in the source: the last setting stays in force, however old it is; at the
        # start there is none, and BE stays unrestricted.
        if non_be_cpus is None:
            self._why = "a reading is missing: last setting kept"
            return
        cpus = self.limits.cpus
        # BE = capacity * threshold - non-BE, but at least CPUSuppressMinPercent of the capacity.
        wanted_cpus = max(cpus * self.threshold_ratio - non_be_cpus, cpus * self.floor_ratio)
        self._why = f"non-BE uses {non_be_cpus:.2f} CPU, BE may use {wanted_cpus:.2f}"
        if self.policy == "quota":
            self._current = Allocation(self._quota(max(wanted_cpus, MIN_QUOTA_CPUS), steps), cpus)
        else:
            self._current = Allocation(UNLIMITED, self._cpuset(wanted_cpus, steps))

    def _non_be(self, telemetry: Telemetry) -> float | None:
        """CPUs of the LC and of the system, the latter at least what is reserved for it."""
        lc_cpus, be_cpus = number(telemetry.lc_cpus), number(telemetry.be_cpus)
        host_cpus = number(telemetry.host_cpus)
        if lc_cpus is None or (self.busy == "host" and (be_cpus is None or host_cpus is None)):
            return None
        system_cpus = (host_cpus or 0.0) - lc_cpus - (be_cpus or 0.0) if self.busy == "host" else 0.0
        return lc_cpus + max(system_cpus, self.reserved_cpus)

    def _quota(self, wanted_cpus: float, steps: int) -> float:
        # The first quota is written as it is. Later ones rise by at most 10 % of the CPUs a step and fall at once; a
        # change below 1 % of the CPUs is ignored, but for the least quota.
        current_cpus, cpus = self._current.quota_cpus, self.limits.cpus
        if current_cpus == UNLIMITED:
            return wanted_cpus
        if abs(wanted_cpus - current_cpus) < self.ignored_ratio * cpus - HAIR and wanted_cpus != MIN_QUOTA_CPUS:
            self._why += ": change too small"
            return current_cpus
        return min(wanted_cpus, current_cpus + steps * self.growth_ratio * cpus)

    def _cpuset(self, wanted_cpus: float, steps: int) -> int:
        # Two CPUs at least; up by 10 % of the CPUs a step, rounded up; down at once.
        cpus = self.limits.cpus
        wanted = max(math.ceil(wanted_cpus - HAIR), MIN_CPUSET_CPUS)
        most = self._current.cpuset_cpus + steps * math.ceil(self.growth_ratio * cpus - HAIR)
        return min(wanted, most, cpus)
