"""Heracles (Lo et al., ISCA 2015): the top-level controller, the core and memory controller, and power where measured.

An Allocation has no cache ways, no frequency and no traffic class. So GROW_LLC is skipped, and power is answered by
taking cores. BE's ceiling on the link needs a testbed that can set one (`live-network`). A loop whose readings are
missing is off, which the remarks say.

As printed, algorithm 1 is one chain that tests a small slack only between the two load gates. The text, which is
implemented, tests it at any load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rlctl.agents.managers.heracles_loops import Bandwidth, LinkLoop, Power
from rlctl.agents.managers.manager import HAIR, BeState, Every, Manager, slack_of
from rlctl.agents.managers.options import Count, Positive, Share, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import PolicyError
from rlctl.envs.telemetry import Telemetry, number

MEASURED: Mapping[str, str] = MappingProxyType(
    {
        "memory-bandwidth": "memory-bandwidth limit",
        "power": "power limit by taking cores instead of frequency",
        "network": "network ceiling, where the testbed has a link",
    }
)
"""The loops that need a counter, and what this host can answer them with."""


@dataclass(kw_only=True, eq=False)
class Heracles(Manager):
    """Disable on negative slack or high load; hold below a slack of 0.10; back to two cores below 0.05; else grow.

    Args:
        time_scale: Divides all periods.
        core_cpus: CPUs here that stand for a core of the published machine.
        poll_seconds, grow_seconds: Period of the top-level loop, and of the core loop.
        cool_down_seconds: How long BE stays disabled after a negative slack ("about 5 minutes").
        disable_load_ratio, enable_load_ratio: Load above which BE is disabled, below which it is enabled.
        hold_slack_ratio, shrink_slack_ratio: Slack below which BE may not grow, below which it shrinks.
        first_cores: Cores that BE begins with.
        kept_cores: Cores that a shrunk BE keeps, from `be_cores.Remove(be_cores.size() - 2)`.
        dram_limit_ratio: DRAM_LIMIT, as a share of the bandwidth that streaming reaches at most.
        power_limit_ratio: Power above which the LC's frequency is looked at, as a share of the TDP.
    """

    name = "heracles"
    needs = ("tail_latency_seconds", "load_ratio")
    time_scale: TimeScale = 1.0
    core_cpus: Positive = 1.0
    poll_seconds: Positive = 15.0
    grow_seconds: Positive = 2.0
    cool_down_seconds: Positive = 300.0
    disable_load_ratio: Share = 0.85
    enable_load_ratio: Share = 0.80
    hold_slack_ratio: Share = 0.10
    shrink_slack_ratio: Share = 0.05
    first_cores: Count = 1
    kept_cores: Count = 2
    dram_limit_ratio: Share = 0.90
    power_limit_ratio: Share = 0.90

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.enable_load_ratio > self.disable_load_ratio:
            raise PolicyError(f"{self.name}: enable_load_ratio is above disable_load_ratio; BE would flap")
        self._measured: set[str] = set()

    def begin(self) -> Allocation:
        """BE begins with its first core."""
        self._top = Every(self.poll_seconds / self.time_scale)
        self._core_loop = Every(self.grow_seconds / self.time_scale)
        self._state, self._may_grow = BeState.STARTED, False
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
        counters = telemetry.counters
        bandwidth, power, link = Bandwidth.read(counters), Power.read(counters), LinkLoop.read(counters)
        known = zip(MEASURED, (bandwidth, power, link), strict=True)
        self._measured.update(name for name, reading in known if reading is not None)
        self._measure = f"; {link}" if link else ""
        over = bandwidth.cores_over(self.dram_limit_ratio, self.be_cores) if bandwidth else 0
        # TotalBw > DRAM_LIMIT: be_cores.Remove(overage / BeBwPerCore); continue (algorithm 2).
        if bandwidth and over:
            self._remove(over, f"DRAM bandwidth {bandwidth.total_ratio:.0%}")
        # power > 0.90 TDP and ls_freq < guaranteed: LowerFrequency(be_cores) in the paper (algorithm 3), each period;
        # without DVFS a core each period instead.
        elif power and power.is_short(self.power_limit_ratio):
            self._remove(steps, f"power {power.ratio:.0%}, LC at {power.lc_frequency_ratio:.0%} of its frequency")
        # GROW_CORES: slack > 0.10 and LcBw + BeBw + BeBwPerCore <= DRAM_LIMIT: be_cores.Add(1) (algorithm 2).
        elif self._may_grow and slack is not None and slack > self.hold_slack_ratio + HAIR:
            room = bandwidth.cores_below(self.dram_limit_ratio, self.be_cores, steps) if bandwidth else steps
            self.be_cores = min(self.be_cores + room, self._most_cores)

    def _remove(self, cores: int, why: str) -> None:
        """Take cores; the last one stays, for whether BE runs at all is the top-level controller's to say."""
        taken = min(cores, self.be_cores - 1)
        self.be_cores -= taken
        self._measure = f"; {why}: {taken} taken{self._measure}"

    def _poll(self, slack: float | None, load: float | None, now_seconds: float) -> None:
        """The top-level controller (algorithm 1), every 15 s."""
        # slack < 0: DisableBE, EnterCooldown; the cool-down ends with a poll.
        if slack is not None and slack < 0.0:
            self._disable("slack negative: disabled, cooling down")
            self._top.rest(now_seconds, self.cool_down_seconds / self.time_scale)
        # load > 0.85: DisableBE.
        elif load is not None and load > self.disable_load_ratio:
            self._disable("load high: disabled")
        # Ours: without latency or load BE is neither enabled nor may it grow; a known bad reading still disables.
        elif slack is None or load is None:
            self._may_grow, self._why = False, "latency or load missing: state kept, no growth"
        else:
            # load < 0.80: EnableBE; between the gates the state stays.
            if load < self.enable_load_ratio:
                self._enable()
            self._judge_slack(slack)

    def _disable(self, why: str) -> None:
        self._state, self._may_grow, self._why = BeState.SUSPENDED, False, why

    def _enable(self) -> None:
        # A BE that was disabled begins with its first core again.
        if self._state is BeState.SUSPENDED:
            self.be_cores = self.first_cores
        self._state = BeState.ENABLED

    def _judge_slack(self, slack: float) -> None:
        # slack < 0.10: DisallowBEGrowth; slack < 0.05: be_cores.Remove(be_cores.size() - 2).
        self._may_grow = self._state is BeState.ENABLED and slack >= self.hold_slack_ratio
        self._why = "growth allowed" if self._may_grow else "no growth"
        if slack < self.shrink_slack_ratio:
            self.be_cores = min(self.be_cores, self.kept_cores)
            self._why = "slack tiny: cores taken back"

    def _allocation(self) -> Allocation:
        # Cores become quota and cpuset at once: so much quota, on as many CPUs of BE's order as hold it. Where the
        # order begins with CPUs that the LC does not use, these are exclusive, as in the paper; on a CPU that both
        # share the quota is what divides it.
        quota_cpus = min(self.be_cores * self.core_cpus, float(self.limits.cpus))
        cpuset_cpus = max(1, math.ceil(quota_cpus - HAIR))
        return Allocation(quota_cpus, cpuset_cpus, frozen=self._state is BeState.SUSPENDED)
