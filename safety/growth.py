"""The guards that leave BE running but hold it down: slack hold, slack floor, growth rate and ceiling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlctl.envs.actions import whole_nano
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.law import law
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.guard import Memoryless, elapsed_seconds, poll_due
from rlctl.safety.trust import ProfileGuard
from rlctl.safety.verdict import Bound, Reason


class SeenSlack(NamedTuple):
    """Memory of the guards that hold by slack: that of the last judgement, NaN before the first."""

    slack_ratio: float = math.nan
    polled_seconds: float = math.nan

    def below(self, ratio: float) -> bool:
        """True when the slack is below a threshold, or none was seen yet."""
        return not self.slack_ratio >= ratio

    def reason(self, known: Reason) -> Reason:
        """Why BE is held: this, where a slack was seen."""
        return Reason.SLACK_UNKNOWN if math.isnan(self.slack_ratio) else known

    def __str__(self) -> str:
        return "slack not seen yet" if math.isnan(self.slack_ratio) else f"slack {self.slack_ratio:.3f}"


@law
def seen_after(memory: SeenSlack, now_seconds: float, slack: float, poll_seconds: float) -> SeenSlack:
    """The memory after a tick; without a believed slack, which is NaN, the poll stays due."""
    if math.isnan(slack) or not poll_due(memory.polled_seconds, now_seconds, poll_seconds):
        return memory
    return SeenSlack(slack, now_seconds)


@dataclass(frozen=True, slots=True)
class _BySlack(ProfileGuard):
    """What the two guards share that hold BE down by its slack: before the first slack they do."""

    def start(self) -> SeenSlack:
        """No slack was seen yet."""
        return SeenSlack()

    def advance(self, memory: SeenSlack, telemetry: Telemetry) -> SeenSlack:
        """Look at the slack when a poll is due."""
        slack = self.trust.slack_ratio(telemetry)
        return seen_after(memory, telemetry.time_seconds, slack, self.constants.poll_seconds)


@dataclass(frozen=True, slots=True)
class SlackHold(_BySlack):
    """Little slack forbids growth: no knob may be freer than it is, and a frozen BE stays frozen."""

    name: ClassVar[str] = "slack-hold"

    def bound(self, memory: SeenSlack, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is in force, or no objection."""
        # slack < 0.10: DisallowBEGrowth (Heracles, algorithm 1).
        hold_ratio = self.constants.slack_hold_ratio
        if not memory.below(hold_ratio):
            return None
        reason = memory.reason(Reason.SLACK_SMALL)
        return Bound(self.name, reason, current, f"{memory}: below {hold_ratio:g} nothing grows")


@dataclass(frozen=True, slots=True)
class SlackFloor(_BySlack):
    """Very little slack takes BE down to a floor at once."""

    name: ClassVar[str] = "slack-floor"

    def bound(self, memory: SeenSlack, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The floor, or no objection."""
        # slack < 0.05: be_cores.Remove(be_cores.size() - 2) (Heracles, algorithm 1). Its two cores of 36 would be all
        # of a small host; so a share of the host stands beside them.
        floor_ratio = self.constants.slack_floor_ratio
        if not memory.below(floor_ratio):
            return None
        floor, reason = self.floor(limits), memory.reason(Reason.SLACK_TINY)
        return Bound(self.name, reason, floor, f"{memory}: below {floor_ratio:g} BE gets {floor}")

    def floor(self, limits: Limits) -> Allocation:
        """What BE keeps on this host: the floor's quota, on as few CPUs as can hold it."""
        least_cpus = min(self.constants.floor_cpus, self.constants.floor_ratio * limits.cpus)
        quota_cpus = max(least_cpus, limits.min_quota_cpus)
        return Allocation(quota_cpus, max(math.ceil(quota_cpus), 1))


class Pace(NamedTuple):
    """Memory of the growth rate.

    Attributes:
        seen_seconds: Time of the last reading; NaN before the first.
        passed_seconds: Time before it that earns growth.
        well_seconds: Time in which the target was seen to be held, as far as it is saved.
    """

    seen_seconds: float = math.nan
    passed_seconds: float = 0.0
    well_seconds: float = 0.0


SAVED = 5.0
"""Most time without a miss that is saved, in multiples of what a miss costs of it. So one miss in a long while changes
nothing, and some close together do."""


@law
def pace_after(memory: Pace, now_seconds: float, slack: float, gap_seconds: float, well_seconds: float) -> Pace:
    """What the growth rate remembers after a tick.

    Args:
        slack: The slack to judge by; NaN for none.
        well_seconds: Time without a miss that a miss costs.
    """
    passed = elapsed_seconds(memory.seen_seconds, now_seconds, gap_seconds)
    # An overload may blind its sensors: a tick of which nobody knows costs as much as a miss.
    if slack >= 0.0:
        return Pace(now_seconds, passed, min(memory.well_seconds + passed, SAVED * well_seconds))
    return Pace(now_seconds, passed, max(memory.well_seconds - well_seconds, 0.0))


@law
def grow(
    quota_cpus: float, cpuset_cpus: int, passed_seconds: float, rate: float, least_cpuset_cpus: int, well: bool,
    cpus: int,
) -> tuple[float, int]:  # fmt: skip
    """What is in force and one step more.

    Args:
        rate: Share of BE's CPUs by which the quota may grow each second.
        least_cpuset_cpus: CPUs by which the cpuset may grow in any case; more where all has been `well`.
    """
    # most = what is in force + rate * time, in nano-CPUs, so that a step onto the quota grid is not lost to a last bit.
    most = whole_nano(quota_cpus + rate * cpus * passed_seconds)
    step_cpus = max(least_cpuset_cpus, math.floor(rate * cpus * passed_seconds) if well else 0)
    lifted = most > quota_cpus and most >= cpus
    return UNLIMITED if lifted else max(most, quota_cpus), cpuset_cpus + (step_cpus if passed_seconds > 0.0 else 0)


@dataclass(frozen=True, slots=True)
class GrowthRate(ProfileGuard):
    """BE grows by so much per second and no more; a suspended BE resumes from the minimum.

    Where the target is seldom missed it may grow faster. A slow rise protects no LC that does not wait for BE; an LC
    that misses soon after each rise has the slow one.

    The rate holds as long as one verdict per telemetry is applied. A time scale does not affect it: the host does not
    react faster because the periods of a controller were divided. At less than `RISE_RATIO` per tick every growing move
    of a learned policy would be an override.
    """

    name: ClassVar[str] = "growth-rate"

    def start(self) -> Pace:
        """No time has passed that would earn growth."""
        return Pace()

    def advance(self, memory: Pace, telemetry: Telemetry) -> Pace:
        """Note how much time passed, and how much of it was well."""
        c, slack = self.constants, self.trust.slack_ratio(telemetry)
        return pace_after(memory, telemetry.time_seconds, slack, c.growth_gap_seconds, c.well_seconds)

    def bound(self, memory: Pace, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """What is in force and one step more."""
        # A frozen BE counts as one at the minimum: to thaw a large quota would be the largest step of all.
        c, base = self.constants, limits.minimum if current.frozen else current
        well = memory.well_seconds >= c.well_seconds
        rate = c.well_ratio_per_second if well else c.growth_ratio_per_second
        in_force = base.quota_cpus, base.cpuset_cpus
        most = Allocation(*grow(*in_force, memory.passed_seconds, rate, c.growth_cpuset_cpus, well, limits.cpus))
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
