"""Loads are the same for everybody who asks with the same seed, stay in their range, and a wrong one says so."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.seeds import SeedKind, evaluation, kind_of, training
from rlctl.envs.testbed.traces import TraceError

STAIRCASE = {"kind": "staircase", "low_ratio": 0.7778, "high_ratio": 1.0, "rungs": 15, "step_seconds": 200}
BURSTY = {
    "kind": "bursty",
    "calm_low_ratio": 0.5,
    "calm_high_ratio": 0.7,
    "burst_low_ratio": 0.8,
    "burst_high_ratio": 0.97,
    "calm_seconds": 60,
    "burst_seconds": 15,
}
DIURNAL = {"kind": "diurnal", "mean_ratio": 0.6, "swing_ratio": 0.3, "period_seconds": 1200, "harmonic_ratio": 0.3}
CROWD = {
    "kind": "flash-crowd",
    "calm_ratio": 0.5,
    "peak_low_ratio": 0.8,
    "peak_high_ratio": 1.0,
    "decay_seconds": 100,
    "every_seconds": 750,
}
WALK = {"kind": "random-walk", "low_ratio": 0.6, "high_ratio": 0.95, "sd_ratio": 0.02}
SINE = {"kind": "sinusoid", "low": 0.2, "high": 0.8, "period": 30, "random_phase": True}

RANGES = [
    (STAIRCASE, 0.7778, 1.0),
    ({**STAIRCASE, "order": "up-down"}, 0.7778, 1.0),
    (BURSTY, 0.5, 0.97),
    (DIURNAL, 0.3, 0.9),
    ({**DIURNAL, "noise_ratio": 0.3, "high_ratio": 1.0}, 0.0, 1.0),
    (CROWD, 0.5, 1.0),
    (WALK, 0.6, 0.95),
    ({**WALK, "low_ratio": 0.7, "high_ratio": 0.7}, 0.7, 0.7),
    (SINE, 0.2, 0.8),
    ({"kind": "constant", "rate": 0.5}, 0.5, 0.5),
]


def test_training_never_sees_an_evaluation_seed():
    @given(st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
    def apart(one, other):
        assert training(one) != evaluation(other)
        assert (kind_of(training(one)), kind_of(evaluation(other))) == (SeedKind.TRAINING, SeedKind.EVALUATION)
        assert 0 <= training(one) < 2**63 > evaluation(other)

    apart()


@pytest.mark.parametrize("call", [lambda: training(-1), lambda: evaluation(2**62), lambda: kind_of(2**63)])
def test_what_is_no_seed_is_refused(call):
    with pytest.raises(ConfigError, match="seed"):
        call()


@pytest.mark.parametrize(("config", "low", "high"), RANGES)
def test_load_is_the_same_in_another_process(config, low, high):
    load = from_config(config)
    for seed in (training(0), training(7), evaluation(3)):
        values = load(seed, 3000, 1.0)
        assert values.shape == (3000,)
        assert low - 1e-6 <= values.min() <= values.max() <= high + 1e-6
        assert np.array_equal(pickle.loads(pickle.dumps(load))(seed, 3000, 1.0), values)


@pytest.mark.parametrize("config", [STAIRCASE, BURSTY, DIURNAL, CROWD, WALK, SINE])
def test_seeds_differ(config):
    load = from_config(config)
    loads = [tuple(load(seed, 3000, 1.0)) for seed in (training(0), training(1), evaluation(0))]
    assert len(set(loads)) == 3


def test_staircase_stands_on_every_rung_for_its_time():
    rungs = np.linspace(0.7778, 1.0, 15)
    orders = {order: from_config({**STAIRCASE, "order": order})(5, 3000, 1.0) for order in ("shuffled", "up", "down")}
    assert np.allclose(orders["up"], np.repeat(rungs, 200))
    assert np.allclose(orders["down"], np.repeat(rungs[::-1], 200))
    assert np.allclose(np.sort(orders["shuffled"]), orders["up"])
    assert np.all(orders["shuffled"].reshape(15, 200) == orders["shuffled"][::200, None])


def test_a_short_tick_does_not_move_the_steps():
    coarse, fine = (from_config(STAIRCASE)(5, round(3000 / tick), tick) for tick in (1.0, 0.1))
    assert np.array_equal(np.repeat(coarse, 10), fine)


@pytest.mark.parametrize("rungs", [14, 15])
def test_up_and_down_has_the_steps_asked(rungs):
    values = from_config({**STAIRCASE, "rungs": rungs, "order": "up-down"})(0, 200 * rungs, 1.0)[::200]
    assert values[0] == values[-1] == values.min() == pytest.approx(0.7778)
    assert values.max() == 1.0
    assert np.allclose(values, values[::-1])


def test_bursts_are_as_long_and_rare_as_said():
    values = np.concatenate([from_config(BURSTY)(seed, 3000, 1.0) for seed in range(30)])
    bursting = values >= 0.8
    starts = np.count_nonzero(np.diff(bursting.astype(int)) == 1)
    assert bursting.mean() == pytest.approx(15 / 75, rel=0.1)
    assert bursting.sum() / starts == pytest.approx(15, rel=0.15)


def test_a_crowd_comes_at_once_and_leaves_slowly():
    values = from_config(CROWD)(evaluation(0), 3000, 1.0)
    jumps = np.flatnonzero(np.diff(values) > 0.2)
    assert len(jumps) == 4
    assert np.all(np.diff(values) < np.where(np.isin(np.arange(2999), jumps), 1.0, 1e-12))
    assert values[jumps[0]] == 0.5


def test_day_reaches_its_lowest_and_its_highest_load():
    values = from_config(DIURNAL)(3, 1200, 1.0)
    assert (values.min(), values.max()) == (pytest.approx(0.3, abs=1e-4), pytest.approx(0.9, abs=1e-4))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kind": "stairs"}, "staircase, diurnal"),
        ({}, "kind"),
        ({**STAIRCASE, "order": "sideways"}, "order"),
        ({**STAIRCASE, "rungs": 2.5}, "rungs"),
        ({**STAIRCASE, "rungs": 0}, "rungs"),
        ({**STAIRCASE, "order": "up-down", "rungs": 2}, "rungs: up-down takes 3 or more, not 2"),
        ({**CROWD, "calm_ratio": 0.9}, r"calm_ratio \(0.9\) is above peak_low_ratio \(0.8\)"),
        ({**DIURNAL, "swing_ratio": 1.9}, r"mean_ratio \+ swing_ratio: 2.5 is above 2"),
        ({**STAIRCASE, "low_ratio": 1.1}, "low_ratio"),
        ({**STAIRCASE, "high_ratio": 80}, r"high_ratio: 80 is above 2; .* \(a percentage\? write 0.80\)"),
        ({**SINE, "high": 80}, r"high: 80 is above 2; .* \(a percentage\? write 0.80\)"),
        ({"kind": "steps", "rates": [0.5, 70], "step_seconds": 9}, "rates: 70 is above 2"),
        ({"kind": "staircase", "rung": 15}, "unknown key 'rung'; did you mean 'rungs'"),
        ({"kind": "constant", "level": 0.5}, "constant: unknown key 'level'; it takes rate"),
        ({**STAIRCASE, "steps": 3}, "steps"),
        ({"kind": "staircase"}, "low_ratio"),
        ({**BURSTY, "burst_low_ratio": 0.99}, "burst_low_ratio"),
        ({**BURSTY, "calm_seconds": 0}, "calm_seconds"),
        ({**DIURNAL, "mean_ratio": float("nan")}, "mean_ratio"),
        ({**CROWD, "decay_seconds": "soon"}, "decay_seconds"),
        ({**WALK, "sd_ratio": -0.1}, "sd_ratio"),
        ({**SINE, "random_phase": 1}, "random_phase"),
        ({"kind": "constant", "rate": 0.5, "random_phase": True}, "constant has no phase"),
        ({**SINE, "low": 0.9}, "low"),
    ],
)
def test_wrong_load_is_one_line(config, said):
    with pytest.raises(TraceError, match=said) as caught:
        from_config(config)
    assert "\n" not in str(caught.value)


def test_a_recorded_load_in_percent_names_its_file(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("time_seconds,rate_rps\n0,35\n60,80\n")
    with pytest.raises(TraceError, match=r"day\.csv: 80 is above 2; .*write 0\.80"):
        from_config({"kind": "csv_replay", "path": str(path)})
