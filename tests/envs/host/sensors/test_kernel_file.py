"""Files that stay open, and rates of the counters in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.sensors.kernel_file import KernelFile, Rate, missing_because
from rlctl.envs.telemetry import Missing, Value, Why


def why(found: object) -> Why | None:
    return found.why if isinstance(found, Missing) else None


def test_reads_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "cpu.stat"
    path.write_text("1")
    file = KernelFile(path)
    assert file.read() == b"1"
    path.write_text("22")
    assert file.read() == b"22"
    file.close()
    file.close()


def test_file_the_kernel_lacks_is_no_lost_group(tmp_path: Path) -> None:
    assert why(KernelFile(tmp_path / "cpu.pressure").read()) is Why.NOT_SUPPORTED
    assert why(KernelFile(tmp_path / "group" / "cpu.pressure").read()) is Why.GONE


@pytest.mark.parametrize(
    ("number", "expected"),
    [(13, Why.NO_PERMISSION), (1, Why.NO_PERMISSION), (95, Why.NOT_SUPPORTED), (19, Why.GONE), (3, Why.GONE)],
)
def test_each_refusal_has_its_reason(number: int, expected: Why) -> None:
    assert missing_because(OSError(number, os.strerror(number)), Path("/x")).why is expected


def test_a_missing_file_is_found_once_it_appears(tmp_path: Path) -> None:
    file = KernelFile(tmp_path / "late")
    assert isinstance(file.read(), Missing)
    (tmp_path / "late").write_text("here")
    assert file.read() == b"here"
    file.close()


def test_a_rate_takes_two_readings() -> None:
    rate = Rate()
    assert why(rate.update(10.0, 5.0)) is Why.NO_DATA
    assert rate.update(12.0, 6.0) == Value(0.5)


def test_counter_that_started_anew_is_no_negative_rate() -> None:
    rate = Rate()
    rate.update(0.0, 100.0)
    assert why(rate.update(1.0, 3.0)) is Why.NO_DATA
    assert rate.update(2.0, 4.0) == Value(1.0)


def test_late_tick_is_forgiven_and_nonsense_is_not() -> None:
    rate = Rate(most=1.0)
    rate.update(0.0, 0.0)
    assert rate.update(1.0, 1.2) == Value(1.0)
    assert why(rate.update(2.0, 9.0)) is Why.ABSURD


def test_missing_rate_tells_age_of_last() -> None:
    rate = Rate()
    rate.update(0.0, 0.0)
    rate.update(1.0, 1.0)
    missing = rate.update(3.5, Missing(Why.GONE))
    assert missing == Missing(Why.GONE, age_seconds=2.5)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e12)), max_size=20))
def test_no_readings_give_an_impossible_rate(readings: list[tuple[float, float]]) -> None:
    rate = Rate(most=4.0)
    for now, total in readings:
        reading = rate.update(now, total)
        assert isinstance(reading, Missing) or 0.0 <= reading.value <= 4.0
