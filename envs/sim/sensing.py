"""The sensors of simulated hosts: what of a control period's truth is measured, late, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.readings import Readings
from rlctl.envs.sim.physics import Window
from rlctl.envs.sim.profile import Constants
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why

LATE = ("tail_latency_seconds", "oldest_request_seconds", "load_ratio", "samples", "done_rps", "lost")
"""What comes from the LC's side and may arrive late or not at all."""

# The LC's PSI with BE frozen (.001-.003: docs/measured/simulator.md, 9); the host's own work is never nothing.
QUIET_PRESSURE_RATIO = 0.002

SILENCE = "no figures in this window"

_ALIVE = Value(1.0)


class Sensors:
    """The sensors of n hosts: the LC's figures may arrive late or never, the host's own come at once.

    Attributes:
        seen: The readings of `LATE` as they arrived last, shape (6, n), in that order; `lost` is 1.0 where the latest
            did not arrive.
        age_ticks: Age of what arrived last, shape (n,).
    """

    def __init__(self, constants: Constants, tick_seconds: float) -> None:
        self.constants = constants
        self.tick_seconds = tick_seconds
        self._delay = np.round(constants.delay_ticks).astype(int)
        self._depth = int(self._delay.max(initial=0)) + 1
        self._every = np.arange(len(self._delay))
        count = len(self._delay)  # at first nothing has arrived
        self._ring = np.zeros((self._depth, len(LATE), count))
        self._ring[:, -1] = 1.0
        self._place = 0
        self.seen = self._ring[0].copy()
        self.age_ticks = np.full(count, np.inf)

    def take(self, window: Window) -> None:
        """Measure a control period that has passed."""
        # Load is measured at the LC's side, so it is lost with the latency and never alone.
        load = window.offered_rps / self.constants.max_load_rps
        samples = np.floor(window.done_rps * self.tick_seconds)
        lost = window.missing | (samples < 1.0)  # without a completed request there is no quantile
        latest = np.stack(
            (
                window.tail_latency_seconds,
                window.oldest_request_seconds,
                load,
                samples,
                window.done_rps,
                lost.astype(float),
            )
        )
        if self._depth == 1:
            arrived = latest
        else:  # a ring of the last periods, of which each host reads the one that its delay points to
            self._ring[self._place] = latest
            arrived = self._ring[(self._place - self._delay) % self._depth, :, self._every].T
            self._place = (self._place + 1) % self._depth
        came = arrived[-1] == 0.0
        # A sensor that is silent goes on showing its last figure, with a growing age: the shield judges by the age.
        self.seen = np.where(came, arrived, self.seen)
        self.seen[-1] = ~came
        self.age_ticks = np.where(came, self._delay, self.age_ticks + 1.0)

    def readings(self, window: Window, time_seconds: float) -> Readings:
        """What the sensors of all hosts measured."""
        c = self.constants
        tail, oldest, load, samples, done, lost = self.seen
        # PSI "some": share of the time in which a task of the LC waits for a CPU. It does while BE competes and the LC
        # has work; the run delay is the same summed over the LC's CPUs.
        waited = window.contended_ratio * np.minimum(window.utilisation_ratio, 1.0)
        return Readings(
            time_seconds=np.full(len(tail), time_seconds),
            target_seconds=c.target_seconds,
            tail_latency_seconds=tail,
            oldest_request_seconds=oldest,
            load_ratio=load,
            samples=samples,
            lost=lost != 0.0,
            age_seconds=self.age_ticks * self.tick_seconds,
            cpi=window.cpi,
            # As on a live host: CPU time of now by requests that the LC's side told of, or nothing where it is silent.
            lc_cpu_seconds_per_request=np.where(lost != 0.0, np.nan, window.lc_cpus / np.maximum(done, 1e-9)),
            lc_cpus=window.lc_cpus,
            be_cpus=window.be_cpus,
            host_cpus=window.host_cpus,
            lc_pressure_ratio=np.clip(waited, QUIET_PRESSURE_RATIO, 1.0),
            lc_run_delay_ratio=waited * c.lc_cpus,
            be_work_rate=window.be_work_ratio,
            true_latency_seconds=window.latency_seconds,
        )

    def telemetry(self, window: Window, time_seconds: float) -> list[Telemetry]:
        """The same host by host, and the counters that a host of its own has besides."""
        r = self.readings(window, time_seconds)
        late = (r.tail_latency_seconds, r.samples, r.oldest_request_seconds, r.load_ratio, r.age_seconds, r.lost)
        own = (r.cpi, r.lc_cpus, r.be_cpus, r.host_cpus, r.be_work_rate)
        waiting = (r.lc_pressure_ratio, r.lc_run_delay_ratio)
        counted = (
            r.load_ratio * self.constants.max_load_rps,
            self.seen[LATE.index("done_rps")],
            r.lc_cpu_seconds_per_request,
        )
        told = (_lc_readings(column, r.lost, r.age_seconds) for column in counted)
        rows = zip(
            r.target_seconds.tolist(),
            zip(*(column.tolist() for column in late), strict=True),
            *(map(Value, column.tolist()) for column in (*own, *waiting, window.watts)),
            *told,
            strict=True,
        )
        return [
            Telemetry(
                time_seconds,
                target,
                *self._late(*lc_side),
                _ALIVE,
                cpi=cpi,
                lc_cpu_seconds_per_request=per_request,
                lc_cpus=lc,
                be_cpus=be,
                host_cpus=host,
                lc_pressure_ratio=pressure,
                lc_run_delay_ratio=delay,
                be_work_rate=work,
                counters={"offered_rps": offered, "done_rps": done, "power_watts": watts},
            )
            for target, lc_side, cpi, lc, be, host, work, pressure, delay, watts, offered, done, per_request in rows
        ]

    def _late(
        self,
        tail_seconds: float,
        samples: float,
        oldest_seconds: float,
        load_ratio: float,
        age_seconds: float,
        lost: bool,
    ) -> tuple[Reading, Reading, Reading]:
        """One host's tail latency, oldest request and load: all of them or none."""
        # A reading that never came is missing with a reason, not a zero.
        if lost:
            silence = Missing(Why.NO_DATA, SILENCE, age_seconds)
            return silence, silence, silence
        tail = Quantile(tail_seconds, age_seconds, int(samples), self.tick_seconds)
        return tail, Value(oldest_seconds, age_seconds), Value(load_ratio, age_seconds)


def _lc_readings(column: Array, lost: Flags, age_seconds: Array) -> Iterator[Reading]:
    """What the LC's side counts, host by host, missing where it is silent."""
    for value, silent, age in zip(column.tolist(), lost.tolist(), age_seconds.tolist(), strict=True):
        yield Missing(Why.NO_DATA, SILENCE, age) if silent else Value(value, age)
