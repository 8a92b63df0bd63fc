"""Heracles (ISCA'15): the top-level controller, the core and memory controller, and power as far as it is measured.

An Allocation has no cache ways, no frequency and no traffic class: GROW_LLC is skipped, power is answered by taking
cores, the link is only reported. A loop whose readings are missing is off, which the remarks say. BE cores map to this
host as quota and cpuset at once: `cores * core_cpus` CPUs of quota, on as many CPUs of BE's order as hold it. Where the
order begins with CPUs that the LC does not use, these cores are exclusive, as in the paper; on a CPU that both share
the quota is what divides it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from rlctl.agents.managers.heracles_loops import Bandwidth, Link, Power
from rlctl.agents.managers.manager import HAIR, Manager, require
from rlctl.agents.managers.readings import number, slack_of
from rlctl.agents.managers.timers import Every
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import PolicyError
from rlctl.envs.telemetry import Telemetry

__all__ = ["Heracles"]

MEASURED: Mapping[str, str] = MappingProxyType(
    {
        "memory-bandwidth": "memory-bandwidth limit",
        "power": "power limit by taking cores instead of frequency",
        "network": "network only reported",
    }
)
"""The loops that need a counter, and what is made of it here."""


class State(Enum):
    """Of BE; in the load band the previous one stays."""

    STARTED = "runs, does not grow until a poll enables it"
    ENABLED = "runs"
    DISABLED = "does not run"


@dataclass(kw_only=True, eq=False)
class Heracles(Manager):
    """Disable on negative slack or high load; hold below a slack of 0.10; back to two cores below 0.05; else grow.

    The cool-down ends with a poll. A re-enabled BE begins with `first_cores` again. Polls without latency or load
    neither enable nor allow growth; a known bad one still disables.

    In the core loop, what is measured comes first: DRAM bandwidth above its limit takes as many cores as use the
    overage, and no core is added whose part would exceed it; a LC below its guaranteed frequency at 90 % of the TDP
    takes a core a period, where the paper lowers the frequency of BE's cores. These two leave BE one core: to stop it
    is the top-level loop's.

    Args:
        time_scale: Divides all periods.
        core_cpus: CPUs here that stand for a core of the published machine.
        poll_seconds, grow_seconds: Top-level loop, core loop.
        cool_down_seconds: After a negative slack ("about 5 minutes").
        disable_load_ratio, enable_load_ratio: Load gates.
        hold_slack_ratio, shrink_slack_ratio: Slack below which BE may not grow; below which it shrinks.
        first_cores: Cores that BE begins with.
        kept_cores: Cores that a shrunk BE keeps, from `be_cores.Remove(be_cores.size() - 2)`.
        dram_limit_ratio: DRAM_LIMIT, share of the peak streaming bandwidth.
        power_limit_ratio: Share of the TDP.
    """

    name = "heracles"
    needs = ("tail_latency_seconds", "load_ratio")
    time_scale: float = 1.0
    core_cpus: float = 1.0
    poll_seconds: float = 15.0
    grow_seconds: float = 2.0
    cool_down_seconds: float = 300.0
    disable_load_ratio: float = 0.85
    enable_load_ratio: float = 0.80
    hold_slack_ratio: float = 0.10
    shrink_slack_ratio: float = 0.05
    first_cores: int = 1
    kept_cores: int = 2
    dram_limit_ratio: float = 0.90
    power_limit_ratio: float = 0.90

    def __post_init__(self) -> None:
        sizes = ("time_scale", "core_cpus", "poll_seconds", "grow_seconds", "cool_down_seconds")
        gates = ("disable_load_ratio", "enable_load_ratio", "hold_slack_ratio", "shrink_slack_ratio")
        shares = (*gates, "dram_limit_ratio", "power_limit_ratio")
        require(self, positive=(*sizes, "first_cores", "kept_cores"), share=shares)
        if self.enable_load_ratio > self.disable_load_ratio:
            raise PolicyError(f"{self.name}: enable_load_ratio is above disable_load_ratio; BE would flap")
        self._measured: set[str] = set()

    def begin(self) -> Allocation:
        """One core."""
        self._top = Every(self.poll_seconds / self.time_scale)
        self._core_loop = Every(self.grow_seconds / self.time_scale)
        self._state, self._may_grow = State.STARTED, False
        self.be_cores = self.first_cores
        self._why, self._measure = "start with the first core", ""
        self._measured.clear()
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The top-level loop, then the core loop."""
        slack, load, now_seconds = slack_of(telemetry), number(telemetry.load_ratio), telemetry.time_seconds
        if self._top.due(now_seconds):
            self._poll(slack, load, now_seconds)
        steps = self._core_loop.due(now_seconds)
        if steps:
            self._core_pass(telemetry, slack, steps)
        return self._allocation(), f"{self._why}; {self.be_cores} cores{self._measure}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which part of Heracles it is, and what a core is."""
        core = f"a core is {self.core_cpus:g} CPU"
        if not self._measured:
            return (f"core part only: no cache, memory-bandwidth, power or network control; {core}",)
        off = [name for name in MEASURED if name not in self._measured]
        active = "; ".join(said for name, said in MEASURED.items() if name in self._measured)
        unread = f"; no readings of {', '.join(off)}" if off else ""
        return (f"core part and {active}; no cache control{unread}; {core}",)

    @property
    def _most_cores(self) -> int:
        return max(self.first_cores, int(self.limits.cpus / self.core_cpus + HAIR))

    def _core_pass(self, telemetry: Telemetry, slack: float | None, steps: int) -> None:
        bandwidth, power = Bandwidth.read(telemetry.counters), Power.read(telemetry.counters)
        link = Link.read(telemetry.counters)
        known = zip(MEASURED, (bandwidth, power, link), strict=True)
        self._measured.update(name for name, reading in known if reading is not None)
        self._measure = f"; {link}" if link else ""
        over = bandwidth.cores_over(self.dram_limit_ratio, self.be_cores) if bandwidth else 0
        if bandwidth and over:
            self._remove(over, f"DRAM bandwidth {bandwidth.total_ratio:.0%}")
        elif power and power.is_short(self.power_limit_ratio):
            self._remove(steps, f"power {power.ratio:.0%}, LC at {power.lc_frequency_ratio:.0%} of its frequency")
        elif self._may_grow and slack is not None and slack > self.hold_slack_ratio + HAIR:
            room = bandwidth.cores_below(self.dram_limit_ratio, self.be_cores, steps) if bandwidth else steps
            self.be_cores = min(self.be_cores + room, self._most_cores)

    def _remove(self, cores: int, why: str) -> None:
        """Take cores, but for the last, and say so."""
        taken = min(cores, self.be_cores - 1)
        self.be_cores -= taken
        self._measure = f"; {why}: {taken} taken{self._measure}"

    def _poll(self, slack: float | None, load: float | None, now_seconds: float) -> None:
        if slack is not None and slack < 0.0:
            self._disable("slack negative: disabled, cooling down")
            self._top.rest(now_seconds, self.cool_down_seconds / self.time_scale)
        elif load is not None and load > self.disable_load_ratio:
            self._disable("load high: disabled")
        elif slack is None or load is None:
            self._may_grow, self._why = False, "latency or load missing: state kept, no growth"
        else:
            if load < self.enable_load_ratio:
                self._enable()
            self._judge_slack(slack)

    def _disable(self, why: str) -> None:
        self._state, self._may_grow, self._why = State.DISABLED, False, why

    def _enable(self) -> None:
        if self._state is State.DISABLED:
            self.be_cores = self.first_cores
        self._state = State.ENABLED

    def _judge_slack(self, slack: float) -> None:
        self._may_grow = self._state is State.ENABLED and slack >= self.hold_slack_ratio
        self._why = "growth allowed" if self._may_grow else "no growth"
        if slack < self.shrink_slack_ratio:
            self.be_cores = min(self.be_cores, self.kept_cores)
            self._why = "slack tiny: cores taken back"

    def _allocation(self) -> Allocation:
        quota_cpus = min(self.be_cores * self.core_cpus, float(self.limits.cpus))
        cpuset_cpus = max(1, math.ceil(quota_cpus - HAIR))
        return Allocation(quota_cpus, cpuset_cpus, frozen=self._state is State.DISABLED)
