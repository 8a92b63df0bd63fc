"""Of several training runs the scores and their spread are told."""

import json

import pytest

from rlctl.envs.errors import ConfigError
from scripts.studies.results import read_result, seed_rows, worse


@pytest.fixture
def written(tmp_path):
    def write(name, merit, qos=(100.0, 99.0), be=(40.0, 60.0), ending="budget spent", bundle=True):
        folder = tmp_path / name
        (folder / "bundle").mkdir(parents=True)
        if bundle:
            (folder / "bundle/card.json").write_text("{}")
        scores = {"qos_percent": list(qos), "be_percent": list(be), "override_percent": [0.0, 1.0]}
        run = {
            "folder": str(folder),
            "seed": 3,
            "ending": ending,
            "timesteps": 1200,
            "seconds": 90.0,
            "bundle": str(folder / "bundle"),
            "merit": merit,
            "validation": {"thesis": scores, "noisy": scores},
            "remarks": [],
        }
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"schema": 1, "algorithm": "ppo", "runs": [run]}, indent=1))
        return file

    return write


def test_runs_stand_in_rows_with_mean(written):
    results = [read_result(written("ppo-0", -3.0, be=(90.0, 90.0))), read_result(written("ppo-1", 50.0))]
    rows = seed_rows(results)
    assert [row[0] for row in rows[1:3]] == ["ppo-0", "ppo-1"]
    assert rows[3][:5] == ("mean", "", "99.500", "70.00", "0.50")
    assert rows[4][:4] == ("sd", "", "0.000", "28.28")


def test_a_single_run_has_no_spread(written):
    assert [row[0] for row in seed_rows([read_result(written("dqn-0", 1.0))])] == ["run", "dqn-0", "mean"]


@pytest.mark.parametrize("lacks", [{"ending": "stopped"}, {"bundle": False}])
def test_ended_run_is_not_finished(written, lacks):
    assert read_result(written("whole", 1.0)).is_finished
    assert not read_result(written("part", 1.0, **lacks)).is_finished


def test_another_file_is_one_line(tmp_path):
    (tmp_path / "other.json").write_text('{"schema": 1}')
    with pytest.raises(ConfigError, match="runs"):
        read_result(tmp_path / "other.json")


def test_policy_that_loses_is_told_by_scenario(tmp_path):
    lost = [("feedforward", "two-core", -0.65), ("feedforward", "noisy", -0.2), ("frozen", "noisy", -0.4)]
    rows = [{"against": who, "scenario": name, "qos_guarantee_percent": {"mean": by}} for who, name, by in lost]
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps({"shields": {"responsive": {"differences": rows}}}))
    assert worse(file, "responsive") == [
        "two-core: -0.65 points of QoS against feedforward, down to -0.25 are put up with"
    ]
