"""`rlctl bench verify`: an honest result is confirmed, a changed number is found, another experiment is refused."""

import json

import pytest

from rlctl.cli import main
from rlctl.commands.bench_verify import differences

GONE = object()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("claim") / "result.json"
    asked = ["--scenario", "noisy", "--managers", "frozen,feedforward", "--seeds", "3", "--duration", "20"]
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


EQUAL = "noisy: 2 managers x 3 seeds: equal\nnot compared: decision_seconds_p99, controller_cpu_percent\n"


def changed(result, *place, value=GONE):
    """A copy with the value at a place set, or taken out."""
    copy = json.loads(json.dumps(result))
    at = copy
    for name in place[:-1]:
        at = at[name]
    if value is GONE:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    return copy


def test_measured_is_confirmed_uncompared_is_said(written, verify):
    assert verify(written) == (0, EQUAL, verify(written)[2])
    assert "note" not in verify(written)[2]
    several = {"schema": 1, "scenarios": {"noisy": written}}
    assert verify(several)[:2] == (0, EQUAL)


@pytest.mark.slow
def test_taught_runs_are_run_so_again(verify, tmp_path):
    asked = ["--scenario", "capped-link", "--managers", "learned-table", "--seeds", "2", "--duration", "20"]
    assert main(["bench", *asked, "--adapt", "20", "--jobs", "1", "--json", str(tmp_path / "warm.json")]) == 0
    written = json.loads((tmp_path / "warm.json").read_text())
    assert verify(written)[0] == 0
    assert verify(changed(written, "adapt_seconds", value=10.0))[0] == 1


def test_unopened_seeds_are_others_and_verified(written, verify, tmp_path):
    asked = ["--scenario", "noisy", "--managers", "frozen,feedforward", "--seeds", "3", "--duration", "20"]
    path = tmp_path / "fresh.json"
    assert main(["bench", *asked, "--unopened", "--jobs", "1", "--json", str(path)]) == 0
    fresh = json.loads(path.read_text())
    assert fresh["managers"]["feedforward"] != written["managers"]["feedforward"]
    code, out, _ = verify(fresh)
    assert (code, out[-len(EQUAL) :]) == (0, EQUAL)
    assert verify(changed(fresh, "unopened"))[0] == 1


def test_absent_file_is_said_to_be_missing(capsys):
    assert main(["bench", "verify", "nosuch.json"]) == 78
    assert capsys.readouterr().err == "rlctl: error: nosuch.json: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("given", [["--dry-run"], ["--managers", "ppo"]])
def test_option_verify_would_ignore_is_refused(given, capsys):
    assert main(["bench", *given, "verify", "nosuch.json"]) == 78
    assert f"{given[0]} is not verify's" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["decision_seconds_p99", "controller_cpu_percent"])
def test_times_of_another_machine_are_no_difference(written, verify, name):
    assert verify(changed(written, "managers", "frozen", name, value=9.0))[0] == 0
    assert verify(changed(written, "managers", "frozen", name))[0] == 0


def test_a_number_that_was_touched_is_named(written, verify):
    touched = json.loads(json.dumps(written))
    touched["managers"]["feedforward"]["per_seed"]["be_throughput_percent"][1] += 0.01
    touched["managers"]["feedforward"]["qos_guarantee_percent"]["ci95"][0] = 99.99
    code, out, _ = verify(touched)
    assert code == 1
    assert "noisy: managers.feedforward.per_seed.be_throughput_percent[1]: claimed" in out
    assert "noisy: managers.feedforward.qos_guarantee_percent.ci95[0]: claimed 99.99" in out
    assert "2 values differ" in out


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("target_milliseconds", 20, "claimed 20"),
        ("target_milliseconds", GONE, "claimed nothing"),
        ("tick_seconds", 1.0001, "claimed 1.0001"),
        ("core_cpus", 7, "claimed 7"),
        ("profile", "another", 'claimed "another"'),
        ("shield", "heracles", 'claimed "heracles"'),
        ("tuned_source", "tuned", "found nothing"),
        ("decision_seconds_p99", 1.0, "found nothing"),
    ],
)
def test_a_header_that_was_touched_is_named(written, verify, name, value, said):
    assert written.get(name) != value
    code, out, _ = verify(changed(written, name, value=value))
    assert code == 1
    assert f"noisy: {name}: " in out
    assert said in out
    assert "1 value differs" in out


def test_another_version_is_a_note_and_no_difference(written, verify):
    code, out, told = verify(changed(written, "rlctl", value="0.0.1"))
    assert (code, out) == (0, EQUAL)
    assert "note: noisy: was written by rlctl 0.0.1" in told


@pytest.mark.parametrize(
    "place",
    [
        ("emu_percent",),
        ("samples",),
        ("remarks",),
        ("emu_percent", "mean"),
        ("emu_percent", "ci95"),
        ("emu_percent", "ci99"),
        ("per_seed",),
        ("per_seed", "lc_cpus"),
    ],
)
def test_a_claim_that_was_left_out_is_named(written, verify, place):
    code, out, _ = verify(changed(written, "managers", "frozen", *place))
    assert code == 1
    assert f"noisy: managers.frozen.{'.'.join(place)}: claimed nothing, found " in out
    assert "1 value differs" in out


@pytest.mark.parametrize(
    "place", [("luck",), ("managers", "frozen", "luck"), ("managers", "frozen", "lc_cpus", "ci90")]
)
def test_what_no_bench_writes_is_named(written, verify, place):
    code, out, _ = verify(changed(written, *place, value=7))
    assert code == 1
    assert f"noisy: {'.'.join(place)}: claimed 7, found nothing" in out


def test_more_seeds_than_were_run_are_a_difference(written, verify):
    code, out, _ = verify({**written, "seeds": 2})
    assert code == 1
    assert "noisy: managers.frozen.qos_guarantee_percent.ci95[0]" in out


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
        ("[" * 100_000, "cannot be read as JSON: too deeply nested"),
        ({"schema": 2}, "no schema 1"),
        ({"schema": 1, "plant": "host"}, "live host"),
        ({"schema": 1, "plant": "sim"}, "scenario: Field required"),
        ([1, 2], "no schema 1"),
        ("3", "no schema 1"),
        ({"schema": 1, "scenarios": {"thesis": 3}}, "thesis: Input should be a valid dictionary"),
        ({"schema": 1, "scenarios": {}}, "results by scenario"),
        ({"schema": 1, "scenarios": [1]}, "results by scenario"),
    ],
)
def test_what_is_no_result_is_one_line(verify, result, said):
    code, out, told = verify(result)
    assert (code, out) == (78, "")
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("managers",), GONE, "noisy.managers: Field required"),
        (("managers",), {}, "noisy.managers: "),
        (("managers", "frozen"), 3, "noisy.managers.frozen: "),
        (("managers", "frozen", "lc_cpus", "mean"), float("nan"), "cannot be read as JSON: NaN"),
        (("seeds",), "3", 'noisy.seeds: Input should be a valid integer, not "3"'),
        (("seeds",), True, "noisy.seeds: "),
        (("tuned",), True, "tuned_source or tuned_digest is missing"),
        (("scenario",), 3, "scenario: Input should be a valid string, not 3"),
    ],
)
def test_value_of_wrong_kind_is_one_line(written, verify, place, value, said):
    wrong = changed(written, *place, value=value)
    for result in (wrong, {"schema": 1, "scenarios": {"noisy": wrong}}):
        code, out, told = verify(result)
        assert (code, out) == (78, "")
        assert said in told
        assert told.count("\n") == 1


def test_one_sided_name_is_a_difference():
    assert list(differences({"a": {"mean": 1.0}}, {})) == [("a", '{"mean": 1.0}', "nothing")]
    assert list(differences({}, {"a": None})) == [("a", "nothing", "null")]
    assert list(differences({"a": [1.0, None]}, {"a": [1.0 + 1e-7, None]})) == []
    assert list(differences({"a": [1.0]}, {"a": [1.0, 2.0]})) == [("a", "[1.0]", "[1.0, 2.0]")]
    assert list(differences(True, 1, "tuned")) == [("tuned", "true", "1")]


def test_asked_weight_is_verified(tmp_path, capsys):
    path, folder = tmp_path / "result.json", tmp_path / "report"
    asked = [
        "--scenario",
        "two-core-nginx",
        "--be-weight",
        "minimum",
        "--managers",
        "frozen,feedforward",
        "--seeds",
        "2",
    ]
    assert main(["bench", *asked, "--duration", "20", "--jobs", "1", "--json", str(path), "--report", str(folder)]) == 0
    assert "--be-weight minimum" in (folder / "report.md").read_text()
    capsys.readouterr()
    assert main(["bench", "verify", str(path), "--jobs", "1"]) == 0
    claimed = json.loads(path.read_text())
    for weight, code in (("equal", 78), ("huge", 78)):
        path.write_text(json.dumps(claimed | {"be_weight": weight}))
        assert main(["bench", "verify", str(path), "--jobs", "1"]) == code
