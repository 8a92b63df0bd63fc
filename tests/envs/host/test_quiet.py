"""An idle LC is known to be well, and few requests are judged over a time that says something."""

from __future__ import annotations

import pytest

from rlctl.envs.host.quiet import QuietTimes
from rlctl.envs.telemetry import FEW_IN_LONG, LC_IDLE, Missing, Quantile, Reading, Telemetry, Value, Why

SILENT: dict[str, Reading] = {
    "tail_latency_seconds": Missing(Why.NO_DATA),
    "done_rps": Value(0.0),
    "lc_cpus": Value(0.001),
    "oldest_request_seconds": Value(0.0),
}


def explained(*windows: dict[str, Reading]) -> dict[str, Reading]:
    """The readings of the last of some windows, a second apart."""
    quiet = QuietTimes()
    for second, window in enumerate(windows):
        readings = dict(window)
        quiet.explain(float(second), readings)
    return readings


def few(samples: int, seconds: float = 0.005) -> dict[str, Reading]:
    return {"tail_latency_seconds": Quantile(seconds, 0.0, samples, 1.0), "done_rps": Value(float(samples))}


def telemetry(readings: dict[str, Reading]) -> Telemetry:
    return Telemetry(0.0, 0.010, tail_latency_seconds=readings["tail_latency_seconds"], counters=readings)


def test_no_request_and_no_use_is_idle() -> None:
    readings = explained(SILENT)
    assert readings[LC_IDLE] == Value(1.0)
    assert telemetry(readings).slack_ratio == 1.0
    assert telemetry(readings).missed is False


@pytest.mark.parametrize("busy", [
    {"lc_cpus": Value(0.5)},
    {"lc_cpus": Missing(Why.NOT_SUPPORTED)},
    {"done_rps": Value(3.0)},
    {"done_rps": Missing(Why.NOT_SUPPORTED)},
    {"oldest_request_seconds": Value(0.2)},
    {"oldest_request_seconds": Missing(Why.NOT_SUPPORTED)},  # a log, beside an LC that was stopped
    {"offered_rps": Value(2.0)},
    {"lc_io_pressure_ratio": Value(0.9)},
    {"lc_pressure_ratio": Value(0.2)},
    {"tail_latency_seconds": Missing(Why.FAILING)},
    {"tail_latency_seconds": Missing(Why.STALE)},
])  # fmt: skip
def test_silence_alone_is_not_idle(busy: dict[str, Reading]) -> None:
    """A source that is broken, a service that hangs, and one that waits for a disk are silent too."""
    readings = explained(SILENT | busy)
    assert readings[LC_IDLE] != Value(1.0)
    assert telemetry(readings).slack_ratio is None


@pytest.mark.parametrize(("told", "used", "idle"), [(0.0, 0.0, 0.0), (1.0, 0.02, 1.0), (1.0, 0.5, 0.0)])
def test_source_that_tells_is_heard_beside_little_use(told: float, used: float, idle: float) -> None:
    """An LC that is called over a UNIX socket alone looked idle to `tcp`, and BE was free."""
    assert explained(SILENT | {LC_IDLE: Value(told), "lc_cpus": Value(used)})[LC_IDLE] == Value(idle)


def test_few_requests_count_with_those_before() -> None:
    tail = explained(*[few(5)] * 4)["tail_latency_seconds"]
    assert tail == Quantile(0.005, 0.0, 20, 4.0)


def test_the_latency_stays_the_newest_one() -> None:
    tail = explained(few(5, 0.5), *[few(5)] * 3)["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert tail.value == 0.005


def test_very_few_are_enough_after_ten_seconds() -> None:
    assert explained(SILENT, *[SILENT] * 8, few(1))[FEW_IN_LONG] == Value(0.0)
    readings = explained(SILENT, *[SILENT] * 9, few(1))
    assert readings[FEW_IN_LONG] == Value(1.0)
    assert readings["tail_latency_seconds"].samples == 1  # type: ignore[union-attr]


def test_an_unknown_window_ends_the_row() -> None:
    lost: dict[str, Reading] = {"tail_latency_seconds": Missing(Why.GONE)}
    readings = explained(*[few(1)] * 12, lost, few(1))
    assert readings[FEW_IN_LONG] == Value(0.0)


def test_a_window_shown_twice_counts_once() -> None:
    quiet = QuietTimes()
    for now, age in ((0.0, 0.0), (1.0, 0.0), (2.0, 1.0)):
        readings: dict[str, Reading] = {"tail_latency_seconds": Quantile(0.005, age, 5, 1.0)}
        quiet.explain(now, readings)
    tail = readings["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert tail.samples == 10


def test_many_requests_are_left_alone() -> None:
    window = few(500)
    assert explained(few(1), window)["tail_latency_seconds"] is window["tail_latency_seconds"]
