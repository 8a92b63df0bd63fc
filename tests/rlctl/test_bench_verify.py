"""`rlctl bench verify`: an honest result is confirmed, a changed number is found, another experiment is refused."""

import json

import pytest

from rlctl.cli import main
from rlctl.commands.bench_verify import differences


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("claim") / "result.json"
    asked = ["--scenario", "noisy", "--managers", "frozen,feedforward", "--seeds", "3", "--duration", "40"]
    assert main(["bench", *asked, "--jobs", "1", "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.fixture
def verify(tmp_path, capsys):
    def run(result):
        path = tmp_path / "claimed.json"
        path.write_text(result if isinstance(result, str) else json.dumps(result))
        code = main(["bench", "verify", str(path), "--jobs", "1"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_what_was_measured_is_confirmed(written, verify):
    code, out, _ = verify(written)
    assert (code, out) == (0, "noisy: 2 managers x 3 seeds: equal\n")
    several = {"schema": 1, "scenarios": {"noisy": written}}
    assert verify(several)[:2] == (0, "noisy: 2 managers x 3 seeds: equal\n")


def test_times_of_another_machine_are_no_difference(written, verify):
    managers = {name: {**one, "decision_seconds_p99": 9.0} for name, one in written["managers"].items()}
    assert verify({**written, "managers": managers})[0] == 0


def test_a_number_that_was_touched_is_named(written, verify):
    changed = json.loads(json.dumps(written))
    changed["managers"]["feedforward"]["per_seed"]["be_throughput_percent"][1] += 0.01
    changed["managers"]["feedforward"]["qos_guarantee_percent"]["ci95"][0] = 99.99
    code, out, _ = verify(changed)
    assert code == 1
    assert "noisy: feedforward.per_seed.be_throughput_percent[1]: claimed" in out
    assert "noisy: feedforward.qos_guarantee_percent.ci95[0]: claimed 99.99" in out
    assert "2 values differ" in out


def test_more_seeds_than_were_run_are_a_difference(written, verify):
    code, out, _ = verify({**written, "seeds": 2})
    assert code == 1
    assert "noisy: frozen.qos_guarantee_percent.ci95[0]" in out


@pytest.mark.parametrize("key", ["scenario_digest", "profile_digest", "shield_digest"])
def test_another_experiment_is_refused_before_it_is_run(written, verify, key):
    code, out, told = verify({**written, key: "0123456789ab"})
    assert (code, out) == (78, "")
    assert "0123456789ab" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("no json at all", "cannot be read as JSON"),
        ({"schema": 2}, "no schema 1"),
        ({"schema": 1, "plant": "host"}, "live host"),
        ({"schema": 1, "plant": "sim"}, "scenario: Field required"),
        ([1, 2], "no schema 1"),
        ({"schema": 1, "scenarios": {"thesis": 3}}, "valid"),
    ],
)
def test_what_is_no_result_is_one_line(verify, result, said):
    code, _, told = verify(result)
    assert code == 78
    assert said in told
    assert told.count("\n") == 1


def test_a_claim_that_nobody_found_differs():
    assert list(differences({"a": {"mean": 1.0}}, {})) == [("a", {"mean": 1.0}, None)]
    assert list(differences({"a": [1.0, None]}, {"a": [1.0 + 1e-7, None]})) == []
    assert list(differences({"a": [1.0]}, {"a": [1.0, 2.0]})) == [("a", [1.0], [1.0, 2.0])]
