"""Training runs side by side: finished ones stay, ended ones go on, others are not mixed in."""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.recipe import load_recipe
from rlctl.bench.scenarios import sim_scenario
from rlctl.envs.errors import CheckFailed, ConfigError
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.safety.profile import load_profile
from scripts.studies import jobs as training_jobs
from scripts.studies.ablation import variants
from scripts.studies.jobs import TrainingJob, command, finished, pinned, train
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
JOB = TrainingJob("ppo-0", "ppo", 0, "knee", seconds=5.0)
CPUS = sorted(os.sched_getaffinity(0))


def is_done(job, out, ending="budget spent"):
    """Leaves behind what a run that has ended does."""
    folder = out / job.name
    (folder / "bundle").mkdir(parents=True, exist_ok=True)
    (folder / "bundle/card.json").write_text("{}")
    (folder / "config.yml").write_text("")
    scores = {"qos_percent": [100.0], "be_percent": [50.0], "override_percent": [0.0]}
    run = {"folder": str(folder), "seed": job.seed, "ending": ending, "timesteps": 1, "seconds": 1.0}
    run |= {"bundle": str(folder / "bundle"), "merit": 1.0, "validation": {"thesis": scores}}
    (out / f"{job.name}.json").write_text(json.dumps({"runs": [run]}))


def checkpoint(job, out):
    made = out / job.name / "checkpoints/10"
    made.mkdir(parents=True)
    state = {"timesteps": 10, "seconds": 1.0, "calls": 1, "block": 0}
    (made / "state.json").write_text(json.dumps(state))


def test_what_is_finished_is_not_repeated(tmp_path):
    is_done(JOB, tmp_path)
    told = []
    (result,) = train([JOB], tmp_path, CPUS, told.append)
    assert result == finished(JOB, tmp_path)
    assert told == ["ppo-0: finished before"]


def test_ended_run_goes_on_from_its_checkpoint(tmp_path):
    is_done(JOB, tmp_path, ending="stopped")
    checkpoint(JOB, tmp_path)
    assert finished(JOB, tmp_path) is None
    assert command(JOB, tmp_path)[4:6] == ["--resume", str(tmp_path / "ppo-0")]


def test_a_run_without_a_checkpoint_begins_anew(tmp_path, monkeypatch):
    is_done(JOB, tmp_path, ending="stopped")
    asked = {}
    monkeypatch.setattr(training_jobs, "pinned", lambda commands, *_: asked.update(commands) or ["ppo-0"])
    with pytest.raises(CheckFailed, match=r"ppo-0: no policy came of it; see .*ppo-0\.log"):
        train([JOB], tmp_path, CPUS)
    assert "--resume" not in asked["ppo-0"]
    assert not (tmp_path / "ppo-0").exists()


@pytest.mark.slow
def test_folder_of_another_budget_is_refused(tmp_path):
    is_done(JOB, tmp_path)
    train([JOB], tmp_path, CPUS)
    for change in ({"seconds": 6.0}, {"seed": 1}, {"hosts": load_hosts().model_copy(update={"episode_steps": 9})}):
        values = {name: getattr(JOB, name) for name in JOB.__slots__} | change
        with pytest.raises(ConfigError, match=f"other {next(iter(change))}; give another --out"):
            train([TrainingJob(**values)], tmp_path, CPUS)


@pytest.mark.parametrize("key", ["profile", "safety"])
def test_folder_on_rewritten_profiles_is_refused(key, tmp_path):
    """The kinds have them by their files, whose names stay."""
    files = {name: tmp_path / f"{name}.yaml" for name in ("profile", "safety")}
    files["profile"].write_text(load_host("thesis-host").model_dump_json())
    files["safety"].write_text(load_profile("measured").model_dump_json())
    hosts = load_hosts()
    kind = hosts.kinds[0].model_copy(update={name: str(file) for name, file in files.items()})
    job = replace(JOB, hosts=hosts.model_copy(update={"kinds": (kind,)}))
    is_done(job, tmp_path)
    train([job], tmp_path, CPUS)
    others = {"profile": load_host("two-core-host"), "safety": load_profile("knee")}
    files[key].write_text(others[key].model_dump_json())
    with pytest.raises(ConfigError, match="other profiles; give another --out"):
        train([job], tmp_path, CPUS)


def test_twin_learns_on_hosts_that_differ(tmp_path):
    found = runpy.run_path(str(ROOT / "scripts/shift-matrix"), run_name="shift-matrix")
    found["twins"].__globals__.update(train=lambda *_: [])
    scenario = sim_scenario("two-core-nginx")
    (shift,) = found["chosen"]("requests x .7")
    cheaper = shift.of(scenario)
    found["twins"]([("cheaper", cheaper)], SimpleNamespace(out=tmp_path, twins=1))
    host, drawn = load_host(str(tmp_path / "cheaper.yaml")), scenario.host().ranges.keys()
    assert host.values() == cheaper.host().values()
    assert "service_seconds" in drawn
    assert host.ranges.keys() == drawn - {"service_seconds"}


@pytest.mark.slow
def test_variants_come_back_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(training_jobs, "pinned", lambda *_: [])
    for one in variants(load_recipe("ppo"), load_hosts()):
        job = TrainingJob(one.name, one.algorithm, 0, "knee", seconds=5.0, recipe=one.recipe, hosts=one.hosts)
        with pytest.raises(CheckFailed):
            train([job], tmp_path, CPUS)
        words = command(job, tmp_path)
        given = {key: Path(words[words.index(key) + 1]) for key in ("--config", "--hosts")}
        assert load_recipe(one.algorithm, given["--config"]) == one.recipe
        assert load_hosts(given["--hosts"]) == one.hosts


def test_each_command_has_its_cpu_and_log(tmp_path):
    say = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    fail = [sys.executable, "-c", "raise SystemExit(3)"]
    told = []
    assert pinned({"one": say, "two": fail}, tmp_path, CPUS[:1], told.append) == ["two"]
    assert json.loads((tmp_path / "one.log").read_text()) == CPUS[:1]
    assert [line.split(":")[0] for line in told] == ["one", "one", "two", "two"]


@pytest.mark.slow
def test_who_is_terminated_lets_its_runs_end(tmp_path):
    child = (
        "import signal, sys, time\n"
        "def end(*_):\n    print('checkpoint', flush=True)\n    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, end)\nprint('begun', flush=True)\n"
        "while True:\n    signal.pause()\n"
    )
    parent = (
        "import sys; from pathlib import Path; from scripts.studies.jobs import pinned\n"
        f"pinned({{'run': [sys.executable, '-c', {child!r}]}}, Path({str(tmp_path)!r}), [{CPUS[0]}], lambda _: None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL) as process:
        log = tmp_path / "run.log"
        while not (log.is_file() and "begun" in log.read_text()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.fail(f"ended with {process.wait(0.05)}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) != 0
    assert log.read_text().split() == ["begun", "checkpoint"]


def test_policy_that_loses_is_told_by_scenario(tmp_path):
    found = runpy.run_path(str(ROOT / "scripts/train-shipped"), run_name="train-shipped")
    lost = [("feedforward", "two-core", -0.65), ("feedforward", "noisy", -0.2), ("frozen", "noisy", -0.4)]
    rows = [{"against": who, "scenario": name, "qos_guarantee_percent": {"mean": by}} for who, name, by in lost]
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps({"shields": {"responsive": {"differences": rows}}}))
    assert found["worse"](file, "responsive") == [
        "two-core: -0.65 points of QoS against feedforward, down to -0.25 are put up with"
    ]
