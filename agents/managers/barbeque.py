"""BarbequeRTRM (Bellasi et al., ACM TECS 2015; derkling/barbeque) with one LC and one BE.

The framework knows applications with working modes, no LC and no BE. Here the two are applications of its allocator,
the LC of higher priority. The allocator, with weights and constants, is as published: `rlctl.agents.allocator`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlctl.agents.allocator import AS_PUBLISHED, ContributionWeights, allocate
from rlctl.agents.managers.manager import HAIR, Every, Manager, slack_of
from rlctl.agents.managers.options import Count, Positive, PositiveShare, Share, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.applications import Application, CpuCluster, Placement, WorkingMode
from rlctl.envs.telemetry import Telemetry, number

URGENT_GAP_PERCENT = 20.0
"""A goal gap above it has the resources allocated anew at once (application_manager.cc)."""

LC, BE = "lc", "be"


@dataclass(kw_only=True, eq=False)
class Barbeque(Manager):
    """The LC's working modes are CPU reservations, BE's are quotas on the same ladder; the allocator chooses both.

    Args:
        time_scale: Divides all periods.
        period_seconds: Time between two allocations; a goal gap above 20 % does not wait for it.
        reclaim_seconds: Window over which the LC's greatest use counts as its use.
        headroom_ratio: Reserved for the LC above its use, as a share of that use.
        goal_ratio: The tail latency that the LC asks for, as a share of its target.
        host_levels: Number of working modes of LC and BE each, in equal steps up to all CPUs.
        value_weight, reconfiguration_weight, congestion_weight, fairness_weight: How much each contribution counts in
            the allocator's metric.
    """

    name = "barbeque"
    needs = ("tail_latency_seconds", "lc_cpus")
    time_scale: TimeScale = 1.0
    period_seconds: Positive = 1.0
    reclaim_seconds: Positive = 10.0
    headroom_ratio: Share = 0.10
    goal_ratio: PositiveShare = 1.0
    host_levels: Count = 20
    value_weight: float = AS_PUBLISHED.value
    reconfiguration_weight: float = AS_PUBLISHED.reconfiguration
    congestion_weight: float = AS_PUBLISHED.congestion
    fairness_weight: float = AS_PUBLISHED.fairness

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = ContributionWeights(
            value=self.value_weight,
            reconfiguration=self.reconfiguration_weight,
            congestion=self.congestion_weight,
            fairness=self.fairness_weight,
        )

    def begin(self) -> Allocation:
        """BE has no placement, and so is frozen, until the LC's use is known."""
        cpus = self.limits.cpus
        self._cluster = CpuCluster("host", frozenset(range(cpus)), float(cpus))
        steps = [cpus * level / self.host_levels for level in range(1, self.host_levels + 1)]
        self._ladder = tuple(WorkingMode(step, math.ceil(step), step / cpus) for step in steps)
        self._period = Every(self.period_seconds / self.time_scale)
        self._uses: list[tuple[float, float]] = []
        self._placed: dict[str, Placement] = {}
        self._why = "start: the LC has all CPUs"
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The last run of the allocator decides; a new one comes each period."""
        gap_percent, use_cpus = self._gap(telemetry), self._use(telemetry)
        # Allocate each period; at once when an application is far from its goal (application_manager.cc).
        if self._period.due(telemetry.time_seconds) or gap_percent > URGENT_GAP_PERCENT:
            applications = (
                self._lc(gap_percent, use_cpus),
                Application(BE, self._ladder, 1, current=self._placed.get(BE)),
            )
            self._placed = allocate(applications, (self._cluster,), float(self.limits.cpus), self._weights)
            self._why = f"goal gap {gap_percent:.0f} %: LC {self._placed[LC].cpus:.2f} CPU, BE " + (
                f"{self._placed[BE].cpus:.2f}" if BE in self._placed else "deferred"
            )
        return self._allocation(), self._why

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which parts of it are rlctl's own."""
        return (
            "the framework has no LC or BE: modelled as two applications, the LC of higher priority; ours are the "
            f"modes, the periods, and that what the LC has not used for {self.reclaim_seconds:g} s, beyond a headroom "
            f"of {self.headroom_ratio:.0%}, is reclaimed while it meets its goal",
        )

    def _gap(self, telemetry: Telemetry) -> float:
        """How far the LC's tail latency is above its goal, in percent of the goal, 0 to 100; 0 when unknown."""
        slack = slack_of(telemetry)
        if slack is None:
            return 0.0
        # gap = (tail - goal) / goal. RTLib's documentation asserts no negative gap: to take back what an application
        # does not use is the resource manager's part.
        return min(max(100.0 * ((1.0 - slack) / self.goal_ratio - 1.0), 0.0), 100.0)

    def _use(self, telemetry: Telemetry) -> float | None:
        """The LC's greatest use within `reclaim_seconds`, in CPUs; None when none was read."""
        now_seconds, longest_seconds = telemetry.time_seconds, self.reclaim_seconds / self.time_scale
        self._uses = [(when, use) for when, use in self._uses if 0.0 <= now_seconds - when < longest_seconds]
        use_cpus = number(telemetry.lc_cpus)
        if use_cpus is not None:
            self._uses.append((now_seconds, use_cpus))
        return max((use for _, use in self._uses), default=None)

    def _lc(self, gap_percent: float, use_cpus: float | None) -> Application:
        """The LC with the modes that are open to it; a current mode above these counts as the highest of them."""
        modes, current = self._ladder, self._placed.get(LC)
        # Behind its goal, or of unknown use, the LC may have every mode. Otherwise its modes end with the least that
        # covers its use and the headroom: what lies above is reclaimed (ours, from RTLib's division of labour).
        if gap_percent == 0.0 and use_cpus is not None:
            enough_cpus = use_cpus * (1.0 + self.headroom_ratio)
            modes = modes[: 1 + sum(mode.cpus < enough_cpus - HAIR for mode in modes[:-1])]
        if current is not None:
            current = replace(current, mode=min(current.mode, len(modes) - 1))
        return Application(LC, modes, 0, gap_percent, current)

    def _allocation(self) -> Allocation:
        # A deferred application does not run at all (paper 4.2): BE is frozen.
        if BE not in self._placed:
            return self.limits.safe
        return Allocation(self._placed[BE].cpus, self.limits.cpus)
