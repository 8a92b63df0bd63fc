"""The real-time isolation matrix: what it measures, how it is shown, and that nothing is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlctl.envs.errors import TestbedError
from rlctl.safety.profile import load_profile
from scripts.studies.realtime.isolation import Cell, ControlPlan, Outcome, Plan, Run
from scripts.studies.realtime.rtgroups import Condition
from scripts.studies.realtime.rtload import Load
from tests.needs import COMPILER, needs
from tests.waiting import PATIENCE_SECONDS

ALL = tuple(Condition)
SCRIPT = Path(__file__).parents[3] / "scripts/measure"


def plan(**changes):
    given = {
        "conditions": (Condition.NONE, Condition.CPUSET, Condition.RLCTL),
        "loads": (Load.NONE, Load.IO),
        "wake_ups": 100_000,
        "rounds": 4,
        "interval_us": 200,
        "threads": {Load.CPU: 2, Load.SCHED: 270, Load.IO: 50},
        "folder": Path("/var/tmp"),
        "control": ControlPlan("greedy-shield", load_profile("responsive"), target_us=10.0),
    }
    return Plan(**{**given, **changes})


def run(condition, load, latencies_us, work_rate=0.0):
    return Run(Cell(condition, load), np.array(latencies_us, dtype=np.int64) * 1000, work_rate)


def outcome(**changes):
    runs = [
        run(Condition.NONE, Load.NONE, [3, 3, 4, 1145]),
        run(Condition.NONE, Load.IO, [5] * 999 + [90], 4000.0),
        run(Condition.RLCTL, Load.IO, [4] * 10, 1000.0),
        run(Condition.NONE, Load.IO, [5] * 1000, 6000.0),
    ]
    missing = {Cell(Condition.CPUSET, load): "one CPU" for load in (Load.NONE, Load.IO)}
    return Outcome(**{"plan": plan(), "runs": runs, "missing": missing, "remarks": ("io: limited",), **changes})


def rows(text):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {(one[0], one[1]): dict(zip(lines[0][2:], one[2:], strict=True)) for one in lines[2:]}


def test_each_round_measures_every_cell_once():
    one = plan(conditions=ALL, loads=tuple(Load))
    orders = [one.order(number) for number in range(4)]
    assert all(sorted(order) == sorted(one.cells) for order in orders)
    assert len(set(orders)) == 4
    assert one.order(2) == one.order(2)


def test_twenty_cells_take_seven_minutes():
    one = plan(conditions=ALL, loads=tuple(Load))
    assert one.run_wake_ups == 25_000
    measured = 20 * 100_000 * 200e-6 / 60.0
    assert measured == pytest.approx(6.67, abs=0.01)
    assert measured < one.seconds / 60.0 < measured + 4.0


def test_table_has_latency_and_what_load_got_done():
    table = rows(outcome().table())
    assert table["none", "none"] == {
        "wake-ups": "4", "avg": "288.8", "p99": "1145", "p99.9": "1145", "max": "1145", "work/s": "-", "work %": "-",
    }  # fmt: skip
    assert (table["io", "none"]["wake-ups"], table["io", "none"]["work %"]) == ("2000", "100.0")
    assert (table["io", "rlctl"]["work/s"], table["io", "rlctl"]["work %"]) == ("1000", "20.0")
    assert table["io", "cpuset"]["wake-ups"] == "missing"


def test_unmeasurable_is_missing_with_its_reason():
    one = outcome()
    assert "missing (cpuset, load none; cpuset, load io): one CPU" in one.notes()
    cell = next(cell for cell in one.as_json()["cells"] if cell["condition"] == "cpuset" and cell["load"] == "io")
    assert cell == {"condition": "cpuset", "load": "io", "wake_ups": 0, "missing": "one CPU"}


@pytest.mark.slow
def test_figures_are_drawn_of_a_matrix_with_holes(tmp_path):
    pytest.importorskip("matplotlib")
    from scripts.studies.realtime.plots import plot_histograms, plot_maxima

    for draw in (plot_histograms, plot_maxima):
        draw(outcome(), tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--conditions", "none,cgroup"], "--conditions: no 'cgroup'; there are none, cpuset, io, cpuset+io, rlctl"),
        (["--loads", ","], "--loads names none of none, cpu, sched, io"),
        (["--folder", "/nowhere"], "/nowhere: is no folder"),
        (["--interval-us", "5"], "--interval-us 5: a wake-up takes longer"),
        (["--policy", "greedy"], "greedy-shield"),
        (["--quantile-percent", "100"], "from 50 to below 100"),
        (["--wakeups", "100000000"], "raise --rounds"),
    ],
)
def test_impossible_is_told_before_a_start(options, told, capsys, measure):
    assert measure("cyclictest", *options) == 78
    assert told in capsys.readouterr().err


def test_dry_run_says_how_long_it_would_take(capsys, measure):
    assert measure("cyclictest", "--dry-run", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rounds"] == 4
    assert "5 conditions x 4 loads, 100000 wake-ups each at 200 us in 4 rounds, about" in said.err


def test_what_was_measured_before_an_error_is_kept(monkeypatch, tmp_path, capsys, measure):
    class Session:
        missing, remarks = {}, ()

        def __init__(self, given):
            self.plan = given
            self.left = 3

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, cell):
            self.left -= 1
            if self.left < 0:
                raise TestbedError("cyclictest ended with code -9")
            return Run(cell, np.array([3000, 4000]), 1.0)

    monkeypatch.setattr("scripts.studies.realtime.run.Session", Session)
    file = tmp_path / "isolation.json"
    assert measure("cyclictest", "--json", str(file)) == 75
    result = json.loads(file.read_text())
    assert result["interrupted"] == "cyclictest ended with code -9"
    assert sum(cell["wake_ups"] > 0 for cell in result["cells"]) == 3
    assert "INCOMPLETE" in capsys.readouterr().out


def leftovers(pid):
    groups = [path for path in Path("/sys/fs/cgroup").glob(f"**/rlctl-*-{pid}") if path.is_dir()]
    records = list(Path("/run/rlctl/testbed").glob(f"testbed-{pid}-*"))
    return groups + records


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.usefixtures("cyclictest")
def test_a_tiny_matrix_for_real(tmp_path, measure):
    needs(programs=(COMPILER,))
    file = tmp_path / "isolation.json"
    asked = ["--wakeups", "2000", "--rounds", "1", "--conditions", "none,rlctl", "--loads", "sched"]
    quick = ["--tick", "0.2", "--warm-up", "2.5", "--folder", str(tmp_path), "--target-us", "100000"]
    assert measure("cyclictest", *asked, *quick, "--json", str(file)) == 0
    free, managed = json.loads(file.read_text())["cells"]
    assert free["wake_ups"] == managed["wake_ups"] == 2000
    assert 0.0 < free["average_us"] <= free["max_us"] == max(free["runs"][0]["max_us"], free["p999_us"])
    assert sum(free["histogram_us"].values()) == 2000
    assert free["work_per_second"] > 1000
    assert managed["work_percent"] > 0.0
    assert "be_frozen_percent" in managed
    assert not leftovers(os.getpid())
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.usefixtures("cyclictest")
def test_nothing_is_left_of_one_that_was_killed(tmp_path):
    needs(programs=(COMPILER,))
    command = [sys.executable, str(SCRIPT), "cyclictest", "--conditions", "cpuset,rlctl", "--loads", "io"]
    options = ["--folder", str(tmp_path), "--target-us", "100", "--rounds", "1"]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not any(tmp_path.glob("rlctl-*/rtload-49")) or not leftovers(running.pid):
                assert running.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.kill(running.pid, signal.SIGKILL)
    while leftovers(running.pid) or any(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
