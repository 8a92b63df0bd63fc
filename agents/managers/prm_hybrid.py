"""Hybrid PRM and Tuned Hybrid PRM (thesis 3.3, 3.3.1, 4.3): Heracles' top-level controller over PRM's quota.

Code listing 3.1 tests `slack < 0.80` where the prose says "load below 80 %". Taken literally its third branch takes
every slack from 0 to 0.80, "hold" is never reached, and BE grows at a slack of 0.80 or more only. The prose is
implemented; `literal_listing` runs the listing as printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from rlctl.agents.managers.manager import HAIR, BeState, Every, Manager, slack_of
from rlctl.agents.managers.options import Count, Positive, Share, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import PolicyError
from rlctl.envs.telemetry import Telemetry, number
from rlctl.envs.workload import Weight


class Branch(StrEnum):
    """What the top-level controller says at a poll."""

    COOL_DOWN = "slack negative: suspended, cooling down"
    SUSPEND = "load high: suspended"
    KEEP = "state kept, no growth"
    ENABLE = "enabled"
    HOLD = "slack small: hold"
    GROW = "slack and load allow growth"


def prose(slack: float | None, load: float | None, state: BeState, gates: PrmHybrid) -> Branch:
    """One poll as section 3.3 tells it. Each suspension needs only its own reading, growth needs both."""
    # slack < 0: suspend BE, cool down for 300 s.
    if slack is not None and slack < 0.0:
        return Branch.COOL_DOWN
    # load > 0.85: suspend BE.
    if load is not None and load > gates.suspend_load_ratio:
        return Branch.SUSPEND
    # Ours: a poll without a reading changes nothing, and nothing grows.
    if slack is None or load is None:
        return Branch.KEEP
    # load < 0.80: enable BE; between 0.80 and 0.85 the state stays.
    if state is not BeState.ENABLED and load >= gates.enable_load_ratio:
        return Branch.KEEP
    # Enabled: slack > 0.10 signals the sub-controller to grow, else it holds.
    return Branch.GROW if slack > gates.hold_slack_ratio + HAIR else Branch.HOLD


def listing_as_printed(slack: float | None, load: float | None, gates: PrmHybrid) -> Branch:
    """One poll as code listing 3.1 prints it, with its fault: branch 3 compares the slack with the load's gate."""
    if slack is None or load is None:
        return Branch.KEEP
    if slack < 0.0:
        return Branch.COOL_DOWN
    if load > gates.suspend_load_ratio:
        return Branch.SUSPEND
    # Printed as `slack < 0.80`; so the two branches below see a slack of 0.80 or more only.
    if slack < gates.enable_load_ratio:
        return Branch.ENABLE
    return Branch.HOLD if slack <= gates.hold_slack_ratio + HAIR else Branch.GROW


@dataclass(kw_only=True, eq=False)
class PrmHybrid(Manager):
    """A poll every 15 s suspends, holds or signals; while signalled, a sub-controller adds a core every 2 s.

    BE never shrinks but by suspension. The thesis leaves open how BE is suspended and where it resumes: both are
    options.

    Args:
        name: "prm-hybrid", or "prm-hybrid-tuned" with the constants of `TUNED`.
        time_scale: Divides all periods.
        core_cpus: CPUs here that stand for a core of the published machine; the step where `host_levels` is None.
        poll_seconds: Period of the top-level controller (3.3).
        grow_seconds: Period of the sub-controller (3.3).
        cool_down_seconds: How long BE stays suspended after a negative slack (3.3: 5 minutes).
        suspend_load_ratio, enable_load_ratio, hold_slack_ratio: The gates (3.3, listing 3.1); a slack of
            exactly 0.10, which the thesis leaves open, does not grow.
        host_levels: The step is this fraction of the host's CPUs instead of a core (3.3.1).
        suspend: "freeze" with the freezer, or "minimum" for the smallest quota.
        resume_level: Quota after a suspension: "minimum", or the "last" one.
        literal_listing: Follow listing 3.1 as printed.
    """

    weight = Weight.MINIMUM  # cpu.shares 2 against 200000 (4.3)
    needs = ("tail_latency_seconds", "load_ratio")
    name: str = "prm-hybrid"
    time_scale: TimeScale = 1.0
    core_cpus: Positive = 1.0
    poll_seconds: Positive = 15.0
    grow_seconds: Positive = 2.0
    cool_down_seconds: Positive = 300.0
    suspend_load_ratio: Share = 0.85
    enable_load_ratio: Share = 0.80
    hold_slack_ratio: Share = 0.10
    host_levels: Count | None = None
    suspend: Literal["freeze", "minimum"] = "freeze"
    resume_level: Literal["minimum", "last"] = "minimum"
    literal_listing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.enable_load_ratio > self.suspend_load_ratio:
            raise PolicyError(f"{self.name}: enable_load_ratio is above suspend_load_ratio; BE would flap")

    def begin(self) -> Allocation:
        """BE begins at a quota of 1000 us, running (4.3)."""
        self._top = Every(self.poll_seconds / self.time_scale)
        self._sub = Every(self.grow_seconds / self.time_scale)
        self._state, self._growing = BeState.STARTED, False
        self._quota_cpus = self.limits.min_quota_cpus
        self._why = "start at the minimum"
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The top-level controller, then the sub-controller while it is signalled."""
        now_seconds = telemetry.time_seconds
        if self._top.due(now_seconds):
            self._follow(self._poll(slack_of(telemetry), number(telemetry.load_ratio)), now_seconds)
        # The sub-controller, while it is signalled: every 2 s one core more (3.3), or a fiftieth of the host (3.3.1).
        # The thesis names no upper end; here it is the host's CPUs.
        if self._growing:
            steps = self._sub.due(now_seconds)
            self._quota_cpus = min(self._quota_cpus + steps * self._step_cpus, float(self.limits.cpus))
        return self._allocation(), self._why

    @property
    def remarks(self) -> tuple[str, ...]:
        """The choices that the thesis leaves open, and the scaled step."""
        step = f"a core is {self.core_cpus:g} CPU" if self.host_levels is None else f"step {1 / self.host_levels:.1%}"
        said = [f"{step}; suspends by {self.suspend}, resumes at the {self.resume_level} quota (open in the thesis)"]
        if self.literal_listing:
            said.append("follows listing 3.1 as printed, which contradicts the thesis' prose")
        return tuple(said)

    @property
    def _step_cpus(self) -> float:
        return self.core_cpus if self.host_levels is None else self.limits.cpus / self.host_levels

    def _poll(self, slack: float | None, load: float | None) -> Branch:
        if self.literal_listing:
            return listing_as_printed(slack, load, self)
        return prose(slack, load, self._state, self)

    def _follow(self, branch: Branch, now_seconds: float) -> None:
        if branch in (Branch.COOL_DOWN, Branch.SUSPEND):
            self._state = BeState.SUSPENDED
        elif branch is not Branch.KEEP:
            self._enable()
        # The next poll comes at the end of the cool-down; a sub-controller begins with the poll that signals it.
        if branch is Branch.COOL_DOWN:
            self._top.rest(now_seconds, self.cool_down_seconds / self.time_scale)
        if branch is Branch.GROW and not self._growing:
            self._sub.reset()
        self._growing = branch is Branch.GROW
        self._why = str(branch)

    def _enable(self) -> None:
        if self._state is BeState.SUSPENDED and self.resume_level == "minimum":
            self._quota_cpus = self.limits.min_quota_cpus
        self._state = BeState.ENABLED

    def _allocation(self) -> Allocation:
        running = Allocation(self._quota_cpus, self.limits.cpus)
        # How BE is suspended is not said in the thesis: the freezer, or a quota that lets it hardly run.
        if self._state is not BeState.SUSPENDED:
            return running
        if self.suspend == "freeze":
            return running.but(frozen=True)
        return running.but(quota_cpus=self.limits.min_quota_cpus)


TUNED: Mapping[str, object] = MappingProxyType(
    {
        "name": "prm-hybrid-tuned",
        "suspend_load_ratio": 0.95,
        "enable_load_ratio": 0.90,
        "cool_down_seconds": 180.0,
        "host_levels": 50,
    }
)
"""What section 3.3.1 changes, all at once and without an ablation; each is an option here."""
