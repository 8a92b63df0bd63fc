"""A bundle takes part in a benchmark by its folder, is called by the folder's name, and is verified by its hash."""

import json

import pytest

from rlctl.agents import catalogue
from rlctl.cli import main

BRIEF = ["bench", "--scenario", "diurnal", "--seeds", "2", "--duration", "30"]


@pytest.fixture
def mine(make_bundle, tmp_path):
    return make_bundle(tmp_path / "mine")


def test_a_table_calls_a_bundle_by_its_folder(mine, tmp_path, capsys):
    out = tmp_path / "result.json"
    asked = f"frozen,{mine},{mine}-bare"
    assert main([*BRIEF, "--jobs", "1", "--managers", asked, "--json", str(out)]) == 0
    table, told = capsys.readouterr()
    assert [line.split()[1] for line in table.splitlines() if line.startswith("| ")] == [
        "manager",
        "frozen",
        "mine",
        "mine-bare",
    ]
    assert "without shield and mask" in told
    found = json.loads(out.read_text())["managers"]
    assert set(found) == set(asked.split(","))
    assert found[str(mine)]["be_throughput_percent"]["mean"] > 0.0
    assert found[f"{mine}-bare"]["shield_override_percent"]["mean"] == 0.0


@pytest.mark.slow
def test_workers_load_bundle_and_verify_agrees(mine, tmp_path, capsys):
    out = tmp_path / "result.json"
    assert main([*BRIEF, "--jobs", "2", "--managers", str(mine), "--json", str(out)]) == 0
    assert main(["bench", "verify", str(out), "--jobs", "1"]) == 0
    assert "equal" in capsys.readouterr().out


def test_verify_notices_another_policy_in_the_same_folder(mine, make_bundle, linear, tmp_path, capsys):
    import numpy as np

    from rlctl.agents.served.card import ObservationTable
    from rlctl.envs.actions import MOVES
    from rlctl.envs.observation import LAGS

    out = tmp_path / "result.json"
    assert main([*BRIEF, "--jobs", "1", "--managers", str(mine), "--json", str(out)]) == 0
    idle = linear(np.zeros((len(MOVES), ObservationTable.here(LAGS).size)), np.zeros(len(MOVES)))
    make_bundle(mine, policy=idle)
    assert main(["bench", "verify", str(out), "--jobs", "1"]) == 1
    assert "1 value differs" in capsys.readouterr().out


def test_a_report_names_it_by_its_folder(mine, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")
    report = tmp_path / "report"
    assert main([*BRIEF, "--jobs", "1", "--managers", f"frozen,{mine}", "--report", str(report)]) == 0
    said = (report / "report.md").read_text()
    assert "| mine" in said


@pytest.mark.parametrize("plant", ["sim", "host"])
def test_all_leaves_out_what_this_checkout_lacks(plant, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "files", lambda package: tmp_path)
    assert main(["bench", "--plant", plant, "--dry-run", "--managers", "all"]) == 0
    lines = capsys.readouterr().err.splitlines()
    absent = [line.split(":")[0] for line in lines if line.startswith("left out")]
    wanted = ["left out ppo", "left out dqn"]
    assert [name for name in absent if name != "left out cpu-idle"] == wanted
    assert plant == "host" or "left out cpu-idle" in absent
    listed = next(line for line in lines if "managers none, weights" in line)
    assert "ppo" not in listed


def test_all_takes_shipped_without_bare_twins(make_bundle, capsys, monkeypatch, tmp_path):
    for name in ("ppo", "dqn"):
        make_bundle(tmp_path / "configs" / "bundles" / name, name=name)
    monkeypatch.setattr(catalogue, "files", lambda package: tmp_path)
    assert main(["bench", "--dry-run", "--managers", "all"]) == 0
    told = capsys.readouterr().err
    assert "greedy-shield, ppo, dqn, oracle" in told
    assert "bare" not in told


@pytest.mark.parametrize("plant", ["sim", "host"])
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("{0}/nowhere", "nowhere/card.json: cannot be read"),
        ("{0}/a/x,{0}/b/x", "names 'x' twice; a bundle goes by the name of its folder"),
        ("ppo,./ppo", "twice; a bundle goes by"),
    ],
)
def test_unfit_bundle_is_told_before_a_start(plant, names, said, tmp_path, capsys):
    assert main(["bench", "--plant", plant, "--dry-run", "--managers", names.format(tmp_path)]) == 78
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_managers_says_which_learned_policies_are_here(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "files", lambda package: tmp_path)
    assert main(["managers"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ppo "))
    assert " learned " in line
    assert "not here: this checkout has no bundle" in line
    assert main(["managers", "--json"]) == 0
    learned = {one["name"]: one for one in json.loads(capsys.readouterr().out)["learned"]}
    assert learned["ppo"]["shielded"]
    assert not learned["ppo-bare"]["shielded"]
    assert "rlctl train --algo ppo" in learned["ppo"]["missing"]
