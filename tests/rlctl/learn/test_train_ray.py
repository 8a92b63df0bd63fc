"""`rlctl train --ray`: what cannot be is told before a cluster is looked for, and what came of it is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.run_folder import begin
from rlctl.cli import main
from rlctl.commands.options import command_line
from rlctl.envs.errors import ConfigError
from rlctl.learn.plan import TrainingOptions, live_testbed, new_plan

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--algo", "ppo", "--ray-wait", "5"), "--ray-wait goes with --ray"),
        (("--algo", "dqn", "--live", "live-nginx"), "--live goes with --ray"),
        (("--algo", "ppo", "--ray", "auto", "--live", "live-nginx", "--init", "x"), "give --algo maskable-ppo"),
        (("--algo", "dqn", "--ray", "auto", "--live", "live-nginx"), "--init MODEL.zip"),
        (("--algo", "dqn", "--ray", "auto", "--explore", "0.2"), "--explore goes with --plant host or --live"),
        (("--plant", "host", "--ray", "auto"), "--ray is the simulator's"),
    ],
)
def test_what_does_not_go_together_is_refused(words, said, capsys):
    assert main(["train", *words]) == 78
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "words", "said"),
    [
        ({"algorithm": "dqn", "live": "live-nginx"}, (), "testbeds of live-nginx: give --ray"),
    ],
)
def test_run_does_not_go_on_where_impossible(asked, words, said, tmp_path, capsys):
    run = new_plan(TrainingOptions(**asked)).run
    begin(replace(run, folder=tmp_path / "run"))
    assert main(["train", "--resume", str(tmp_path / "run"), *words]) == 78
    assert said in capsys.readouterr().err


def test_what_goes_on_goes_on_where_it_was():
    assert (
        command_line("train", {"resume": Path("runs/a b"), "ray": "auto"})
        == "rlctl train --resume 'runs/a b' --ray auto"
    )
    assert command_line("train", {"resume": Path("runs/ppo/1"), "ray": None}) == "rlctl train --resume runs/ppo/1"


def test_live_testbed_is_the_scenarios():
    asked = TrainingOptions(algorithm="dqn", live="live-nginx", explore=0.2)
    made = live_testbed(asked, (1, 0))
    assert (made.scenario.name, made.bounds, made.lags) == ("live-nginx", Bounds(0.2, 0.5), (1, 0))
    assert live_testbed(TrainingOptions(algorithm="dqn"), (1, 0)) is None
    with pytest.raises(ConfigError, match="thesis runs in the simulator"):
        live_testbed(TrainingOptions(algorithm="dqn", live="thesis"), (1, 0))
    with pytest.raises(ConfigError, match="exploration probability"):
        live_testbed(asked.model_copy(update={"explore": 2.0}), (1, 0))


@pytest.mark.ray
@pytest.mark.slow
def test_clusters_run_tells_of_every_transition(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    words = ["--algo", "ppo", "--ray", "local", "--n-envs", "16", "--total-timesteps", "1000", "--out", str(out)]
    assert main(["train", *words, "--scenario", "two-core", "--json"]) == 0
    told = capsys.readouterr()
    (run,) = json.loads(told.out)["runs"]
    learned = sum(one["learned"] for one in run["rollouts"].values())
    assert learned == run["timesteps"] >= 1000
    assert f"{learned:,} transitions learned from, at most 0 lost" in told.err
    assert json.loads((out / "rollouts.json").read_text()) == run["rollouts"]
    assert "--ray local" in (out / "command.txt").read_text()
