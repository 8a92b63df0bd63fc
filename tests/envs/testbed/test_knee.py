"""The knee search: every load in rlctl is a share of what it finds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.generator import GeneratorStats
from rlctl.envs.testbed.knee import LOWEST_DIVISOR, RESOLUTION_RATIO, KneeSection, find_knee, probe_with

TARGET_SECONDS = 0.010


def queue(capacity_rps: float) -> Callable[[float], float]:
    """p95 of a single server: ln(20) mean residence times; without end beyond its capacity."""
    return lambda rps: math.log(20) / (capacity_rps - rps) if rps < capacity_rps else math.inf


def search(measure: Callable[[float], float], start: float = 100.0, step: float = 100.0, top: float = 5000.0) -> float:
    return find_knee(measure, TARGET_SECONDS, KneeSection(start_rps=start, step_rps=step, top_rps=top))


@given(
    knee=st.floats(50.0, 6000.0),
    start=st.floats(1.0, 2000.0),
    step=st.floats(5.0, 3000.0),
    span=st.floats(0.0, 3000.0),
    steepness=st.floats(0.01, 100.0),
)
def test_any_rising_curve_is_bracketed(knee: float, start: float, step: float, span: float, steepness: float) -> None:
    asked: list[float] = []

    def measure(rps: float) -> float:
        asked.append(rps)
        return TARGET_SECONDS * math.exp(min(steepness * math.log(rps / knee), 14.0))  # no more than a million times

    top = start + span
    if measure(start / LOWEST_DIVISOR) > TARGET_SECONDS:
        with pytest.raises(TestbedError, match="missed at"):
            search(measure, start, step, top)
        return
    found = search(measure, start, step, top)
    assert all(start / LOWEST_DIVISOR <= rps <= top for rps in asked)
    assert start / LOWEST_DIVISOR <= found <= top
    assert measure(found) <= TARGET_SECONDS
    assert found == top or measure(found / (1.0 - RESOLUTION_RATIO)) > TARGET_SECONDS


def test_load_rises_in_equal_steps() -> None:
    asked: list[float] = []

    def measure(rps: float) -> float:
        asked.append(rps)
        return queue(1000.0)(rps)

    found = search(measure)
    assert asked[:6] == [100.0, 200.0, 300.0, 400.0, 500.0, 500.0]  # 6 ms: asked again
    true = 1000.0 - math.log(20) / TARGET_SECONDS
    assert 0.97 * true <= found <= true


@pytest.mark.parametrize("seed", range(5))
def test_noise_as_measured_moves_the_knee_little(seed: int) -> None:
    dice, curve = random.Random(seed), queue(1000.0)
    found = search(lambda rps: curve(rps) * dice.lognormvariate(0.0, 0.18))
    true = 1000.0 - math.log(20) / TARGET_SECONDS
    assert 0.85 * true <= found <= 1.12 * true


def test_one_hiccup_does_not_end_the_search() -> None:
    seen: list[float] = []

    def measure(rps: float) -> float:
        seen.append(rps)
        return 0.3 if len(seen) == 2 else queue(1000.0)(rps)

    assert search(measure) > 600.0


def test_nothing_answered_or_not_number_misses_target() -> None:
    assert search(lambda rps: 0.001 if rps < 250.0 else math.nan) <= 250.0
    assert search(lambda rps: 0.001 if rps < 250.0 else math.inf) < 250.0


@pytest.mark.parametrize(
    "wrong", [{"start_rps": 0.0}, {"step_rps": -1.0}, {"top_rps": 50.0}, {"step_rps": 0.001}, {"top_rps": math.nan}]
)
def test_impossible_range_is_refused_before_anything_is_measured(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        KneeSection(**({"start_rps": 100.0, "step_rps": 100.0, "top_rps": 1000.0} | wrong))


STATS = GeneratorStats(0, 1, 0, 0, 0, 100, 0.001, 0.004, 0.005, 0.0, 0, 0, 0, 0, 0, 0, 0)


class FakeGenerator:
    """Answers given figures in turn, the last one for ever; notes what it was told."""

    def __init__(self, *figures: GeneratorStats) -> None:
        self.figures, self.rates, self.forgot = list(figures), list[float](), 0

    def set_rate(self, rate_rps: float) -> None:
        self.rates.append(rate_rps)

    def forget(self) -> None:
        self.forgot += 1

    def stats(self) -> GeneratorStats:
        return self.figures.pop(0) if len(self.figures) > 1 else self.figures[0]


def test_settling_is_not_measured_and_backlog_is_drained() -> None:
    settling = replace(STATS, p95_seconds=9.0)
    window = replace(STATS, oldest_seconds=0.7, outstanding=50)
    generator = FakeGenerator(settling, window, replace(STATS, outstanding=3), STATS)
    measure = probe_with(generator, 0.95, settle_seconds=0.0, window_seconds=0.0)
    assert measure(250.0) == 0.7  # the oldest unanswered request, not p95 of those that were
    assert (generator.rates, generator.forgot) == ([250.0, 0.0], 1)
    assert len(generator.figures) == 1


def test_found_maximum_is_lowered_until_borne() -> None:
    curve, borne = queue(1000.0), []

    def bear(rps: float) -> float:
        borne.append(rps)
        return TARGET_SECONDS * rps / 600.0

    limits = KneeSection(start_rps=100.0, step_rps=100.0, top_rps=5000.0)
    found = find_knee(curve, TARGET_SECONDS, limits, bear=bear)
    assert borne[0] == find_knee(curve, TARGET_SECONDS, limits)
    assert found == borne[-1] == pytest.approx(600.0 * (1.0 - 0.5 * RESOLUTION_RATIO), rel=RESOLUTION_RATIO)
    with pytest.raises(TestbedError, match="missed at"):
        find_knee(curve, TARGET_SECONDS, limits, bear=lambda _: 1.0)


def test_clearly_borne_load_is_not_held_longer() -> None:
    limits = KneeSection(start_rps=300.0, step_rps=100.0, top_rps=300.0)
    assert find_knee(queue(1000.0), TARGET_SECONDS, limits, bear=lambda _: math.inf) == 300.0


def test_of_several_windows_the_worst_counts() -> None:
    windows = [replace(STATS, p95_seconds=seconds) for seconds in (9.0, 0.1, 0.3, 0.2)]
    measure = probe_with(
        FakeGenerator(*windows, STATS), 0.95, settle_seconds=0.0, window_seconds=0.0, windows=3, missed=1
    )
    assert measure(250.0) == 0.2


def test_quantile_of_target_is_what_is_searched_by() -> None:
    """A service with a p95 of 4 ms and a p99 of 30 does not hold 10 ms at the 99th percentile."""
    for quantile, seconds in ((0.95, 0.004), (0.99, 0.030)):
        generator = FakeGenerator(replace(STATS, p99_seconds=0.030))
        assert probe_with(generator, quantile, settle_seconds=0.0, window_seconds=0.0)(250.0) == seconds


def test_one_window_alone_is_not_left_out() -> None:
    windows = [replace(STATS, p95_seconds=seconds) for seconds in (9.0, 0.1)]
    no_wait = {"settle_seconds": 0.0, "window_seconds": 0.0}
    assert probe_with(FakeGenerator(*windows, STATS), 0.95, **no_wait, windows=1, missed=1)(250.0) == 0.1


def test_unborne_load_is_left_at_once() -> None:
    windows = [replace(STATS, p95_seconds=seconds) for seconds in (9.0, 0.1, 0.3, 0.4, 0.2, 0.2)]
    generator = FakeGenerator(*windows, STATS)
    no_wait = {"settle_seconds": 0.0, "window_seconds": 0.0}
    assert probe_with(generator, 0.95, **no_wait, windows=20, missed=1, target_seconds=0.2)(250.0) == 0.3
    assert len(generator.figures) == 2  # what drained it is read, and no further window


def test_silent_service_is_infinite_and_hanging_one_error() -> None:
    silent = FakeGenerator(replace(STATS, samples=0, p95_seconds=None))
    assert probe_with(silent, 0.95, settle_seconds=0.0, window_seconds=0.0)(10.0) == math.inf
    hanging = FakeGenerator(replace(STATS, outstanding=5))
    with pytest.raises(TestbedError, match="5 requests were still unanswered"):
        probe_with(hanging, 0.95, settle_seconds=0.0, window_seconds=0.0, drain_seconds=0.0)(10.0)
    assert hanging.rates[-1] == 0.0
