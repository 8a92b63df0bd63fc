"""Learned table: finds out while it runs how much BE holds at which load, remembers it, and tries one level more.

It is rlctl's own: what `table` is told by a sweep, this rule learns from its own windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlctl.agents.evidence import MISSED_HALF_LIFE_SECONDS, Evidence
from rlctl.agents.managers.feedforward import Demand, require_lead
from rlctl.agents.managers.manager import HAIR, Manager, number, require, slack_of
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry

SETTLED_SECONDS = 5.0
"""A miss that goes on for so long is one of what BE has now, no longer the backlog of what it had before."""

IDLE_RATIO = 0.25
"""BE that uses a smaller share of what it may use has little to do: that the window held says nothing of its level."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a tick's readings are about.

    Attributes:
        load: Share of the LC's maximum.
        level: The level that BE's allocation had reached; -1 where it was frozen.
    """

    load: float
    level: int


@dataclass(kw_only=True, eq=False)
class LearnedTable(Manager):
    """The highest level that held lately at this load, and one more where nothing speaks against it; shielded.

    Args:
        hold_ratio: Latency by the target from which on a window counts as missed.
        explore_ratio: Latency by the target up to which a level more is tried.
        budget_ratio: Share of missed windows up to which a level still counts as one that holds.
        lead_seconds: How far ahead the load is foreseen.
    """

    name = "learned-table"
    shielded = True
    learns = True
    needs = ("load_ratio",)
    hold_ratio: float = 0.8
    explore_ratio: float = 0.5
    budget_ratio: float = 0.03
    lead_seconds: float = 2.0

    def __post_init__(self) -> None:
        require(self, share=("hold_ratio", "explore_ratio", "budget_ratio"))
        require_lead(self, self.lead_seconds)

    def begin(self) -> Allocation:
        """The minimum, until something is known."""
        self._evidence = Evidence(self.limits.levels, self.budget_ratio)
        self._demand = Demand()
        self._current = self.limits.minimum
        self._before: Window | None = None
        self._missed: Window | None = None
        self._missing_since: float | None = None
        return self.limits.minimum

    def act(self, observation: Observation) -> Allocation:
        """As `decide`, knowing what BE had in the window."""
        self._current = observation.current
        return super().act(observation)

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """Learn from the window that ended, and look up what the load to come can bear."""
        slack, load, now = slack_of(telemetry), number(telemetry.load_ratio), telemetry.time_seconds
        if slack is None or load is None:
            self._before = self._missed = None
            return self.limits.minimum, "latency or load unknown: minimum"
        latency_ratio = 1.0 - slack
        self._learn(Window(load, level_of(self._current, self.limits)), latency_ratio, telemetry)
        if latency_ratio > 1.0:
            return self.limits.minimum, "target missed: minimum until the backlog is gone"
        known = self._evidence.known(self._demand.foreseen_load(now, load, self.lead_seconds))
        if known.next_bearable and latency_ratio <= self.explore_ratio:
            return allocation_at(known.level + 1, self.limits), f"{self._words(known.level)} held here: a level more"
        return allocation_at(max(known.level, 0), self.limits), f"{self._words(known.level)} held here"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What it goes by."""
        learned = f"learned while it runs; a miss is half forgotten in {MISSED_HALF_LIFE_SECONDS:g} s"
        return (f"what held {self.hold_ratio:g} of the target, {learned}",)

    def remembered(self) -> Mapping[str, Any]:
        """Windows by load and level, see `Evidence.plain`."""
        return self._evidence.plain()

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with what was remembered; ValueError: it is of another host."""
        self._evidence.recall(memory)

    def _learn(self, window: Window, latency_ratio: float, telemetry: Telemetry) -> None:
        """Book the window that ended, a miss one window later."""
        now, before = telemetry.time_seconds, self._before
        self._evidence.age(now)
        # A load that has just stepped up is measured as a mean over the step, and the requests of a window began in
        # the one before as well: a miss belongs to the highest load and the highest level around it.
        if self._missed is not None:
            missed, self._missed = self._missed, None
            self._book(Window(max(missed.load, window.load), missed.level))
        if latency_ratio <= self.hold_ratio:
            if self._missing_since is None and window.level >= 0 and not self._idle(telemetry):
                self._evidence.add_held(window.load, window.level)
            self._missing_since = None
        elif self._missing_since is None or now - self._missing_since >= SETTLED_SECONDS:
            self._missing_since = now
            around = (window,) if before is None else (before, window)
            self._missed = Window(max(one.load for one in around), max(one.level for one in around))
        self._before = window

    def _book(self, window: Window) -> None:
        if window.level >= 0:
            self._evidence.add_missed(window.load, window.level)

    def _idle(self, telemetry: Telemetry) -> bool:
        used_cpus = number(telemetry.be_cpus)
        return used_cpus is not None and used_cpus < IDLE_RATIO * self._current.usable_cpus

    def _words(self, level: int) -> str:
        return str(allocation_at(level, self.limits)) if level >= 0 else "nothing"


def level_of(allocation: Allocation, limits: Limits) -> int:
    """The level that an allocation has reached; -1 where BE is frozen."""
    if allocation.frozen:
        return -1
    return min(int(limits.levels * allocation.usable_cpus / limits.cpus + HAIR), limits.levels)


def allocation_at(level: int, limits: Limits) -> Allocation:
    """What BE gets at a level: a quota on all its CPUs, and at the highest none."""
    return limits.full if level >= limits.levels else limits.full.but(quota_cpus=limits.quota_at(level))
