"""Learned table: finds out while it runs how much BE holds at which load, remembers it, and tries one level more.

It is rlctl's own: what `table` is told by a sweep, this rule learns from its own windows.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.feedforward import Demand, Lead
from rlctl.agents.managers.manager import Manager, slack_of
from rlctl.agents.managers.options import Share
from rlctl.envs.actions import EVERYTHING
from rlctl.envs.allocation import Allocation
from rlctl.envs.experience import HOLD_RATIO, allocation_at
from rlctl.envs.level_counts import MISSED_HALF_LIFE_SECONDS
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry, number


@dataclass(kw_only=True, eq=False)
class LearnedTable(Manager):
    """The highest level that held lately at this load, and one more where nothing speaks against it; shielded.

    A BE with the kernel's least weight rises to everything, as far as this host has not shown that it may not.

    Args:
        explore_ratio: Latency by the target up to which a level more is tried.
        lead_seconds: How far ahead the load is foreseen.
    """

    name = "learned-table"
    shielded = True
    learns = True
    moves_reins = True
    needs = ("load_ratio",)
    explore_ratio: Share = 0.5
    lead_seconds: Lead = 2.0

    def begin(self) -> Allocation:
        """The minimum, until something is known."""
        self._demand = Demand()
        return self.limits.minimum

    def act(self, observation: Observation) -> Allocation:
        """As `decide`, knowing what this host has taught, and what is in force."""
        self._experience, self._current = observation.experience, observation.current
        return super().act(observation)

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """Look up what the load to come can bear."""
        slack, load, now = slack_of(telemetry), number(telemetry.load_ratio), telemetry.time_seconds
        if slack is None or load is None:
            return self.limits.minimum, "latency or load unknown: minimum"
        # BE is cut in this tick for the load of the ticks until the next cut takes effect.
        foreseen = self._demand.foreseen_load(now, load, self.lead_seconds)
        # A backlog outlives its cause by seconds, so the minimum stays until latency is well again.
        if slack < 0.0:
            return self.limits.minimum, "target missed: minimum until the backlog is gone"
        if self._experience.is_free(foreseen):
            return self._free(1.0 - slack)
        level, bearable = self._experience.look_up(foreseen)
        # One level at a time: a miss then teaches the edge and costs one window, not the climb.
        if bearable > level and 1.0 - slack <= self.explore_ratio:
            return allocation_at(level + 1, self.limits), f"{self._words(level)} held here: a level more"
        return allocation_at(max(level, 0), self.limits), f"{self._words(level)} held here"

    def _free(self, latency_ratio: float) -> tuple[Allocation, str]:
        if latency_ratio > HOLD_RATIO:
            kept = self.limits.minimum if self._current.frozen else self._current
            return kept, "least weight, latency near the target: no more"
        return EVERYTHING.of(self._current, self.limits), "least weight has been enough: up to everything"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What it goes by."""
        learned = f"learned while it runs; a miss is half forgotten in {MISSED_HALF_LIFE_SECONDS:g} s"
        return (f"what held {HOLD_RATIO:g} of the target, {learned}",)

    def _words(self, level: int) -> str:
        return str(allocation_at(level, self.limits)) if level >= 0 else "nothing"
