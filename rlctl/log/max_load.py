"""The maximum load of each LC, as the ticks of a log show it."""

from __future__ import annotations

from rlctl.envs.errors import printable
from rlctl.envs.host.max_load import MaxLoad, window_of
from rlctl.envs.telemetry import BUSIEST_THREAD, Missing, Why, offered_rps
from rlctl.log.reader import LoggedTick, limits_in

ONLY = "the LC"
"""Name of an LC that is the only one: a log does not say it."""

_BETWEEN = Missing(Why.GONE, "between two runs")


class LoggedLoad:
    """Learns of a log, tick by tick, what `slo.max_load_rps: auto` would have learned.

    Attributes:
        loads: By the LC's name; empty before the first tick under a header that names the host. A log does not say
            which CPUs each of several LCs may use: all of theirs count for each.
        ticks: How many were seen.
    """

    def __init__(self) -> None:
        self.loads: dict[str, MaxLoad] = {}
        self.ticks = 0

    def observe(self, logged: LoggedTick) -> None:
        """Learn from a tick."""
        if (limits := limits_in(logged.header)) is None:
            return
        telemetry, held = logged.tick.telemetry, logged.tick.before.at_most(limits.minimum)
        for name, lc in ((name or ONLY, lc) for name, lc in telemetry.lcs.items()):
            load = self.loads.get(name)
            if load is None or (logged.first and load.lc_cpus != limits.lc_cpus):
                load = self.loads[name] = MaxLoad(printable(name), limits.lc_cpus)
            now = telemetry.time_seconds
            if logged.first:  # what goes on over several windows does not go on over a restart
                load.observe(now, _BETWEEN, _BETWEEN, None, be_held=False)
            rps = offered_rps(lc.counters)
            load.observe(now, rps, lc.lc_cpu_seconds_per_request, lc.latency_ratio, be_held=held,
                         busiest=lc.counters.get(BUSIEST_THREAD, _BETWEEN), window_seconds=window_of(lc))  # fmt: skip
        self.ticks += 1
