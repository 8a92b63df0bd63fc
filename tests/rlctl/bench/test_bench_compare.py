"""`rlctl bench compare`: two result files of one experiment are paired by seed, and what does not fit is said."""

import json
from pathlib import Path

import pytest

from rlctl.cli import main

STORED = Path(__file__).parents[3] / "docs/results/capped.json"


def written(path, **changes):
    """A stored result with ppo's QoS a point less in each run of one scenario."""
    result = json.loads(STORED.read_text())
    scenario = result["scenarios"]["capped-link"]
    runs = scenario["managers"]["ppo"]["per_seed"]
    runs["qos_guarantee_percent"] = [value - 1.0 for value in runs["qos_guarantee_percent"]]
    scenario |= changes
    path.write_text(json.dumps(result))
    return str(path)


def compared(capsys, *files):
    code = main(["bench", "compare", *map(str, files)])
    said = capsys.readouterr()
    return code, {line.split("|")[1].strip(): line for line in said.out.splitlines() if "|" in line}, said.err


def test_a_lost_point_is_found_where_it_is(capsys, tmp_path):
    code, rows, said = compared(capsys, STORED, written(tmp_path / "worse.json"))
    assert code == 0
    assert "| -1.00 *" in " ".join(rows["capped-link: ppo"].split())
    assert "none seen" in rows["capped-disk: ppo"]
    assert "note" not in said


def test_other_conditions_are_said(capsys, tmp_path):
    _, _, said = compared(capsys, STORED, written(tmp_path / "other.json", shield_digest="0"))
    assert "note: capped-link: another shield_digest" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", str(STORED), str(STORED.with_name("tuned.json"))], "there is nothing to compare"),
        (["--seeds", "3", "compare", str(STORED), str(STORED)], "--seeds is not compare's"),
        (["--managers", "frozen", "--against", "ppo"], "--against ppo: is not among the managers"),
        (["--plant", "host", "--against", "frozen"], "a live host does not have"),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments, told, capsys):
    assert main(["bench", *arguments]) == 78
    assert told in capsys.readouterr().err
