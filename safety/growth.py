"""The guards that leave BE running but hold it down: slack hold, slack floor, growth rate and ceiling.

Their rules stand twice: here for one host, in `rlctl.safety.many.guards` for hosts in arrays.
`tests/safety/many/test_shield.py` holds the two equal to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.guard import Memoryless, elapsed_seconds, poll_due
from rlctl.safety.trust import Trust
from rlctl.safety.verdict import Bound, Reason


@dataclass(frozen=True, slots=True)
class SeenSlack:
    """Memory of the guards that hold by slack: that of the last judgement, None before the first."""

    slack_ratio: float | None = None
    polled_seconds: float | None = None

    def below(self, ratio: float) -> bool:
        """True when the slack is below a threshold, or none was seen yet."""
        return self.slack_ratio is None or self.slack_ratio < ratio

    def reason(self, known: Reason) -> Reason:
        """Why BE is held: this, where a slack was seen."""
        return Reason.SLACK_UNKNOWN if self.slack_ratio is None else known

    def after(self, telemetry: Telemetry, poll_seconds: float, trust: Trust) -> SeenSlack:
        """The memory after a tick; without a believed slack the poll stays due."""
        if not poll_due(self.polled_seconds, telemetry.time_seconds, poll_seconds):
            return self
        slack = trust.slack_ratio(telemetry)
        return self if slack is None else SeenSlack(slack, telemetry.time_seconds)

    def __str__(self) -> str:
        return "slack not seen yet" if self.slack_ratio is None else f"slack {self.slack_ratio:.3f}"


@dataclass(frozen=True, slots=True)
class _BySlack:
    """What the two guards share that hold BE down by its slack: before the first slack they do.

    Attributes:
        below_ratio: Slack below which the guard holds BE down.
        poll_seconds: Time between two judgements; 0 judges every tick.
    """

    below_ratio: float
    poll_seconds: float
    trust: Trust

    def start(self) -> SeenSlack:
        """No slack was seen yet."""
        return SeenSlack()

    def advance(self, memory: SeenSlack, telemetry: Telemetry) -> SeenSlack:
        """Look at the slack when a poll is due."""
        return memory.after(telemetry, self.poll_seconds, self.trust)


@dataclass(frozen=True, slots=True)
class SlackHold(_BySlack):
    """Little slack forbids growth: no knob may be freer than it is, and a frozen BE stays frozen."""

    name: ClassVar[str] = "slack-hold"

    def bound(self, memory: SeenSlack, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is in force, or no objection."""
        # slack < 0.10: DisallowBEGrowth (Heracles, algorithm 1).
        if not memory.below(self.below_ratio):
            return None
        reason = memory.reason(Reason.SLACK_SMALL)
        return Bound(self.name, reason, current, f"{memory}: below {self.below_ratio:g} nothing grows")


@dataclass(frozen=True, slots=True)
class SlackFloor(_BySlack):
    """Very little slack takes BE down to a floor at once.

    Attributes:
        floor_cpus: CPUs that BE keeps, where they are fewer than `floor_ratio` of the host.
        floor_ratio: Share of the host that BE keeps, where it is less than `floor_cpus`.
    """

    floor_cpus: float
    floor_ratio: float
    name: ClassVar[str] = "slack-floor"

    def bound(self, memory: SeenSlack, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The floor, or no objection."""
        # slack < 0.05: be_cores.Remove(be_cores.size() - 2) (Heracles, algorithm 1). Its two cores of 36 would be all
        # of a small host; so a share of the host stands beside them.
        if not memory.below(self.below_ratio):
            return None
        floor, reason = self.floor(limits), memory.reason(Reason.SLACK_TINY)
        return Bound(self.name, reason, floor, f"{memory}: below {self.below_ratio:g} BE gets {floor}")

    def floor(self, limits: Limits) -> Allocation:
        """What BE keeps on this host: the floor's quota, on as few CPUs as can hold it."""
        quota_cpus = max(min(self.floor_cpus, self.floor_ratio * limits.cpus), limits.min_quota_cpus)
        return Allocation(quota_cpus, max(math.ceil(quota_cpus), 1))


@dataclass(frozen=True, slots=True)
class Pace:
    """Memory of the growth rate.

    Attributes:
        seen_seconds: Time of the last reading.
        passed_seconds: Time before it that earns growth.
        well_seconds: Time in which the target was seen to be held, as far as it is saved.
    """

    seen_seconds: float | None = None
    passed_seconds: float = 0.0
    well_seconds: float = 0.0


SAVED = 5.0
"""Most time without a miss that is saved, in multiples of what a miss costs of it. So one miss in a long while changes
nothing, and some close together do."""


@dataclass(frozen=True, slots=True)
class GrowthRate:
    """BE grows by so much per second and no more; a suspended BE resumes from the minimum.

    Where the target is seldom missed it may grow faster. A slow rise protects no LC that does not wait for BE; an LC
    that misses soon after each rise has the slow one.

    The rate holds as long as one verdict per telemetry is applied. A time scale does not affect it: the host does not
    react faster because the periods of a controller were divided.

    Attributes:
        ratio_per_second: Share of BE's CPUs by which the quota may grow each second. Below `RISE_RATIO` per tick
            every growing move of a learned policy would be an override.
        cpuset_cpus: Number of CPUs by which the cpuset may grow each tick.
        gap_seconds: Most time that counts as passed between two readings; a late tick earns no leap.
        well_ratio_per_second: The same share where `well_seconds` are saved; of the CPUs in the cpuset, too.
        well_seconds: Time without a miss that this takes, and that each miss costs, and each tick without a tail.
    """

    ratio_per_second: float
    cpuset_cpus: int
    gap_seconds: float
    well_ratio_per_second: float
    well_seconds: float
    trust: Trust
    name: ClassVar[str] = "growth-rate"

    def start(self) -> Pace:
        """No time has passed that would earn growth."""
        return Pace()

    def advance(self, memory: Pace, telemetry: Telemetry) -> Pace:
        """Note how much time passed, and how much of it was well."""
        now, slack = telemetry.time_seconds, self.trust.slack_ratio(telemetry)
        passed = elapsed_seconds(memory.seen_seconds, now, self.gap_seconds)
        # An overload may blind its sensors: a tick of which nobody knows costs as much as a miss.
        if slack is not None and slack >= 0.0:
            return Pace(now, passed, min(memory.well_seconds + passed, SAVED * self.well_seconds))
        return Pace(now, passed, max(memory.well_seconds - self.well_seconds, 0.0))

    def bound(self, memory: Pace, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is in force and one step more."""
        # most = what is in force + rate * time. A frozen BE counts as one at the minimum: to thaw a large quota would
        # be the largest step of all.
        base = limits.minimum if current.frozen else current
        well = memory.well_seconds >= self.well_seconds
        rate = self.well_ratio_per_second if well else self.ratio_per_second
        # Rounded to nano-CPUs, so that a step onto the quota grid is not lost to the last bit.
        quota_cpus = round(base.quota_cpus + rate * limits.cpus * memory.passed_seconds, 9)
        step_cpus = max(self.cpuset_cpus, math.floor(rate * limits.cpus * memory.passed_seconds) if well else 0)
        cpuset_cpus = base.cpuset_cpus + (step_cpus if memory.passed_seconds > 0.0 else 0)
        grown = quota_cpus > base.quota_cpus and quota_cpus >= limits.cpus
        most = Allocation(UNLIMITED if grown else max(quota_cpus, base.quota_cpus), cpuset_cpus)
        return Bound(self.name, Reason.GROWTH_RATE, most, f"at most {most} after {memory.passed_seconds:.2f} s")


@dataclass(frozen=True, slots=True)
class Ceiling(Memoryless):
    """BE's quota is never more than a share of its CPUs; at a ratio of 1.0 the quota may be lifted altogether."""

    ratio: float
    name: ClassVar[str] = "ceiling"

    def bound(self, memory: None, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """That share of the host, in every tick."""
        most = self.most(limits)
        return Bound(self.name, Reason.CEILING, most, f"at most {most}")

    def most(self, limits: Limits) -> Allocation:
        """What BE may ever have on this host."""
        quota_cpus = max(round(self.ratio * limits.cpus, 9), limits.min_quota_cpus)
        return limits.full if self.ratio >= 1.0 else limits.full.but(quota_cpus=quota_cpus)
