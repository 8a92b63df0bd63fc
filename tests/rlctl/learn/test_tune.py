"""`rlctl tune`: all is checked before anything runs, and a search that was killed ends as if it had not been."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlctl.agents.served.bundle import load
from rlctl.agents.training.evaluations import PRICE, Evaluation
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.search.space import load_space
from rlctl.agents.training.trial import Trial
from rlctl.cli import main
from rlctl.envs.errors import HostError
from rlctl.learn.search import SearchOptions, SearchOutcome, begin, new_search, ranked, resumed_search

SPACE = """algorithm: ppo
recipe:
  gamma: {uniform: [0.8, 0.95]}
  n_epochs: {choice: [1, 2, 4]}
"""
TINY = ["--algo", "ppo", "--scenario", "two-core", "--total-timesteps", "300", "--trials", "3", "--seed", "4"]


@pytest.fixture
def space(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    return file


@pytest.fixture
def begun(tmp_path, space):
    """The folder of a search that was begun and has done nothing."""
    asked = SearchOptions(algorithm="ppo", space=str(space), trials=3, seed=4, scenarios=("two-core",))
    begin(asked, new_search(asked, tmp_path / "search"))
    return tmp_path / "search"


def test_dry_run_prints_ranges_and_writes_nothing(tmp_path, space, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *TINY, "--space", str(space), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "3 trials, seeds 4 to 6" in printed
    assert "uniform: [0.8, 0.95]" in printed
    assert list(tmp_path.iterdir()) == [space]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--algo is needed"),
        (["--algo", "ppo", "--trials", "1"], "--trials 1"),
        (["--algo", "ppo", "--seed", "-1"], "--seed -1"),
        (["--algo", "ppo", "--seed", "1048575"], "--seed 1048575: each trial has the next one"),
        (["--algo", "maskable-ppo"], "no space ships for maskable-ppo; give --space FILE"),
        (["--algo", "ppo", "--space", "absent.yaml"], "absent.yaml"),
        (["--algo", "ppo", "--scenario", "live-nginx"], "for the live host"),
        (["--algo", "ppo", "--retry-failed"], "--retry-failed goes with --resume"),
        (["--algo", "ppo", "--ray", "auto", "--jobs", "2"], "--jobs is for --ray local"),
        pytest.param(  # found out after Ray was
            ["--algo", "ppo", "--json", "/dev/null/x"],
            "/dev/null: is not a folder; name another --json file",
            marks=pytest.mark.ray,
        ),
        (["--resume"], "--resume needs the folder of the search"),
        (["--resume", "--out", "absent"], "absent: holds no search"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == 78
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_ray_installing_is_told_before_writing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["tune", "--algo", "ppo", "--out", str(tmp_path / "search")]) == 78
    told = capsys.readouterr().err
    assert "pip install 'rlctl[distributed]'" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "search").exists()


def test_where_no_cluster_answers_nothing_is_written(tmp_path, space, monkeypatch, capsys):
    def nobody(*_, **__):
        raise HostError("nobody answers there")

    monkeypatch.setattr("rlctl.agents.training.cluster.connection.require_ray", lambda: None)
    monkeypatch.setattr("rlctl.agents.training.cluster.connection.connected", nobody)
    monkeypatch.setattr("rlctl.commands.tune.require_installed", lambda *_: None)
    monkeypatch.setattr("rlctl.learn.plan.require_libraries", lambda: None)
    words = ["tune", *TINY, "--space", str(space), "--ray", "127.0.0.1:1", "--out", str(tmp_path / "search")]
    assert main(words) == 75
    assert "nobody answers there" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


@pytest.mark.ray
def test_a_folder_holds_one_search(begun, capsys):
    pytest.importorskip("torch")
    assert main(["tune", *TINY, "--out", str(begun)]) == 78
    assert "holds a search already; --resume goes on with it" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seed", "--trials", "--space"])
def test_resume_takes_no_other_search(option, begun, capsys):
    assert main(["tune", "--resume", "--out", str(begun), option, "5"]) == 78
    assert f"{option} stands in the folder of a search that goes on" in capsys.readouterr().err


def test_resume_reads_the_space_from_its_folder(begun, space, capsys):
    space.unlink()
    assert main(["tune", "--resume", "--out", str(begun), "--dry-run"]) == 0
    assert "uniform: [0.8, 0.95]" in capsys.readouterr().out


def test_scheduler_says_when_a_trial_ends(tmp_path, space):
    job = new_search(SearchOptions(algorithm="ppo", space=str(space)), tmp_path)
    hasty = replace(job, run=replace(job.run, recipe=job.run.recipe.model_copy(update={"early_stop": 1})))
    assert hasty.recipe_of(hasty.space.base).early_stop is None


def test_a_file_that_searches_the_shield_is_refused(space, capsys):
    space.write_text(SPACE + "shield: {profile: measured}\n")
    assert main(["tune", *TINY, "--space", str(space), "--dry-run"]) == 78
    assert "'shield' was removed: compare profiles" in capsys.readouterr().err


def evaluation(qos, be, short=0.0, wobble=0.0):
    """On eight seeds of one course."""
    seeds = np.zeros(8) + wobble * np.resize([-1.0, 1.0], 8)
    merit = be - PRICE * short
    return Evaluation(0, 0.0, {"thesis": Trial(seeds + qos, seeds + be, np.zeros(8), np.zeros(8))}, merit)


def test_qos_decides_before_be():
    scores = {
        "bold": evaluation(99.0, 90.0, short=0.9),
        "safe": evaluation(99.9, 20.0),
        "more": evaluation(99.9, 30.0),
        "same": evaluation(99.9, 30.0),
    }
    assert ranked(scores) == ["more", "same", "safe", "bold"]


def test_the_lead_is_of_paired_seeds():
    trials = [SimpleNamespace(name=name, number=0, reports=[], values={}, ending="") for name in ("a", "b")]
    for a, b, said in ((30.0, 29.0, "clearly"), (30.0, 30.0, "not clearly")):
        scores = {"a": evaluation(99.9, a, wobble=5.0), "b": evaluation(99.9, b, wobble=5.0)}
        told = SearchOutcome(None, None, trials, scores).summary()
        assert f"a is ahead of b, {said}: " in told


def on_ray():
    pytest.importorskip("pyarrow", reason="Ray Tune is not installed: pip install 'rlctl[distributed]'")
    pytest.importorskip("torch", reason="needs rlctl[train]")


@pytest.mark.ray
def test_failed_trial_says_what_failed():
    on_ray()
    from rlctl.agents.training.search.tuner import _why

    traced = (
        "ray::train() (pid=1)\n  File x.py, line 2\nValueError: logits (240, 34) are no numbers:\n[[nan, nan],\n [nan]]"
    )
    assert _why(RuntimeError(traced)) == "ValueError: logits (240, 34) are no numbers:"
    assert _why(RuntimeError("")) == "RuntimeError"


@pytest.mark.ray
@pytest.mark.parametrize(
    ("timesteps", "seconds", "clock", "stopped_by"),
    [
        (300, 20.0, "seconds", ""),
        (200, 20.0, "seconds", "asha"),
        (200, 55.0, "seconds", ""),
        (200, 20.0, "timesteps", "asha"),
    ],
)
def test_trial_with_spent_timesteps_was_not_stopped(timesteps, seconds, clock, stopped_by):
    on_ray()
    import pandas

    from rlctl.agents.training.search.tuner import REPORTED_METRICS, _trial_end

    frame = pandas.DataFrame([{**dict.fromkeys(REPORTED_METRICS, 1.0), "timesteps": timesteps, "seconds": seconds}])
    result = SimpleNamespace(config=None, metrics_dataframe=frame, checkpoint=None, error=None, path="/x/t007")
    job = SimpleNamespace(clock=(clock, {"seconds": 60.0, "timesteps": 300}[clock]), timesteps=300, scheduler="asha")
    end = _trial_end(job, result)
    assert (end.name, end.stopped_by) == ("t007", stopped_by)


def test_a_trial_learns_with_its_values(tmp_path, begun):
    _, job = resumed_search(begun)
    values = job.space.values(job.space.first | {"gamma": 0.85})
    run = job.run_of(1, values, tmp_path)
    assert (run.recipe.gamma, run.seed) == (0.85, 5)


def tune(out, *arguments):
    """The command in a process of its own, which a kill leaves no time to clean up."""
    words = [sys.executable, "-m", "rlctl", "tune", "--out", str(out), *arguments]
    with out.with_suffix(".told").open("a") as told:
        return subprocess.Popen(words, stdout=told, stderr=told, env={**os.environ, "NO_COLOR": "1"})


@pytest.mark.ray
def test_a_killed_search_resumes_and_exports_its_winner(tmp_path, space, ray_cluster):
    on_ray()
    out, ray = tmp_path / "search", ["--ray", ray_cluster.address]
    process = tune(out, *TINY, *ray, "--space", str(space))
    while not any(file.stat().st_size for file in out.glob("trials/t*/result.json")):
        assert process.poll() is None, out.with_suffix(".told").read_text()
        time.sleep(0.1)
    process.kill()
    process.wait()
    while ray_cluster.running("ImplicitFunc"):  # no trial goes on learning without its driver
        time.sleep(0.1)
    assert tune(out, "--resume", *ray).wait() == 0, out.with_suffix(".told").read_text()
    history = json.loads((out / "history.json").read_text())
    trials = history["trials"]
    assert [(one["name"], one["seed"]) for one in trials] == [("t000", 4), ("t001", 5), ("t002", 6)]
    assert trials[0]["values"] == dict(load_space("ppo", load_recipe("ppo"), space).base)
    assert sorted(one["place"] for one in trials) == [1, 2, 3]
    assert not any(one["error"] for one in trials)
    assert all(one["stopped_by"] or one["timesteps"] >= 300 for one in trials)
    winner = history["choice"]["winner"]
    origin = load(out / "winner" / "bundle").card.training.search
    assert (origin.trial, origin.trials, origin.seed, origin.place) == (winner, 3, 4, 1)
    assert origin.space == history["search"]["digest"]
    assert (out / "winner" / "history.json").read_text() == (out / "history.json").read_text()
    assert not list(out.glob("**/*.part"))
