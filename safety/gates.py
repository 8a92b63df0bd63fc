"""The guards that suspend BE: the load gate and the slack gate (Heracles, ISCA 2015, algorithm 1), and the overrun.

That is BE that uses more CPU time than it may: a task left its groups, or the kernel does not obey.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.law import law
from rlctl.envs.telemetry import BE_ALLOWED, Telemetry, Value
from rlctl.safety.guard import elapsed_seconds, poll_due
from rlctl.safety.trust import ProfileGuard
from rlctl.safety.verdict import Bound, Reason


class GateMemory(NamedTuple):
    """Memory of the load gate.

    Attributes:
        closed: Whether BE is suspended.
        load_ratio: Load of the last judgement; NaN before the first, as is the time of it.
        noise_ratio: Mean change of the load from one judgement to the next, none counted beyond the widest gap between
            the thresholds.
    """

    closed: bool = True
    load_ratio: float = math.nan
    polled_seconds: float = math.nan
    noise_ratio: float = 0.0


NOISE_WEIGHT, NOISE_TIMES = 0.05, 2.0
"""Weight of a judgement in the noise of the load, and the gap between the thresholds by that noise. Few judgements of a
load that wavers around its middle are beyond both."""


@law
def gate_after(
    memory: GateMemory,
    now_seconds: float,
    load: float,
    suspend_ratio: float,
    resume_ratio: float,
    least_gap_ratio: float,
    poll_seconds: float,
) -> GateMemory:
    """What the load gate remembers after a tick.

    Args:
        load: The load to judge by; NaN for none.
    """
    if math.isnan(load) or not poll_due(memory.polled_seconds, now_seconds, poll_seconds):
        return memory
    # The very same load is a reading that is shown twice, and no sign of quiet. A step of the load is no noise: it
    # counts as the widest gap once. So does what is no number.
    noise, most, change = memory.noise_ratio, suspend_ratio - resume_ratio, abs(load - memory.load_ratio)
    if not math.isnan(memory.load_ratio) and load != memory.load_ratio:
        noise += NOISE_WEIGHT * ((change if change < most else most) - noise)
    # load > suspend: closed; load < resume: open; between the two it stays as it is, so that a load that wavers at
    # one threshold does not start and stop BE in each tick.
    below = resumes_below(noise, suspend_ratio, resume_ratio, least_gap_ratio)
    closed = load > suspend_ratio or (memory.closed and not load < below)
    return GateMemory(closed, load, now_seconds, noise)


@law
def resumes_below(noise_ratio: float, suspend_ratio: float, resume_ratio: float, least_gap_ratio: float) -> float:
    """The load below which a closed gate opens: nearer to the upper threshold where the load hardly wavers."""
    return max(resume_ratio, suspend_ratio - max(NOISE_TIMES * noise_ratio, least_gap_ratio))


@dataclass(frozen=True, slots=True)
class LoadGate(ProfileGuard):
    """Load above one threshold suspends BE until it is seen below a lower one; between them the state holds.

    The thresholds are 0.85 and 0.80 in Heracles.
    """

    name: ClassVar[str] = "load-gate"

    def start(self) -> GateMemory:
        """Closed: a load between the thresholds at the start is no permission. Until more is seen it wavers by much."""
        return GateMemory(noise_ratio=self.constants.load_suspend_ratio - self.constants.load_resume_ratio)

    def advance(self, memory: GateMemory, telemetry: Telemetry) -> GateMemory:
        """Judge the load when a poll is due; without a load the poll stays due."""
        c = self.constants
        load = self.trust.load_ratio(telemetry, c.load_suspend_ratio)
        thresholds = c.load_suspend_ratio, c.load_resume_ratio, c.least_gap_ratio
        return gate_after(memory, telemetry.time_seconds, load, *thresholds, c.poll_seconds)

    def bound(self, memory: GateMemory, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The safe allocation while closed, else no objection."""
        # Safe, not only frozen: what BE has beneath the freezer is where it goes on, and that is to be the minimum.
        if not memory.closed:
            return None
        seen, reason = "not seen yet", Reason.LOAD_UNKNOWN
        if not math.isnan(memory.load_ratio):
            seen, reason = f"{memory.load_ratio:.3f}", Reason.LOAD_HIGH
        c = self.constants
        below = resumes_below(memory.noise_ratio, c.load_suspend_ratio, c.load_resume_ratio, c.least_gap_ratio)
        detail = f"load {seen}: above {c.load_suspend_ratio:g} suspends, below {below:.3g} allows"
        return Bound(self.name, reason, limits.safe, detail)


class Strikes(NamedTuple):
    """Memory of the slack gate.

    Attributes:
        count: Strikes that are not forgotten yet, up to `suspend_after_strikes`.
        clean_seconds: Time since the last strike, up to `forget_strikes_seconds`.
        remaining_seconds: Time until the cool-down ends.
        slack_ratio: Slack of the last judgement; NaN before the first, as are the times.
    """

    count: int = 0  # type: ignore[assignment] # a tuple has a method of that name
    clean_seconds: float = 0.0
    remaining_seconds: float = 0.0
    slack_ratio: float = math.nan
    seen_seconds: float = math.nan
    polled_seconds: float = math.nan


@law
def strikes_after(
    memory: Strikes,
    now_seconds: float,
    slack: float,
    suspend_ratio: float,
    suspend_after: int,
    forget_seconds: float,
    cool_down_seconds: float,
    poll_seconds: float,
    gap_seconds: float,
) -> Strikes:
    """What the slack gate remembers after a tick.

    Args:
        slack: The slack to judge by; NaN for none.
    """
    # Time counts by what passes between readings: a clock that goes back neither shortens nor prolongs a cool-down,
    # one that jumps ahead ends none.
    passed = elapsed_seconds(memory.seen_seconds, now_seconds, gap_seconds)
    clean = min(memory.clean_seconds + passed, forget_seconds)
    remaining = max(memory.remaining_seconds - passed, 0.0)
    if math.isnan(slack) or not poll_due(memory.polled_seconds, now_seconds, poll_seconds):
        return Strikes(memory.count, clean, remaining, memory.slack_ratio, now_seconds, memory.polled_seconds)
    # No strike: only time without one forgets the others.
    if slack >= suspend_ratio:
        count = 0 if clean >= forget_seconds else memory.count
        return Strikes(count, clean, remaining, slack, now_seconds, now_seconds)
    # slack < 0: DisableBE, EnterCooldown, where enough strikes have come together; each further one starts the
    # cool-down anew.
    count = min(memory.count + 1, suspend_after)
    remaining = cool_down_seconds if count >= suspend_after else remaining
    return Strikes(count, 0.0, remaining, slack, now_seconds, now_seconds)


@dataclass(frozen=True, slots=True)
class SlackGate(ProfileGuard):
    """Negative slack is a strike; enough strikes suspend BE for a cool-down, which each further one starts anew.

    One strike is enough as published. Where only strikes in a row count, a policy that grows back after each has one
    violation per growth for ever.
    """

    name: ClassVar[str] = "slack-gate"

    def start(self) -> Strikes:
        """There was no strike, and there is no cool-down."""
        return Strikes()

    def advance(self, memory: Strikes, telemetry: Telemetry) -> Strikes:
        """Let time pass, and judge the slack when a poll is due; without one the poll stays due."""
        c, slack = self.constants, self.trust.slack_ratio(telemetry)
        strikes = c.slack_suspend_ratio, c.suspend_after_strikes, c.forget_strikes_seconds
        return strikes_after(
            memory, telemetry.time_seconds, slack, *strikes, c.cool_down_seconds, c.poll_seconds, c.gap_seconds
        )

    def bound(self, memory: Strikes, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """Safe when suspended or cooling down, the minimum on a first strike, else no objection."""
        slack, left, enough = memory.slack_ratio, memory.remaining_seconds, self.constants.suspend_after_strikes
        struck = slack < self.constants.slack_suspend_ratio  # which NaN is not
        if not struck and left <= 0.0:
            return None
        reason = Reason.SLACK_NEGATIVE if struck else Reason.COOLING_DOWN
        suspended = left > 0.0 or memory.count >= enough
        detail = "" if math.isnan(slack) else f"slack {slack:.3f}, "
        detail += f"strike {memory.count} of {enough}, {left:.1f} s of the cool-down left"
        return Bound(self.name, reason, limits.safe if suspended else limits.minimum, detail)


TOLERANCE_RATIO, TOLERANCE_CPUS = 0.1, 0.05
"""More than allowed that is none: a quota's last slice of each period, and the error of reading two counters."""

MOST_CPU_SECONDS = 1.0
"""Of too much, as a leaky bucket holds it, before the guard objects; it does until the bucket is empty again."""


class Excess(NamedTuple):
    """Memory of the guard.

    Attributes:
        cpu_seconds: What BE used too much lately, from 0 to twice MOST_CPU_SECONDS.
        objects: It was too much, and the bucket has not been empty since.
        used_cpus, allowed_cpus: Of the last window with both readings; 0 before the first.
    """

    cpu_seconds: float = 0.0
    objects: bool = False
    used_cpus: float = 0.0
    allowed_cpus: float = 0.0
    seen_seconds: float = math.nan


@dataclass(frozen=True, slots=True)
class Overrun:
    """BE gets the safe allocation while it takes CPU time beyond what is in force.

    A freeze reaches what a quota does not, such as real-time tasks and kernels whose scheduler ignores quotas. It does
    not reach a task that left its groups: the reason says that one did, to whoever reads logs and alerts.

    Attributes:
        gap_seconds: Most time that counts as passed between two readings.
    """

    gap_seconds: float
    name: ClassVar[str] = "overrun"

    def start(self) -> Excess:
        """Nothing was used too much."""
        return Excess()

    def advance(self, memory: Excess, telemetry: Telemetry) -> Excess:
        """Fill the bucket by what was too much in this window, or let it leak; without a reading it stays as it is."""
        now, readings = telemetry.time_seconds, (telemetry.be_cpus, telemetry.counters.get(BE_ALLOWED))
        used, allowed = (one.value if isinstance(one, Value) else math.nan for one in readings)
        if not (math.isfinite(used) and math.isfinite(allowed)):
            return memory._replace(seen_seconds=now)
        # bucket <- clip(bucket + (used - (1 + r) allowed - c) dt, 0, 2 MOST): use within the tolerance lets it leak.
        passed = elapsed_seconds(memory.seen_seconds, now, self.gap_seconds)
        beyond = used - (1.0 + TOLERANCE_RATIO) * allowed - TOLERANCE_CPUS
        filled = min(max(memory.cpu_seconds + beyond * passed, 0.0), 2.0 * MOST_CPU_SECONDS)
        objects = filled >= MOST_CPU_SECONDS or (memory.objects and filled > 0.0)
        return Excess(filled, objects, used, allowed, now)

    def bound(self, memory: Excess, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The safe allocation while it objects."""
        # Hysteresis: it objects from a full bucket until an empty one, or BE would be frozen and thawed in turns.
        if not memory.objects:
            return None
        detail = f"BE used {memory.used_cpus:.2f} CPUs of {memory.allowed_cpus:.2f} that it may"
        return Bound(
            self.name, Reason.BE_OVERRUN, limits.safe, f"{detail}, {memory.cpu_seconds:.1f} CPU-seconds to pay"
        )
