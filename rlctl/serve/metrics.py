"""Ticks as Prometheus metrics.

The loop only adds to plain integers and keeps the last tick; everything else is made when somebody asks, in the thread
that asks. There is no lock between the two, so that no scrape can make a tick wait. A scrape may see a tick's counts
before its histogram; the next one has both.

A name is `rlctl_` and what stands here: of readings in `_OF_READINGS`, of allocations put together in `_allocation`.
Names follow https://prometheus.io/docs/practices/naming: base units, `_total` for what only grows, ratios from 0 to 1,
and labels from closed sets only. A reading that is missing has no sample, rather than a 0 that nobody measured.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rlctl import __version__
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import printable
from rlctl.envs.host.events import KINDS
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import BE_SHARE, LC_WAITING, READINGS, Missing, Value
from rlctl.log.record import Shares, Tick
from rlctl.safety.symptoms import Sign
from rlctl.safety.verdict import Reason
from rlctl.serve.budget import DAY_MINUTES, HOUR_MINUTES, ErrorBudget
from rlctl.serve.self_usage import SelfUsage, self_usage

TICK_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds. 20 ms is the promise for 100 BE groups, 1 s the usual control period."""

DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
"""Seconds. 1 ms is the promise."""

_OF_READINGS = {
    "tail_latency_seconds": ("tail_latency_seconds", "The SLO's quantile of the LC's latency over the last window."),
    "oldest_request_seconds": ("oldest_request_seconds", "Age of the LC's oldest outstanding request."),
    "load_ratio": ("load_ratio", "Offered load as a share of the LC's maximum."),
    "lc_alive": ("lc_alive", "1 when the LC has a running process."),
    "cpi": ("cpi", "Cycles per instruction of the LC."),
    "lc_cpu_seconds_per_request": ("lc_cpu_seconds_per_request", "CPU time of the LC per request."),
    "lc_cpus": ("lc_busy_cpus", "CPUs that the LC keeps busy."),
    "be_cpus": ("be_busy_cpus", "CPUs that BE keeps busy."),
    "host_cpus": ("host_busy_cpus", "CPUs that are busy on the whole host."),
    "lc_pressure_ratio": ("lc_pressure_ratio", "Share of the time with a task of the LC waiting for a CPU (PSI some)."),
    "be_pressure_ratio": ("be_pressure_ratio", "Share of the time with a task of BE waiting for a CPU (PSI some)."),
    "lc_run_delay_ratio": ("lc_run_delay_ratio", "Time on a run queue per second, summed over the LC's threads."),
    "be_work_rate": ("be_work_ratio", "Progress of BE as a share of BE running alone on the host."),
}


MOST_APPLICATIONS = 50
"""With a time series of their own."""


class _Histogram:
    """How often a time fell below each bound; one thread adds, any may look."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def family(self, name: str, text: str) -> Metric:
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else str(bound), float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum)


@dataclass(slots=True)
class _Counts:
    """What only grows; written by the loop alone."""

    slo: Counter[str] = field(default_factory=lambda: Counter(met=0, missed=0, unknown=0))
    acting: Counter[str] = field(default_factory=Counter)
    missing: Counter[tuple[str, str]] = field(default_factory=Counter)
    # An alert on a rate needs a 0 to rise from.
    bounds: Counter[tuple[str, str]] = field(default_factory=lambda: Counter({("overrun", Reason.BE_OVERRUN): 0}))
    events: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    alarms: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(Sign, 0)))
    false_alarms: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(Sign, 0)))
    overrides: int = 0
    fallbacks: int = 0
    write_errors: int = 0


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """What others than the recorder know of the service; asked for each scrape.

    Attributes:
        counted: Counts since the start, by the ending of the metric's name.
        budgets: Error budgets of the LCs that have one.
        starved: Whether BE has had too little for too long.
        heeded: Signs that the guard between the ticks answers now.
    """

    counted: Callable[[], Mapping[str, int]] = dict
    budgets: Sequence[ErrorBudget] = ()
    starved: Callable[[], bool] = lambda: False
    heeded: Callable[[], Collection[Sign]] = tuple


class Metrics(Collector):
    """A recorder that `prometheus_client.generate_latest` takes for a registry.

    Args:
        limits: The host's range of allocations: a lifted quota is shown as all of its CPUs.
    """

    def __init__(
        self,
        policy: str,
        shield: tuple[str, str],
        limits: Limits,
        tick_seconds: float,
        service: ServiceFigures | None = None,
        measure: Callable[[], SelfUsage] = self_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service or ServiceFigures()
        self._policy, self._shield = policy, shield
        self._limits = limits
        self._tick_seconds = tick_seconds
        self._measure, self._clock = measure, clock
        self._counts = _Counts(acting=Counter({policy: 0}))
        self._tick, self._read = _Histogram(TICK_BUCKETS), _Histogram(TICK_BUCKETS)
        self._decision = _Histogram(DECISION_BUCKETS)
        self._last: tuple[Tick, float] | None = None
        self._begun, self._begun_seconds = time.time(), clock()
        # Whether there have been applications.
        self._divided = False

    def rename(self, policy: str, shield: str, digest: str) -> None:
        """Another policy and shield from now on: after a reload."""
        self._policy, self._shield = policy, (shield, digest)
        self._counts.acting.setdefault(policy, 0)

    def write(self, tick: Tick) -> None:
        """Count a tick and keep it."""
        counts, missed = self._counts, tick.telemetry.missed
        # A window of which nothing is known is neither met nor missed.
        counts.slo["unknown" if missed is None else "missed" if missed else "met"] += 1
        counts.acting[tick.acting or tick.policy] += 1
        for name in READINGS:
            reading = getattr(tick.telemetry, name)
            if isinstance(reading, Missing):
                counts.missing[(name, reading.why)] += 1
        # Of several LCs each has a bound of its own.
        counts.bounds.update({(bound.guard, bound.reason) for bound in tick.verdict.binding})
        for event in tick.events:
            counts.events[event.partition(":")[0]] += 1
        if tick.alarm:
            counts.alarms[tick.alarm.sign] += 1
            counts.false_alarms[tick.alarm.sign] += tick.false_alarm
        counts.overrides += tick.verdict.overridden_by_guard
        counts.fallbacks += bool(tick.fallback)
        counts.write_errors += bool(tick.error)
        self._tick.add(tick.tick_seconds)
        self._read.add(tick.read_seconds)
        self._decision.add(tick.decision_seconds)
        # One assignment: a scrape in another thread sees this tick or the one before, never half of each.
        self._last = (tick, self._clock())
        self._divided = self._divided or bool(tick.shares)

    def age_seconds(self) -> float:
        """Time since the last completed tick; infinite before the first."""
        return math.inf if self._last is None else self._clock() - self._last[1]

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        yield _info("rlctl_build", "The version that runs.", version=__version__)
        name, digest = self._shield
        yield _info("rlctl_policy", "Who is meant to decide.", policy=self._policy, shield=name, shield_digest=digest)
        yield _gauge("rlctl_start_time_seconds", "Unix time at which the controller began.", self._begun)
        yield _gauge("rlctl_tick_period_seconds", "Control period.", self._tick_seconds)
        age = self._clock() - (self._last[1] if self._last else self._begun_seconds)
        text = "Time since the last completed tick; before the first one, since the start."
        yield _gauge("rlctl_last_tick_age_seconds", text, age)
        yield from self._growing()
        yield self._tick.family("rlctl_tick_duration_seconds", "Time for a whole tick.")
        yield self._read.family("rlctl_read_duration_seconds", "Time to read the sensors.")
        yield self._decision.family("rlctl_decision_duration_seconds", "Time to observe, decide and rule.")
        yield from self._own()
        yield from _spent(self._service.budgets)
        text = "1 while the fast guard heeds a sign of every LC; 0 without it, and after too many false alarms."
        active = GaugeMetricFamily("rlctl_inner_sign_active", text, labels=["sign"])
        for sign in Sign:
            active.add_metric([sign], float(sign in self._service.heeded()))
        yield active
        if self._last is not None:
            yield _gauge(
                "rlctl_be_starved", "1 while BE has had too little for too long.", float(self._service.starved())
            )
            rein = GaugeMetricFamily(
                "rlctl_be_rein_active", "1 for what moves BE's level, 0 for the others.", labels=["rein"]
            )
            for name in Rein:
                rein.add_metric([name], float(self._last[0].telemetry.rein == name))
            yield rein
            yield from self._of(self._last[0])

    def _growing(self) -> Iterator[Metric]:
        counts, counted = self._counts, self._service.counted()
        missed = 0 if self._last is None else self._last[0].missed_deadlines
        yield _by("rlctl_ticks", "Completed ticks, by whether the LC met its target.", ("slo",), counts.slo)
        yield _by("rlctl_acting_policy_ticks", "Completed ticks, by who decided.", ("policy",), counts.acting)
        yield _by("rlctl_readings_missing", "Readings that a tick went without.", ("reading", "reason"), counts.missing)
        binding = "Bounds that held BE where it was, by guard; those above that do not count."
        yield _by("rlctl_shield_bounds", binding, ("guard", "reason"), counts.bounds)
        yield _by("rlctl_host_events", "What others did to the groups under control.", ("kind",), counts.events)
        held = "Control periods in which BE was held before they were over, by what was seen of the LC."
        yield _by("rlctl_inner_alarms", held, ("sign",), counts.alarms)
        met = "Of those, periods in which the LC met its target all the same."
        yield _by("rlctl_inner_false_alarms", met, ("sign",), counts.false_alarms)
        for name, text, value in (
            ("shield_overrides", "Ticks whose proposal a guard did not let through as it was.", counts.overrides),
            ("fallback_ticks", "Ticks in which another than the configured policy decided.", counts.fallbacks),
            ("policy_errors", "Ticks in which the policy failed.", 0),
            ("tick_errors", "Ticks that went wrong before the write.", 0),
            ("write_errors", "Ticks whose verdict could not be written.", counts.write_errors),
            ("missed_deadlines", "Control periods that began too late.", missed),
            ("log_records_dropped", "Ticks that the tick log could not hold.", 0),
            ("watchdog_restarts", "Times that the watchdog was started again.", 0),
        ):
            yield CounterMetricFamily(f"rlctl_{name}", text, value=counted.get(name, value))

    def _own(self) -> Iterator[Metric]:
        own = self._measure()
        yield CounterMetricFamily("rlctl_self_cpu_seconds", "CPU time of rlctl itself.", value=own.cpu_seconds)
        yield _gauge("rlctl_self_resident_memory_bytes", "Memory of rlctl itself.", own.resident_bytes)
        yield _gauge("rlctl_self_open_files", "Open descriptors of rlctl itself.", own.open_files)

    def _of(self, tick: Tick) -> Iterator[Metric]:
        telemetry = tick.telemetry
        target = telemetry.target_seconds
        waiting = telemetry.counters.get(LC_WAITING)
        if isinstance(waiting, Value):
            text = "Share of the time for which a task of the LC waited, held in place of a latency."
            yield _gauge("rlctl_lc_waiting_ratio", text, waiting.value)
        elif telemetry.has_target:
            text = "The SLO: the LC's tail latency stays below it."
            yield _gauge("rlctl_tail_latency_target_seconds", text, target)
        slack = telemetry.slack_ratio if telemetry.has_target else None
        if slack is not None:
            yield _gauge("rlctl_slack_ratio", "(target - latency) / target; negative when the SLO is missed.", slack)
        if isinstance(share := telemetry.counters.get(BE_SHARE), Value):
            text = "BE's share of a CPU that it and the LC both want, by their CPU weights."
            yield _gauge("rlctl_be_effective_share", text, share.value)
        ages = GaugeMetricFamily("rlctl_reading_age_seconds", "Age of a reading's last good value.", labels=["reading"])
        for reading, (name, text) in _OF_READINGS.items():
            found = getattr(telemetry, reading)
            if isinstance(found, Value) and (reading != "tail_latency_seconds" or waiting is None):
                yield _gauge(f"rlctl_{name}", text, found.value)
            if math.isfinite(found.age_seconds):
                ages.add_metric([reading], found.age_seconds)
        yield ages
        yield from self._allocation("be", "in force", tick.applied)
        yield from self._allocation("be_proposed", "that the policy asked for", tick.proposed)
        yield from self._allocation("be_verdict", "that the shield allowed", tick.verdict.allocation)
        yield _gauge(
            "rlctl_fallback_active", "1 while another than the configured policy decides.", bool(tick.fallback)
        )
        if self._divided:
            yield from _shares(tick.shares)

    def _allocation(self, prefix: str, which: str, allocation: Allocation) -> Iterator[Metric]:
        # A lifted quota is infinite, which no graph can show.
        quota = min(allocation.quota_cpus, float(self._limits.cpus))
        yield _gauge(
            f"rlctl_{prefix}_quota_cpus",
            f"Level of BE {which}, in CPUs: its quota unless link or disk is held; all CPUs where nothing is.",
            quota,
        )
        yield _gauge(f"rlctl_{prefix}_cpuset_cpus", f"Size of the cpuset of BE {which}.", allocation.cpuset_cpus)
        yield _gauge(f"rlctl_{prefix}_frozen", f"1 with BE suspended, {which}.", allocation.frozen)


def _shares(shares: Shares) -> Iterator[Metric]:
    """Registered applications by their names without pids, or each restart would be a series; the least as `other`."""
    by_name: dict[str, float] = {}
    for key, placement in shares.items():
        # A group's name may hold any byte but a slash.
        pid, _, registered = key.partition(":")
        name = printable(registered) if pid.isdecimal() and registered else "unregistered"
        by_name[name] = by_name.get(name, 0.0) + (placement.cpus if placement else 0.0)
    # Each name is a time series that Prometheus keeps: their number is bounded.
    ranked = sorted(by_name.items(), key=lambda item: (-item[1], item[0]))
    told = dict(ranked[:MOST_APPLICATIONS])
    if rest := ranked[MOST_APPLICATIONS:]:
        told["other"] = told.get("other", 0.0) + sum(cpus for _, cpus in rest)
    family = GaugeMetricFamily("rlctl_application_cpus", "CPU time an application may use.", labels=["application"])
    for name, cpus in told.items():
        family.add_metric([name], cpus)
    yield family
    deferred = sum(placement is None for placement in shares.values())
    yield _gauge("rlctl_applications_running", "Applications that have a share of BE's budget.", len(shares) - deferred)
    yield _gauge("rlctl_applications_deferred", "Applications that wait for room in BE's budget.", deferred)


def _spent(budgets: Sequence[ErrorBudget]) -> Iterator[Metric]:
    left = "What is left of a day's error budget."
    remaining = GaugeMetricFamily("rlctl_error_budget_remaining_ratio", left, labels=["lc"])
    rate = "How many times as fast as it may an error budget was spent; 1 spends all of it."
    burning = GaugeMetricFamily("rlctl_error_budget_burn_rate", rate, labels=["lc", "window"])
    for budget in budgets:
        remaining.add_metric([budget.lc], budget.remaining_ratio)
        for window, minutes in (("1h", HOUR_MINUTES), ("24h", DAY_MINUTES)):
            burning.add_metric([budget.lc, window], budget.burn_rate(minutes))
    yield from (remaining, burning) if budgets else ()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _info(name: str, text: str, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"{name}_info", text, labels=list(labels))
    family.add_metric(list(labels.values()), 1.0)
    return family


def _by(name: str, text: str, labels: tuple[str, ...], counts: Counter[str] | Counter[tuple[str, str]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    # One step of the interpreter: the loop may add a key meanwhile.
    for key, count in dict(counts).items():
        family.add_metric([key] if isinstance(key, str) else list(key), count)
    return family
