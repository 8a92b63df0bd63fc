"""`rlctl train` and `rlctl evaluate` from the command line: mistakes are one line, a smoke run ends with a bundle."""

import json
import os
import shutil
import signal
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest

from rlctl.agents.training.run_folder import begin
from rlctl.cli import main
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.yaml_edge import configs_folder
from rlctl.learn.plan import TrainingOptions, new_folder, new_plan, resumed_plan
from rlctl.safety.profile import load_profile
from tests.doubles.command import refused

needs_training = pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("torch", "sb3_contrib")), reason="needs rlctl[train]"
)


def test_dry_run_tells_every_value_and_origin(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--algo", "ppo", "--total-timesteps", "2000", "--seed", "7", "--shield", "heracles", "--dry-run"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "n_timesteps: 2000 # --total-timesteps" in out
    assert "too many for a try-out" in out
    assert "hyperparameters: # configs/training/ppo.yaml" in out
    assert "thesis: {seconds: 30, shield: heracles}" in out
    assert "seed: 7" in out
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_line(capsys, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("rlctl/SimHost-v0:\n  n_stepz: 3\n")
    refused(capsys, 78, ["train"], "--algo is needed")
    refused(capsys, 2, ["train", "--algo", "sarsa"], "--algo")
    refused(capsys, 2, ["train", "--algo", "recurrent-ppo"], "recurrent-ppo was removed")
    refused(capsys, 2, ["train", "--algo", "ppo", "--seeds", "0"], "--seeds")
    refused(capsys, 78, ["train", "--algo", "ppo", "--config", str(wrong)], f"{wrong}:2: ", "did you mean 'n_steps'")
    refused(capsys, 78, ["train", "--algo", "ppo", "--hosts", str(tmp_path / "none.yaml")], "none.yaml")
    refused(capsys, 78, ["train", "--algo", "ppo", "--shield", "titanium"], "titanium")
    refused(capsys, 78, ["train", "--algo", "ppo", "--scenario", "live-nginx"], "live host")
    refused(capsys, 78, ["train", "--algo", "ppo", "--init", str(tmp_path / "no.zip")], "no.zip")
    refused(capsys, 78, ["train", "--resume", str(tmp_path)], "no folder of a run")
    refused(capsys, 78, ["train", "--algo", "ppo", "--json", f"{wrong}/x"], f"{wrong}: is not a folder")
    refused(capsys, 78, ["train", "--resume", str(tmp_path), "--algo", "ppo"], "leave out --algo")
    refused(capsys, 2, ["evaluate", str(tmp_path), "--seeds", "1"], "no interval")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--managers", "elsewhere/mine"], "--managers names 'mine' twice; a bundle goes by the name of its folder"),
        (["--scenario", ","], "--scenario names nothing"),
        (["--shield", ","], "--shield names nothing"),
        (["--duration", "0.1"], "less than two ticks"),
        (["--managers", "htb"], "'htb' is a setting of the kernel"),
        (["--managers", "cpu-idle"], "the simulated hosts know no idle class"),
    ],
)
def test_unscorable_is_told_before_running(words, told, make_bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlctl.commands.evaluate.run_sim", lambda *_: pytest.fail("something ran"))
    refused(capsys, 78, ["evaluate", str(make_bundle(tmp_path / "mine")), "--jobs", "1", *words], told)


def test_second_signal_ends_at_once(capsys):
    from rlctl.learn.progress import signals_noted

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with signals_noted("once more to end at once") as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught == [signal.SIGTERM]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert "once more" in capsys.readouterr().err


def test_without_the_libraries_the_way_out_is_told(capsys, monkeypatch):
    monkeypatch.setattr("rlctl.envs.errors.find_spec", lambda name: None if name == "torch" else True)
    refused(capsys, 78, ["train", "--algo", "ppo"], "pip install 'rlctl[train]'", "scripts/install dev,train")


def test_calibrated_host_is_learned_on(tmp_path):
    profile = tmp_path / "mine.yaml"
    text = new_plan(TrainingOptions(algorithm="ppo")).run.hosts.kinds[-1].host().model_copy(update={"name": "mine"})
    profile.write_text(text.model_dump_json())
    plan = new_plan(TrainingOptions(algorithm="ppo", profiles=(str(profile),), scenarios=("thesis",)))
    assert [one.name for one in plan.run.courses] == ["thesis", "mine"]
    assert plan.run.hosts.kinds[-1].name == "mine"


@pytest.mark.slow
def test_run_goes_on_by_its_first_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shield.yaml").write_text(load_profile("heracles").model_dump_json())
    Path("host.yaml").write_text(load_host("two-core-nginx").model_dump_json())
    text = (configs_folder("scenarios") / "two-core.yaml").read_text()
    Path("scenario.yaml").write_text(text.replace("profile: two-core-host", "profile: host.yaml"))
    asked = TrainingOptions(algorithm="ppo", shield="shield.yaml", scenarios=("scenario.yaml", "thesis"))
    run = new_plan(asked).run
    begin(replace(run, folder=tmp_path / "run"))
    for file in ("shield.yaml", "host.yaml", "scenario.yaml"):
        Path(file).write_text("changed since")
    again = resumed_plan(tmp_path / "run", {}).run
    assert [one.name for one in again.courses] == ["two-core", "thesis"]
    for one, other in zip(again.courses, run.courses, strict=True):
        assert (one.host.digest, one.safety.digest) == (other.host.digest, other.safety.digest)


def test_scenario_goes_on_by_copies_of_its_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hosts").mkdir()
    Path("hosts/host.yaml").write_text(load_host("two-core-nginx").model_dump_json())
    text = (configs_folder("scenarios") / "two-core.yaml").read_text()
    Path("scenario.yaml").write_text(text.replace("profile: two-core-host", "profile: hosts/host.yaml"))
    run = new_plan(TrainingOptions(algorithm="ppo", scenarios=("scenario.yaml",))).run
    begin(replace(run, folder=tmp_path / "run"))
    Path("hosts/host.yaml").unlink()
    assert resumed_plan(tmp_path / "run", {}).run.courses[0].host.digest == run.courses[0].host.digest


@pytest.mark.slow
def test_timed_run_gets_more_steps_when_asked(tmp_path):
    run = new_plan(TrainingOptions(algorithm="ppo", max_seconds=60.0)).run
    begin(replace(run, folder=tmp_path / "run"))
    assert resumed_plan(tmp_path / "run", {}).run.max_seconds == 60.0
    assert resumed_plan(tmp_path / "run", {"total_timesteps": 9_000_000}).run.max_seconds is None
    both = resumed_plan(tmp_path / "run", {"total_timesteps": 9_000_000, "max_seconds": 120.0}).run
    assert both.max_seconds == 120.0


@pytest.mark.parametrize("asked", [{"profiles": ("capped-link",)}, {"scenarios": ("two-core", "two-core")}])
def test_two_courses_of_one_name_are_refused(asked):
    with pytest.raises(ConfigError, match=r"two scenarios have the name (capped-link|two-core);"):
        new_plan(TrainingOptions(algorithm="ppo", **asked))


@pytest.mark.slow
@needs_training
@pytest.mark.parametrize("words", [["--out", "X"], ["--seed", "1048575"]])
def test_impossible_run_is_told_before_any(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("X/seed-1").mkdir(parents=True)
    Path("X/seed-1/config.yml").write_text("")
    assert main(["train", "--algo", "ppo", "--seeds", "2", "--json", "r.json", *words]) == 78
    assert not Path("X/seed-0").exists()
    assert not Path("runs").exists()


def test_files_of_one_name_would_overwrite(tmp_path):
    host = new_plan(TrainingOptions(algorithm="ppo")).run.hosts.kinds[-1].host()
    files = [tmp_path / name / "host.yaml" for name in ("nginx", "redis")]
    for file in files:
        file.parent.mkdir()
        file.write_text(host.model_copy(update={"name": file.parent.name}).model_dump_json())
    plan = new_plan(TrainingOptions(algorithm="ppo", profiles=tuple(map(str, files))))
    with pytest.raises(ConfigError, match=r"redis/host\.yaml: would overwrite the copy of .*nginx/host\.yaml"):
        begin(replace(plan.run, folder=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_runs_that_begin_together_have_each_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new_folder("ppo") == Path("runs/ppo/1")
    stale = iter([Path("runs/ppo/1"), Path("runs/ppo/2")])  # as the other one, which looked before it was made
    monkeypatch.setattr("rlctl.learn.plan.next_folder", lambda _: next(stale))
    assert new_folder("ppo") == Path("runs/ppo/2")
    assert Path("runs/ppo/2").is_dir()


@needs_training
@pytest.mark.train
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_smoke_run_leaves_a_scored_bundle(algorithm, capsys, tmp_path):
    out, table = tmp_path / "run", tmp_path / "scores.json"
    words = ["train", "--algo", algorithm, "--total-timesteps", "600", "--scenario", "two-core"]
    assert main([*words, "--out", str(out), "--json", str(table)]) == 0
    printed, err = capsys.readouterr()
    assert "two-core" in printed
    assert "left: " in err or "100%" in err
    told = json.loads(table.read_text())["runs"][0]
    assert told["timesteps"] >= 600
    assert told["ending"] == "budget spent"
    assert (out / "command.txt").read_text().startswith(f"rlctl train --algo {algorithm} --seed 0")
    few = ["--scenario", "two-core", "--seeds", "2", "--shield", "responsive", "--duration", "10", "--jobs", "1"]
    assert main(["evaluate", str(out / "bundle"), *few, "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)["shields"]["responsive"]
    assert len(scored["scenarios"]["two-core"]["managers"]) == 5
    assert {one["against"] for one in scored["differences"]} >= {"frozen", "prm-hybrid-tuned", "feedforward"}


@pytest.mark.slow
@needs_training
@pytest.mark.train
def test_several_seeds_have_a_table(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "--algo",
        "ppo",
        "--total-timesteps",
        "300",
        "--scenario",
        "two-core",
        "--seeds",
        "2",
        "--no-export",
    ]
    assert main(words) == 0
    assert "mean ± sd" in capsys.readouterr().out
    assert (tmp_path / "runs/ppo/1").is_dir()
    assert (tmp_path / "runs/ppo/2/best_model.zip").is_file()
    assert main(["train", "--resume", "runs/ppo/1", "--total-timesteps", "600", "--no-export", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["runs"][0]
    assert told["timesteps"] >= 600
    shutil.rmtree(tmp_path / "runs")


@pytest.mark.slow
@needs_training
@pytest.mark.train
def test_scores_go_into_the_card_on_request(capsys, tmp_path, monkeypatch):
    from rlctl.commands import evaluate

    bundle = tmp_path / "run" / "bundle"
    words = ["train", "--algo", "ppo", "--total-timesteps", "300", "--scenario", "two-core"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((bundle / "card.json").read_text())["scores"] is None
    short = evaluate._scenarios
    monkeypatch.setattr(evaluate, "_scenarios", lambda names, _: short(names, 10.0))
    few = ["--scenario", "two-core", "--seeds", "2", "--shield", "responsive,knee", "--jobs", "1"]
    assert main(["evaluate", str(bundle), *few, "--write-card"]) == 0
    scores = json.loads((bundle / "card.json").read_text())["scores"]
    assert set(scores["two-core"]) == {"responsive", "knee"}
    assert scores["two-core"]["knee"]["seeds"] == 2
