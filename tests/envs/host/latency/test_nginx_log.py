"""Latency from nginx's access log."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.latency.figures import TimeUnit
from rlctl.envs.host.latency.line_formats import PatternLines, nginx_lines
from rlctl.envs.telemetry import Missing, Quantile, Value, Why
from rlctl.envs.workload import SLO
from tests.doubles.timed import TimedLog

NOW = 1_795_248_000.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.touch()
    return path


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(line + "\n" for line in lines)


def source(log: Path, slo: SLO, pattern: str | None = None) -> TimedLog:
    lines = PatternLines(pattern, wall_clock=lambda: NOW) if pattern else nginx_lines(wall_clock=lambda: NOW)
    return TimedLog(log, lines, slo)


def test_p95_and_rates_of_the_window(log: Path, slo: SLO) -> None:
    nginx = source(log, slo)
    nginx.read(10.0)
    append(log, *(f"{NOW - 0.5:.3f} {503 if ms == 7 else 200} 0.{ms:03d}" for ms in range(1, 22)), "nonsense")
    found = nginx.read(11.0)
    assert set(found) == set(nginx.provides)
    assert found["tail_latency_seconds"] == Quantile(0.021, 0.0, samples=21, window_seconds=1.0)
    assert found["load_ratio"] == Value(0.022)
    assert found["error_rps"] == Value(1.0)
    assert found["rejected_rps"] == Value(1.0)
    nginx.close()


def test_requests_that_fail_fast_are_no_good_news(log: Path, slo: SLO) -> None:
    nginx = source(log, slo)
    nginx.read(10.0)
    append(log, *[f"{NOW - 0.5:.3f} 502 0.001"] * 100)
    assert nginx.read(11.0)["tail_latency_seconds"].why is Why.FAILING  # type: ignore[union-attr]
    nginx.close()


def test_taken_before_a_long_ticks_end_counts(log: Path, slo: SLO, monkeypatch: pytest.MonkeyPatch) -> None:
    """At two seconds a tick the first of them is none that was buffered for long."""
    monkeypatch.setattr("rlctl.envs.host.latency.text_log.EARLY_BYTES", 1)
    nginx = source(log, slo)
    nginx.read(10.0)
    append(log, *[f"{NOW - 1.8:.3f} 200 0.004"] * 50)
    nginx.now = 11.9
    nginx.newest()
    append(log, *[f"{NOW - 0.1:.3f} 200 0.002"] * 50)
    found = nginx.read(12.0)
    assert found["load_ratio"] == Value(100 / 2 / 1000.0)
    assert found["rejected_rps"] == Value(0.0)
    nginx.close()


def test_line_buffered_long_is_outside_the_window(log: Path, slo: SLO) -> None:
    nginx = source(log, slo)
    nginx.read(10.0)
    append(log, f"{NOW - 30:.3f} 200 5.000", f"{NOW - 0.1:.3f} 200 0.002")
    assert nginx.read(11.0)["tail_latency_seconds"] == Quantile(0.002, 0.0, samples=1, window_seconds=1.0)
    nginx.close()


def test_any_other_format_by_its_pattern(log: Path, slo: SLO) -> None:
    nginx = source(log, slo, pattern=r"rt=(?P<seconds>[0-9.]+)")
    nginx.read(0.0)
    append(log, *['127.0.0.1 - - "GET / HTTP/1.1" 200 612 rt=0.004 ua="-"'] * 58, "rt=1.2.3", "rt=-")
    found = nginx.read(1.0)
    assert found["tail_latency_seconds"] == Quantile(0.004, 0.0, samples=58, window_seconds=1.0)
    assert found["rejected_rps"] == Value(2.0)
    nginx.close()


def test_silence_is_no_data_absence_is_told(tmp_path: Path, log: Path, slo: SLO) -> None:
    nginx = source(log, slo)
    nginx.read(0.0)
    silent = nginx.read(1.0)["tail_latency_seconds"]
    assert isinstance(silent, Missing)
    assert silent.why is Why.NO_DATA
    nginx.close()
    absent = source(tmp_path / "no.log", slo).read(0.0)["tail_latency_seconds"]
    assert isinstance(absent, Missing)
    assert "no.log" in absent.detail


@pytest.mark.parametrize("pattern", [r"(?P<took>\d+)", r"(?P<seconds>["])
def test_pattern_that_cannot_work_is_refused_at_door(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        PatternLines(pattern)


@given(st.binary(max_size=200) | st.text(alphabet="0123456789. \n", max_size=100).map(str.encode))
def test_no_log_raises_or_gives_an_insane_reading(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    log = tmp_path_factory.mktemp("nginx") / "access.log"
    log.touch()
    nginx = TimedLog(log, PatternLines(r"(?P<latency>\S+)$", wall_clock=lambda: NOW), SLO(0.01))
    nginx.read(0.0)
    log.write_bytes(data + b"\n")
    for reading in nginx.read(1.0).values():
        assert isinstance(reading, Missing) or (math.isfinite(reading.value) and reading.value >= 0.0)
    nginx.close()


def test_any_log_by_its_pattern_and_unit(log: Path, slo: SLO) -> None:
    text = TimedLog(log, PatternLines(r"took=(?P<latency>\d+)us .*code=(?P<status>\d+)", TimeUnit.MICROSECONDS), slo)
    text.read(0.0)
    append(log, *["GET / took=4000us size=3 code=200"] * 58, "GET / took=9000us size=3 code=503")
    found = text.read(1.0)
    assert found["tail_latency_seconds"] == Quantile(0.004, 0.0, samples=59, window_seconds=1.0)
    assert found["error_rps"] == Value(1.0)
    text.close()
