"""A plant for tests and examples: no host, no clock, one line of physics."""

from __future__ import annotations

from collections.abc import Callable

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.workload import Weight


class FakePlant:
    """One LC CPU shared with BE; the tail is that of an M/M/1 queue that lost BE's share of the CPU.

    It has no queueing memory and no noise, so a test can say beforehand what must happen. For numbers that mean
    something use the simulated host.

    Args:
        loads: Load ratio of each tick, repeated from the start when used up.
        tick_seconds: Control period on the plant's own clock; nothing sleeps.
    """

    learned: tuple[MaxLoad, ...] = ()

    def __init__(
        self,
        limits: Limits | None = None,
        loads: tuple[float, ...] = (0.5,),
        target_seconds: float = 0.010,
        tick_seconds: float = 1.0,
    ) -> None:
        self.limits = limits or Limits(cpus=2)
        self.tick_seconds = tick_seconds
        self.loads = loads
        self.target_seconds = target_seconds
        self.ticks = 0
        self.closed = False
        self.weight = Weight.EQUAL
        self._current = self.limits.full

    @property
    def current(self) -> Allocation:
        """The allocation in force."""
        return self._current

    def reset(self, seed: int | None = None) -> None:
        """Back to the first tick."""
        self.ticks = 0

    def read(self) -> Telemetry:
        """The readings of this tick."""
        load = self.loads[self.ticks % len(self.loads)]
        be_cpus = self._current.usable_cpus
        left = max(1.0 - load * 0.85 - 0.5 * min(be_cpus, 1.0), 0.02)
        tail = 3.0 * 0.0005 / left
        return Telemetry(
            time_seconds=self.ticks * self.tick_seconds,
            target_seconds=self.target_seconds,
            tail_latency_seconds=Quantile(tail, samples=500, window_seconds=self.tick_seconds),
            oldest_request_seconds=Value(tail / 2),
            load_ratio=Value(load),
            lc_alive=Value(1.0),
            lc_cpus=Value(load * 0.85),
            be_cpus=Value(be_cpus),
            host_cpus=Value(load * 0.85 + be_cpus),
            be_work_rate=Value(be_cpus / self.limits.cpus),
        )

    def apply(self, allocation: Allocation) -> Allocation:
        """Takes effect at once."""
        self._current = self.limits.clip(allocation)
        return self._current

    def set_weight(self, weight: Weight) -> None:
        """Remembered for the test to look at; without effect."""
        self.weight = weight

    def wait(self) -> int:
        """The next tick; none is ever missed."""
        self.ticks += 1
        return 0

    def close(self) -> None:
        """Gives BE everything back."""
        self._current = self.limits.full
        self.closed = True


class BreakingPlant(FakePlant):
    """Something happens at a tick of the whole run: a call, or an error of the plant."""

    def __init__(self, at: int, what: Callable[[], object] | Exception, loads: tuple[float, ...]) -> None:
        super().__init__(loads=loads)
        self.at, self.what, self.waits = at, what, 0

    def wait(self) -> int:
        """The next tick, after what happens at it."""
        self.waits += 1
        if self.waits == self.at:
            if isinstance(self.what, Exception):
                raise self.what
            self.what()
        return super().wait()
