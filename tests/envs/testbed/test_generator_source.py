"""Latency as the testbed's load generator sees it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlctl.envs.errors import ConfigError, TestbedError
from rlctl.envs.telemetry import LC_IDLE, Missing, Quantile, Telemetry, Value, Why
from rlctl.envs.testbed.generator import GeneratorStats
from rlctl.envs.testbed.generator_source import LAG, ClientTruth, GeneratorSource, as_client_saw
from rlctl.envs.workload import SLO


@dataclass(frozen=True)
class Stats:
    monotonic_seconds: float = 10.0
    interval_seconds: float = 2.0
    samples: int = 900
    p95_seconds: float | None = 0.004
    p99_seconds: float | None = 0.009
    oldest_seconds: float = 0.001
    offered_rps: float = 460.0
    done_rps: float = 450.0
    errors: int = 4
    lag_p95_seconds: float | None = 0.0002


@pytest.fixture
def slo() -> SLO:
    return SLO(target_seconds=0.010, quantile=0.95, max_load_rps=1000.0)


def test_played_stats_have_fields_of_real_ones() -> None:
    assert set(Stats.__dataclass_fields__) <= set(GeneratorStats.__dataclass_fields__)


def test_figures_become_readings(slo: SLO) -> None:
    found = GeneratorSource(Stats, slo).read(10.25)
    assert found["tail_latency_seconds"] == Quantile(0.004, 0.25, samples=900, window_seconds=2.0)
    assert found["load_ratio"] == Value(0.46, 0.25)
    assert found["done_rps"] == Value(450.0, 0.25)
    assert found["error_rps"] == Value(2.0, 0.25)


def test_slos_quantile_is_one_that_is_read() -> None:
    tail = GeneratorSource(Stats, SLO(0.01, quantile=0.99)).read(10.0)["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert tail.value == 0.009
    with pytest.raises(ConfigError, match=r"0\.9"):
        GeneratorSource(Stats, SLO(0.01, quantile=0.9))


def test_client_overrules_what_was_told(slo: SLO) -> None:
    told = Telemetry(10.0, 0.010, Quantile(0.040), load_ratio=Value(0.9), counters={LC_IDLE: Value(0.0)})
    assert as_client_saw(told) is told
    both = told.but(counters={**told.counters, **ClientTruth(GeneratorSource(Stats, slo)).read(10.0)})
    seen = as_client_saw(both)
    assert (both.missed, seen.missed) == (True, False)
    assert seen.load_ratio == Value(0.46)
    assert set(seen.counters) == {LC_IDLE, "offered_rps", "done_rps", "error_rps", "tail_is_lower_limit", LAG}
    assert seen.counters[LAG] == Value(0.0002)


def test_stalled_lc_has_no_tail_but_oldest_request(slo: SLO) -> None:
    stalled = Stats(samples=0, p95_seconds=None, oldest_seconds=1.7, done_rps=0.0)
    found = GeneratorSource(lambda: stalled, slo).read(10.0)
    assert isinstance(found["tail_latency_seconds"], Missing)
    assert found["tail_latency_seconds"].why is Why.NO_DATA
    assert found["oldest_request_seconds"] == Value(1.7)


def test_gone_generator_has_its_last_words(slo: SLO) -> None:
    def dead() -> Stats:
        raise TestbedError("the load generator ended with code 1")

    found = GeneratorSource(dead, slo).read(10.0)["tail_latency_seconds"]
    assert isinstance(found, Missing)
    assert found.why is Why.GONE
    assert "ended with code 1" in found.detail
