"""What an LC waits for, in place of a latency that nothing tells: a weaker promise, named so wherever it shows.

A task of the LC may wait for a CPU, its disk or memory for a share of the time, the bound. PSI "some" tells it, and
without cgroup2 the run delay of the LC's threads. What it waits stands in the telemetry as its share
of the bound, by the target: at half of the bound the slack is one half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.latency.figures import PROVIDES
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.sensors.cpu import usage_seconds
from rlctl.envs.host.sensors.kernel_file import Gauge, follow_gauges
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.host.sensors.schedstat import RunDelay
from rlctl.envs.telemetry import LC_WAITING, Missing, Quantile, Reading, Value, Why
from rlctl.envs.workload import SLO

RESOURCES = ("cpu", "io", "memory")
LEAST_RATIO = 0.01
"""Of the bound: a latency of 0 is taken for a source that is broken."""

WHOLE_TIME = 1000
"""Stands for the number of requests: the kernel counts every microsecond, so no window is too small to judge."""


class WaitingSource:
    """Waiting as the latency, and CPU use as the load (requests a second are CPUs kept busy).

    Args:
        lc: The LC's group.
        pids: Its processes now.
        bound_ratio: Share of the time with a task waiting that counts as the target.

    Raises:
        HostError: This kernel tells of no waiting.
    """

    provides = (*PROVIDES, LC_WAITING)

    def __init__(self, slo: SLO, lc: Group, pids: Callable[[], tuple[int, ...] | Missing], bound_ratio: float) -> None:
        self.name = f"waiting below {bound_ratio:.0%} of the time (weaker than a latency)"
        self._slo, self._bound_ratio = slo, bound_ratio
        self._pressures, self._uses = tuple[Gauge, ...](), tuple[Gauge, ...]()
        self.follow(lc)
        self._delay = None if self._pressures else RunDelay(pids)
        if not self._uses:
            raise HostError("waiting cannot be held: the LC has no CPU accounting group, see `rlctl doctor`")
        self._before_seconds: float | None = None

    def follow(self, lc: Group) -> None:
        """Look at another group of the LC from now on; one that lacks the files of the one before is not."""
        folder = lc.pressure_file.parent if lc.pressure_file else Path()
        files = [folder / f"{one}.pressure" for one in RESOURCES if lc.pressure_file]
        if there := [file for file in files if file.exists()]:
            self._pressures = follow_gauges(self._pressures, there, lambda file: Gauge(file, some_seconds, 1.0))
        if lc.usage_file is not None:
            self._uses = follow_gauges(self._uses, [lc.usage_file], lambda file: Gauge(file, usage_seconds))

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The largest share of any resource since the previous call, by the target."""
        seconds = now_seconds - (self._before_seconds or now_seconds)
        self._before_seconds = now_seconds
        waiting, use = self._waiting(now_seconds), self._uses[0].rate(now_seconds)
        unknown = Missing(Why.NOT_SUPPORTED, f"{self.name}: no requests are seen")
        readings: dict[str, Reading] = dict.fromkeys(PROVIDES, unknown)
        if isinstance(waiting, Missing) or not isinstance(use, Value):
            lost = waiting if isinstance(waiting, Missing) else use
            return readings | dict.fromkeys(("tail_latency_seconds", "load_ratio", "done_rps", LC_WAITING), lost)
        share = max(waiting.value / self._bound_ratio, LEAST_RATIO)
        return readings | {
            "tail_latency_seconds": Quantile(share * self._slo.target_seconds, 0.0, WHOLE_TIME, seconds),
            "tail_is_lower_limit": Value(0.0),
            "done_rps": use,
            "load_ratio": Value(use.value / self._slo.max_load_rps),
            LC_WAITING: waiting,
        }

    def newest(self) -> Newest:
        """Nothing: between the ticks the fast guard looks at the pressure on CPUs itself."""
        return NOTHING

    def close(self) -> None:
        """Close the kernel's files."""
        for one in (*self._pressures, *self._uses, self._delay):
            if one is not None:
                one.close()

    def _waiting(self, now_seconds: float) -> Reading:
        if self._delay is not None:
            delay = self._delay.read(time.monotonic())["lc_run_delay_ratio"]
            return delay if isinstance(delay, Missing) else Value(min(delay.value, 1.0))
        shares = [gauge.rate(now_seconds) for gauge in self._pressures]
        known = [share for share in shares if isinstance(share, Value)]
        return max(known, key=lambda share: share.value) if known else shares[0]
