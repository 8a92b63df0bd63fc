"""What every perf version prints becomes the same counts, and nothing that it could print becomes a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.sensors.perf_process import Count, FrameAssembler, PerfInterval, parse_line
from rlctl.envs.telemetry import Why

EVENTS = ("cycles", "instructions", "LLC-load-misses", "context-switches", "task-clock")
SOFTWARE = ("context-switches", "cpu-migrations", "page-faults", "task-clock")


def keys(events: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(group, event) for group in ("lc", "be") for event in events]


@pytest.mark.parametrize("name", ["perf-5.15.csv", "perf-6.8-hybrid.jsonl", "perf-6.12.jsonl"])
def test_every_version_gives_the_same_counts(perf_output: Path, name: str) -> None:
    frames = FrameAssembler(keys(EVENTS)).feed((perf_output / name).read_bytes())
    assert [frame.seconds for frame in frames] == [pytest.approx(1.0, rel=1e-3)] * 2
    for frame in frames:
        assert frame.counts["lc", "cycles"].count == 2.4e9
        assert frame.counts["lc", "instructions"].count == 3.0e9
        assert frame.counts["be", "instructions"].count == 0.5e9
        assert frame.counts["lc", "task-clock"].count == pytest.approx(0.8125)


def test_multiplexed_counts_say_how_long_they_were_counted(perf_output: Path) -> None:
    frames = FrameAssembler(keys(EVENTS)).feed((perf_output / "perf-6.12.jsonl").read_bytes())
    assert frames[0].counts["lc", "LLC-load-misses"].running_ratio == pytest.approx(0.241)


@pytest.mark.parametrize("name", ["perf-6.1-no-pmu.jsonl", "perf-6.1-no-pmu.csv"])
def test_not_supported_and_not_counted_stay_apart(perf_output: Path, name: str) -> None:
    frames = FrameAssembler(keys(("cycles", *SOFTWARE))).feed((perf_output / name).read_bytes())
    assert len(frames) >= 3
    assert frames[0].counts["lc", "cycles"].count is Why.NOT_SUPPORTED
    assert frames[0].counts["be", "task-clock"].count is Why.NOT_COUNTED
    assert isinstance(frames[0].counts["lc", "context-switches"].count, float)


def test_interval_is_time_stamp_and_not_length(perf_output: Path) -> None:
    frames = FrameAssembler(keys(SOFTWARE)).feed((perf_output / "perf-6.1-software.jsonl").read_bytes())
    assert [round(frame.seconds, 2) for frame in frames] == [0.3, 0.3, 0.3, 0.3, 0.06]


@given(st.lists(st.integers(1, 400), max_size=60))
def test_however_pipe_cuts_it_frames_are_same(perf_output: Path, cuts: list[int]) -> None:
    whole = rest = (perf_output / "perf-6.1-software.jsonl").read_bytes()
    assembler, frames = FrameAssembler(keys(SOFTWARE)), list[PerfInterval]()
    for cut in cuts:
        frames += assembler.feed(rest[:cut])
        rest = rest[cut:]
    frames += assembler.feed(rest)
    assert frames == FrameAssembler(keys(SOFTWARE)).feed(whole)


def test_frame_that_lost_line_ends_with_next_interval(perf_output: Path) -> None:
    lines = (perf_output / "perf-6.1-software.jsonl").read_bytes().splitlines(keepends=True)
    without = b"".join(line for line in lines if b"0.300365424" not in line or b"cpu-migrations" not in line)
    frames = FrameAssembler(keys(SOFTWARE)).feed(without)
    assert len(frames) == 5
    assert ("lc", "cpu-migrations") not in frames[0].counts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
COUNTS = st.sampled_from(["<not supported>", "<not counted>", "12.5", "-3", "nan", "inf", "1,5", ""]) | JSON
LINES = st.fixed_dictionaries(
    {},
    optional={
        "interval": st.floats(0, 100) | JSON,
        "counter-value": COUNTS,
        "unit": st.sampled_from(["", "msec"]) | JSON,
        "event": st.sampled_from(["cycles", "cpu_core/cycles/", "task-clock:u"]) | JSON,
        "cgroup": st.sampled_from(["lc", "be"]) | JSON,
        "pcnt-running": st.floats(0, 100) | JSON,
        "surprise": JSON,
    },
)


def sane(count: Count) -> bool:
    return isinstance(count.count, Why) or (math.isfinite(count.count) and count.count >= 0.0)


@given(st.lists(LINES.map(lambda row: json.dumps(row).encode()) | st.binary(max_size=80), max_size=30))
def test_nothing_like_perf_raises(lines: list[bytes]) -> None:
    for frame in FrameAssembler(keys(("cycles", "task-clock"))).feed(b"\n".join(lines) + b"\n"):
        assert frame.seconds > 0.0
        assert all(map(sane, frame.counts.values()))


@given(st.binary(max_size=300) | st.text(alphabet='0123456789.;{}":<> e-', max_size=120).map(str.encode))
def test_no_bytes_raise(line: bytes) -> None:
    parsed = parse_line(line)
    assert parsed is None or sane(Count(parsed.count))


def test_line_without_end_is_not_kept_for_ever() -> None:
    assembler = FrameAssembler(keys(SOFTWARE))
    for _ in range(100):
        assert assembler.feed(b"x" * 1000) == []
    assert len(assembler._partial) <= 4096


def test_two_pmus_add_up() -> None:
    idle, big = Count(Why.NOT_COUNTED), Count(5.0, 0.4)
    assert idle + big == big + idle == big
    assert big + Count(1.0, 0.9) == Count(6.0, 0.4)
