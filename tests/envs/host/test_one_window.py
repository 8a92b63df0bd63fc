"""Readings of one window belong together: a source, a clock and a counter that are late, torn or truncated."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rlctl.envs.host.latency.line_formats import JsonRequests
from rlctl.envs.host.latency.text_log import TextLog
from rlctl.envs.host.live import Lc, _cost, _readings
from rlctl.envs.host.sensors.cpu import GroupCpus
from rlctl.envs.host.sensors.cpu_time import CpuTime
from rlctl.envs.telemetry import Missing, Value
from rlctl.envs.workload import SLO

COST_SECONDS = 0.002
MAX_RPS = 1000.0
FEW = 50
"""Of fewer requests in a window one more or less is not in the tenth that is asked for."""


@dataclass
class World:
    """A log and a counter that grow while a clock goes on, which stands still for whoever looks at it.

    Attributes:
        rates: Requests a second, each for a while of its own, over and over.
        stalls: How long a reader is held up at each look at the clock, over and over.
    """

    folder: Path
    rates: list[tuple[float, float]]
    stalls: list[float]
    now: float = 100.0
    done: float = 0.0
    looks: int = 0
    pieces: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log, self.usage = self.folder / "requests", self.folder / "cpuacct.usage"
        self.log.touch()
        self._write()

    def clock(self) -> float:
        self.looks += 1
        self.pass_by(self.stalls[self.looks % len(self.stalls)])
        return self.now

    def pass_by(self, seconds: float) -> None:
        while seconds > 1e-9:
            step = min(seconds, 0.2)
            before = int(self.done)
            self.pieces += 1
            self.done += self._rate() * step
            self.now += step
            seconds -= step
            with self.log.open("ab") as log:
                line = b'{"latency_seconds": 0.002, "n": %d}\n' % self.pieces
                log.write(line * (int(self.done) - before))
            self._write()

    def requests(self, moment: float) -> float:
        """How many were done by then."""
        return next(done for at, done in reversed(self.history) if at <= moment + 1e-9)

    def _rate(self) -> float:
        at = self.now % sum(seconds for seconds, _ in self.rates)
        for seconds, rate in self.rates:
            if at < seconds:
                return rate
            at -= seconds
        return self.rates[-1][1]

    def _write(self) -> None:
        self.usage.write_text(str(int(self.done * COST_SECONDS * 1e9)))
        self.history.append((self.now, self.done))


RATES = st.lists(st.tuples(st.floats(0.3, 4.0), st.sampled_from([100.0, 300.0, 900.0])), min_size=1, max_size=4)
STALLS = st.lists(st.sampled_from([0.0] * 12 + [1e-4, 0.004, 0.03, 0.4, 3.0, 11.0]), min_size=3, max_size=23)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(RATES, STALLS, st.lists(st.tuples(st.floats(0.2, 2.5), st.booleans()), min_size=4, max_size=8))
def test_load_and_cost_are_true_or_missing(
    rates: list[tuple[float, float]], stalls: list[float], ticks: list[tuple[float, bool]]
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        world = World(Path(folder), rates, stalls)
        world.pass_by(0.5)  # of a log that was found empty nobody can see that it was truncated
        patch.setattr(time, "monotonic", world.clock)
        source = TextLog(world.log, JsonRequests(), SLO(0.01, max_load_rps=MAX_RPS), clock=world.clock)
        lc = Lc("lc", SLO(0.01), (source, GroupCpus(world.usage, host_cpus=8, clock=world.clock)))
        _readings(lc)
        for wait, truncate in ticks:
            world.pass_by(wait)
            if truncate:
                os.truncate(world.log, 0)
            begun = world.now
            readings = _readings(lc)
            cost, load = _cost(lc, readings), readings["load_ratio"]
            assert source.window is None or begun - 1e-9 <= source.window[1] <= world.now
            if isinstance(load, Value) and source.window is not None:
                first, last = source.window
                done = world.requests(last) - world.requests(first)
                if done >= FEW:
                    assert load.value * MAX_RPS == pytest.approx(done / (last - first), rel=0.1)
                    assert isinstance(cost, Missing) or cost.value == pytest.approx(COST_SECONDS, rel=0.1)
        source.close()


def test_steady_ticks_have_both() -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        world = World(Path(folder), [(1.0, 500.0)], [1e-5])
        patch.setattr(time, "monotonic", world.clock)
        source = TextLog(world.log, JsonRequests(), SLO(0.01, max_load_rps=MAX_RPS), clock=world.clock)
        lc = Lc("lc", SLO(0.01), (source, GroupCpus(world.usage, host_cpus=8, clock=world.clock)))
        _readings(lc)
        for _ in range(5):
            world.pass_by(1.0)
            readings = _readings(lc)
            assert readings["load_ratio"] == Value(pytest.approx(0.5, rel=0.02))
            assert _cost(lc, readings) == Value(pytest.approx(COST_SECONDS, rel=0.02))
        source.close()


@pytest.mark.parametrize(
    ("window", "used"),
    [((1.0, 2.0), 0.5), ((1.5, 2.0), 0.25), ((0.5, 3.5), None), ((3.5, 4.5), None), ((4.0, 9.0), None)],
)
def test_cpu_time_of_any_window(window: tuple[float, float], used: float | None) -> None:
    """From 3 to 4 s the pace differs, so that nobody knows how much of it half a second has."""
    cpu = CpuTime()
    for reading in ((1.0, 10.0), (2.0, 10.5), (3.0, 11.0), (4.0, 15.0), (5.0, 15.1)):
        cpu.add(reading)
    found = cpu.within(window)
    assert isinstance(found, Missing) if used is None else found == pytest.approx(used)


def test_a_counter_that_began_anew_begins_anew() -> None:
    cpu = CpuTime()
    for reading in ((1.0, 10.0), (2.0, 10.5), (3.0, 0.5), (4.0, 1.0)):
        cpu.add(reading)
    assert isinstance(cpu.within((1.0, 2.0)), Missing)
    assert cpu.within((3.0, 4.0)) == pytest.approx(0.5)
