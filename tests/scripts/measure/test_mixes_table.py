"""Our tables and figures say what the paper's say when they are given the paper's numbers."""

import csv
import math
from pathlib import Path

import pytest

from rlctl.bench.intervals import Estimate
from rlctl.envs.telemetry import Missing, Value, Why
from scripts.studies.mixes.metrics import METRICS, metrics_of
from scripts.studies.mixes.table import (
    Sides,
    csv_lines,
    estimates_of,
    metric_rows,
    missing_lines,
    sides_of,
    speed_up,
    speed_up_rows,
)  # fmt: skip

FIXTURES = Path(__file__).parents[2] / "fixtures/measure"
UNITS = {"G": 1e9, "K": 1e3}
OURS = {
    "ipc": "ipc", "instructions_G": "ins", "completion_time_s": "ctime", "power_W": "power",
    "context_switches_K": "ctx", "migrations": "mig", "migrations_K": "mig", "page_faults_K": "pf",
    "task_clock_K": "task-clock", "branch_miss_rate": "b-miss-rate",
}  # fmt: skip
METRIC = {metric.name: metric for metric in METRICS}
NO_PMU = Missing(Why.NOT_SUPPORTED, "perf: not-supported")


def rows_of(name):
    lines = (line for line in (FIXTURES / name).read_text().splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines))


def published(scenario):
    return [row for row in rows_of("barbeque_metrics.csv") if row["scenario"] == scenario]


def unit_of(row):
    return UNITS.get(row["metric"].rpartition("_")[2], 1.0)


def estimate(row, side):
    mean, half95, half99 = (float(row[f"{what}_{side}"]) * unit_of(row) for what in ("mean", "ci95", "ci99"))
    return Estimate(mean, (mean - half95, mean + half95), (mean - half99, mean + half99))


@pytest.mark.parametrize("scenario", ["1i1t", "12i8t"])
def test_papers_numbers_are_shown_as_in_paper(scenario):
    listed = published(scenario)
    rows = metric_rows({OURS[row["metric"]]: (estimate(row, "u"), estimate(row, "m")) for row in listed})
    shown = {row[0].split(" ")[0]: row[1:] for row in rows[1:]}
    assert len(shown) == len(listed) >= 7
    for row in listed:
        keys = ("mean_u", "mean_m", "ci95_u", "ci95_m", "ci99_u", "ci99_m")
        assert shown[OURS[row["metric"]]] == tuple(row[key] for key in keys)


def test_units_are_those_of_the_unmanaged_mean():
    names = [
        row[0]
        for row in metric_rows({OURS[r["metric"]]: (estimate(r, "u"), estimate(r, "m")) for r in published("12i8t")})
    ]
    assert {"ctime", "power", "ctx [K]", "mig [K]", "pf [K]", "ipc", "b-miss-rate"} == set(names[1:])


def test_the_speed_up_is_that_of_the_means():
    """Table VII: 8 threads, 12 instances: 84 % of completion time, 7.2 % of power."""
    by_name = {row["metric"]: row for row in published("12i8t")}
    for metric, percent in (("completion_time_s", 84), ("power_W", 7.2)):
        row = by_name[metric]
        gain = speed_up(METRIC[OURS[metric]], Sides((float(row["mean_u"]),), (float(row["mean_m"]),)))
        assert gain.mean == pytest.approx(percent, abs=0.5)
        assert math.isinf(gain.half95)


def test_more_instructions_benefit_more_time_loses():
    assert speed_up(METRIC["ipc"], Sides((1.0, 1.0), (1.2, 1.2))).mean == pytest.approx(20.0)
    assert speed_up(METRIC["ctime"], Sides((1.0, 1.0), (1.2, 1.2))).mean == pytest.approx(-20.0)


def test_shared_drift_does_not_widen_the_speed_up():
    gain = speed_up(METRIC["ctime"], Sides((1.0, 2.0, 3.0), (0.5, 1.5, 2.5)))
    assert (gain.mean, gain.half95) == (pytest.approx(25.0), pytest.approx(0.0, abs=1e-9))
    assert abs(gain.mean) > gain.half95


def test_no_migration_before_is_no_basis_for_percentage():
    assert speed_up(METRIC["mig"], Sides((0.0, 0.0), (1.0, 2.0))) is None


def test_derived_metrics_are_the_papers():
    """Table V, unmanaged: 117.392 G cycles and 126.869 G instructions in 51.226 s of CPU time."""
    counts = {
        "task-clock": Value(51.226), "context-switches": Value(6468.0), "cpu-migrations": Value(15.0),
        "page-faults": Value(30708.0), "cycles": Value(117.392e9), "stalled-cycles-frontend": Value(1.650e9),
        "stalled-cycles-backend": Value(63.324e9), "instructions": Value(126.869e9), "branches": Value(12.841e9),
        "branch-misses": Value(168.028e6),
    }  # fmt: skip
    got = {name: one.value for name, one in metrics_of(50.883, Value(50.883 * 287.233), counts).items()}
    wanted = {
        "ipc": 1.080, "bei": 53.942, "power": 287.233, "ghz": 2.292, "b-rate": 250.667, "fei": 1.405,
        "task-clock": 51226, "cpu-used": 1.007, "scpi": 0.5, "b-miss-rate": 1.309,
    }  # fmt: skip
    assert {name: got[name] for name in wanted} == pytest.approx(wanted, rel=3e-3)
    assert list(got) == [metric.name for metric in METRICS]


def test_without_counters_their_columns_are_missing():
    software = ("task-clock", "context-switches", "cpu-migrations", "page-faults")
    hardware = (
        "cycles",
        "stalled-cycles-frontend",
        "stalled-cycles-backend",
        "instructions",
        "branches",
        "branch-misses",
    )
    counts = dict.fromkeys(software, Value(2.0)) | dict.fromkeys(hardware, NO_PMU)
    got = metrics_of(4.0, Missing(Why.NOT_SUPPORTED, "no RAPL"), counts)
    there = {name: one.value for name, one in got.items() if isinstance(one, Value)}
    assert there == {"ctime": 4.0, "task-clock": 2000.0, "cpu-used": 0.5, "ctx": 2.0, "mig": 2.0, "pf": 2.0}
    assert got["ipc"] is NO_PMU
    assert got["power"].detail == "no RAPL"
    assert sides_of([(got, got)])["ipc"] is NO_PMU


def test_a_counter_that_stood_still_divides_nothing():
    counts = {event: Value(0.0) for event in (
        "task-clock", "context-switches", "cpu-migrations", "page-faults", "cycles", "stalled-cycles-frontend",
        "stalled-cycles-backend", "instructions", "branches", "branch-misses",
    )}  # fmt: skip
    assert isinstance(metrics_of(1.0, Value(0.0), counts)["ipc"], Missing)


@pytest.fixture
def sides():
    there = {"ctime": Sides((1.0, 1.2), (0.8, 0.9)), "ctx": Sides((4000.0, 5000.0), (2000.0, 2100.0))}
    return {metric.name: there.get(metric.name, NO_PMU) for metric in METRICS}


def test_speed_ups_have_dash_where_nothing_was_measured(sides):
    rows = speed_up_rows({"L1": sides}, ["ctx"])
    assert rows[0] == ("scenario", "ctime %", "power %", "energy %", "ctx %")
    assert rows[1][0] == "L1"
    assert rows[1][1].startswith("22.7 ±")
    assert rows[1][2:4] == ("-", "-")


def test_each_reason_is_told_once(sides):
    (line,) = missing_lines(sides)
    assert line.startswith("missing power, energy, task-clock")
    assert line.endswith(": perf: not-supported")


def test_one_run_has_a_mean_and_no_interval():
    rows = metric_rows(estimates_of({"ctime": Sides((1.5,), (1.25,))}))
    assert rows[1] == ("ctime", "1.500", "1.250", "-", "-", "-", "-")


def test_csv_has_every_metric_and_both_sides(sides):
    header, *lines = csv_lines({"L1": sides})
    table = list(csv.DictReader([header, *lines]))
    assert {row["metric"] for row in table} == {metric.name for metric in METRICS}
    unmanaged = next(row for row in table if (row["metric"], row["side"]) == ("ctime", "unmanaged"))
    assert float(unmanaged["mean"]) == pytest.approx(1.1)
    assert next(row for row in table if row["metric"] == "ipc")["missing"] == "not-supported"


@pytest.mark.parametrize("name", ["benefit", "burst"])
def test_figures_are_drawn_with_and_without_counters(sides, name):
    plots = pytest.importorskip("scripts.studies.mixes.plots")
    pytest.importorskip("matplotlib")
    drawn = (
        plots.benefit_png({"L1": sides, "H1": sides})
        if name == "benefit"
        else plots.burst_png({1: sides, 4: sides}, "x")
    )
    assert drawn.startswith(b"\x89PNG")
