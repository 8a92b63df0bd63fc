"""The sensors of simulated hosts: what of a control period's truth is measured, late, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rlctl.envs.arrays import Array
from rlctl.envs.law import compiled, law
from rlctl.envs.readings import READING, Readings
from rlctl.envs.reins import FELL, OTHERS, REINS, USE, Rein
from rlctl.envs.rows import Row, Rows
from rlctl.envs.sim.physics import Window
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why

LATE = ("tail_latency_seconds", "oldest_request_seconds", "load_ratio", "samples", "done_rps", "lost")
"""What comes from the LC's side and may arrive late or not at all."""

DEPTH = 9
"""Periods that a sensor keeps: one more than its longest delay."""

SENSOR = np.dtype(
    [
        ("ring", "f8", (DEPTH, len(LATE))), ("place", "i8"), ("delay_ticks", "i8"), ("seen", "f8", (len(LATE),)),
        ("age_ticks", "f8"),
    ], align=True,
)  # fmt: skip
"""The sensor of one host: the last periods, what of LATE arrived last, and its age. `lost` is 1.0 where the latest did
not arrive."""

# The LC's PSI with BE frozen (.001-.003: docs/measured/simulator.md, 9); the host's own work is never nothing.
QUIET_PRESSURE_RATIO = 0.002

SILENCE = "no figures in this window"

_ALIVE = Value(1.0)


@law
def measure(sensor: Row, c: Row, window: Row, tick_seconds: float) -> None:
    """Measure a control period that has passed on a host."""
    # Load is measured at the LC's side, so it is lost with the latency and never alone.
    samples = math.floor(window["done_rps"] * tick_seconds)
    place = sensor["place"]
    latest = sensor["ring"][place]
    latest[0], latest[1] = window["tail_latency_seconds"], window["oldest_request_seconds"]
    latest[2], latest[3] = window["offered_rps"] / c["max_load_rps"], samples
    latest[4] = window["done_rps"]
    latest[5] = 1.0 if window["missing"] or samples < 1.0 else 0.0  # without a completed request there is no quantile
    # A ring of the last periods, of which each host reads the one that its delay points to.
    arrived = sensor["ring"][(place - sensor["delay_ticks"]) % DEPTH]
    sensor["place"] = (place + 1) % DEPTH
    # A sensor that is silent goes on showing its last figure, with a growing age: the shield judges by the age.
    if arrived[5] == 0.0:
        for reading in range(len(LATE)):
            sensor["seen"][reading] = arrived[reading]
        sensor["age_ticks"] = sensor["delay_ticks"]
    else:
        sensor["seen"][5] = 1.0
        sensor["age_ticks"] += 1.0


@law
def read_sensor(sensor: Row, c: Row, window: Row, reading: Row, time_seconds: float, tick_seconds: float) -> None:
    """What the sensors of a host measured, written to its reading."""
    seen = sensor["seen"]
    lost = seen[5] != 0.0
    # PSI "some": share of the time in which a task of the LC waits for a CPU. It does while BE competes and the LC
    # has work; the run delay is the same summed over the LC's CPUs.
    waited = window["contended_ratio"] * min(window["utilisation_ratio"], 1.0)
    reading["time_seconds"] = time_seconds
    reading["target_seconds"] = c["target_seconds"]
    reading["tail_latency_seconds"], reading["oldest_request_seconds"] = seen[0], seen[1]
    reading["load_ratio"], reading["samples"], reading["lost"] = seen[2], seen[3], lost
    reading["age_seconds"] = sensor["age_ticks"] * tick_seconds
    reading["cpi"] = window["cpi"]
    # As on a live host: CPU time of now by requests that the LC's side told of, or nothing where it is silent.
    reading["lc_cpu_seconds_per_request"] = math.nan if lost else window["lc_cpus"] / max(seen[4], 1e-9)
    reading["lc_cpus"], reading["be_cpus"] = window["lc_cpus"], window["be_cpus"]
    reading["host_cpus"] = window["host_cpus"]
    reading["lc_pressure_ratio"] = min(max(waited, QUIET_PRESSURE_RATIO), 1.0)
    reading["lc_run_delay_ratio"] = waited * c["lc_cpus"]
    reading["be_work_rate"] = window["be_work_ratio"]
    reading["true_latency_seconds"] = max(window["tail_latency_seconds"], window["oldest_request_seconds"])
    reading["rein"], reading["be_used_ratio"] = window["rein"], window["be_used_ratio"]
    reading["fell_ratio"] = window["fell_ratio"]


@law
def measure_all(sensors: Rows, constants: Rows, windows: Rows, tick_seconds: float) -> None:
    """Measure the period on every host."""
    for place in range(len(sensors)):
        measure(sensors[place], constants[place], windows[place], tick_seconds)


@law
def read_all(
    sensors: Rows, constants: Rows, windows: Rows, readings: Rows, time_seconds: float, tick_seconds: float
) -> None:
    """What the sensors of every host measured."""
    for place in range(len(sensors)):
        read_sensor(sensors[place], constants[place], windows[place], readings[place], time_seconds, tick_seconds)


class Sensors:
    """The sensors of n hosts: the LC's figures may arrive late or never, the host's own come at once.

    Args:
        constants: Rows of the hosts' constants, shape (n,).
    """

    def __init__(self, constants: Rows, tick_seconds: float) -> None:
        self.constants, self.tick_seconds = constants, tick_seconds
        self.rows = np.zeros(len(constants), SENSOR)  # at first nothing has arrived
        self.rows["delay_ticks"] = np.round(constants["delay_ticks"])
        self.rows["ring"][:, :, 5] = self.rows["seen"][:, 5] = 1.0
        self.rows["age_ticks"] = np.inf
        self._measure, self._read = compiled(measure_all), compiled(read_all)

    def take(self, window: Window) -> None:
        """Measure a control period that has passed."""
        self._measure(self.rows, self.constants, window.rows, self.tick_seconds)

    def readings(self, window: Window, time_seconds: float) -> Readings:
        """What the sensors of all hosts measured."""
        return Readings.of(self.reading_rows(window, time_seconds))

    def reading_rows(self, window: Window, time_seconds: float) -> Rows:
        """The same in rows of READING."""
        rows = np.empty(len(self.rows), READING)
        self._read(self.rows, self.constants, window.rows, rows, time_seconds, self.tick_seconds)
        return rows

    def telemetry(self, window: Window, time_seconds: float) -> list[Telemetry]:
        """The same host by host, and the counters that a host of its own has besides."""
        return self.teller(window, self.reading_rows(window, time_seconds))()

    def teller(self, window: Window, readings: Rows) -> Callable[[], list[Telemetry]]:
        """What gives the telemetry of a tick whenever it is asked for, see `telemetry`."""
        done = self.rows["seen"][:, LATE.index("done_rps")].copy()
        return partial(_tell_hosts, readings, window, done, self.constants, self.tick_seconds)


def _tell_hosts(
    readings: Rows, window: Window, done_rps: Array, constants: Rows, tick_seconds: float
) -> list[Telemetry]:
    counted = readings["load_ratio"] * constants["max_load_rps"], done_rps, window.watts, window.others_ratio
    rows = zip(readings.tolist(), *(column.tolist() for column in counted), strict=True)
    return [
        _tell_host(dict(zip(READING.names or (), reading, strict=True)), offered, done, watts, others, tick_seconds)
        for reading, offered, done, watts, others in rows
    ]


def _tell_host(
    r: dict[str, Any], offered_rps: float, done_rps: float, watts: float, others_ratio: float, tick_seconds: float
) -> Telemetry:
    """One host's telemetry, by a row of READING and counters."""
    age = r["age_seconds"]
    # What comes from the LC's side is there or is not, all of it. A reading that never came is missing with a reason,
    # not a zero.
    lost = Missing(Why.NO_DATA, SILENCE, age) if r["lost"] else None
    tail = Quantile(r["tail_latency_seconds"], age, int(r["samples"]), tick_seconds)
    late = (Value(r[name], age) for name in ("oldest_request_seconds", "load_ratio", "lc_cpu_seconds_per_request"))
    oldest, load, per_request = (lost or one for one in late)
    own: dict[str, Any] = {name: Value(r[name]) for name in _OWN}
    counters = {"offered_rps": lost or Value(offered_rps, age), "done_rps": lost or Value(done_rps, age)}
    if (rein := REINS[int(r["rein"])]) is not Rein.CPU:
        use = {USE[rein]: Value(r["be_used_ratio"]), OTHERS: Value(others_ratio)}
        counters |= use | {FELL[rein]: Value(r["fell_ratio"])}
    return Telemetry(
        r["time_seconds"],
        r["target_seconds"],
        lost or tail,
        oldest,
        load,
        _ALIVE,
        lc_cpu_seconds_per_request=per_request,
        counters=counters | {"power_watts": Value(watts)},
        rein=rein,
        **own,
    )


_OWN = "cpi", "lc_cpus", "be_cpus", "host_cpus", "lc_pressure_ratio", "lc_run_delay_ratio", "be_work_rate"
"""What the host tells of itself, at once."""
