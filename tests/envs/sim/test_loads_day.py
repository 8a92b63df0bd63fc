"""Days of load: any stretch of them alone is what it is within the whole, for any host alone or among others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlctl.envs.sim.loads_day import DAY_SECONDS, HIGHEST, Bursts, Crowds, DayLoad, Noise, day_loads

LOAD = DayLoad(
    low_ratio=(0.2, 0.3),
    high_ratio=(0.7, 0.9),
    noise=Noise(sd_ratio=0.03, seconds=20.0),
    bursts=Bursts(every_seconds=300.0, seconds=30.0, height_ratio=(0.05, 0.2)),
    crowds=Crowds(every_seconds=1800.0, decay_seconds=120.0, height_ratio=(0.2, 0.5)),
)
QUIET = DayLoad(low_ratio=(0.2, 0.2), high_ratio=(0.8, 0.8), peak_hour=18.0)
SEEDS = np.arange(1, 7, dtype=np.uint64)
AHEAD = np.array([0.0, 1.0, -6.0, 8.0, 5.5, 0.0])


@given(st.integers(0, 100_000), st.integers(1, 900), st.integers(0, 899))
def test_a_stretch_is_part_of_any_longer_one(begin, ticks, cut):
    whole = day_loads(LOAD, SEEDS, AHEAD, float(begin), ticks, 1.0)
    cut = min(cut, ticks - 1)
    assert np.array_equal(day_loads(LOAD, SEEDS, AHEAD, float(begin + cut), ticks - cut, 1.0), whole[cut:])
    assert whole.min() >= 0.0
    assert whole.max() <= HIGHEST


@given(st.lists(st.integers(0, 5), min_size=1, unique=True), st.integers(0, 86_400))
def test_a_host_has_the_same_load_whoever_is_beside_it(some, begin):
    alone = day_loads(LOAD, SEEDS[some], AHEAD[some], float(begin), 50, 1.0)
    assert np.array_equal(alone, day_loads(LOAD, SEEDS, AHEAD, float(begin), 50, 1.0)[:, some])


def test_the_peak_comes_when_it_is_the_peak_hour_there():
    day = day_loads(QUIET, SEEDS, AHEAD, 0.0, 1440, 60.0)
    assert day.max(axis=0) == pytest.approx(0.8, abs=1e-4)
    assert day.min(axis=0) == pytest.approx(0.2, abs=1e-4)
    assert day.argmax(axis=0) / 60.0 == pytest.approx((18.0 - AHEAD) % 24.0, abs=0.05)
    again = day_loads(QUIET, SEEDS, AHEAD, DAY_SECONDS, 1440, 60.0)
    assert again == pytest.approx(day)


def test_crowds_come_at_once_and_leave_by_and_by():
    load = QUIET.model_copy(update={"crowds": Crowds(every_seconds=3600, decay_seconds=100, height_ratio=(0.2, 0.2))})
    more = day_loads(load, SEEDS, AHEAD, 0.0, 7200, 1.0) - day_loads(QUIET, SEEDS, AHEAD, 0.0, 7200, 1.0)
    rises, falls = np.diff(more, axis=0).max(axis=0), np.diff(more, axis=0).min(axis=0)
    assert (rises > 0.19).all()
    assert (falls > -0.01).all()


def test_bursts_have_their_length():
    load = QUIET.model_copy(update={"bursts": Bursts(every_seconds=600, seconds=60, height_ratio=(0.1, 0.1))})
    more = day_loads(load, SEEDS, AHEAD, 0.0, 6000, 1.0) - day_loads(QUIET, SEEDS, AHEAD, 0.0, 6000, 1.0)
    assert (np.abs((more > 0.05).sum(axis=0) - 600) <= 10).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"low_ratio": (0.4, 0.3)}, "low_ratio"),
        ({"high_ratio": (0.4, 1.3)}, "high_ratio"),
        ({"bursts": {"every_seconds": 30, "seconds": 60, "height_ratio": (0.1, 0.2)}}, "does not fit"),
        ({"crowds": {"every_seconds": 30, "decay_seconds": 60, "height_ratio": (-0.1, 0.2)}}, "crowds.height_ratio"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        DayLoad.model_validate(QUIET.model_dump() | changes)
