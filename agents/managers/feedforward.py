"""Feed-forward: BE gets what the LC is about to leave. The simple opponent that a learned policy must beat.

It is rlctl's own. A sweep of loads and quotas on a live host showed that LC and BE share a CPU stably only while their
demands together stay below it. So the quota is the CPUs, less a margin, less the LC's use; and the use is foreseen from
the load, which rises before the backlog does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rlctl.agents.managers.manager import Manager, slack_of
from rlctl.agents.managers.options import NotNegative, Positive, Share
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry, number

LEAST_LOAD = 0.02
"""Below this load the quotient of use and load says nothing: the LC's CPU time is housekeeping."""

LONGEST_GAP_SECONDS = 10.0
"""Two loads further apart give no slope."""

Lead = Annotated[float, Field(ge=0.0, le=LONGEST_GAP_SECONDS)]
"""How far ahead a load may be foreseen, in seconds: no further than two loads give a slope."""

RISE, FALL = 0.5, 0.05
"""Weight of a new quotient in its average when above, when below: an underestimate costs QoS, an overestimate BE work.
CPU time per request drifts by 15-20 % over minutes (measured on a live host), which the slow side follows."""


@dataclass(slots=True)
class Demand:
    """How many CPUs the LC will use, learned from its use and its load.

    Attributes:
        cpus_per_load: CPUs at load 1.0; None until something is learned.
    """

    cpus_per_load: float | None = None
    _load: float | None = None
    _time_seconds: float = 0.0

    def learn(self, load: float | None, use_cpus: float | None, starved: bool) -> None:
        """Learn from one tick, in which a starved LC had less CPU than it needed."""
        # A starved LC uses less than it needs: such a sample is censored, and would teach too small a demand.
        if load is None or use_cpus is None or starved or load < LEAST_LOAD:
            return
        # demand = use / load, averaged with a weight that follows a rise at once and a fall slowly.
        quotient = use_cpus / load
        if self.cpus_per_load is None:
            self.cpus_per_load = quotient
        else:
            weight = RISE if quotient > self.cpus_per_load else FALL
            self.cpus_per_load += weight * (quotient - self.cpus_per_load)

    def foreseen_load(self, now_seconds: float, load: float, lead_seconds: float) -> float:
        """The load some time ahead."""
        # load + slope * lead, where a falling load counts as a steady one: to give too little for a tick costs BE
        # work, to give too much costs the LC its target.
        gap_seconds = now_seconds - self._time_seconds
        rise = 0.0
        if self._load is not None and 0.0 < gap_seconds <= LONGEST_GAP_SECONDS:
            rise = max(load - self._load, 0.0) / gap_seconds
        self._load, self._time_seconds = load, now_seconds
        return load + rise * lead_seconds


def spare(limits: Limits, shared_cpus: float, use_cpus: float, margin_ratio: float) -> Allocation:
    """The larger of two allocations that leave the LC what it uses and a margin.

    Args:
        shared_cpus: CPUs that LC and BE share.
        margin_ratio: Share of each shared CPU that stays idle.
    """
    # Choice 1: the CPUs that the LC does not use, all of their time.
    exclusive_cpus = int(limits.cpus - shared_cpus)
    # Choice 2: all n CPUs under one quota. The quota is one pool, of which a BE thread on each CPU takes an equal part;
    # so it may be n times what is spare on a shared CPU, 1 - margin - use / shared.
    spare_ratio = 1.0 - margin_ratio - (use_cpus / shared_cpus if shared_cpus else 0.0)
    pooled_cpus = limits.cpus * spare_ratio
    if exclusive_cpus and exclusive_cpus >= pooled_cpus:
        return Allocation(float(exclusive_cpus), exclusive_cpus)
    return Allocation(min(max(pooled_cpus, limits.min_quota_cpus), float(limits.cpus)), limits.cpus)


@dataclass(kw_only=True, eq=False)
class Feedforward(Manager):
    """Quota = CPUs - margin - foreseen use of the LC, every tick; behind the shield, as it is rlctl's own.

    Args:
        margin_ratio: Share of each shared CPU left idle.
        lead_seconds: How far ahead the load is foreseen; about the delay from a reading to its effect.
        hold_slack_ratio: Slack below it forbids growth.
        cpus_per_load: LC CPUs at load 1.0; learned when None.
        shared_cpus: CPUs that LC and BE share; all but BE's exclusive ones when None.
    """

    name, moves_reins = "feedforward", True
    shielded = True
    needs = ("load_ratio", "lc_cpus")
    margin_ratio: Share = 0.10
    lead_seconds: Lead = 1.0
    hold_slack_ratio: Share = 0.10
    cpus_per_load: Positive | None = None
    shared_cpus: NotNegative | None = None

    def begin(self) -> Allocation:
        """The minimum, until something is known."""
        self._demand = Demand(self.cpus_per_load)
        self._last = self.limits.minimum
        return self._last

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """Foresee the LC's use, subtract it from the CPUs, and hold or take back where the slack is small."""
        slack = slack_of(telemetry)
        use_cpus = self._use(telemetry, starved=slack is not None and slack < 0.0)
        self._last, why = self._judge(use_cpus, slack)
        return self._last, why

    @property
    def remarks(self) -> tuple[str, ...]:
        """The margin, and where its knowledge is from."""
        origin = "learned online" if self.cpus_per_load is None else "configured"
        return (f"margin {self.margin_ratio:.0%}; LC CPUs per load {origin}",)

    def _use(self, telemetry: Telemetry, starved: bool) -> float | None:
        """CPUs that the LC will use, at least what it uses now; its present use when the load is unknown."""
        load, used_cpus = number(telemetry.load_ratio), number(telemetry.lc_cpus)
        if self.cpus_per_load is None:
            self._demand.learn(load, used_cpus, starved)
        if load is None or self._demand.cpus_per_load is None:
            return used_cpus
        ahead = self._demand.foreseen_load(telemetry.time_seconds, load, self.lead_seconds)
        return max(self._demand.cpus_per_load * ahead, used_cpus or 0.0)

    def _judge(self, use_cpus: float | None, slack: float | None) -> tuple[Allocation, str]:
        # Neither load nor use: nothing says what is spare.
        if use_cpus is None:
            return self.limits.minimum, "neither load nor LC use known: minimum"
        # Over the target: a backlog drains only at the capacity that is left, so BE leaves all of it.
        if slack is not None and slack < 0.0:
            return self.limits.minimum, "slack negative: minimum until the backlog is gone"
        limits = self.limits
        shared_cpus = limits.cpus - limits.exclusive_cpus if self.shared_cpus is None else self.shared_cpus
        wanted = spare(limits, min(shared_cpus, limits.cpus), use_cpus, self.margin_ratio)
        why = f"LC foreseen at {use_cpus:.2f} CPU: {wanted}"
        # A small slack forbids growth, as in Heracles (ISCA 2015, algorithm 1); what shrinks may shrink.
        if slack is not None and slack < self.hold_slack_ratio and not wanted.at_most(self._last):
            quota_cpus = min(wanted.quota_cpus, self._last.quota_cpus)
            return Allocation(
                quota_cpus, min(wanted.cpuset_cpus, self._last.cpuset_cpus)
            ), why + ", held at small slack"
        return wanted, why
