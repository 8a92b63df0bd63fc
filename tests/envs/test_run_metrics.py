"""A run is worth what the definitions say, whatever runs beside it."""

import numpy as np
import pytest

from rlctl.envs.run_metrics import METRICS, TIMINGS, Truth, Windows, per_run


def windows(latency):
    made = Windows.none(*np.shape(latency))
    made.latency_ratio[:], made.load_ratio[:], made.be_work_ratio[:] = latency, 0.5, 0.25
    return made


def test_a_run_is_worth_what_the_definitions_say():
    latency = np.full((30, 2), 0.5)
    latency[[3, 4, 5, 10], 0] = 3.0  # the longest stretch is three windows
    latency[14, 1] = 1.001  # the first of two 15-s samples
    values = per_run(windows(latency), 1.0)
    assert values["qos_guarantee_percent"] == pytest.approx([100 * 26 / 30, 100 * 29 / 30])
    assert values["qos_15s_percent"] == pytest.approx([100.0, 50.0])
    assert values["time_to_recover_seconds"] == pytest.approx([3.0, 1.0])
    assert values["worst_window_over_target"] == pytest.approx([3.0, 1.001])
    assert values["emu_percent"] == pytest.approx([75.0, 75.0])
    assert set(values) == {*METRICS, *TIMINGS}


def test_unmeasured_window_holds_nothing():
    made = windows(np.array([[0.5], [np.nan], [1.0]]))
    made.load_ratio[:, 0] = (0.2, np.nan, 0.6)
    made.lc_cpus[:] = np.nan
    values = per_run(made, 2.0)
    assert values["qos_guarantee_percent"] == pytest.approx([200 / 3])
    assert values["time_to_recover_seconds"] == pytest.approx([2.0])
    assert values["worst_window_over_target"] == [1.0]
    assert values["emu_percent"] == pytest.approx([25.0 + 40.0])
    assert values["lc_cpus"] == [0.0]


def test_a_window_without_a_latency_missed_the_target():
    nothing = np.zeros(3)
    truth = Truth(np.array([1.0, 1.0 + 1e-12, np.nan]), nothing, nothing, nothing)
    assert truth.missed.tolist() == [False, True, True]


def test_last_digits_do_not_depend_on_company():
    dice = np.random.default_rng(3)
    made = Windows.none(997, 5)
    for column in made[:5]:
        column[:] = dice.uniform(0.0, 2.0, column.shape)
    together = per_run(made, 1.0)
    alone = per_run(Windows(*(column[:, 2:3] for column in made)), 1.0)
    for name, values in together.items():
        assert values[2] == alone[name][0], name
