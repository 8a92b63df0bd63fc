"""Which readings may be believed, and the guard that takes BE away when they may not.

Good news is believed only from a fresh, possible reading with enough samples behind it; bad news is believed from any
reading that is a number at all. An LC that crashed looks like zero latency, a stalled client like a low tail: both
must end in the safe allocation, not in growth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import (
    FEW_IN_LONG,
    LC_IDLE,
    MOST_LOAD_RATIO,
    Missing,
    Quantile,
    Reading,
    Telemetry,
    Value,
    Why,
    number,
)
from rlctl.safety.constants import GuardConstants
from rlctl.safety.guard import Memoryless
from rlctl.safety.verdict import Bound, Reason

Complaint = tuple[Reason, str]
"""Why a reading is not believed, and the numbers behind it."""

NEVER_THERE = frozenset({Why.NOT_CONFIGURED, Why.NOT_SUPPORTED})
"""A sensor that the operator or the host never had is not a sensor that was lost."""


@dataclass(frozen=True, slots=True)
class Trust:
    """When a reading is believed: not too old, and a tail latency only with enough completed requests behind it.

    Enough are `min_samples`. Fewer are enough where no more came in a long time: then the worst of them counts. An LC
    that is idle needs none.
    """

    max_age_seconds: float
    min_samples: int

    def complaint(self, telemetry: Telemetry) -> Complaint | None:
        """The first thing wrong with the telemetry as a whole, or None."""
        if not math.isfinite(telemetry.time_seconds):
            return Reason.ABSURD, f"time {telemetry.time_seconds}"
        return self._dead(telemetry) or self.of_latency(telemetry) or self.of_load(telemetry)

    def of_latency(self, telemetry: Telemetry) -> Complaint | None:
        """Why the tail latency is not believed, or None."""
        if not (math.isfinite(telemetry.target_seconds) and telemetry.target_seconds > 0.0):
            return Reason.ABSURD, f"target {telemetry.target_seconds} s"
        # An LC of which nothing is outstanding, and to which nothing came, is well whatever BE has.
        if self.idle(telemetry):
            return None
        # The quantile itself must be believed: the age of the oldest request may stand in for it as the latency that
        # counts, but says nothing good by itself.
        tail, oldest = telemetry.tail_latency_seconds, telemetry.oldest_request_seconds
        wrong = self._wrong(tail, "tail latency", Reason.LATENCY_MISSING)
        if wrong is not None or isinstance(tail, Missing):
            return wrong
        # No request takes no time: an LC that answers nothing, or a reader that has begun to count anew.
        if tail.value == 0.0:
            return Reason.ABSURD, "tail latency 0 s"
        samples = tail.samples if isinstance(tail, Quantile) else 0
        if samples < self.min_samples and not (samples > 0 and self._is_one(telemetry, FEW_IN_LONG)):
            return Reason.TOO_FEW_SAMPLES, f"{samples} of {self.min_samples} samples"
        # A source that cannot tell the oldest request's age, or has none outstanding, is no reason to complain; one
        # that lost it is.
        if isinstance(oldest, Missing) and (oldest.why in NEVER_THERE or oldest.why is Why.NO_DATA):
            return None
        return self._wrong(oldest, "oldest request", Reason.LATENCY_MISSING)

    def of_load(self, telemetry: Telemetry) -> Complaint | None:
        """Why the load is not believed, or None."""
        load = telemetry.load_ratio
        wrong = self._wrong(load, "load", Reason.LOAD_MISSING)
        if wrong is None and not isinstance(load, Missing) and load.value > MOST_LOAD_RATIO:
            return Reason.ABSURD, f"load {load.value} of the maximum"
        return wrong

    def slack_ratio(self, telemetry: Telemetry) -> float:
        """The slack to judge by: any negative one, else a believed one, else NaN."""
        # slack = (target - latency) / target. A slack above 1 would be a negative latency.
        target, latency = telemetry.target_seconds, telemetry.latency_seconds
        if isinstance(latency, Missing) or not target > 0.0:
            return math.nan
        slack = (target - latency.value) / target
        # Bad news counts from any reading; good news must be fresh, possible and of enough requests.
        believed = slack < 0.0 or (slack <= 1.0 and self.of_latency(telemetry) is None)
        return slack if believed else math.nan

    def load_ratio(self, telemetry: Telemetry, high_ratio: float) -> float:
        """The load to judge by: any above `high_ratio`, else a believed one, else NaN."""
        load = telemetry.load_ratio
        if isinstance(load, Missing):
            return math.nan
        return load.value if load.value > high_ratio or self.of_load(telemetry) is None else math.nan

    def idle(self, telemetry: Telemetry) -> bool:
        """Whether the LC is known to be idle, by a reading that is believed."""
        oldest = telemetry.oldest_request_seconds
        old = isinstance(oldest, Value) and not 0.0 <= oldest.age_seconds <= self.max_age_seconds
        return telemetry.idle and not old and self._is_one(telemetry, LC_IDLE)

    def _is_one(self, telemetry: Telemetry, counter: str) -> bool:
        reading = telemetry.counter(counter)
        fresh = isinstance(reading, Value) and 0.0 <= reading.age_seconds <= self.max_age_seconds
        return fresh and number(reading) == 1.0

    def _dead(self, telemetry: Telemetry) -> Complaint | None:
        alive = telemetry.lc_alive
        if isinstance(alive, Missing):
            return None if alive.why in NEVER_THERE else (Reason.LC_DEAD, f"LC process: {alive.why}")
        # NaN is not at least a half either.
        if not alive.value >= 0.5:
            return Reason.LC_DEAD, "LC has no process"
        wrong = self._wrong(alive, "LC process", Reason.LC_DEAD)
        return None if wrong is None else (Reason.LC_DEAD, wrong[1])

    def _wrong(self, reading: Reading, what: str, missing: Reason) -> Complaint | None:
        if isinstance(reading, Missing):
            stale = reading.why is Why.STALE and missing is Reason.LATENCY_MISSING
            return Reason.LATENCY_STALE if stale else missing, f"{what}: {reading.why}"
        value, age = reading.value, reading.age_seconds
        if not (math.isfinite(value) and value >= 0.0 and age >= 0.0):
            return Reason.ABSURD, f"{what} {value} at age {age} s"
        if age > self.max_age_seconds:
            stale_reason = Reason.LATENCY_STALE if missing is Reason.LATENCY_MISSING else missing
            return stale_reason, f"{what} is {age:.1f} s old, {self.max_age_seconds:g} s count"
        return None


@dataclass(frozen=True, slots=True)
class SensorGuard(Memoryless):
    """Without sound telemetry BE gets the safe allocation; judged every tick, whatever the profile's poll.

    `lc_alive` may be absent (some sources have no process to look at); latency and load may not.
    """

    trust: Trust
    name: ClassVar[str] = "sensors"

    def bound(self, memory: None, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The safe allocation, or no objection."""
        complaint = self.trust.complaint(telemetry)
        return None if complaint is None else Bound(self.name, complaint[0], limits.safe, complaint[1])


@dataclass(frozen=True, slots=True)
class ProfileGuard:
    """What a guard derives from that judges by several constants of a profile, and by readings that are believed."""

    constants: GuardConstants
    trust: Trust
