"""Log lines on the loop for an operator: one when a decision changes, and one a minute; never one a tick.

BE that grows step by step for one and the same reason is one decision, and so is a policy that goes a little up and
down. The tick log has the steps.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rlctl.envs.allocation import UNLIMITED, Allocation, cpus_in_words
from rlctl.envs.reins import waits_of
from rlctl.envs.telemetry import LC_WAITING, Missing, Telemetry, Value, Why, number, offered_rps
from rlctl.log.record import Tick, allocation_as_json
from rlctl.log.sentences import (
    change_sentence,
    decision_sentence,
    on_rein,
    reason_code,
    reason_sentence,
    waiting_sentence,
)
from rlctl.log.stderr import takes
from rlctl.safety.verdict import OF_SERVICE, Reason

log = logging.getLogger(__name__)

SUMMARY_SECONDS = 60.0
REMIND_SECONDS = 30.0
"""Time between two lines on a latency or a load that is missing for one and the same reason."""

IF_NOT_IDLE = (
    "if the LC is not idle, see whether its load reaches it, and whether lc.latency names where its requests show"
)

SMALL_RATIO = 0.25
"""A quota that a policy changes by less of what was printed last is not worth a line."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line.

    Attributes:
        event: "change", "trouble" or "summary".
        ts: Wall clock, Unix time in seconds.
        fields: The same for programs, with units in the names.
    """

    event: str
    ts: float
    tick: int
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Minute:
    """Sums since the last summary; `reasons` are those for which the shield tightened the policy."""

    begun_seconds: float
    # An empty Counter would keep its first counts as bools.
    counts: Counter[str] = field(default_factory=lambda: Counter(ticks=0))
    reasons: Counter[str] = field(default_factory=Counter)
    worst_milliseconds: float | None = None
    be_cpus: list[float] = field(default_factory=list)

    def add(self, tick: Tick, changed: bool) -> None:
        latency, missed = tick.telemetry.latency_seconds, tick.telemetry.missed
        self.counts.update(
            ticks=1, over_target=missed is True, unknown=missed is None, overrides=tick.verdict.overridden,
            fallbacks=bool(tick.fallback), errors=bool(tick.error), changes=changed,
        )  # fmt: skip
        if tick.verdict.overridden and (cause := tick.verdict.cause()):
            self.reasons[reason_sentence(cause)] += 1
        if not isinstance(latency, Missing) and LC_WAITING not in tick.telemetry.counters:
            self.worst_milliseconds = max(self.worst_milliseconds or 0.0, latency.value * 1e3)
        if not isinstance(tick.telemetry.be_cpus, Missing):
            self.be_cpus.append(tick.telemetry.be_cpus.value)


class Narrator:
    """A recorder that turns ticks into the few events worth a line.

    Args:
        cpus: CPUs that BE may be given.
    """

    def __init__(self, tell: Callable[[Event], None], cpus: int, summary_seconds: float = SUMMARY_SECONDS) -> None:
        self._tell = tell
        self._cpus = cpus
        self._summary_seconds = summary_seconds
        self._last_kind: tuple[object, ...] = ()
        self._kind_printed = False
        # Allocations in this minute's lines on a change.
        self._printed: list[Allocation] = []
        self._error = ""
        self._minute: _Minute | None = None
        self._reminded_seconds: dict[tuple[str, Why, bool], float] = {}

    def write(self, tick: Tick) -> None:
        """Tell what is new in this tick."""
        # What a frozen BE would have is no news before it thaws.
        changed = str(tick.applied) != str(tick.before) and not (tick.applied.frozen and tick.before.frozen)
        self._remind(tick)
        # Growth step by step for one reason is one decision, and so one line.
        if changed and _kind(tick) != self._last_kind:
            self._last_kind, self._kind_printed = _kind(tick), False
        if changed and not self._kind_printed and not _is_small(tick, self._printed):
            self._tell(_change(tick))
            self._kind_printed = True
            self._printed.append(tick.applied)
        # A write error is a line when it begins or changes, not in each tick.
        if tick.error != self._error and tick.error:
            self._tell(Event("trouble", tick.wall_seconds, tick.index, f"write failed: {tick.error}"))
        self._error = tick.error
        self._sum_up(tick, changed)

    def _remind(self, tick: Tick) -> None:
        """Tell why there is no latency or load; without them BE stays at the safe allocation."""
        # Without latency or load the shield keeps BE at the safe allocation: an operator should learn why.
        unknown = _unknown(tick.telemetry)
        if unknown is None:
            return
        name, missing = unknown
        alive = tick.telemetry.lc_alive
        dead = isinstance(alive, Value) and alive.value == 0.0
        now, key = tick.telemetry.time_seconds, (name, missing.why, dead)
        if now - self._reminded_seconds.get(key, -math.inf) < REMIND_SECONDS:
            return
        self._reminded_seconds[key] = now
        why = f"{missing.detail or missing.why}; " + ("the LC has no process; " if dead else "")
        text = f"no {name}: {why}BE stays at {tick.applied}"
        if not dead and number(offered_rps(tick.telemetry.counters)) == 0.0:
            text += f"; {IF_NOT_IDLE}"
        fields = {"reading": name, "missing": missing.why, "detail": missing.detail}
        self._tell(Event("trouble", tick.wall_seconds, tick.index, text, fields))

    def _sum_up(self, tick: Tick, changed: bool) -> None:
        now = tick.telemetry.time_seconds
        # The minute is the telemetry's, not the wall clock's: a clock that is set moves no summary.
        minute = self._minute = self._minute or _Minute(now)
        minute.add(tick, changed)
        if now - minute.begun_seconds >= self._summary_seconds:
            self._tell(_summary(tick, minute, self._cpus))
            self._minute, self._last_kind, self._printed = _Minute(now), (), []


def say(event: Event) -> None:
    """Tell people, through Python's logging."""
    log.log(logging.WARNING if event.event == "trouble" else logging.INFO, "%s", event.text)


class JsonLines:
    """Tells a program: one JSON object per line on stdout. A reader that has gone does not stop the loop."""

    def __init__(self) -> None:
        self.deserted = False

    def __call__(self, event: Event) -> None:
        """Print an event as one line."""
        plain = asdict(event) | dict(event.fields)
        del plain["fields"]
        self.write(plain)

    def write(self, plain: Mapping[str, Any]) -> None:
        """Print an object as one line."""
        # A reader that stands still must not hold up the loop.
        if self.deserted or not takes(sys.stdout):
            return
        try:
            print(json.dumps(plain), flush=True)
        except OSError:
            self.deserted = True


def _kind(tick: Tick) -> tuple[object, ...]:
    """What tells one decision from another: its direction and its cause."""
    cause = tick.verdict.cause()
    return tick.applied.frozen, tick.applied.at_most(tick.before), cause and (cause.guard, cause.reason)


def _is_small(tick: Tick, printed: Sequence[Allocation]) -> bool:
    """Whether the policy, or the rate at which it may grow, changed nothing much since what was printed last.

    A number of CPUs that was printed in this minute is not news, for a policy that goes to and fro between two.
    """
    cause = tick.verdict.cause()
    # Growth and the policy's own moves may be small; what another guard did is always worth a line.
    if not printed or (cause and cause.reason is not Reason.GROWTH_RATE):
        return False
    now, last = tick.applied, printed[-1]
    if now.frozen != last.frozen or now.cpuset_cpus not in {one.cpuset_cpus for one in printed}:
        return False
    quota, before = now.quota_cpus, last.quota_cpus
    return quota == before or abs(quota - before) < SMALL_RATIO * before < UNLIMITED


def _unknown(telemetry: Telemetry) -> tuple[str, Missing] | None:
    named = (("latency", telemetry.latency_seconds), ("load", telemetry.load_ratio))
    return next(((name, reading) for name, reading in named if isinstance(reading, Missing)), None)


def _change(tick: Tick) -> Event:
    cause = None if tick.why_safe or tick.be_vanished else tick.verdict.cause()
    code = f" ({reason_code(cause)})" if cause else ""
    # What the service or an operator decided has its reason, and no wait of the LC's is one.
    waits = "" if cause and cause.reason in OF_SERVICE else waiting_sentence(tick.telemetry, frozen=tick.before.frozen)
    return Event(
        "change",
        tick.wall_seconds,
        tick.index,
        f"{change_sentence(tick.before, tick.applied)}{on_rein(tick.telemetry)}: {decision_sentence(tick)}{code}; "
        f"latency {tick.telemetry.latency_in_words}" + (f"; {waits}" if waits else ""),
        {
            "before": allocation_as_json(tick.before),
            "applied": allocation_as_json(tick.applied),
            "policy": tick.policy,
            "acting": tick.acting,
            "fallback": tick.fallback,
            "note": tick.note,
            "rein": tick.telemetry.rein,
            "waits": waits_of(tick.telemetry),
            "guards": [{"guard": bound.guard, "reason": bound.reason} for bound in tick.verdict.binding],
        },
    )


def _summary(tick: Tick, minute: _Minute, cpus: int) -> Event:
    counts, mean_be = minute.counts, fmean(minute.be_cpus) if minute.be_cpus else None
    used = "an unknown number of CPUs" if mean_be is None else f"{mean_be:.2f} CPUs on average"
    parts = [
        _latency_summary(minute),
        f"BE used {used} of the {cpus_in_words(cpus)} it may be given, now {tick.applied}{on_rein(tick.telemetry)}",
    ]
    if counts["overrides"]:
        mostly = "".join(f", mostly: {reason}" for reason, _ in minute.reasons.most_common(1))
        parts.append(f"the shield tightened the policy in {counts['overrides']} of {counts['ticks']} ticks{mostly}")
    if counts["fallbacks"]:
        parts.append(f"a fallback decided {counts['fallbacks']} ticks")
    if counts["errors"]:
        parts.append(f"{counts['errors']} ticks with a failed write")
    be_cpus = None if mean_be is None else round(mean_be, 4)
    fields = {**counts, "worst_milliseconds": minute.worst_milliseconds, "be_cpus": be_cpus}
    return Event("summary", tick.wall_seconds, tick.index, "; ".join(parts), fields)


def _latency_summary(minute: _Minute) -> str:
    """Number of ticks, and what their latency was; zeros are left out."""
    counts = minute.counts
    parts = [f"{counts['ticks']} ticks"]
    if minute.worst_milliseconds is not None:
        parts.append(f"worst latency {minute.worst_milliseconds:.2f} ms")
    if counts["over_target"]:
        parts.append(f"{counts['over_target']} over the target")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} without a latency")
    return ", ".join(parts)
