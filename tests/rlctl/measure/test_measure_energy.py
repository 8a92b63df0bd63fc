"""Energy of a run: by RAPL where there is RAPL, by a power meter for runs that are long enough, else a reason."""

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
    def __init__(self, source, interval_seconds, cancel):
        self.reading = source()

    def read(self, now_seconds):
        return {"node_watts": self.reading}

    def close(self):
        pass


@pytest.fixture
def a_host(monkeypatch):
    def make(joules, power):
        monkeypatch.setattr(measure_energy, "Energy", lambda zones: Rapl(joules))
        monkeypatch.setattr(measure_energy, "NodePower", Meter)
        monkeypatch.setattr(measure_energy, "power_source", lambda: power)

    return make


def measured():
    with EnergyMeter() as meter:
        meter.begin()
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


def test_a_meter_that_gave_a_reading_in_the_run_is_taken(a_host):
    a_host([ABSENT] * 3, (lambda: Value(300.0, age_seconds=0.0), lambda: None))
    energy = measured()
    assert 0.0 < energy.value < 300.0


def test_a_reading_from_before_the_run_is_none_of_it(a_host):
    a_host([ABSENT] * 3, (lambda: Value(300.0, age_seconds=60.0), lambda: None))
    assert "measure longer runs" in measured().detail
