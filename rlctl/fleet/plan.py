"""What `rlctl fleet` simulates: managers side by side on a fleet, or a bundle rolled out over it."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.fleet.config import TICK_SECONDS, CanaryPlan, Fleet
from rlctl.safety.profile import Profile

STRETCH_SECONDS = 900.0
"""Time that is counted together: one point of the day's curves."""

MEASURES = 2
"""Misses and BE throughput, each compared at every look."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Managers side by side on the same hosts, for simulated `hours` that are rounded to whole stretches."""

    fleet: Fleet
    hosts: int
    hours: float
    managers: tuple[str, ...]
    shield: Profile
    seed: int = 0

    @property
    def stretches(self) -> int:
        """Number of stretches, at least one."""
        return max(round(3600.0 * self.hours / STRETCH_SECONDS), 1)

    @property
    def windows(self) -> int:
        """Windows of each host."""
        return round(self.stretches * STRETCH_SECONDS / TICK_SECONDS)


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What to roll out; the seed draws the hosts, their loads and the order in which they get the new bundle."""

    fleet: Fleet
    hosts: int
    old: str
    new: str
    shield: Profile
    seed: int = 0

    @property
    def canary(self) -> CanaryPlan:
        """Stages, budgets and tolerances of the rollout."""
        return self.fleet.canary

    @property
    def begin_minutes(self) -> float:
        """Minute of the day when the hosts begin: a look before the baseline, in which controllers settle."""
        c = self.canary
        return 60.0 * c.begin_hours - c.baseline_minutes - c.check_minutes

    @property
    def error(self) -> float:
        """Chance that one comparison may err by, so that all together err by `false_alarm_ratio` (Bonferroni)."""
        c = self.canary
        stages = sum(percent < 100.0 for percent in c.stages_percent)
        return c.false_alarm_ratio / (MEASURES * stages * round(c.soak_minutes / c.check_minutes))
