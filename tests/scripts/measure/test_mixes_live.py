"""`scripts/measure` on this machine: real runs in real groups, nothing left behind, finished runs kept."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.host, pytest.mark.slow]
SCRIPT = Path(__file__).parents[3] / "scripts/measure"

TINY = """
published_cpus: 12
published_clusters: 3
applications:
  bodytrack:
    workload: datapar
    work: 4
    modes:
      - {quota_percent: 100, threads: 1, value: 0.25}
      - {quota_percent: 400, threads: 2, value: 1.0}
  ferret:
    workload: pipeline
    work: 20
    modes:
      - {quota_percent: 100, threads: 1, value: 0.25}
      - {quota_percent: 400, threads: 3, value: 1.0}
mixes:
  T1: {bodytrack: 1, ferret: 1}
"""


@pytest.fixture(autouse=True)
def usable():
    return needs()


@pytest.fixture
def mix(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def of_command(folder, command, instances):
    """A file with a mix of so many instances of a command."""
    modes = [{"quota_percent": 100, "threads": 1, "value": 1.0}]
    mine = {"mine": {"command": command, "modes": modes}}
    path = folder / "mine.yaml"
    path.write_text(json.dumps({"published_cpus": 12, "applications": mine, "mixes": {"X": {"mine": instances}}}))
    return str(path)


def run(*words):
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def groups_of(pid, layout):
    return [path for mount in layout.mounts.values() for path in mount.path.glob(f"**/rlctl-measure-{pid}")]


def pids_of(pid, layout):
    """Of instances that have begun, in whatever group below the measurement's."""
    procs = (path.rglob("cgroup.procs") for path in groups_of(pid, layout))
    with contextlib.suppress(OSError):  # a group that goes away meanwhile
        return {line for files in procs for file in files for line in file.read_text().split()}
    return set()


@pytest.mark.slow
def test_mix_is_measured_reported_and_gone_on_with(mix, tmp_path, usable):
    report, result = tmp_path / "out", tmp_path / "result.json"
    options = ("mix", "--mix", mix, "--report", str(report), "--json", str(result))
    done = run(*options, "--runs", "1")
    assert done.returncode == 0, done.stderr
    assert "T1: 1 bodytrack, 1 ferret; 1 pair of runs" in done.stdout
    assert "AWM" in done.stdout
    assert "2 runs, about" in done.stderr
    assert (report / "benefit.png").read_bytes().startswith(b"\x89PNG")
    metrics = json.loads(result.read_text())["results"]["T1"]["metrics"]
    assert all(metrics["ctime"][side]["mean"] > 0.0 for side in ("unmanaged", "managed"))
    assert "missing" in metrics["ctx"] or metrics["ctx"]["unmanaged"]["mean"] > 0.0
    lines = (report / "runs.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 2
    again = run(*options, "--runs", "2", "--resume")
    assert again.returncode == 0, again.stderr
    assert "4 runs, 2 of them recorded" in again.stderr
    assert (report / "runs.jsonl").read_text().splitlines()[:3] == lines
    assert "2 pairs of runs" in again.stdout
    by_side = {run["turn"]["managed"]: run["said"] for run in map(json.loads, lines[1:])}
    assert [count for _, count in by_side[False]["ferret-1"]["threads"]] == [3]
    assert {count for _, count in by_side[True]["ferret-1"]["threads"]} <= {1, 3}
    refused = run(*options, "--runs", "1")
    assert refused.returncode == 78
    assert "--resume" in refused.stderr


def test_ctrl_c_keeps_what_is_finished(mix, tmp_path, usable):
    report = tmp_path / "out"
    words = [sys.executable, str(SCRIPT), "mix", "--mix", mix, "--report", str(report)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        for line in child.stderr:
            if line.startswith("2/"):
                break
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 130
    assert "T1" in out
    assert f"go on with --resume --report {report}" in err
    assert len((report / "runs.jsonl").read_text().splitlines()) >= 3
    assert groups_of(child.pid, usable) == []


def test_nothing_is_left_when_it_is_killed(tmp_path, usable):
    words = [
        sys.executable,
        str(SCRIPT),
        "mix",
        "--mix",
        of_command(tmp_path, ["sleep", "60"], 9),
        "--platform",
        "whole",
    ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while not (running := pids_of(child.pid, usable)) and child.poll() is None:
            time.sleep(0.01)
        child.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while groups_of(child.pid, usable) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert groups_of(child.pid, usable) == []
    assert running


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "mine-1 ended with code 1"),
        (["/no/such/program"], "mine-1 ended with code 127: /no/such/program: No such file"),
        (["sh", "-c", "kill -9 $$"], "mine-1 ended with code -9"),
    ],
)
def test_a_command_that_fails_is_one_line(tmp_path, command, said):
    failed = run("mix", "--mix", of_command(tmp_path, command, 1), "--runs", "1")
    assert failed.returncode == 75
    assert failed.stderr.splitlines()[-1].startswith(f"measure: {said}")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mix", "--mix", "L9"], 78, "no mix 'L9'"),
        (["mix", "--resume"], 78, "--report DIR"),
        (["mix", "--platform", "nowhere"], 78, "no platform 'nowhere'"),
        (["burst", "--quota-period-ms", "0.5"], 2, "not from 1 to 1000"),
        (["burst", "--threads", "3"], 78, "there are 1, 8"),
        (["burst", "--instances", "0-4"], 2, "numbers from 1"),
        (["burst", "--instances", "many"], 2, "no list of numbers"),
        (["nothing"], 2, "invalid choice"),
    ],
)
def test_unmeasurable_is_told_before_anything_runs(words, code, said, capsys, measure):
    assert measure(*words) == code
    assert said in capsys.readouterr().err


def test_dry_run_says_what_quotas_become(capsys, tmp_path, measure):
    assert measure("mix", "--dry-run", "--report", str(tmp_path / "out")) == 0
    assert "quotas are multiplied by" in capsys.readouterr().out
    assert not Path(tmp_path / "out").exists()
