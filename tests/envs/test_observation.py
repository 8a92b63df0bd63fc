"""The vector that learned policies see: bounded whatever the sensors say, and the same for hosts of any size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.experience import MEMORY, allocation_at
from rlctl.envs.features import FEATURES, FRAME_SIZE
from rlctl.envs.observation import LAGS, VERSION, Observer
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why, worst_of

LIMITS = Limits(cpus=2)
NAMES = [feature.name for feature in FEATURES]
OPTIONAL = [feature.name for feature in FEATURES if feature.optional]
readings = st.one_of(
    st.builds(Value, st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100)),
    st.builds(Missing, st.sampled_from(Why)),
)


def seen(telemetry, current=LIMITS.safe, limits=LIMITS):
    """One tick's numbers and validity flags by their features' names, and the latency's age."""
    vector = Observer(limits, 1.0, lags=(0,)).observe(telemetry, current).vector[:FRAME_SIZE]
    values, flags = vector[: len(NAMES)], vector[len(NAMES) : -1]
    return dict(zip(NAMES, values, strict=True)), dict(zip(OPTIONAL, flags, strict=True)), vector[-1]


def history(observation, lags):
    """A tick's numbers for each lag."""
    return observation.vector[: FRAME_SIZE * len(lags)].reshape(len(lags), -1)


def test_the_table_of_this_version():
    """A bundle names a version and trusts it; whoever changes a row gives the table a new number."""
    assert VERSION == 4
    assert MEMORY == ("held", "held_ahead", "bearable", "bearable_ahead")
    assert LAGS == (16, 8, 4, 2, 1, 0)
    assert [(row.name, row.low, row.high, str(row.scale), row.optional) for row in FEATURES] == [
        ("slack", -1.0, 1.0, "linear", True),
        ("latency", 1e-3, 10.0, "log10", True),
        ("stretch", 1.0, 1e4, "log10", True),
        ("load", 0.0, 1.25, "linear", True),
        ("cpi", 0.25, 8.0, "log10", True),
        ("cpu_per_request", 1e-4, 1.0, "log10", True),
        ("lc_cpus", 0.0, 1.0, "linear", True),
        ("be_cpus", 0.0, 1.0, "sqrt", True),
        ("quota", 0.0, 1.0, "sqrt", False),
        ("cpuset", 0.0, 1.0, "sqrt", False),
        ("frozen", 0.0, 1.0, "linear", False),
        ("exclusive", 0.0, 1.0, "linear", False),
    ]


@given(readings, readings, readings, readings, readings, st.sampled_from([0.01, 0.0, -1.0, float("nan")]))
def test_no_sensor_leaves_the_vectors_space(latency, load, cpi, used, demand, target):
    observer = Observer(LIMITS, 1.0)
    telemetry = Telemetry(
        0.0,
        target,
        tail_latency_seconds=latency,
        load_ratio=load,
        cpi=cpi,
        lc_cpus=used,
        lc_cpu_seconds_per_request=demand,
        be_cpus=used,
    )
    assert observer.space.contains(observer.observe(telemetry, LIMITS.safe).vector)


def test_missing_is_told_apart_from_zero():
    values, flags, _ = seen(Telemetry(0.0, 0.01, cpi=Missing(Why.NOT_SUPPORTED)))
    middle, there, _ = seen(Telemetry(0.0, 0.01, cpi=Value(2**0.5)))  # scales to 0.0 too
    assert values["cpi"] == pytest.approx(middle["cpi"], abs=1e-6) == 0.0
    assert (flags["cpi"], there["cpi"]) == (-1.0, 1.0)


@pytest.mark.parametrize("demand", [Value(0.0), Missing(Why.NOT_SUPPORTED)])
def test_without_request_cpu_time_no_stretch(demand):
    tail = Quantile(0.005, samples=100)
    values, flags, _ = seen(Telemetry(0.0, 0.01, tail_latency_seconds=tail, lc_cpu_seconds_per_request=demand))
    assert (values["stretch"], flags["stretch"]) == (0.0, -1.0)
    assert (values["slack"], flags["slack"]) == (0.5, 1.0)


def test_values_are_scaled_as_their_rows_say():
    telemetry = Telemetry(
        0.0,
        0.01,
        tail_latency_seconds=Quantile(0.001, samples=100),
        lc_cpu_seconds_per_request=Value(0.0001),
        load_ratio=Value(0.625),
        be_cpus=Value(0.5),
        lc_cpus=Value(0.25),
    )
    values, _, _ = seen(telemetry, Allocation(0.5, 2))
    expected = {
        "slack": 0.9,
        "latency": 0.0,  # a tenth of the target is half way from 1e-3 to 10
        "stretch": -0.5,  # ten times its CPU time is a quarter of the way from 1 to 1e4
        "load": 0.0,
        "cpu_per_request": 0.0,
        "be_cpus": 0.0,  # a quarter of the host
        "lc_cpus": -0.5,
        "quota": 0.0,
        "cpuset": 1.0,
        "frozen": -1.0,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_what_lies_beyond_a_range_is_clipped():
    slow = Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(5.0, samples=100), lc_cpu_seconds_per_request=Value(1e-9))
    values, _, _ = seen(slow, Allocation(UNLIMITED, 2))
    assert [values[name] for name in ("slack", "latency", "stretch", "cpu_per_request", "quota")] == [-1, 1, 1, -1, 1]


def test_hosts_of_any_size_look_alike():
    """One bundle serves them all, so no number may tell how many CPUs there are or how fast requests must be."""

    def host(cpus, target):
        telemetry = Telemetry(
            0.0,
            target,
            tail_latency_seconds=Quantile(target / 2, samples=100),
            lc_cpu_seconds_per_request=Value(target / 50),
            lc_cpus=Value(cpus / 4),
            be_cpus=Value(cpus / 8),
        )
        limits = Limits(cpus, lc_cpus=cpus / 2)
        return Observer(limits, 1.0).observe(telemetry, Allocation(cpus / 4, cpus // 2)).vector

    np.testing.assert_allclose(host(2, 0.1), host(36, 0.0005), atol=1e-6)


def test_frames_are_the_lags_oldest_first():
    observer = Observer(LIMITS, 1.0, lags=(4, 1, 0))
    loads = (Telemetry(float(tick), 0.01, load_ratio=Value(tick / 10)) for tick in range(8))
    ticks = [history(observer.observe(told, LIMITS.safe), observer.lags) for told in loads]
    load = NAMES.index("load")
    shown = [np.rint((vectors[:, load] + 1.0) * 0.625 * 10).astype(int).tolist() for vectors in ticks]
    assert shown == [[max(tick - lag, 0) for lag in (4, 1, 0)] for tick in range(8)]
    observer.reset()
    first = history(observer.observe(Telemetry(0.0, 0.01, load_ratio=Value(0.9)), LIMITS.safe), observer.lags)
    assert (first == first[0]).all()


@pytest.mark.parametrize("lags", [(), (1,), (0, 1), (2, 2, 0), (3, -1, 0), (1, 0, -1)])
def test_lags_that_do_not_descend_are_refused(lags):
    with pytest.raises(ConfigError, match="oldest first, the last one 0"):
        Observer(LIMITS, 1.0, lags)


def test_a_late_reading_shows_its_age():
    """L6: a tail that describes the window before the action must not look like the action's effect."""
    ages = [
        seen(Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(0.005, age_seconds=age, samples=100)))[2]
        for age in (0.0, 1.0, 2.0, 10.0, 99.0)
    ]
    assert ages == pytest.approx([-1.0, -0.8, -0.6, 1.0, 1.0])
    assert seen(Telemetry(0.0, 0.01, tail_latency_seconds=Missing(Why.NO_DATA)))[2] == 1.0


def test_done_while_reading_is_seen():
    """L6: with the sensor two ticks late, the last three allocations are in the vector beside it."""
    observer = Observer(LIMITS, 1.0)
    quotas = [0.02, 0.5, 2.0]
    late = Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(0.005, age_seconds=2.0, samples=100))
    vector = history([observer.observe(late, Allocation(quota, 2)) for quota in quotas][-1], LAGS)
    shown = dict(zip(LAGS, vector[:, NAMES.index("quota")], strict=True))
    assert [shown[lag] for lag in (2, 1, 0)] == pytest.approx([-0.8, 0.0, 1.0])


def test_dead_or_idle_lc_looks_not_fast():
    """L4: zero latency is the best there is; nobody to ask is not."""
    for reading in (Missing(Why.GONE), Missing(Why.NO_DATA, age_seconds=3.0)):
        silent, flags, _ = seen(
            Telemetry(0.0, 0.01, tail_latency_seconds=reading, oldest_request_seconds=Missing(Why.GONE))
        )
        assert flags["slack"] == flags["latency"] == flags["stretch"] == -1.0
        assert silent["slack"] == 0.0
    quick, there, _ = seen(Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(1e-5, samples=100)))
    assert there["slack"] == 1.0
    assert quick["slack"] > 0.99


HALF = allocation_at(15, LIMITS)


def booked(*windows):
    """Windows that held and that missed at HALF. Each is a tail, what was in force, and `cut` where it was cut."""
    observer = Observer(LIMITS, 1.0)
    for second, (tail, current, *cut) in enumerate(windows):
        used = Value(0.0 if current.frozen else current.usable_cpus)
        telemetry = Telemetry(second, 0.01, tail_latency_seconds=tail, load_ratio=Value(0.5), be_cpus=used)
        observer.observe(telemetry, current, cut=bool(cut))
    return tuple(float(counts[:, 15].sum()) for counts in observer.experience.counts()[:2])


FINE, LATE, BAD = Value(0.002), Value(0.02), Missing(Why.FAILING)
GONE = Missing(Why.NO_DATA)


def test_window_of_failing_requests_is_missed():
    """Else the level held whenever the LC did not fail, and BE came back to it for ever."""
    assert booked((FINE, HALF), (FINE, HALF)) == (2.0, 0.0)
    assert booked((FINE, HALF), (BAD, HALF), (FINE, LIMITS.safe))[1] == 1.0


def test_backlog_after_silence_is_of_bes_past():
    assert booked((FINE, HALF), (GONE, HALF), (LATE, LIMITS.safe), (FINE, LIMITS.safe))[1] == 1.0


def test_window_cut_short_says_nothing_of_before():
    assert booked((FINE, HALF), (FINE, HALF, "cut")) == (1.0, 0.0)
    assert booked((FINE, HALF), (LATE, HALF, "cut"), (FINE, LIMITS.safe))[1] == 1.0, "a miss counts"


def test_late_figure_speaks_of_what_be_had_then():
    """A rise that missed was held against the level above it, and the level that missed counted as held."""
    late = [Quantile(tail, 1.0, 500, 1.0) for tail in (0.002, 0.002, 0.002, 0.02, 0.002)]
    levels = [allocation_at(level, LIMITS) for level in (5, 5, 15, 18, 5)]
    assert booked(*zip(late, levels, strict=True)) == (0.0, 1.0)


def test_long_window_speaks_of_all_be_had():
    def windows(seconds):
        tail = Quantile(0.002, 0.0, 500, seconds)
        return [(tail, LIMITS.safe), *[(tail, HALF)] * 12]

    assert [booked(*windows(seconds))[0] for seconds in (1.0, 10.0)] == pytest.approx([12.0, 3.0], abs=0.01)


def test_maximum_of_few_requests_is_no_tail():
    assert booked(*[(Quantile(0.002, 0.0, samples, 1.0), HALF) for samples in (19, 20, 19)]) == (1.0, 0.0)


def test_another_maximum_load_of_one_begins_all_anew():
    observer = Observer(LIMITS, 1.0)

    def see(second, most):
        lc = Telemetry(second, 0.01, tail_latency_seconds=Value(0.002), load_ratio=Value(0.5))
        both = {"web": lc.but(counters={"max_load_rps": Value(most)}), "db": lc}
        observer.observe(worst_of(both), HALF)
        return observer.experience.counts()[0].sum()

    assert [see(0.0, 100.0), see(1.0, 110.0), see(2.0, 400.0)] == [1.0, pytest.approx(2.0, abs=1e-3), 1.0]


def test_weight_that_became_void_lets_nobody_have_everything():
    """A container came beside BE, and what held at the least weight still pushed to the highest level."""
    observer = Observer(Limits(cpus=2, least_weight=True), 1.0)
    calm = Telemetry(0.0, 0.01, tail_latency_seconds=Quantile(0.001, samples=99), load_ratio=Value(0.5))
    observer.observe(calm, LIMITS.full)
    known = observer.experience
    observer.follow_weight(least=True)
    assert observer.experience is known
    observer.follow_weight(least=False)
    assert not observer.limits.least_weight
    assert observer.experience is not known


def test_a_source_that_stands_still_says_nothing_new():
    assert booked(*[(Value(0.002, float(age)), HALF) for age in range(5)]) == (2.0, 0.0)
