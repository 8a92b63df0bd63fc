"""Live managers round by round: what is claimed of them, and what a result file shows."""

import json

import pytest

from rlctl.bench.rounds import LiveRounds, lowest_qos, read_rounds
from rlctl.cli import main
from rlctl.envs.errors import ConfigError

NAMES = ("frozen", "weights", "heracles", "autorate", "ppo")


def result(qos, be, scenario="live-network"):
    """A scenario's result of each manager's figures by round."""
    rounds = [
        {"qos_percent": {name: own[number] for name, own in qos.items()},
         "be_percent": {name: be[name][number] for name in qos}}
        for number in range(len(next(iter(qos.values()))))
    ]  # fmt: skip
    return {
        "schema": 1,
        "plant": "host",
        "scenario": scenario,
        "managers": {name: {} for name in qos},
        "rounds": rounds,
    }


QOS = {
    "frozen": [100.0, 100.0, 100.0, 90.0],
    "weights": [1.0, 2.0, 3.0, 0.0],
    "heracles": [100.0, 97.0, 98.0, 60.0],
    "autorate": [98.0, 99.0, 97.0, 98.0],
    "ppo": [100.0, 99.0, 100.0, 80.0],
}
BE = {
    "frozen": [0.0] * 4,
    "weights": [70.0, 71.0, 69.0, 70.0],
    "heracles": [30.0, 31.0, 32.0, 10.0],
    "autorate": [20.0, 21.0, 20.0, 20.0],
    "ppo": [40.0, 41.0, 43.0, 20.0],
}


@pytest.fixture
def rounds():
    return LiveRounds.model_validate(result(QOS, BE))


def test_round_in_which_lc_alone_misses_is_marked(rounds):
    assert rounds.marked == (4,)
    assert rounds.mean("ppo") == (94.75, 36.0), "worse runs stay in the means"
    qos, be = rounds.pairs("weights")["ppo"].differences.values()
    assert qos.mean == pytest.approx(299.0 / 3 - 2.0)
    assert be.seeds == 3, "nobody is blamed for the fourth"


def test_best_heuristic_is_one_that_held(rounds):
    """Heracles has more BE, but is below 97 % on the mean: autorate held."""
    assert rounds.best_heuristic == "autorate"
    assert rounds.baselines() == ("weights", "autorate")
    assert rounds.baselines("ppo") == ("ppo",)


def test_corrected_for_all_that_is_compared(rounds):
    pairs = rounds.pairs("autorate")
    assert set(pairs) == set(NAMES) - {"autorate"}
    alone = LiveRounds.model_validate(result({n: QOS[n] for n in ("frozen", "autorate", "ppo")}, BE))
    corrected, before = (one["ppo"].differences["be_throughput_percent"] for one in (pairs, alone.pairs("autorate")))
    assert corrected.p > before.p


def test_lowest_qos_names_its_host(rounds):
    other = LiveRounds.model_validate(result({"ppo": [70.0]}, {"ppo": [5.0]}, "live-disk"))
    assert lowest_qos([rounds, other], "ppo") == (70.0, "live-disk")
    assert lowest_qos([rounds, other], "weights") == (1.5, "live-network")


def test_file_is_shown_in_one_table(tmp_path, capsys):
    path = tmp_path / "live.json"
    disk = result(
        {"ppo": [70.0, 71.0], "weights": [10.0, 11.0]}, {"ppo": [5.0, 6.0], "weights": [9.0, 9.5]}, "live-disk"
    )
    path.write_text(json.dumps({"schema": 1, "scenarios": {"live-network": result(QOS, BE), "live-disk": disk}}))
    assert main(["bench", "table", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "QoS less autorate" in shown
    assert "missed windows in rounds 4" in shown
    last = next(line for line in reversed(shown.splitlines()) if line.startswith("| ppo"))
    assert [cell.strip() for cell in last.split("|")[2:6]] == ["94.8 / 36.0", "70.5 / 5.5", "70.5", "live-disk"]
    assert main(["bench", "table", str(path), "--against", "weights"]) == 0
    assert "less autorate" not in capsys.readouterr().out
    assert main(["bench", "table", str(path), "--against", "htb"]) == 78
    assert "--against htb: was not measured on live-network" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plant": "sim"}', '{"scenarios": 3}'])
def test_another_file_is_one_line(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not what `rlctl bench --plant host --json FILE` wrote"):
        read_rounds(path)
