"""Energy of a run: by RAPL where there is RAPL, else by a power meter, else a reason."""

import pytest

from rlctl.envs.telemetry import Missing, Value, Why
from scripts.studies.mixes import energy
from scripts.studies.mixes.energy import EnergyMeter, ipmi_watts, power_source

ABSENT = Missing(Why.NOT_SUPPORTED, "no such RAPL zone")


class Rapl:
    def __init__(self, readings):
        self._readings = iter(readings)

    def joules(self):
        return next(self._readings)

    def close(self):
        pass


def measured(monkeypatch, joules, source=None, samples=()):
    monkeypatch.setattr(energy, "Energy", lambda zones: Rapl(joules))
    monkeypatch.setattr(energy, "power_source", lambda: None)
    with EnergyMeter(source) as meter:
        meter.begin()
        meter._answers += [(meter._begun_seconds + 1.0, watts) for watts in samples]
        return meter.end()


def test_rapl_counts(monkeypatch):
    assert measured(monkeypatch, [0.0, 5.0, 12.5]) == Value(7.5)


def test_without_both_there_is_a_reason(monkeypatch):
    assert "no such RAPL zone; no ACPI power meter" in measured(monkeypatch, [ABSENT] * 3).detail


def test_a_meter_counts_on_average(monkeypatch):
    found = measured(monkeypatch, [ABSENT] * 3, lambda: None, (300.0, 300.0, 60.0))
    assert found.value > 0.0
    assert "measure longer runs" in measured(monkeypatch, [ABSENT] * 3, lambda: None).detail


def test_a_board_controller_that_hangs_is_no_answer():
    assert ipmi_watts(("sleep", "600"), timeout_seconds=0.1) is None
    assert ipmi_watts(("echo", "    Instantaneous power reading:   220 Watts")) == 220.0
    assert ipmi_watts(("/nowhere/ipmitool",)) is None


def test_the_power_meter_is_preferred(tmp_path):
    assert power_source(tmp_path, tmp_path) is None
    folder = tmp_path / "class/hwmon/hwmon1"
    folder.mkdir(parents=True)
    (folder / "name").write_text("power_meter\n")
    (folder / "power1_average").write_text("312000000\n")
    assert power_source(tmp_path, tmp_path)() == pytest.approx(312.0)
