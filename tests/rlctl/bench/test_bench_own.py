"""`rlctl bench` and `rlctl shadow report` with a manager of one's own beside the others."""

import json
from pathlib import Path

import pytest

from rlctl.cli import main

TOY = """
from rlctl.agents.managers.manager import Manager


class Toy(Manager):
    def begin(self):
        return self.limits.minimum

    def decide(self, telemetry):
        {answer}
"""
SHORT = ["bench", "--scenario", "noisy", "--seeds", "2", "--duration", "20"]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file in the working directory, and the name of its class."""
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text(TOY.format(answer="return self.limits.minimum, 'the minimum'"))
    return "toy.py:Toy"


def test_it_has_a_row_beside_the_others(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main([*SHORT, "--jobs", "2", "--managers", f"./{toy},frozen", "--json", str(out)]) == 0
    assert "| Toy " in capsys.readouterr().out
    found = json.loads(out.read_text())["managers"]
    assert found[f"./{toy}"]["be_throughput_percent"]["mean"] > found["frozen"]["be_throughput_percent"]["mean"]
    assert main(["bench", "verify", str(out)]) == 78, "a file of results may not name code to run"
    assert "code of a file runs only when --managers" in capsys.readouterr().err


def test_reports_result_cannot_be_verified(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    managers = ["--managers", f"{toy},frozen"]
    assert main([*SHORT, "--jobs", "1", *managers, "--report", "out"]) == 0
    capsys.readouterr()
    assert main(["bench", "verify", "out/result.json"]) == 78
    said = capsys.readouterr().err
    assert "is the result.json of a report; verify reads what `rlctl bench --json FILE` wrote" in said
    claimed = json.loads(Path("out/result.json").read_text())
    several = {"schema": 1, "scenarios": {"noisy": {**claimed, "managers": {"frozen": {}}}}, "command": "rlctl bench"}
    Path("out/result.json").write_text(json.dumps(several))
    assert main(["bench", "verify", "out/result.json"]) == 78
    assert capsys.readouterr().err.endswith("what `rlctl bench --json FILE` wrote\n")


@pytest.mark.slow
def test_raised_in_another_process_is_one_line(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("raising.py").write_text(TOY.format(answer="return 1 / 0"))
    assert main([*SHORT, "--jobs", "2", "--managers", f"{toy},raising.py:Toy"]) == 78
    assert "twice; a bundle goes by" in capsys.readouterr().err
    assert main([*SHORT, "--jobs", "2", "--managers", "frozen,raising.py:Toy"]) == 78
    assert "raising.py:10: Toy.act raised ZeroDivisionError" in capsys.readouterr().err


def test_no_scenario_names_code(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = Path(__file__).parents[3] / "configs/scenarios/noisy.yaml"
    Path("mine.yaml").write_text(f"{shipped.read_text()}\nmanagers: {{'{toy}': {{}}}}\n")
    assert main(["bench", "--scenario", "mine.yaml", "--managers", "frozen", "--seeds", "2", "--duration", "20"]) == 78
    assert "code of a file runs only when --managers" in capsys.readouterr().err


def test_no_result_names_a_guard_to_run(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main([*SHORT, "--jobs", "1", "--managers", "frozen", "--json", str(out)]) == 0
    out.write_text(out.read_text().replace('"shield_source": "measured"', f'"shield_source": "measured+{toy}"'))
    assert main(["bench", "verify", str(out)]) == 78
    assert "names toy.py:Toy: code of a file" in capsys.readouterr().err


def test_a_shadow_report_asks_it_too(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rlctl.agents import catalogue
    from rlctl.safety.profile import load_profile
    from rlctl.safety.shield import Shield
    from tests.doubles.plant import FakePlant
    from tests.doubles.tick_logs import record_run

    plant = FakePlant()
    policy, shield = catalogue.build("greedy-shield"), Shield(load_profile("responsive"), plant.limits)
    record_run(tmp_path, plant, policy, shield, 5)
    capsys.readouterr()
    assert main(["shadow", "report", str(tmp_path / "ticks.jsonl"), "--policy", f"{toy},frozen"]) == 0
    assert "| Toy " in capsys.readouterr().out
