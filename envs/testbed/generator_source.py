"""Tail latency from the testbed's own load generator, which knows intended send times and what is outstanding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlctl.envs.errors import ConfigError, RlctlError
from rlctl.envs.host.latency.figures import PROVIDES, Figures, ReportedSource, Reporter
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.telemetry import READINGS, Missing, Reading, Telemetry, Value, Why
from rlctl.envs.testbed.generator import QUANTILES, GeneratorStats
from rlctl.envs.workload import SLO

STALE_SECONDS = 3.0
"""Figures older than this are missing."""

LAG = "lag_seconds"
"""By how much the generator sent too late, p95: where that is much, latencies are the generator's own."""

CLIENT = "client_"
"""Before the names of the client's readings, where another source gives those that a policy sees."""


class GeneratorSource(ReportedSource):
    """Latency as the load generator sees it, coordinated omission excluded.

    Args:
        stats: Asks the generator; it should wait a few ms at most (`lambda: generator.stats(timeout_seconds=0.02)`).
        peek: Asks it between the ticks, likewise (`LoadGenerator.peek`).
        slo: The LC's objective; its quantile must be .5, .95 or .99.

    Raises:
        ConfigError: The generator does not report this quantile.
    """

    name = "generator"
    provides = (*PROVIDES, LAG)

    def __init__(
        self, stats: Callable[[], GeneratorStats], slo: SLO, *, peek: Callable[[], Newest] = lambda: NOTHING
    ) -> None:
        if slo.quantile not in QUANTILES:
            raise ConfigError(f"the load generator reports p50, p95 and p99, not the SLO's quantile {slo.quantile:g}")
        self._stats, self._peek, self._quantile = stats, peek, QUANTILES[slo.quantile]
        self._reporter = Reporter(self.name, slo, STALE_SECONDS)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The figures since the previous call; missing when the generator is gone or does not answer."""
        try:
            stats = self._stats()
        except (RlctlError, OSError, ValueError) as error:
            return self._reporter.readings(Missing(Why.GONE, str(error)), now_seconds)
        readings, lag = self._reporter.readings(self._figures(stats), now_seconds), stats.lag_p95_seconds
        return readings if lag is None else {**readings, LAG: Value(lag)}

    def newest(self) -> Newest:
        """Requests since the last look, and the oldest one; nothing when the generator is gone or does not answer."""
        try:
            return self._peek()
        except (RlctlError, OSError, ValueError):  # the next reading says why
            return NOTHING

    def close(self) -> None:
        """The generator belongs to whoever started it."""

    def _figures(self, stats: GeneratorStats) -> Figures | Missing:
        if not stats.interval_seconds > 0.0:
            return Missing(Why.NO_DATA, "the generator's interval is empty")
        tail: float | None = getattr(stats, self._quantile)
        return Figures(
            end_seconds=stats.monotonic_seconds,
            window_seconds=stats.interval_seconds,
            samples=stats.samples,
            tail_seconds=Missing(Why.NO_DATA) if tail is None else tail,
            oldest_seconds=stats.oldest_seconds,
            offered_rps=stats.offered_rps,
            done_rps=stats.done_rps,
            error_rps=stats.errors / stats.interval_seconds,
        )


class ClientTruth:
    """What the LC's client measured, as counters, so that a run is judged by it whatever its policy was told."""

    name = "client"
    provides = tuple(CLIENT + name for name in GeneratorSource.provides)

    def __init__(self, source: GeneratorSource) -> None:
        self._source = source

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """As `GeneratorSource.read`, under other names."""
        return {CLIENT + name: reading for name, reading in self._source.read(now_seconds).items()}

    def close(self) -> None:
        """The generator belongs to whoever started it."""


def as_client_saw(telemetry: Telemetry) -> Telemetry:
    """The telemetry with the client's readings in the place of those that the policy was told, where there are both."""
    counters = dict(telemetry.counters)
    truth = {name: counters.pop(CLIENT + name) for name in GeneratorSource.provides if CLIENT + name in counters}
    seen = {name: truth.pop(name) for name in READINGS if name in truth}
    return telemetry.but(counters=counters | truth, **seen) if seen else telemetry
