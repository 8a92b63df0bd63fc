"""The vector that learned policies see: bounded whatever the sensors say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import FEATURES, Observer
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why

LIMITS = Limits(cpus=2)
readings = st.one_of(
    st.builds(Value, st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100)),
    st.builds(Missing, st.sampled_from(Why)),
)


@given(readings, readings, readings, readings)
def test_no_sensor_can_push_the_vector_out_of_its_space(latency, load, cpi, pressure):
    observer = Observer(LIMITS, 1.0)
    telemetry = Telemetry(0.0, 0.01, tail_latency_seconds=latency, load_ratio=load, cpi=cpi, lc_pressure_ratio=pressure)
    vector = observer.observe(telemetry, LIMITS.safe).vector
    assert observer.space.contains(vector)


def test_missing_is_told_apart_from_zero():
    def vector(reading):
        return Observer(LIMITS, 1.0, history=1).observe(Telemetry(0.0, 0.01, cpi=reading), LIMITS.safe).vector

    assert not np.array_equal(vector(Missing(Why.NOT_SUPPORTED)), vector(Value(2.0)))  # 2.0 scales to 0.0 too


def test_history_is_oldest_first_and_filled_at_the_start():
    observer = Observer(LIMITS, 1.0, history=2)
    quiet = Telemetry(0.0, 0.01, load_ratio=Value(0.1))
    busy = Telemetry(1.0, 0.01, load_ratio=Value(0.9))
    first = observer.observe(quiet, LIMITS.safe).vector
    second = observer.observe(busy, LIMITS.safe).vector
    half = observer.size // 2
    assert np.array_equal(first[:half], first[half:])
    assert np.array_equal(second[:half], first[half:])
    load = [feature.name for feature in FEATURES].index("load")
    assert second[half + load] > second[load]


def test_values_are_scaled_linearly():
    observer = Observer(LIMITS, 1.0, history=1)
    telemetry = Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(0.005, samples=100))
    vector = observer.observe(telemetry, Allocation(1.0, 2)).vector
    names = [feature.name for feature in FEATURES]
    assert vector[names.index("slack")] == pytest.approx(0.5)
    assert vector[names.index("quota")] == pytest.approx(0.0)
    assert vector[names.index("cpuset")] == pytest.approx(1.0)
