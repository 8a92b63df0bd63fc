"""`rlctl bench --ray`: the same numbers as without, whoever did what and whatever was lost."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.bench.workforce import workforce
from rlctl.cli import main
from rlctl.commands.bench_verify import NOT_REPEATABLE
from rlctl.envs.run_metrics import METRICS
from rlctl.safety.profile import load_profile
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.ray
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ray", "nowhere"], "HOST:PORT"),
        (["--ray", "auto", "--jobs", "2"], "--jobs is for --ray local"),
        (["--ray", "auto", "--managers", "./mine,frozen"], "./mine: with --ray auto give the path"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, said, capsys):
    assert main(["bench", "--managers", "frozen", *arguments]) == 78
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["bench", "train", "tune"])
def test_address_left_empty_is_no_wish(command, capsys):
    assert main([*command.split(), "--ray", ""]) == 2
    assert "give local, auto, or HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bench", "--ray", "local"], ["bench", "verify", "result.json", "--ray", "auto"]])
def test_without_ray_installing_is_told_before_running(command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(command) == 78
    told = capsys.readouterr().err
    assert "pip install 'rlctl[distributed]'" in told
    assert told.count("\n") == 1


@pytest.mark.ray
@pytest.mark.slow
def test_json_with_ray_differs_only_in_times(ray_cluster, tmp_path, capsys):
    plain, ray = tmp_path / "plain.json", tmp_path / "ray.json"
    asked = ["--managers", "greedy-shield,prm-hybrid-tuned", "--scenario", "noisy", "--seeds", "3", "--duration", "60"]
    assert main(["bench", *asked, "--jobs", "1", "--json", str(plain)]) == 0
    assert main(["bench", *asked, "--ray", ray_cluster.address, "--json", str(ray)]) == 0
    assert "nodes: 4, CPUs: 3" in capsys.readouterr().err
    assert repeatable(ray) == repeatable(plain)
    assert main(["bench", "verify", str(ray), "--ray", ray_cluster.address]) == 0


@pytest.mark.ray
def test_dying_node_changes_no_number(ray_cluster, capsys):
    scenario = load_scenario("noisy").model_copy(update={"duration_seconds": 600.0})
    shield = load_profile("responsive").scale_time(scenario.time_scale)
    plan = SimPlan(scenario, scenario.host(), ("greedy-shield", "prm-hybrid-tuned"), 6, shield)
    done = []

    def follow(manager):
        done.append(manager)
        if len(done) == 3:
            while not (busy := ray_cluster.running("simulate")):
                pass
            ray_cluster.kill(busy[0])

    with workforce(ray=ray_cluster.address) as workers:
        found = run_sim(plan, workers, follow, chunk=1)
    expected = run_sim(plan)
    for name in plan.managers:
        for metric in METRICS:
            assert np.array_equal(found.managers[name][metric], expected.managers[name][metric]), (name, metric)
    assert len(done) == 12
    said = capsys.readouterr().err.splitlines()
    lost = sum("was lost" in line for line in said)
    assert lost > 0
    assert said[-1] == f"tasks lost and done again: {lost}; no number depends on it"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_early_it_leaves_nothing(number, tmp_path):
    words = [sys.executable, "-m", "rlctl", "bench", "--managers", "heracles", "--seeds", "20", "--jobs", "1"]
    told = tmp_path / "told"
    with told.open("w") as file:
        process = subprocess.Popen([*words, "--ray", "local"], stdout=file, stderr=file, process_group=0)
    while "Ray at local" not in told.read_text():
        assert process.poll() is None, told.read_text()
        time.sleep(0.1)
    folder = next(one for one in Path("/tmp").glob("rlctl-ray-*") if holds(one, process.pid))
    begun = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(timeout=PATIENCE_SECONDS) == 128 + number
    assert not folder.exists()
    _, left = psutil.wait_procs(begun, timeout=PATIENCE_SECONDS)
    assert not left
    assert "Traceback" not in told.read_text()


def holds(folder, driver):
    """Ray ends the name of a session with the driver's process number."""
    return any(one.name.endswith(f"_{driver}") for one in folder.glob("session_*"))


def repeatable(file):
    found = json.loads(file.read_text())
    for manager in found["managers"].values():
        for name in NOT_REPEATABLE:
            del manager[name]
    return found
