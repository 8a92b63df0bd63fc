"""Wake-up latency from the lines of `cyclictest --verbose`."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency.figures import TimeUnit
from rlctl.envs.telemetry import Missing, Quantile, Value, Why
from rlctl.envs.workload import SLO
from scripts.studies.realtime.cyclictest import cyclictest_lines, wake_ups
from tests.doubles.timed import TimedLog

CAPTURED = (
    b"Max CPUs = 2\nOnline CPUs = 2\n# /dev/cpu_dma_latency set to 0us\nThread 0 Interval: 200\n"
    b"       0:       0:       5\n       0:       1:       4\n       0:       2:    1145\n"
)
"""rt-tests 2.4 on Linux 6.18."""

WITH_SMIS = b"       0:       7:       5       0\n       1:       7:      12       1\n"
SLO_OF_TASK = SLO(100e-6, quantile=0.95, max_load_rps=10_000.0)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "cyclictest.out"
    path.touch()
    return path


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_each_wake_up_and_nothing_else_is_read() -> None:
    assert wake_ups(CAPTURED) == [5, 4, 1145]
    assert wake_ups(WITH_SMIS) == [5, 12]
    assert wake_ups(CAPTURED.replace(b"\n", b"\n# ")) == []


def test_tail_and_load_of_window_are_in_seconds(lines: Path) -> None:
    source = TimedLog(lines, cyclictest_lines(), SLO_OF_TASK)
    source.read(10.0)
    append(lines, CAPTURED + b"".join(b"       0:%8d:%8d\n" % (n, n) for n in range(3, 1000)))
    found = source.read(11.0)
    assert set(found) == set(source.provides)
    tail = found["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert (tail.value, tail.samples) == (pytest.approx(954e-6), 1000)  # four lines of a heading count as the latest
    assert found["load_ratio"] == Value(0.1004)
    assert found["rejected_rps"] == Value(4.0)
    source.close()


def test_nanoseconds(lines: Path) -> None:
    source = TimedLog(lines, cyclictest_lines(TimeUnit.NANOSECONDS), SLO_OF_TASK)
    source.read(0.0)
    append(lines, b"       0:       1:    5303\n")
    tail = source.read(1.0)["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert tail.value == pytest.approx(5.303e-6)
    source.close()


def test_sleeping_task_has_no_tail(lines: Path) -> None:
    source = TimedLog(lines, cyclictest_lines(), SLO_OF_TASK)
    source.read(0.0)
    append(lines, WITH_SMIS)
    assert isinstance(source.read(1.0)["tail_latency_seconds"], Quantile)
    stopped = source.read(2.0)["tail_latency_seconds"]
    assert isinstance(stopped, Missing)
    assert stopped.why is Why.NO_DATA
    lines.unlink()
    gone = source.read(3.0)["tail_latency_seconds"]
    assert isinstance(gone, Missing)
    assert str(lines) in gone.detail
    source.close()


def test_output_without_wake_ups_says_the_pattern_misses(lines: Path) -> None:
    source = TimedLog(lines, cyclictest_lines(), SLO_OF_TASK)
    source.read(0.0)
    append(lines, b"T: 0 (22533) P:80 I:200 C:   3000 Min:      2 Act:    3 Avg:    3 Max:    1145\n")
    tail = source.read(1.0)["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert tail.why is Why.MALFORMED
    assert "the pattern fits none of its lines" in tail.detail
    source.close()


def test_file_may_be_emptied_beside_cyclictest(lines: Path) -> None:
    source = TimedLog(lines, cyclictest_lines(), SLO_OF_TASK)
    source.read(0.0)
    append(lines, CAPTURED * 9)
    source.read(1.0)
    os.truncate(lines, 0)
    append(lines, b"       0:      28:       7\n")
    tail = source.read(2.0)["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert (tail.value, tail.samples) == (pytest.approx(7e-6), 1)
    source.close()


@given(st.binary(max_size=200) | st.text(alphabet="0123456789: \n", max_size=100).map(str.encode))
def test_no_output_raises_or_gives_an_insane_reading(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("cyclictest") / "out"
    path.touch()
    source = TimedLog(path, cyclictest_lines(), SLO_OF_TASK)
    source.read(0.0)
    path.write_bytes(data + b"\n")
    for reading in source.read(1.0).values():
        assert isinstance(reading, Missing) or (math.isfinite(reading.value) and reading.value >= 0.0)
    source.close()


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 10**12), st.integers(0, 10**9)), max_size=50))
def test_whatever_cyclictest_prints_is_read_back(printed: list[tuple[int, int, int]]) -> None:
    text = b"".join(b"%8d:%8d:%8d\n" % one for one in printed)
    assert wake_ups(text) == [latency for _, _, latency in printed]


@pytest.mark.host
def test_real_one_is_read_to_its_end(tmp_path: Path) -> None:
    program = shutil.which("cyclictest")
    if program is None:
        pytest.skip("cyclictest is not installed: apt-get install rt-tests")
    path = tmp_path / "out"
    path.touch()
    source = TimedLog(path, cyclictest_lines(), SLO_OF_TASK)
    source.read(0.0)
    command = [program, "--default-system", "--verbose", "--interval=200", "--loops=500", "--policy=other"]
    with path.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    if b"RLIMIT_RTPRIO" in done.stderr:
        pytest.skip("no permission for real-time scheduling")
    tail = source.read(1.0)["tail_latency_seconds"]
    assert isinstance(tail, Quantile), tail
    assert 490 <= tail.samples <= 500
    assert 0.0 < tail.value < 1.0
    source.close()
