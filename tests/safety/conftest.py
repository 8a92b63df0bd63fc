"""Hosts, calm telemetry, and strategies for telemetry of every kind, shared by the safety tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import FEW_IN_LONG, LC_IDLE, Missing, Quantile, Reading, Telemetry, Value, Why
from rlctl.safety.profile import Profile, load_profile
from tests.doubles.shipped import SAFETY_PROFILES

Calm = Callable[..., Telemetry]

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0.0, 1.5),
    st.sampled_from([0.0, -0.0, -1.0, 0.0095, 0.01, 0.0101, 0.8, 0.85, 0.9, 0.95, math.nan, math.inf, -math.inf]),
)
AGES = st.one_of(st.just(0.0), st.floats(0.0, 10.0), st.sampled_from([-1.0, math.nan, math.inf]))
MISSING = st.builds(Missing, st.sampled_from(Why), st.just(""), AGES)
QUANTILES = st.builds(Quantile, NUMBERS, AGES, st.sampled_from([-1, 0, 19, 20, 500]), st.floats(0.0, 5.0))
READINGS: st.SearchStrategy[Reading] = st.one_of(MISSING, st.builds(Value, NUMBERS, AGES), QUANTILES)
ONE = st.builds(Value, st.sampled_from([1.0, 1.0, 0.0]), st.sampled_from([0.0, 0.0, 9.0]))
COUNTERS = st.dictionaries(st.sampled_from([LC_IDLE, FEW_IN_LONG]), st.one_of(ONE, READINGS), max_size=2)
QUIET = st.builds(
    Telemetry,
    time_seconds=st.floats(-10.0, 1000.0),
    target_seconds=st.just(0.010),
    tail_latency_seconds=st.one_of(
        st.just(Missing(Why.NO_DATA)), st.builds(Quantile, st.floats(0.0001, 0.02), AGES, st.integers(0, 19))
    ),
    oldest_request_seconds=st.one_of(st.just(Value(0.0)), READINGS),
    load_ratio=st.just(Value(0.0)),
    lc_alive=st.just(Value(1.0)),
    counters=COUNTERS,
)
SOUND = st.builds(
    Telemetry,
    time_seconds=st.floats(-10.0, 1000.0),
    target_seconds=st.just(0.010),
    tail_latency_seconds=st.builds(Quantile, st.floats(0.0001, 0.02), st.just(0.0), st.just(500), st.just(1.0)),
    load_ratio=st.builds(Value, st.floats(0.0, 1.2)),
    lc_alive=st.just(Value(1.0)),
)
ANY = st.builds(
    Telemetry,
    time_seconds=st.one_of(st.floats(-10.0, 1000.0), NUMBERS),
    target_seconds=st.one_of(st.just(0.010), NUMBERS),
    tail_latency_seconds=READINGS,
    oldest_request_seconds=READINGS,
    load_ratio=READINGS,
    lc_alive=READINGS,
    counters=COUNTERS,
)


@pytest.fixture(scope="session")
def telemetries() -> st.SearchStrategy[Telemetry]:
    """Telemetry of every kind: sound, missing, stale, absurd, of any time."""
    return st.one_of(SOUND, ANY, QUIET)


@pytest.fixture(scope="session")
def histories(telemetries: st.SearchStrategy[Telemetry]) -> st.SearchStrategy[list[Telemetry]]:
    """One to ten ticks in no particular order of time."""
    return st.lists(telemetries, min_size=1, max_size=10)


@pytest.fixture(scope="session")
def allocations() -> st.SearchStrategy[Allocation]:
    """Any allocation on the four CPUs of `limits`, and some that it does not have."""
    quotas = st.one_of(st.floats(0.01, 5.0), st.sampled_from([0.001, 0.01, 0.2, 2.0, 4.0, UNLIMITED]))
    return st.builds(Allocation, quotas, st.integers(1, 5), st.booleans())


@pytest.fixture(scope="session")
def limits() -> Limits:
    """A host with four CPUs for BE."""
    return Limits(cpus=4)


@pytest.fixture(scope="session", params=SAFETY_PROFILES)
def profile(request: pytest.FixtureRequest) -> Profile:
    """Each profile that ships."""
    return load_profile(request.param)


@pytest.fixture(scope="session")
def calm() -> Calm:
    """Builds sound telemetry: load and slack as given, everything else in order."""

    def build(now_seconds: float, load: float = 0.5, slack: float = 0.5, **changes: object) -> Telemetry:
        sound = Telemetry(
            time_seconds=now_seconds,
            target_seconds=0.010,
            tail_latency_seconds=Quantile(0.010 * (1.0 - slack), samples=500, window_seconds=1.0),
            oldest_request_seconds=Value(0.0),
            load_ratio=Value(load),
            lc_alive=Value(1.0),
        )
        return sound.but(**changes)

    return build
