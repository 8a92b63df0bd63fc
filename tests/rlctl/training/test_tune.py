"""`rlctl tune`: all is checked before anything runs, and a search that was killed ends as if it had not been."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlctl.agents.served.bundle import load
from rlctl.agents.training import run_folder
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.search.space import load_space
from rlctl.cli import main
from rlctl.envs.errors import HostError
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.safety.profile import load_profile
from rlctl.training.search_plan import SearchOptions, begin, new_search

SPACE = """algorithm: ppo
recipe:
  gamma: {uniform: [0.8, 0.95]}
  n_epochs: {choice: [1, 2]}
shield: {profile: measured, margins: {slack_hold_ratio: {uniform: [0.1, 0.2]}}}
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
    begin(new_search(asked, tmp_path / "search"))
    return tmp_path / "search"


def test_the_trials_of_a_dry_run_are_those_of_the_seed_and_nothing_is_written(tmp_path, space, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *TINY, "--space", str(space), "--dry-run"]) == 0
    told = capsys.readouterr().out
    for one in load_space("ppo", load_recipe("ppo"), space).candidates(3, 4):
        assert one.name in told
        assert str(one.values["gamma"]) in told
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
            "/dev/null: is no folder; name another --json file",
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


def test_without_ray_it_is_said_what_to_install_before_anything_is_written(tmp_path, monkeypatch, capsys):
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
    monkeypatch.setattr("rlctl.training.plan.require_libraries", lambda **_: None)
    words = ["tune", *TINY, "--space", str(space), "--ray", "127.0.0.1:1", "--out", str(tmp_path / "search")]
    assert main(words) == 75
    assert "nobody answers there" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


@pytest.mark.ray
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TINY], "holds a search already; --resume goes on with it"),
        (["--resume", "--seed", "5"], "was begun with --seed 4, not 5"),
        (["--resume", "--algo", "dqn"], "was begun with --algo ppo, not dqn"),
        (["--resume", "--scenario", "two-core,noisy"], "was begun with --scenario two-core, not two-core,noisy"),
    ],
)
def test_a_folder_is_of_one_search(arguments, said, begun, capsys):
    pytest.importorskip("torch")
    assert main(["tune", *arguments, "--out", str(begun)]) == 78
    assert said in capsys.readouterr().err


def test_a_search_does_not_go_on_with_another_space(begun, space, capsys):
    space.write_text(SPACE.replace("0.95", "0.96"))
    assert main(["tune", "--resume", "--out", str(begun), "--space", str(space)]) == 78
    assert "was begun with another space" in capsys.readouterr().err


def test_a_search_that_goes_on_has_the_trials_in_its_folder(begun, space, capsys):
    space.unlink()  # what it said is in the folder
    assert main(["tune", "--resume", "--out", str(begun), "--dry-run"]) == 0
    told = capsys.readouterr().out
    for one in json.loads((begun / "search.json").read_text())["trials"]:
        assert str(one["values"]["gamma"]) in told


def test_when_a_trial_ends_is_the_scheduler_s_to_say(tmp_path, space):
    job = new_search(SearchOptions(algorithm="ppo", space=str(space)), tmp_path).job
    hasty = replace(job, recipe=job.recipe.model_copy(update={"early_stop": 1}))
    assert hasty.recipe_of(hasty.candidates[0].values).early_stop is None


def test_a_shield_is_tightened_by_whatever_path_hosts_name_it_and_wherever_a_worker_runs(tmp_path, space, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(load_profile("measured").model_dump_json())
    (tmp_path / "host.yaml").write_text(load_host("thesis-host").model_dump_json())
    kind = "{name: one, profile: host.yaml, weight: minimum, safety: mine.yaml, share: 1}"
    (tmp_path / "hosts.yaml").write_text(f"kinds:\n  - {kind}\n")
    space.write_text(SPACE.replace("measured", str(tmp_path / "mine.yaml")))
    asked = SearchOptions(algorithm="ppo", space=str(space), hosts="hosts.yaml", trials=3, scenarios=("two-core",))
    job = new_search(asked, tmp_path / "search").job
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "worker")
    tuned = job.candidates[1]
    (kind,) = job.run_of(tuned.name, tuned.values, tmp_path / "worker").hosts.kinds
    assert kind.shield().slack_hold_ratio == tuned.values["shield.slack_hold_ratio"]
    assert kind.host() == load_host("thesis-host")


def on_ray():
    pytest.importorskip("pyarrow", reason="Ray Tune is not installed: pip install 'rlctl[distributed]'")
    pytest.importorskip("torch", reason="needs rlctl[train]")


def reported(trial, timesteps, score):
    return {"trial": trial, "timesteps": timesteps, "score": score}


@pytest.mark.ray
def test_asha_knows_the_rungs_of_a_search_that_goes_on(tmp_path):
    on_ray()
    from rlctl.agents.training.search.schedulers import Asha, Journal

    Journal.file = tmp_path / "reports.jsonl"
    lines = [reported("t000", 10, 1.0), reported("t000", 30, 2.0), reported("t000", 40, 3.0)]
    Journal.file.write_text("\n".join(map(json.dumps, lines)) + '\n{"trial": "t0')  # a kill cut the last one off
    scheduler = Asha(time_attr="timesteps", metric="score", mode="max", max_t=90, grace_period=10, reduction_factor=3)
    scheduler.on_trial_add(None, FakeTrial("t000", {"timesteps": 30}))
    scheduler.on_trial_add(None, FakeTrial("t001", None))
    worse, better = reported("t001", 10, 0.5), reported("t001", 10, 1.5)
    assert scheduler.on_trial_result(None, FakeTrial("t001", None), worse) == "STOP"
    scheduler.on_trial_add(None, FakeTrial("t002", None))
    assert scheduler.on_trial_result(None, FakeTrial("t002", None), better) == "CONTINUE"
    # What t000 reported after its last checkpoint is still to come again.
    assert [dict(rung) for _, rung in scheduler._brackets[0]._rungs][1] == {"t000": 2.0}


@pytest.mark.ray
def test_population_based_training_knows_the_generation_of_a_search_that_goes_on():
    on_ray()
    from rlctl.agents.training.search.schedulers import Pbt, explorer

    space = load_space("ppo", load_recipe("ppo"))
    scheduler = Pbt(
        time_attr="timesteps",
        metric="score",
        mode="max",
        perturbation_interval=100,
        custom_explore_fn=explorer(space, 0),
        synch=True,
    )
    controller = SimpleNamespace(search_alg=None)
    waiting, behind = FakeTrial("t000", reported("t000", 210, 1.0)), FakeTrial("t001", reported("t001", 150, 2.0))
    scheduler.on_trial_add(controller, waiting)
    scheduler.on_trial_add(controller, behind)
    assert scheduler._next_perturbation_sync == 200  # t000 has waited for t001, which gets there now
    controller.get_live_trials = controller.get_trials = lambda: [waiting, behind]
    assert scheduler.on_trial_result(controller, behind, reported("t001", 180, 2.0)) == "CONTINUE"
    assert scheduler.on_trial_result(controller, waiting, reported("t000", 300, 1.0)) == "PAUSE"


class FakeTrial:
    """A trial as schedulers see it."""

    def __init__(self, name, last):
        self.trial_id = self.experiment_tag = name
        self.last_result = last
        manager = SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        self.run_metadata, self.status = SimpleNamespace(checkpoint_manager=manager), "RUNNING"

    def __str__(self):
        return self.trial_id

    def is_finished(self):
        return False


@pytest.mark.ray
def test_a_failed_trial_says_what_failed_and_not_how_ray_got_there():
    on_ray()
    from rlctl.agents.training.search.tuner import _why

    traced = (
        "ray::train() (pid=1)\n  File x.py, line 2\nValueError: logits (240, 34) are no numbers:\n[[nan, nan],\n [nan]]"
    )
    assert _why(RuntimeError(traced)) == "ValueError: logits (240, 34) are no numbers:"
    assert _why(RuntimeError("")) == "RuntimeError"


@pytest.mark.ray
def test_a_trial_that_failed_before_its_first_report_has_the_values_that_were_drawn():
    from rlctl.agents.training.search.tuner import _ended

    candidate = SimpleNamespace(name="t000", values={"gamma": 0.96})
    lost = SimpleNamespace(config=None, metrics=None, checkpoint=None, error=RuntimeError("the actor died"))
    job = SimpleNamespace(clock=("timesteps", 300), timesteps=300, scheduler="asha")
    ended = _ended(job, candidate, lost)
    assert (ended.values, ended.folder, ended.timesteps) == (candidate.values, None, 0)
    assert ended.error == "the actor died"


@pytest.mark.ray
@pytest.mark.parametrize(("timesteps", "stopped_by"), [(300, ""), (200, "asha")])
def test_a_trial_with_its_timesteps_spent_before_its_time_was_stopped_by_nobody(timesteps, stopped_by):
    on_ray()
    from rlctl.agents.training.search.tuner import _ended

    last = {"timesteps": timesteps, "seconds": 20.0}
    result = SimpleNamespace(config=None, metrics=last, checkpoint=None, error=None)
    job = SimpleNamespace(clock=("seconds", 60.0), timesteps=300, scheduler="asha")
    assert _ended(job, SimpleNamespace(name="t000", values={}), result).stopped_by == stopped_by


@pytest.mark.ray
def test_a_trial_is_learned_and_judged_under_its_own_margins(tmp_path, begun):
    on_ray()
    from rlctl.training.search_plan import resumed_search

    job = resumed_search(begun, {}).job
    (first, second, _), profile = job.candidates, job.space.profile
    run = job.run_of(second.name, second.values, tmp_path)
    hold = second.values["shield.slack_hold_ratio"]
    assert run.recipe.gamma == second.values["gamma"]
    assert run.seed == second.seed == 5
    assert {one.safety.slack_hold_ratio for one in run.courses} == {hold}
    shields = {kind.name: kind.shield() for kind in run.hosts.kinds}
    assert shields["large-measured"] == profile.model_copy(update={"name": "measured-tuned", "slack_hold_ratio": hold})
    assert shields["large"].name == "knee"  # margins are those of one profile
    plain = job.run_of(first.name, first.values, tmp_path)  # as a copy of the second would be
    assert plain.hosts == job.hosts
    assert not (tmp_path / "shield.yaml").exists()


@pytest.mark.ray
def test_merits_under_another_shield_do_not_decide_which_model_of_a_trial_is_the_best(tmp_path, begun, monkeypatch):
    """A trial that is copied under population-based training may get other margins than it had its merits with."""
    on_ray()
    from rlctl.agents.training.search import trial as module
    from rlctl.training.search_plan import resumed_search

    job, copied, kept = resumed_search(begun, {}).job, tmp_path / "copied", []
    first, second, _ = job.candidates
    state = run_folder.State(timesteps=10, seconds=1.0, calls=1, block=0)
    run_folder.write_state(run_folder.checkpoint_folder(copied, 10), state)
    lineage = {"timesteps": 10, "trials": [{"trial": first.name, "since_timesteps": 0, "values": first.values}]}
    (copied / module.LINEAGE).write_text(json.dumps(lineage))
    for name in (run_folder.CONFIG, "evaluations.npz"):
        (copied / name).touch()
    context = SimpleNamespace(get_trial_name=lambda: second.name)
    checkpoint = SimpleNamespace(to_directory=lambda folder: shutil.copytree(copied, folder, dirs_exist_ok=True))
    told = SimpleNamespace(get_context=lambda: context, get_checkpoint=lambda: checkpoint)
    monkeypatch.setattr(module, "tune", told)
    monkeypatch.setattr(module, "learn", lambda run, **_: kept.append((run.folder / "evaluations.npz").exists()))
    monkeypatch.chdir(tmp_path)
    margins = {name: value for name, value in first.values.items() if name.startswith("shield.")}
    for values in ({**second.values, **margins}, second.values):
        module.train({"drawn": {"name": second.name, "values": values}}, job)
    assert kept == [True, False]


def tune(out, *arguments):
    """The command in a process of its own, which a kill leaves no time to clean up."""
    words = [sys.executable, "-m", "rlctl", "tune", "--out", str(out), *arguments]
    with out.with_suffix(".told").open("a") as told:
        return subprocess.Popen(words, stdout=told, stderr=told, env={**os.environ, "NO_COLOR": "1"})


@pytest.mark.ray
def test_killed_and_gone_on_with_it_ends_with_the_same_trials_and_exports_the_winner(tmp_path, space, ray_cluster):
    on_ray()
    out, ray = tmp_path / "search", ["--ray", ray_cluster.address]
    drawn = load_space("ppo", load_recipe("ppo"), space).candidates(3, 4)
    process, reports = tune(out, *TINY, *ray, "--space", str(space)), out / "reports.jsonl"
    while not (reports.is_file() and reports.read_text().count("\n")):
        assert process.poll() is None, out.with_suffix(".told").read_text()
        time.sleep(0.1)
    process.kill()
    process.wait()
    while ray_cluster.running("ImplicitFunc"):  # no trial goes on learning for nobody
        time.sleep(0.1)
    before = reports.read_text()
    assert tune(out, "--resume", *ray).wait() == 0, out.with_suffix(".told").read_text()
    assert reports.read_text().startswith(before)
    history = json.loads((out / "history.json").read_text())
    assert [(one["name"], one["seed"], one["values"]) for one in history["trials"]] == [
        (one.name, one.seed, dict(one.values)) for one in drawn
    ]
    assert sorted(one["place"] for one in history["trials"]) == [1, 2, 3]
    assert not any(one["error"] for one in history["trials"])
    assert all(one["stopped_by"] or one["timesteps"] >= 300 for one in history["trials"])
    with (out / "trials.csv").open() as file:
        assert [row["trial"] for row in csv.DictReader(file)] == [one.name for one in drawn]
    winner = history["choice"]["winner"]
    origin = load(out / "winner" / "bundle").card.training.search
    assert (origin.trial, origin.trials, origin.seed, origin.place) == (winner, 3, 4, 1)
    assert origin.space == history["search"]["digest"]
    assert (out / "winner" / "history.json").read_text() == (out / "history.json").read_text()
    assert not list(out.glob("**/*.part"))
