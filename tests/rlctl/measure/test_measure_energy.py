"""Energy of a run: by RAPL where there is RAPL, by a power meter for runs that are long enough, else a reason."""

from itertools import count
from types import SimpleNamespace

import pytest

from rlctl.envs.telemetry import Missing, Value, Why
from rlctl.measure import run as measure_energy
from rlctl.measure.run import EnergyMeter

ABSENT = Missing(Why.NOT_SUPPORTED, "no such RAPL zone")


class Rapl:
    def __init__(self, readings):
        self._readings = iter(readings)

    def joules(self):
        return next(self._readings)

    def close(self):
        pass


class Meter:
    """One that is asked when the test says so, and once as it is made."""

    def __init__(self, source, interval_seconds, cancel):
        self.ask = source
        self.ask()

    def read(self, now_seconds):
        return {"node_watts": Value(300.0)}

    def close(self):
        pass


@pytest.fixture
def a_host(monkeypatch):
    def make(joules, power):
        monkeypatch.setattr(measure_energy, "Energy", lambda zones: Rapl(joules))
        monkeypatch.setattr(measure_energy, "NodePower", Meter)
        monkeypatch.setattr(measure_energy, "power_source", lambda: power)

    return make


def measured(asked=0):
    with EnergyMeter() as meter:
        meter.begin()
        for _ in range(asked):
            meter._power.ask()
        return meter.end()


def test_rapl_counts(a_host):
    a_host([0.0, 5.0, 12.5], ABSENT)
    assert measured() == Value(7.5)


def test_a_counter_that_vanishes_meanwhile_is_a_reason(a_host):
    gone = Missing(Why.GONE, "gone")
    a_host([0.0, 5.0, gone], ABSENT)
    assert measured() == gone


def test_without_both_the_reason_has_both(a_host):
    a_host([ABSENT] * 3, Missing(Why.NOT_SUPPORTED, "no meter"))
    assert measured() == Missing(Why.NOT_SUPPORTED, "no such RAPL zone; no meter")


def test_what_a_meter_said_in_the_run_counts_on_average(a_host, monkeypatch):
    a_host([ABSENT] * 3, (iter([900.0, 300.0, 300.0, 60.0]).__next__, lambda: None))
    monkeypatch.setattr(measure_energy, "time", SimpleNamespace(monotonic=count().__next__))
    energy = measured(asked=3)
    assert energy == Value(220.0 * 4.0), "seconds pass with each look at the clock"


def test_a_reading_from_before_the_run_is_none_of_it(a_host):
    a_host([ABSENT] * 3, (lambda: 300.0, lambda: None))
    assert "measure longer runs" in measured().detail
