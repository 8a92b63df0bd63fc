"""Every mistake is one line on stderr, with the documented exit code, and changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl import __version__
from rlctl.cli import COMMANDS, GONE, main
from tests.doubles.command import refused
from tests.waiting import PATIENCE_SECONDS


def run(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "rlctl", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        **options,
    )


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n    {name}" in out for name in COMMANDS)
    assert "examples:" in out


def test_users_command_behind_options_is_whole(monkeypatch, tmp_path):
    """argparse finds no place for it behind `--config FILE`, and takes a `--` of its own away."""
    seen = []
    monkeypatch.setattr("rlctl.commands.app.run", lambda args: seen.append((args.config, args.words)) or 0)
    for words in (["grep", "--", "-x"], ["sleep", "1"]):
        assert main(["app", "run", "encoder.yaml", "--config", "serve.yaml", "--", *words]) == 0
    assert seen == [(Path("serve.yaml"), ["grep", "--", "-x"]), (Path("serve.yaml"), ["sleep", "1"])]
    assert main(["app", "run", "encoder.yaml", "git", "checkout", "--", "."]) == 0
    assert seen[-1] == (None, ["git", "checkout", "--", "."])


@pytest.mark.parametrize(("word", "meant"), [("application", "app"), ("rep", "replay"), ("sevre", "serve")])
def test_unknown_command_is_told_its_neighbour(word, meant, capsys):
    refused(capsys, 2, [word], repr(word), f"perhaps {meant}; see")
    refused(capsys, 2, ["zzz"], "invalid choice: 'zzz'")


@pytest.mark.parametrize("command", GONE)
def test_a_removed_command_names_its_replacement(command, capsys):
    refused(capsys, 2, [*command.split(), "--some", "option"], f" was removed: {GONE[command]}")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    assert main([command, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlctl {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [[], ["srve"], ["init"], ["serve", "--config"], ["doctor", "--jsn"], ["config", "explain"], ["--frobnicate"]],
)
def test_wrong_usage_is_one_line_and_2(words, capsys):
    refused(capsys, 2, words, "--help`")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--config", "s.yaml", "--dryrun"], "--dryrun; did you mean --dry-run?; see `rlctl serve --help`"),
        (["config", "check", "s.yaml", "--jsn"], "--jsn; did you mean --json?; see `rlctl config check --help`"),
        (["serve", "--config", "s.yaml", "now"], "unrecognized arguments: now; see `rlctl serve --help`"),
    ],
)
def test_unknown_option_is_told_the_nearest(words, told, capsys):
    refused(capsys, 2, words, told)


@pytest.mark.parametrize("duration", ["0", "-1", "nan", "inf", "soon"])
def test_an_impossible_duration_is_usage(duration, capsys, tmp_path):
    refused(capsys, 2, ["serve", "--config", str(tmp_path / "x"), f"--duration={duration}"], "--duration")


@pytest.mark.parametrize("words", [["serve", "--config"], ["config", "check"], ["config", "show"]])
def test_a_missing_file_is_78(words, capsys, tmp_path):
    refused(capsys, 78, [*words, str(tmp_path / "none.yaml")], "none.yaml", "No such file")


@pytest.mark.parametrize("words", [["serve", "--config"], ["config", "check"], ["config", "show"]])
def test_wrong_file_is_78_with_its_line(words, capsys, serve_yaml, tmp_path):
    path = serve_yaml("max_load_rps", "max_load_rsp")
    before = sorted(tmp_path.rglob("*"))
    assert refused(capsys, 78, [*words, str(path)], f"{path}:3: ", "did you mean 'max_load_rps'?") == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("no_privilege")
def test_an_unreadable_file_is_77(capsys, serve_yaml):
    path = serve_yaml()
    path.chmod(0)
    refused(capsys, 77, ["config", "check", str(path)])


def test_an_unknown_manager_is_78_with_the_closest(capsys, serve_yaml):
    path = serve_yaml("name: frozen", "name: heracls")
    for words in (["config", "check", str(path)], ["serve", "--config", str(path)]):
        refused(capsys, 78, words, f"{path}:8: policy.name: no manager 'heracls'; did you mean 'heracles'?")
    refused(capsys, 78, ["serve", "--config", str(serve_yaml()), "--policy", "oracle"], "simulator only")


def test_option_that_manager_does_not_take_is_78(capsys, serve_yaml):
    path = serve_yaml("{name: frozen}", "{name: frozen, options: {colour: red}}")
    refused(capsys, 78, ["config", "check", str(path)], f"{path}:8: policy.options: ", "colour")


def test_an_unknown_shield_is_78(capsys, serve_yaml):
    path = serve_yaml(new="shield: titanium\n")
    refused(capsys, 78, ["config", "check", str(path)], f"{path}:9: shield: ", "titanium", "heracles")


def test_absent_command_for_starving_be_is_warned(capsys, serve_yaml):
    path = serve_yaml("policy:", "  starved: {command: [/no/such/program]}\npolicy:")
    assert main(["config", "check", str(path)]) == 0
    assert "warning: be.starved.command: /no/such/program: no such program: on this host" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["'(\\d+'", "'(\\d+)'"])
def test_log_pattern_without_seconds_is_78(capsys, serve_yaml, pattern):
    path = serve_yaml("nginx-log, path: /nowhere/access.log", f"text, path: /nowhere/access.log, pattern: {pattern}")
    refused(capsys, 78, ["config", "check", str(path)], f"{path}:", "the log pattern")


def test_platform_file_that_is_wrong_is_warning(capsys, serve_yaml, tmp_path):
    (tmp_path / "platform.yaml").write_text("colour: red\n")
    be = f"  applications: {{platform: {tmp_path / 'platform.yaml'}}}\n"
    path = serve_yaml("  workloads:\n    - {kind: cgroup, path: /batch}\n", be)
    assert main(["config", "check", str(path)]) == 0
    assert "platform.yaml:1: unknown key 'colour'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("control: {group: no-such-group}", "control.group: there is no group 'no-such-group'"),
        (f"state_directory: /{'x' * 107}", "control.sock is too long for a socket's name, 107 letters"),
    ],
)
def test_impossible_control_socket_is_a_warning(capsys, serve_yaml, section, told):
    path = serve_yaml(new=f"{section}\n")
    assert main(["config", "check", str(path)]) == 0
    assert f"{told}: a start on this host would end with that\n" in capsys.readouterr().err


def test_a_good_file_is_0(capsys, serve_yaml):
    path = serve_yaml()
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: ok\n"


def test_unwritable_file_is_told_in_one_line(capsys, monkeypatch):
    def fail():
        raise PermissionError(13, "Permission denied", "/out/put.json")

    monkeypatch.setattr("rlctl.bench.scenarios.shipped_scenarios", fail)
    refused(capsys, 77, ["scenarios"], "/out/put.json: Permission denied")


def test_ctrl_c_is_130_without_a_traceback(capsys, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("rlctl.bench.scenarios.shipped_scenarios", interrupt)
    assert main(["scenarios"]) == 130
    assert capsys.readouterr() == ("", "")


def test_scenarios_are_listed_with_their_descriptions(capsys):
    assert main(["scenarios"]) == 0
    assert "live-nginx" in capsys.readouterr().out


def test_reader_who_leaves_ends_work_as_signal_would():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rlctl", "config", "schema"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_behind_stdout_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rlctl", "managers"], stdout=full, stderr=subprocess.PIPE, check=False, text=True
        )
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    assert done.returncode == 75


def test_closed_streams_are_no_error():
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m rlctl managers >&- 2>&-"], check=False)
    assert done.returncode == 0


HEAVY = ("torch", "numba", "sklearn", "matplotlib", "rich", "onnxruntime", "onnx")


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import rlctl.cli; rlctl.cli.main(['--help'])", ("numpy", "pydantic", "yaml", "gymnasium")),
        (
            "import rlctl.commands.serve, rlctl.loop.control, rlctl.loop.narrator, rlctl.serve.notify, "
            "rlctl.safety.shield",
            (*HEAVY, "stable_baselines3", "ray", "pandas"),
        ),
        ("import rlctl.commands.shadow", (*HEAVY, "rlctl.envs.sim.physics", "rlctl.bench.comparison")),
        ("import rlctl.envs.actions, rlctl.envs.observation", ("gymnasium",)),
        (
            "import rlctl.agents.training.rollouts.worker, rlctl.agents.training.rollouts.live_testbed",
            ("torch", "stable_baselines3", "sb3_contrib", "onnx"),
        ),
    ],
    ids=["help", "serve", "shadow watch", "observations and moves", "testbed"],
)
def test_nothing_loads_what_it_does_not_use(code, modules):
    """A testbed, for one, needs no learner installed: hundreds of megabytes on each host, otherwise."""
    code += f"\nimport sys; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_fit_prm_replaces_model_only_when_told_to(capsys, tmp_path):
    model, records = tmp_path / "model.json", tmp_path / "ticks.jsonl"
    model.write_text("precious")
    records.write_text("")
    refused(capsys, 78, ["fit-prm", str(records), "--lc-cpus", "1", "--out", str(model)], "model.json")
    assert model.read_text() == "precious"


def test_fit_prm_without_records_writes_nothing(capsys, tmp_path):
    words = ["fit-prm", str(tmp_path / "none.jsonl"), "--lc-cpus", "1", "--out", str(tmp_path / "model.json")]
    refused(capsys, 78, words, "none.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_fit_prm_turns_records_into_a_model(capsys, tmp_path):
    pytest.importorskip("sklearn")
    records, model = tmp_path / "alone.csv", tmp_path / "model.json"
    rows = [f"{60 + n % 30},{1.0 + 0.01 * (n % 7)}" for n in range(60)]
    records.write_text("util_percent,cpi\n" + "\n".join(rows) + "\n")
    assert main(["fit-prm", str(records), "--lc-cpus", "1", "--out", str(model)]) == 0
    assert capsys.readouterr().out.startswith(f"{model}: 1 bins")
    assert model.exists()


def test_managers_are_listed_with_law_and_source(capsys):
    assert main(["managers"]) == 0
    assert "heracles" in capsys.readouterr().out
    assert main(["managers", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["managers"]}
    assert listed["greedy-shield"]["shielded"] is True
    assert listed["weights"]["weight"] == "minimum"


def test_undecodable_path_is_printed_all_the_same(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.yaml"
    Path(os.fsdecode(path)).write_text("lc: {}\n")
    words = [sys.executable, "-m", "rlctl", "config", "check", path]
    done = subprocess.run(words, capture_output=True, env=os.environ | {"LC_ALL": "C.UTF-8"}, check=False)
    assert b"Traceback" not in done.stdout + done.stderr
    assert done.returncode == 78
