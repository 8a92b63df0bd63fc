"""`rlctl bench` on this machine: real nginx and stress-ng, a table, JSON and plots, and nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.scenarios.shipped import scenarios_folder
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def scenario(tmp_path):
    """live-nginx with a maximum load that is not searched."""
    missing = [name for name in ("stress-ng", "cc") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing or not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        pytest.skip(f"needs root, nginx, stress-ng and cc; missing {missing or 'root or nginx'}")
    try:
        for controller in (Controller.CPU, Controller.CPUSET, Controller.FREEZER):
            Layout.detect().mount(controller)
    except RlctlError as error:
        pytest.skip(str(error))
    text = (scenarios_folder() / "live-nginx.yaml").read_text()
    path = tmp_path / "quick.yaml"
    knee = next(line for line in text.splitlines() if line.startswith("knee:"))
    path.write_text(text.replace(knee, "knee: {start_rps: 300, step_rps: 100, top_rps: 300}"))
    return path


def rlctl(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rlctl", *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def left_behind():
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/rlctl-testbed-*")]
    return {*groups, *map(str, Path("/run/rlctl/testbed").glob("testbed-*"))}


@pytest.mark.host
def test_two_managers_side_by_side(scenario, tmp_path):
    before = left_behind()
    result, report = tmp_path / "result.json", tmp_path / "report"
    done = rlctl(
        "bench", "--plant", "host", "--scenario", str(scenario), "--managers", "weights,frozen",
        "--duration", "4", "--repeats", "1", "--json", str(result), "--report", str(report),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    assert found["schema"] == 1
    assert found["shield"] == "responsive"
    weights, frozen = found["managers"]["weights"], found["managers"]["frozen"]
    assert weights["samples"] == frozen["samples"] == 4
    assert weights["be_throughput_percent"]["mean"] > 10.0 > 5.0 > frozen["be_throughput_percent"]["mean"]
    assert done.stdout.startswith("| manager")
    assert {"summary.png", "table.md", "weights-1.png", "frozen-1.jsonl"} <= {path.name for path in report.iterdir()}
    assert left_behind() <= before


@pytest.mark.host
def test_dry_run_says_what_it_would_do_and_does_nothing(scenario):
    done = rlctl("bench", "--scenario", str(scenario), "--managers", "heracles", "--dry-run")
    assert done.returncode == 0
    assert "a published core is 0.0278 CPU" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--managers", "heracels"), 78, "did you mean 'heracles'?"),
        (("--managers", "frozen,frozen"), 78, "twice"),
        (("--scenario", "live-ngnix"), 78, "live-nginx"),
        (("--shield", "none"), 78, "none"),
        (("--repeats", "0"), 2, "positive"),
        (("--time-scale", "x"), 2, "time-scale"),
    ],
)
def test_bad_arguments_are_one_line_before_anything_starts(arguments, code, said):
    done = rlctl("bench", "--dry-run", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
