"""What sensors make of the truth: late, sometimes missing, and in the words of `Telemetry`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.sim.hosts import Window
from rlctl.envs.sim.profile import Constants
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why

__all__ = ["LATE", "Derived", "Sensors"]

Array = NDArray[np.float64]

LATE = ("tail_seconds", "oldest_seconds", "load_ratio", "samples", "lost")
"""What comes from the LC's side and may arrive late or not at all; the rest the host measures itself, at once."""

QUIET_PRESSURE_RATIO = 0.002
"""The LC's PSI with BE frozen (host.md: .001-.003); the host's own work is never nothing."""

_ALIVE = Value(1.0)


class Derived(NamedTuple):
    """Readings that follow from a window, arrays of shape (n,); names and units as in `Telemetry`."""

    lc_cpu_seconds_per_request: Array
    lc_pressure_ratio: Array
    lc_run_delay_ratio: Array


class Sensors:
    """The sensors of n hosts.

    Args:
        constants: Of each host.
        tick_seconds: Control period; also the window of the latency.

    Attributes:
        seen: The readings of `LATE` as they arrived last, shape (5, n), in that order; `lost` is 1.0 where the latest
            did not arrive.
        age_ticks: Age of what arrived last, shape (n,).
    """

    def __init__(self, constants: Constants, tick_seconds: float) -> None:
        self.constants = constants
        self.tick_seconds = tick_seconds
        self._delay = np.round(constants.delay_ticks).astype(int)
        self._depth = int(self._delay.max(initial=0)) + 1
        self._every = np.arange(len(self._delay))
        self.reset()

    def reset(self) -> None:
        """Nothing has arrived yet."""
        count = len(self._delay)
        self._ring = np.zeros((self._depth, len(LATE), count))
        self._ring[:, -1] = 1.0
        self._place = 0
        self.seen = self._ring[0].copy()
        self.age_ticks = np.full(count, np.inf)

    def take(self, window: Window) -> None:
        """A control period has passed."""
        load = window.offered_rps / self.constants.max_load_rps
        samples = np.floor(window.done_rps * self.tick_seconds)
        lost = window.missing | (samples < 1.0)
        latest = np.stack((window.tail_seconds, window.oldest_seconds, load, samples, lost.astype(float)))
        if self._depth == 1:
            arrived = latest
        else:
            self._ring[self._place] = latest
            arrived = self._ring[(self._place - self._delay) % self._depth, :, self._every].T
            self._place = (self._place + 1) % self._depth
        came = arrived[-1] == 0.0
        self.seen = np.where(came, arrived, self.seen)
        self.seen[-1] = ~came
        self.age_ticks = np.where(came, self._delay, self.age_ticks + 1.0)

    def derived(self, window: Window) -> Derived:
        """What the host's own sensors make of a window beyond what stands in it."""
        waited = window.contended_ratio * np.minimum(window.utilisation_ratio, 1.0)
        return Derived(
            window.lc_cpus / np.maximum(window.done_rps, 1e-9),
            np.clip(waited, QUIET_PRESSURE_RATIO, 1.0),
            waited * self.constants.lc_cpus,
        )

    def telemetry(self, window: Window, time_seconds: float) -> list[Telemetry]:
        """Each host's readings, in order.

        Args:
            window: The one taken last.
            time_seconds: Of the plant's clock.
        """
        columns = (
            *self.seen,
            self.age_ticks * self.tick_seconds,
            self.constants.target_seconds,
            window.cpi,
            *self.derived(window),
            window.lc_cpus,
            window.be_cpus,
            window.host_cpus,
            window.be_work_ratio,
            window.offered_rps,
            window.done_rps,
            window.watts,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [self._one(time_seconds, *row) for row in rows]

    def _one(
        self,
        now: float,
        tail: float,
        oldest: float,
        load: float,
        samples: float,
        lost: float,
        age: float,
        target: float,
        cpi: float,
        per_request: float,
        lc_pressure: float,
        run_delay: float,
        lc_cpus: float,
        be_cpus: float,
        host_cpus: float,
        be_work: float,
        offered: float,
        done: float,
        watts: float,
    ) -> Telemetry:
        arrived: tuple[Reading, Reading, Reading] = (
            Quantile(tail, age, int(samples), self.tick_seconds),
            Value(oldest, age),
            Value(load, age),
        )
        silence = Missing(Why.NO_DATA, "no figures in this window", age)
        latency, waiting, offered_load = (silence, silence, silence) if lost else arrived
        return Telemetry(
            now,
            target,
            latency,
            waiting,
            offered_load,
            _ALIVE,
            cpi=Value(cpi),
            lc_cpu_seconds_per_request=Value(per_request),
            lc_cpus=Value(lc_cpus),
            be_cpus=Value(be_cpus),
            host_cpus=Value(host_cpus),
            lc_pressure_ratio=Value(lc_pressure),
            lc_run_delay_ratio=Value(run_delay),
            be_work_rate=Value(be_work),
            counters={"offered_rps": Value(offered), "done_rps": Value(done), "power_watts": Value(watts)},
        )
