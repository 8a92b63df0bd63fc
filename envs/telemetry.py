"""What the sensors say of a host with one LC or several: a reading has a value and its age, or why it is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

MOST_LOAD_RATIO = 20.0
"""Overload is a little above 1 (1.2); a larger one than this means that max_load_rps is in another unit."""

MOST = 1e15
"""More than any reading of a host can be, in any unit; sums and products of such numbers stay finite."""


class Why(StrEnum):
    """Why a reading is missing; the set is closed so that guards, metrics and docs can name each."""

    NOT_CONFIGURED = "not-configured"
    """Nobody asked for it: the configuration names no source."""
    NOT_SUPPORTED = "not-supported"
    """This host has no such counter."""
    NOT_COUNTED = "not-counted"
    """The counter exists, the task did not run."""
    MULTIPLEXED = "multiplexed"
    """Counted for too small a share of the interval to be trusted."""
    NO_PERMISSION = "no-permission"
    """The kernel refused to let rlctl read it."""
    NO_DATA = "no-data"
    """Nothing arrived yet, or nothing in this window."""
    STALE = "stale"
    """What arrived last is too old."""
    GONE = "gone"
    """The process, control group or endpoint vanished."""
    MALFORMED = "malformed"
    """What arrived is not what the source should say."""
    FAILING = "failing"
    """More requests fail than may lie above the quantile: how fast they fail says nothing good."""
    ABSURD = "absurd"
    """Not finite, negative, or beyond what physics allows."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number that a sensor delivered.

    Attributes:
        value: In the unit that the Telemetry field's name says.
        age_seconds: Time since the end of the interval that it describes.
    """

    value: float
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Quantile(Value):
    """A quantile of request latencies, with what is needed to know how far to trust it.

    Attributes:
        samples: Completed requests that it was estimated from.
        window_seconds: Length of the interval they completed in.
    """

    samples: int = 0
    window_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Missing:
    """No number, and why.

    Attributes:
        detail: For the operator: which file, which endpoint, what it said.
        age_seconds: Time since the last good value; infinite when there never was one.
    """

    why: Why
    detail: str = ""
    age_seconds: float = float("inf")


Reading = Value | Missing


def offered_rps(readings: Mapping[str, Reading]) -> Reading:
    """Requests a second that came; of a source that sees only those that were done, these."""
    offered = readings.get("offered_rps")
    return offered if isinstance(offered, Value) else readings.get("done_rps", Missing(Why.NOT_CONFIGURED))


def number(reading: Reading) -> float | None:
    """The reading's number; None when it is missing, negative, above MOST or not a number."""
    return reading.value if isinstance(reading, Value) and 0.0 <= reading.value <= MOST else None


def number_or_nan(reading: Reading) -> float:
    """A reading's value; NaN where it is missing."""
    return float("nan") if isinstance(reading, Missing) else reading.value


_UNSET = Missing(Why.NOT_CONFIGURED)
_NO_AGE = frozenset({Why.NOT_CONFIGURED, Why.NOT_SUPPORTED, Why.NO_DATA})


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One tick's readings of one host. Shares are ratios (1.0 is the whole), CPU use is in CPUs.

    Attributes:
        time_seconds: Monotonic clock of the plant when the tick was read.
        target_seconds: The LC's tail-latency target (its SLO).
        tail_latency_seconds: The SLO's quantile over the last window, a `Quantile`.
        oldest_request_seconds: Age of the LC's oldest outstanding request; guards against a stalled client or
            server that completes only easy requests, or none.
        load_ratio: Offered load as a share of the LC's maximum.
        lc_alive: 1.0 when the LC has a running process, else 0.0.
        cpi: Cycles per instruction of the LC.
        lc_cpu_seconds_per_request: Stand-in for CPI where there is no PMU.
        lc_cpus, be_cpus, host_cpus: CPUs kept busy by the LC, by the BE, by everything on the host.
        lc_pressure_ratio, be_pressure_ratio: PSI "some" of CPU: share of the interval with a task waiting.
        lc_run_delay_ratio: Time waited on a run queue per second, summed over the LC's threads.
        be_work_rate: BE progress per second, as a share of BE running alone on the host.
        counters: Further readings by name (`lc_llc_load_misses`, ...), per second; what is a share, an
            amount or a power says so by its name (`lc_memory_pressure_ratio`, `memory_available_bytes`).
        rein: What moved BE's level in the period that ended, a word of `rlctl.envs.reins.Rein`.
    """

    time_seconds: float
    target_seconds: float
    tail_latency_seconds: Reading = _UNSET
    oldest_request_seconds: Reading = _UNSET
    load_ratio: Reading = _UNSET
    lc_alive: Reading = _UNSET
    cpi: Reading = _UNSET
    lc_cpu_seconds_per_request: Reading = _UNSET
    lc_cpus: Reading = _UNSET
    be_cpus: Reading = _UNSET
    host_cpus: Reading = _UNSET
    lc_pressure_ratio: Reading = _UNSET
    be_pressure_ratio: Reading = _UNSET
    lc_run_delay_ratio: Reading = _UNSET
    be_work_rate: Reading = _UNSET
    counters: Mapping[str, Reading] = field(default_factory=dict)
    rein: str = "cpu"

    @property
    def latency_seconds(self) -> Reading:
        """The latency that counts: the larger of the tail quantile and the oldest outstanding request's age.

        In overload the quantile of *completed* requests lies. An LC that completes nothing has no quantile at all, yet
        its oldest request says enough once it is older than the target. A younger one leaves the latency missing.
        Of an idle LC the latency is 0.
        """
        tail, oldest = self.tail_latency_seconds, self.oldest_request_seconds
        if self.idle:
            return Value(0.0, self.counters[LC_IDLE].age_seconds)
        if isinstance(oldest, Value) and (isinstance(tail, Missing) or oldest.value > tail.value):
            beyond = oldest.value > self.target_seconds
            return oldest if beyond or isinstance(tail, Value) else tail
        return tail

    @property
    def idle(self) -> bool:
        """Whether the LC is known to have nothing outstanding and no request in the window: then it is well."""
        tail, oldest = self.tail_latency_seconds, self.oldest_request_seconds
        silent = isinstance(tail, Missing) and tail.why is Why.NO_DATA
        none_outstanding = oldest.why in _NO_AGE if isinstance(oldest, Missing) else oldest.value == 0.0
        return silent and none_outstanding and number(self.counters.get(LC_IDLE, _UNSET)) == 1.0

    @property
    def latency_in_words(self) -> str:
        """The latency that counts, or what stands in its place, for people."""
        latency, waiting = self.latency_seconds, number(self.counters.get(LC_WAITING, _UNSET))
        if waiting is not None:
            return f"not known; the LC waited {waiting:.2%} of the time"
        if self.idle:
            return "none, as the LC is idle"
        return f"missing ({latency.why})" if isinstance(latency, Missing) else f"{latency.value * 1e3:.2f} ms"

    @property
    def has_target(self) -> bool:
        """Whether the LC has a target, or a bound on what it waits: not at the beginning of `target: auto`."""
        return self.target_seconds < NO_TARGET_SECONDS or LC_WAITING in self.counters

    @property
    def target_in_words(self) -> str:
        """The target for people, and whether rlctl proposed it."""
        if self.target_seconds >= NO_TARGET_SECONDS:
            return "auto (none yet)" if self.has_target is False else "none (a bound on waiting)"
        return f"{self.target_seconds * 1e3:g} ms" + (", auto (proposed)" if TARGET_PROPOSED in self.counters else "")

    @property
    def slack_ratio(self) -> float | None:
        """(target - latency) / target, at most 1.0; None when the latency is missing, or the target is not above 0."""
        latency = self.latency_seconds
        if isinstance(latency, Missing) or not self.target_seconds > 0.0:
            return None
        return (self.target_seconds - latency.value) / self.target_seconds

    @property
    def latency_ratio(self) -> float | None:
        """Latency by the target, above 1.0 where it is missed; None where `slack_ratio` is."""
        slack = self.slack_ratio
        return None if slack is None else 1.0 - slack

    @property
    def lcs(self) -> Mapping[str, Telemetry]:
        """Each LC's own readings by its name; of one alone by no name."""
        return {"": self}

    @property
    def ruling(self) -> str:
        """Name of the LC whose latency and target these are, where there are several; else empty."""
        return ""

    @property
    def targets_seconds(self) -> Mapping[str, float]:
        """The target of each LC by its name, whichever of them rules."""
        return {name: lc.target_seconds for name, lc in self.lcs.items()}

    @property
    def missed(self) -> bool | None:
        """Whether an LC missed its target; None where none is known to, and of one it is not known."""
        # Of the ruling one alone it may not be known, while another one misses its target.
        missed = [_is_missed(lc) for lc in self.lcs.values()]
        return any(missed) or (None if None in missed else False)

    def counter(self, name: str) -> Reading:
        """A reading of `counters`; missing where no sensor has it."""
        return self.counters.get(name, _UNSET)

    def but(self, **changes: Any) -> Telemetry:
        """A copy with some readings changed."""
        return replace(self, **changes)


def _is_missed(telemetry: Telemetry) -> bool | None:
    """Of one LC: its latency is above the target, or so many requests fail that the quantile is one of them."""
    slack, latency = telemetry.slack_ratio, telemetry.latency_seconds
    if not telemetry.has_target:
        return None
    if slack is None:
        return True if isinstance(latency, Missing) and latency.why is Why.FAILING else None
    return None if math.isnan(slack) else slack < 0.0


FEW_SAMPLES = 20
"""Of fewer completed requests the 95th percentile is their maximum: such a window teaches nothing."""

GROWN_SECONDS = 10.0
"""Few requests are judged by a window that grows over those before it, up to so long: 20 are then two a second."""

LC_IDLE = "lc_idle"
"""The counter that is 1 where nothing is outstanding at the LC and nothing came in the window, else 0."""

LC_WAITING = "lc_waiting_ratio"
"""The counter with the share of the time in which the LC waited, where that stands in the latency's place."""

LC_LINK = "lc_link_ratio"
"""The counter with the share of the requests under way whose reply is late on the link; `kind: tcp` has it."""

FEW_IN_LONG = "few_in_long"
"""The counter that is 1 where the tail is the worst of few requests, and no others came in `GROWN_SECONDS`."""

NO_TARGET_SECONDS = 1e5
"""Stands for a target while there is none: more than can be told, so that no latency misses it."""

TARGET_PROPOSED = "target_is_proposed"
"""The counter that is 1 where rlctl proposed the LC's target, as nobody told one."""

MAX_LOAD = "max_load_rps"
"""The counter with what `load_ratio` is a share of where that is learned, and moves; a stated one is in none."""

BUSIEST_THREAD = "lc_busiest_thread_ratio"
"""The counter with the busiest thread's share of the LC's CPU time; further CPUs do not speed up one thread."""

BE_ALLOWED = "be_allowed_cpus"
"""The counter with the CPUs that BE might use in the window of `be_cpus`; a simulated host has none, and obeys."""

BE_SHARE = "be_effective_share"
"""BE's share of a CPU that it and the LC both want, by their CPU weights where those meet."""

_NOT_READ = frozenset({"time_seconds", "target_seconds", "counters", "rein"})
READINGS = tuple(name for name in Telemetry.__slots__ if name not in _NOT_READ)
"""Names of the readings that every Telemetry has, in its order; `counters` holds further ones."""


OF_EACH_LC = (
    "tail_latency_seconds", "oldest_request_seconds", "load_ratio", "lc_alive", "cpi", "lc_cpu_seconds_per_request",
    "lc_cpus", "lc_pressure_ratio", "lc_run_delay_ratio",
)  # fmt: skip
"""Readings that each LC has of its own; all others are the host's and BE's."""

COUNTERS_OF_EACH_LC = (
    "offered_rps", "done_rps", "error_rps", "rejected_rps", "log_gaps", "tail_is_lower_limit",
    LC_IDLE, FEW_IN_LONG, LC_WAITING, TARGET_PROPOSED, "lc_saturated_ratio", LC_LINK,
    "lc_memory_pressure_ratio", "lc_io_pressure_ratio", BUSIEST_THREAD,
)  # fmt: skip
"""Counters that each LC has of its own."""

LOGGED_OF_EACH_LC = (*COUNTERS_OF_EACH_LC, MAX_LOAD)
"""Counters that a tick log has of each LC; where it has them of all together, they are the ruling one's."""


@dataclass(frozen=True, slots=True)
class SeveralTelemetry(Telemetry):
    """One tick's readings of a host with several LCs, for those who know of one: see `worst_of`.

    Attributes:
        ruling: Name of the LC whose latency and target these are.
        lcs: Each LC's own readings, by name.
    """

    ruling: str = field(kw_only=True)
    lcs: Mapping[str, Telemetry] = field(kw_only=True)


def worst_of(lcs: Mapping[str, Telemetry]) -> Telemetry:
    """The readings of the LC with the least slack; of one whose slack is not known, if there is such.

    The load is the highest of all, all must be alive, and their CPU use is added up; where one's is missing, nobody
    knows.
    """
    if len(lcs) == 1:
        return next(iter(lcs.values()))
    ruling = min(lcs, key=lambda name: _badness(lcs[name].slack_ratio))
    chosen = lcs[ruling]
    shared = {field.name: getattr(chosen, field.name) for field in fields(Telemetry)}
    shared |= {
        "load_ratio": _together((lc.load_ratio for lc in lcs.values()), max),
        "lc_alive": _together((lc.lc_alive for lc in lcs.values()), min),
        "lc_cpus": _together((lc.lc_cpus for lc in lcs.values()), sum),
    }
    return SeveralTelemetry(**shared, ruling=ruling, lcs=dict(lcs))


def _badness(slack: float | None) -> tuple[bool, float]:
    known = slack is not None and math.isfinite(slack)
    return known, slack if known and slack is not None else 0.0


def _together(readings: Iterable[Reading], combine: Callable[[Iterable[float]], float]) -> Reading:
    values = []
    for reading in readings:
        if isinstance(reading, Missing):
            return reading
        values.append(reading)
    return Value(combine([reading.value for reading in values]), max(reading.age_seconds for reading in values))
