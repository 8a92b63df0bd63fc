"""The LC's maximum load, learned from what is seen of it, for who does not know it: a cautious estimate.

Nothing is tried for it, so it is an estimate until the load has borne it out. Where the LC is bound by something else
than its CPUs, what is learned from its CPU time is too much until the LC alone has missed its target; the guards on
latency do not depend on it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why

log = logging.getLogger(__name__)

CAUTIOUS_UTILISATION = 0.7
"""Of the LC's CPUs. nginx and memcached alone keep their target to about .9 of them (docs/results/live-nginx.json and
live-memcached.json: `lc_cpus` under `frozen` by its load); who is bound by something else may not come to .7."""

FIRST_WINDOWS = 120
"""Of so many windows the one with the dearest requests counts, before there is an average: what comes first, such as
cheap requests only, says little of what follows."""

RISE, FALL = 0.3, 0.02
"""Weight of a new CPU time by requests in its average, when above and when below: an underestimate costs QoS."""

NEAR_RATIO = 0.9
"""A load that held bears out a maximum of which it is so much."""

SETTLED_SECONDS = 10.0
"""Misses that go on for so long while BE has next to nothing are the load's: no backlog of BE's lasts so long."""

MISSED_RATIO = 0.95
"""Of a load at which the LC alone misses its target: the most that may count as its maximum."""

SAME_SECONDS = 1e-3
"""Figures whose windows end so close to each other are the same: sources are polled in their own time."""

LEAST_USE_CPUS = 0.01
"""A use below it is housekeeping, whatever the requests."""

TOLD_RATIO = 0.1
"""Changes below it are not told."""

SCHEMA = 1
MOST = 1e15
"""Requests a second, and seconds a request: more is no reading."""

ABSURD_RATIO = 1.25
"""A stated maximum that is so far off what was seen is told."""


@dataclass(slots=True)
class MaxLoad:
    """What is known of the maximum load of an LC, by its windows. Loads are requests a second; None is not known.

    Attributes:
        lc: Name of the LC.
        lc_cpus: CPUs that it may run on.
        cpu_seconds_per_request: CPU time that a request takes: in the dearest of the first windows, then on average.
        windows: Windows since the start that it is of, up to FIRST_WINDOWS.
        held_rps: The highest load at which two windows in a row held the target, whatever BE had.
        missed_rps: The lowest load at which the LC missed it for SETTLED_SECONDS while BE had next to nothing.
    """

    lc: str
    lc_cpus: float
    cpu_seconds_per_request: float | None = None
    held_rps: float | None = None
    missed_rps: float | None = None
    windows: int = 0
    _remembered: float = 0.0
    _last_held_rps: float = 0.0
    _seen_until: float = -math.inf
    _missing_since: float | None = None
    _told_rps: float = 0.0
    _told_borne_out: bool = False

    @property
    def name(self) -> str:
        """What is learned, for logs and files."""
        return f"maximum load of {self.lc}"

    @property
    def cautious_rps(self) -> float | None:
        """What counts as the maximum: what held, or what CPUs and misses allow, if that is more."""
        allowed = None
        if self.cpu_seconds_per_request:
            most = MISSED_RATIO * self.missed_rps if self.missed_rps else math.inf
            allowed = min(CAUTIOUS_UTILISATION * self.lc_cpus / self.cpu_seconds_per_request, most)
        return max((known for known in (allowed, self.held_rps) if known), default=None)

    @property
    def borne_out(self) -> bool:
        """A load near `cautious_rps` has held, so that the maximum is no less; until then it is an estimate."""
        return (self.held_rps or 0.0) >= NEAR_RATIO * (self.cautious_rps or math.inf)

    @property
    def highest_rps(self) -> float | None:
        """The most that it can be: what was missed, or all CPUs busy, if more has not held."""
        if self.missed_rps:
            return self.missed_rps
        demand = self.cpu_seconds_per_request
        return max(self.lc_cpus / demand, self.held_rps or 0.0) if demand else None

    def observe(
        self,
        now_seconds: float,
        rps: Reading,
        use_cpus: Reading,
        latency_ratio: float | None,
        *,
        be_held: bool,
        window_seconds: float = 0.0,
    ) -> None:
        """Learn from a window.

        Args:
            rps: Load that was offered.
            use_cpus: CPUs that the LC kept busy.
            latency_ratio: Its tail latency by the target; None where it is not known.
            be_held: BE had its minimum at most.
            window_seconds: How long the latency is of: so long what BE did before stays in it.
        """
        if isinstance(rps, Missing) or latency_ratio is None or not rps.value > 0.0:
            self._last_held_rps, self._missing_since, self._seen_until = 0.0, None, -math.inf
            return
        if now_seconds - rps.age_seconds <= self._seen_until + SAME_SECONDS:
            return  # the source has said so before: it is no second window
        self._seen_until = now_seconds - rps.age_seconds
        if latency_ratio > 1.0:
            self._last_held_rps = 0.0
            self._miss(now_seconds, rps.value, SETTLED_SECONDS + window_seconds, be_held=be_held)
            return
        self._missing_since = None
        # An LC that misses has less CPU time than it needs, and would teach too small a demand.
        if isinstance(use_cpus, Value) and use_cpus.value >= LEAST_USE_CPUS:
            self._learn(use_cpus.value / rps.value)
        both, self._last_held_rps = min(self._last_held_rps, rps.value), rps.value
        if both > (self.held_rps or 0.0):
            self.held_rps = both
        if self.missed_rps and both > self.missed_rps:
            self.missed_rps = None  # the LC or its host are others now

    def ratio(self, rps: Reading) -> Reading:
        """A load as a share of the cautious maximum."""
        most = self.cautious_rps
        if isinstance(rps, Missing):
            return rps
        if most is None and rps.value == 0.0:
            return rps  # no request is none of any maximum
        if most is None:
            return Missing(Why.NO_DATA, f"{self.name}: no window yet that says anything of it")
        self._tell(most)
        return Value(rps.value / most, rps.age_seconds)

    def contradiction(self, stated_rps: float) -> str:
        """What was seen against a maximum that somebody stated; empty where there is nothing."""
        if self.held_rps and self.held_rps > ABSURD_RATIO * stated_rps:
            return f"the target was held at {self.held_rps:.0f} rps, slo.max_load_rps is {stated_rps:g}"
        if self.missed_rps and stated_rps > ABSURD_RATIO * self.missed_rps:
            return f"the target was missed at {self.missed_rps:.0f} rps without BE, slo.max_load_rps is {stated_rps:g}"
        return ""

    def state_dict(self) -> Mapping[str, Any]:
        """What a restart should know, as plain data for `restore_state`; what held is seen again in two windows."""
        return {
            "schema": SCHEMA,
            "missed_rps": self.missed_rps,
            "cpu_seconds_per_request": self.cpu_seconds_per_request or self._remembered or None,
        }

    def restore_state(self, memory: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` said, of an older version too; ValueError: it is none of that.

        It can only make the maximum less: the first windows count anew, and that request is one of theirs.
        """
        missed_rps, demand = memory.get("missed_rps"), memory.get("cpu_seconds_per_request")
        if memory.get("schema") != SCHEMA or not (_is_known(missed_rps) and _is_known(demand)):
            raise ValueError("is no maximum load")
        self.missed_rps, self._remembered = missed_rps, demand or 0.0

    def __str__(self) -> str:
        if (low := self.cautious_rps) is None:
            return f"{self.name}: not known yet"
        high = f", at most {self.highest_rps:.0f}" if self.highest_rps and self.highest_rps > low else ""
        demand = self.cpu_seconds_per_request
        reasons = (
            f"{1e3 * demand:.3g} ms of CPU a request on {self.lc_cpus:g} CPU" if demand else "",
            f"{self.held_rps:.0f} held" if self.held_rps else "",
            f"{self.missed_rps:.0f} missed without BE" if self.missed_rps else "",
        )
        how = "at least" if self.borne_out else "estimated at"
        return f"{self.name}: {how} {low:.0f} rps{high} ({', '.join(filter(None, reasons))})"

    def _learn(self, demand: float) -> None:
        known = self.cpu_seconds_per_request
        if known is None or self.windows < FIRST_WINDOWS:
            self.windows += 1
            self.cpu_seconds_per_request = max(known or self._remembered, demand)
        else:
            self.cpu_seconds_per_request = known + (RISE if demand > known else FALL) * (demand - known)

    def _miss(self, now_seconds: float, rps: float, settled_seconds: float, *, be_held: bool) -> None:
        if not be_held:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now_seconds
        elif now_seconds - self._missing_since >= settled_seconds:
            self.missed_rps = min(self.missed_rps or math.inf, rps)
            if self.held_rps and self.held_rps > self.missed_rps:
                self.held_rps = None  # it was another LC or host that held it

    def _tell(self, most: float) -> None:
        moved = abs(most - self._told_rps) > TOLD_RATIO * self._told_rps
        if moved or (self.borne_out and not self._told_borne_out):
            self._told_rps, self._told_borne_out = most, self.borne_out
            log.info("%s", self)


def _is_known(number: object) -> bool:
    """None, or what can be a reading above 0."""
    if number is None:
        return True
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 1.0 / MOST < number < MOST


def window_of(telemetry: Telemetry) -> float:
    """How long the tail latency is of; 0 where it is not known."""
    tail = telemetry.tail_latency_seconds
    return tail.window_seconds if isinstance(tail, Quantile) else 0.0
