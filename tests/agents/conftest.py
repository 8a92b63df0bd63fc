"""Drives a manager tick by tick, and telemetry of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import strategies as st

from rlctl.agents.managers.prm_model import PrmModel, ThresholdBin
from rlctl.agents.policy import Policy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0.0, 2.0),
    st.sampled_from([0.0, -1.0, 0.0095, 0.01, 0.8, 0.85, 0.9, math.nan, math.inf, -math.inf]),
)
READINGS: st.SearchStrategy[Reading] = st.one_of(
    st.builds(Missing, st.sampled_from(Why)), st.builds(Value, NUMBERS), st.builds(Quantile, NUMBERS)
)
TELEMETRY = st.builds(
    Telemetry,
    time_seconds=st.one_of(st.floats(0.0, 2000.0), NUMBERS),
    target_seconds=st.just(0.010),
    tail_latency_seconds=READINGS,
    oldest_request_seconds=READINGS,
    load_ratio=READINGS,
    cpi=READINGS,
    lc_cpu_seconds_per_request=READINGS,
    lc_cpus=READINGS,
    be_cpus=READINGS,
    host_cpus=READINGS,
    be_work_rate=READINGS,
)
CURRENT = st.builds(Allocation, st.one_of(st.floats(0.01, 64.0), st.just(UNLIMITED)), st.integers(1, 64), st.booleans())


@pytest.fixture(scope="session")
def ticks() -> st.SearchStrategy[list[tuple[Telemetry, Allocation]]]:
    """Ticks in order of time or not, some without a single reading, each with any allocation in force."""
    bare = st.builds(Telemetry, time_seconds=st.floats(0.0, 2000.0), target_seconds=st.just(0.010))
    return st.lists(st.tuples(st.one_of(TELEMETRY, bare), CURRENT), min_size=1, max_size=15)


@pytest.fixture(scope="session")
def tell() -> Tell:
    """Telemetry from plain numbers; slack and latency are two ways to say the same, and None is a missing reading."""

    def build(now: float, slack: float | None = None, **readings: float | None) -> Telemetry:
        if slack is not None:
            readings["tail_latency_seconds"] = 1.0 - slack
        known: dict[str, Any] = {name: Value(value) for name, value in readings.items() if value is not None}
        return Telemetry(time_seconds=now, target_seconds=1.0, **known)

    return build


@pytest.fixture(scope="session")
def drive() -> Drive:
    """Starts a manager and returns its allocation after each tick."""

    def run(policy: Policy, limits: Limits, telemetry: Iterable[Telemetry]) -> list[Allocation]:
        current, allocations = policy.start(limits), []
        for tick in telemetry:
            current = decode(policy.act(Observation(tick, current)), current, limits)
            allocations.append(current)
        return allocations

    return run


@pytest.fixture(scope="session")
def thesis_host() -> Limits:
    """36 cores, memcached on 17 of them (thesis 5.1)."""
    return Limits(cpus=36, lc_cpus=17)


@pytest.fixture(scope="session")
def thesis_model() -> PrmModel:
    """LC maximum of 17 cores, and normal CPI up to 1.0 at any use above 850 %."""
    normal = ThresholdBin(low_percent=850, high_percent=1800, rows=100, upper={"cpi": 1.0})
    return PrmModel(lc_cpus=17, lcutilmax_percent=1700, bins=(normal,))
