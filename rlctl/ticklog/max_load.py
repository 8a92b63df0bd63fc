"""The LC's maximum load, as the ticks of a log show it."""

from __future__ import annotations

from rlctl.envs.host.max_load import MaxLoad, is_held
from rlctl.envs.telemetry import offered_rps
from rlctl.ticklog.header import limits_in
from rlctl.ticklog.logged import LoggedTick


class LoggedLoad:
    """Learns of a log, tick by tick, what `slo.max_load_rps: auto` would have learned.

    Attributes:
        learned: None before the first tick under a header that names the host.
        ticks: How many were seen.
    """

    def __init__(self) -> None:
        self.learned: MaxLoad | None = None
        self.ticks = 0

    def see(self, logged: LoggedTick) -> None:
        """Learn from a tick."""
        if (limits := limits_in(logged.header)) is None:
            return
        if self.learned is None or (logged.first and self.learned.lc_cpus != limits.lc_cpus):
            self.learned = MaxLoad("the LC", limits.lc_cpus)
        telemetry, held = logged.tick.telemetry, is_held(logged.tick.before, limits)
        now, rps = telemetry.time_seconds, offered_rps(telemetry.counters)
        self.learned.see(now, rps, telemetry.lc_cpus, telemetry.latency_ratio, be_held=held)
        self.ticks += 1
