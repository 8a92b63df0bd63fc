"""The LC's maximum load, learned from what is seen of it, for who does not know it: an estimate, and how sure it is.

Nothing is tried for it. CPU time and requests of the same windows say what a request takes; the CPUs that its threads
can use at once say how many requests that makes. Where the LC is bound by something else, that is too much until the LC
alone has missed its target: only then its load is a reason to suspend BE. The guards on latency do not depend on it.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why

log = logging.getLogger(__name__)

UTILISATION = 0.9
"""Of the CPUs that the LC can use: to so much of them nginx and memcached alone keep their target
(docs/results/live-nginx.json and live-memcached.json: `lc_cpus` under `frozen` by its load). An LC that something else
bounds does not come to it."""

WINDOWS = 120
"""The estimate is of so many windows."""

BUSY_RATIO, LEAST_WINDOWS = 0.75, 5
"""Windows with at least so much of the highest load among them say what a request takes, at least so many, the busiest
first. Requests become cheaper as the load rises, and of an idle LC most CPU time is housekeeping."""

DEAR_QUANTILE, SURE_QUANTILES = 0.75, (0.1, 0.9)
"""Of what a request takes: what counts, as one dear window in four may be an accident; and what it lies between."""

UNCONFIRMED_RATIO = 0.75
"""The highest load that is told while no tail has confirmed the maximum: below what suspends BE in any shipped profile
and manager."""

NEAR_RATIO = 0.9
"""A load that held bears out a maximum of which it is so much."""

SETTLED_SECONDS = 10.0
"""Misses that go on for so long while BE has next to nothing are the load's: no backlog of BE's lasts so long."""

MISSED_RATIO = 0.95
"""Of a load at which the LC alone misses its target: the most that may count as its maximum."""

CROWDED_RATIO = 0.5
"""An LC that has less of its CPUs, and waits for them, waits for whoever has the others."""

SAME_SECONDS = 1e-3
"""Figures whose windows end so close to each other are the same: sources are polled in their own time."""

LEAST_USE_CPUS = 0.01
"""A use below it counts as so much, whatever the requests."""

FAR_RATIO = 0.2
"""Of the estimate: where no load came near so much of it, it is a guess and nothing bounds it. redis' requests took .30
ms at 40 a second, .02 at a thousand and .006 at ten thousand; a maximum of 300 thousand was put at 3, 40 and 130."""

TOLD_FACTOR, TOLD_FAR_FACTOR = 1.1, 2.0
"""Smaller changes are not told: of an estimate, and of one that is a guess."""

_UNKNOWN = Missing(Why.NOT_CONFIGURED)

SCHEMA = 1
MOST = 1e15
"""Requests a second, and seconds a request: more is no reading."""

ABSURD_RATIO = 1.25
"""A stated maximum that is so far off what was seen is told."""


@dataclass(frozen=True, slots=True)
class _LoadWindow:
    """What a window says: its load, CPU time by requests, and the busiest thread's share of that if it is known."""

    rps: float
    demand_seconds: float
    busiest_ratio: float | None


@dataclass(slots=True)
class MaxLoad:
    """What is known of the maximum load of an LC, by its windows. Loads are requests a second; None is not known.

    Attributes:
        lc: Name of the LC.
        lc_cpus: CPUs that it may run on.
        held_rps: The highest load at which two windows in a row held the target, whatever BE had.
        missed_rps: The lowest load at which the LC missed it for SETTLED_SECONDS while BE had next to nothing.
    """

    lc: str
    lc_cpus: float
    held_rps: float | None = None
    missed_rps: float | None = None
    _windows: deque[_LoadWindow] = field(default_factory=lambda: deque(maxlen=WINDOWS))
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
    def cpu_seconds_per_request(self) -> float | None:
        """CPU time that a request takes; for the first windows after a restart no less than was remembered."""
        return self._demand(DEAR_QUANTILE)

    @property
    def usable_cpus(self) -> float:
        """CPUs that the LC can keep busy at once: one with a single thread that does all the work has one."""
        known = [one.busiest_ratio for one in self._telling() if one.busiest_ratio]
        return min(self.lc_cpus, 1.0 / statistics.median(known)) if known else self.lc_cpus

    @property
    def cautious_rps(self) -> float | None:
        """What counts as the maximum: what held, or what CPUs and misses allow, if that is more."""
        allowed = None
        if demand := self.cpu_seconds_per_request:
            most = MISSED_RATIO * self.missed_rps if self.missed_rps else math.inf
            allowed = min(UTILISATION * self.usable_cpus / demand, most)
        return max((known for known in (allowed, self.held_rps) if known), default=None)

    @property
    def confirmed(self) -> bool:
        """Whether a tail has said where the maximum is: the LC has missed its target alone."""
        return self.missed_rps is not None

    @property
    def borne_out(self) -> bool:
        """A load near `cautious_rps` has held, so that the maximum is no less; until then it is an estimate."""
        return (self.held_rps or 0.0) >= NEAR_RATIO * (self.cautious_rps or math.inf)

    @property
    def far(self) -> bool:
        """The estimate is far above every load that was seen."""
        return not self.confirmed and self._most_seen_rps < FAR_RATIO * (self.cautious_rps or 0.0)

    @property
    def _most_seen_rps(self) -> float:
        return max((one.rps for one in self._windows), default=0.0)

    @property
    def lowest_rps(self) -> float | None:
        """The least that it may be: what held, or so much of what the dearest requests would make of the CPUs."""
        if self.far:
            return self.held_rps
        demand = self._demand(SURE_QUANTILES[1])
        least = UTILISATION * self.usable_cpus / demand if demand else None
        known = [one for one in (least, self.cautious_rps) if one]
        return max(min(known), self.held_rps or 0.0) if known else None

    @property
    def highest_rps(self) -> float | None:
        """The most that it can be: what was missed, or all CPUs busy with cheap requests, if more has not held."""
        if self.missed_rps or self.far:
            return self.missed_rps
        demand = self._demand(SURE_QUANTILES[0])
        return max(self.usable_cpus / demand, self.held_rps or 0.0) if demand else None

    def observe(
        self,
        now_seconds: float,
        rps: Reading,
        demand: Reading,
        latency_ratio: float | None,
        *,
        be_held: bool,
        busiest: Reading = _UNKNOWN,
        window_seconds: float = 0.0,
    ) -> None:
        """Learn from a window.

        Args:
            rps: Load that was offered.
            demand: CPU time by requests, both of the window of `rps`.
            latency_ratio: Its tail latency by the target; None where it is not known.
            be_held: BE had its minimum at most, and nobody else the LC's CPUs, see `is_crowded`.
            busiest: The busiest thread's share of the LC's CPU time.
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
            # Under overload requests become cheaper: such a window counts only where it does more than seemed possible.
            if rps.value > (self.cautious_rps or math.inf):
                self._learn_demand(rps.value, demand, busiest)
            self._miss(now_seconds, rps.value, SETTLED_SECONDS + window_seconds, be_held=be_held)
            return
        self._missing_since = None
        self._learn_demand(rps.value, demand, busiest)
        both, self._last_held_rps = min(self._last_held_rps, rps.value), rps.value
        if both > (self.held_rps or 0.0):
            self.held_rps = both
        if self.missed_rps and both > self.missed_rps:
            self.missed_rps = None  # the LC or its host are others now

    def ratio(self, rps: Reading) -> Reading:
        """A load as a share of what counts as the maximum: capped while no tail has confirmed it."""
        most = self.cautious_rps
        if isinstance(rps, Missing):
            return rps
        if most is None and rps.value == 0.0:
            return rps  # no request is none of any maximum
        if most is None:  # the first requests: any share, of a maximum that no tail has confirmed
            return Value(UNCONFIRMED_RATIO, rps.age_seconds)
        self._tell(most)
        share = rps.value / most
        return Value(share if self.confirmed else min(share, UNCONFIRMED_RATIO), rps.age_seconds)

    def forget_tails(self) -> None:
        """Another target holds from now on: which loads held or missed the one before says nothing of it."""
        self.held_rps = self.missed_rps = self._missing_since = None
        self._last_held_rps = 0.0

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
        """Know nothing but what `state_dict` said, of an older version too; ValueError: it is none of that.

        It can only make the maximum less: for the first windows a request takes no less than it did.
        """
        missed_rps, demand = memory.get("missed_rps"), memory.get("cpu_seconds_per_request")
        if memory.get("schema") != SCHEMA or not (_is_known(missed_rps) and _is_known(demand)):
            raise ValueError("is no maximum load")
        self.forget_tails()
        self._windows.clear()
        self.missed_rps, self._remembered = missed_rps, demand or 0.0

    def __str__(self) -> str:
        if (low := self.cautious_rps) is None:
            return f"{self.name}: not known yet"
        demand, cpus = self.cpu_seconds_per_request, self.usable_cpus
        most = self.highest_rps
        seen = self._most_seen_rps
        sure = f", between {self.lowest_rps:.0f} and {most:.0f}" if most and most > low else ""
        if self.far and seen:
            sure = f", a guess: {low / seen:.0f} times the highest load seen, and a request may cost much less there"
        one_thread = f"{cpus:.3g} of {self.lc_cpus:g} CPUs by its busiest thread" if cpus < self.lc_cpus else ""
        reasons = (
            f"{1e3 * demand:.3g} ms of CPU a request on {self.lc_cpus:g} CPU" if demand else "",
            one_thread,
            f"{self.held_rps:.0f} held" if self.held_rps else "",
            f"{self.missed_rps:.0f} missed without BE" if self.missed_rps else "",
            "" if self.confirmed else "no tail has confirmed it, so BE is not suspended for it",
        )
        how = "at least" if self.borne_out else "estimated at"
        return f"{self.name}: {how} {low:.0f} rps{sure} ({', '.join(filter(None, reasons))})"

    def _telling(self) -> Sequence[_LoadWindow]:
        """The windows that say what a request takes, the busiest first."""
        ranked = sorted(self._windows, key=lambda one: -one.rps)
        busy = sum(one.rps >= BUSY_RATIO * ranked[0].rps for one in ranked)
        return ranked[: max(busy, LEAST_WINDOWS)]

    def _learn_demand(self, rps: float, demand: Reading, busiest: Reading) -> None:
        if isinstance(demand, Value):
            share = busiest.value if isinstance(busiest, Value) and 0.0 < busiest.value <= 1.0 else None
            self._windows.append(_LoadWindow(rps, max(demand.value, LEAST_USE_CPUS / rps), share))

    def _demand(self, quantile: float) -> float | None:
        if not self._windows:
            return None
        seen = sorted(one.demand_seconds for one in self._telling())
        demand = seen[min(int(quantile * len(seen)), len(seen) - 1)]
        return max(demand, self._remembered) if len(self._windows) < WINDOWS else demand

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
        factor = TOLD_FAR_FACTOR if self.far else TOLD_FACTOR
        moved = not self._told_rps / factor <= most <= self._told_rps * factor
        if moved or (self.borne_out and not self._told_borne_out):
            self._told_rps, self._told_borne_out = most, self.borne_out
            log.info("%s", self)


def is_crowded(lc_cpus: Reading, run_delay: Reading, usable_cpus: float) -> bool:
    """Whether the LC waits for a CPU longer than it has one, and has less than half of those that it can use."""
    # An LC that is itself the load keeps its CPUs busy; its threads then wait for each other.
    if isinstance(lc_cpus, Missing) or isinstance(run_delay, Missing):
        return False
    return run_delay.value > lc_cpus.value and lc_cpus.value < CROWDED_RATIO * usable_cpus


def _is_known(number: object) -> bool:
    """None, or what can be a reading above 0."""
    if number is None:
        return True
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 1.0 / MOST < number < MOST


def window_of(telemetry: Telemetry) -> float:
    """How long the tail latency is of; 0 where it is not known."""
    tail = telemetry.tail_latency_seconds
    return tail.window_seconds if isinstance(tail, Quantile) else 0.0
