"""`rlctl bench` on this machine: real nginx and stress-ng, a table, JSON and plots, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.telemetry import number
from rlctl.envs.testbed.generator_source import as_client_saw
from rlctl.envs.yaml_edge import configs_folder
from rlctl.log.reader import limits_in, read_log
from rlctl.safety.profile import DEFAULT
from tests.needs import COMPILER, needs
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def scenario(tmp_path):
    """live-nginx with a maximum load that is not searched."""
    needs(programs=("nginx", "stress-ng", COMPILER))
    text = (configs_folder("scenarios") / "live-nginx.yaml").read_text()
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
@pytest.mark.slow  # 20 s; scripts/demo --short is the same on nginx
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
    assert found["shield"] == DEFAULT
    assert {name: one["be_weight"] for name, one in found["managers"].items()} == {
        "weights": "minimum",
        "frozen": "equal",
    }
    weights, frozen = found["managers"]["weights"], found["managers"]["frozen"]
    assert weights["samples"] == frozen["samples"] == 4
    assert weights["be_throughput_percent"]["mean"] > 10.0 > 5.0 > frozen["be_throughput_percent"]["mean"]
    assert done.stdout.startswith("| manager")
    assert "| BE weight |" in done.stdout.splitlines()[0]
    assert {"summary.png", "loads.png", "table.md", "weights-1.png", "frozen-1.jsonl"} <= {
        path.name for path in report.iterdir()
    }
    for name, least in (("weights", True), ("frozen", False)):
        logged = next(read_log([report / f"{name}-1.jsonl"], pytest.fail))
        assert limits_in(logged.header).least_weight is least, "who reads the log goes by what was in force"
    assert left_behind() <= before


@pytest.mark.host
@pytest.mark.slow
def test_policy_told_by_kernel_is_judged_by_client(scenario, tmp_path):
    before, report = left_behind(), tmp_path / "report"
    done = rlctl(
        "bench", "--scenario", str(scenario), "--source", "tcp", "--managers", "weights",
        "--duration", "6", "--repeats", "1", "--report", str(report),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "weights: its source put " in done.stderr
    logged = list(read_log([report / "weights-1.jsonl"], pytest.fail))
    told = logged[-1].tick.telemetry
    seen = as_client_saw(told)
    assert None not in map(number, (told.tail_latency_seconds, seen.tail_latency_seconds))
    assert number(told.counters["done_rps"]) == pytest.approx(number(seen.counters["done_rps"]), rel=0.5)
    assert left_behind() <= before


@pytest.mark.host
@pytest.mark.slow
def test_quota_and_class_hold_on_the_link(scenario, tmp_path):
    needs(programs=("ip", "tc", "memcached"))
    before = left_behind()
    text = (configs_folder("scenarios") / "live-network.yaml").read_text()
    changes = {
        "knee:": "knee: {start_rps: 1000, step_rps: 100, top_rps: 1000}",
        "load:": "load: {kind: constant, rate: 0.6}",  # at .3 a full link has two states, of which one holds the LC
        "managers:": "managers:\n  static: {quota_ratio: 0.12}",
    }
    lines = [next((new for key, new in changes.items() if line.startswith(key)), line) for line in text.splitlines()]
    path, result = tmp_path / "network.yaml", tmp_path / "result.json"
    path.write_text("\n".join(lines))
    names = "weights,static,htb,heracles,frozen"
    done = rlctl("bench", "--scenario", str(path), "--managers", names, "--duration", "6", "--repeats", "1",
                 "--json", str(result))  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    qos = {name: one["qos_guarantee_percent"]["mean"] for name, one in found["managers"].items()}
    work = {name: one["be_throughput_percent"]["mean"] for name, one in found["managers"].items()}
    assert qos["weights"] < 50.0 < 80.0 < min(qos["static"], qos["htb"], qos["frozen"])
    assert work["frozen"] < 5.0 < 10.0 < work["static"] < work["htb"]
    assert "network ceiling" in found["managers"]["heracles"]["remarks"][0]
    assert left_behind() <= before


@pytest.mark.host
@pytest.mark.slow
def test_cap_on_bes_writes_holds(scenario, tmp_path):
    mount = Layout.detect().mounts.get(CgroupController.IO)
    if mount is None or not (mount.path / "blkio.throttle.write_bps_device").exists():
        pytest.skip("needs blkio of cgroup v1 with throttling, where it was tried")
    if not os.access("/dev/loop-control", os.W_OK):
        pytest.skip("needs loop devices")
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("needs postgresql")
    before = left_behind()
    text = (configs_folder("scenarios") / "live-disk.yaml").read_text()
    changes = {
        "disk:": "disk: {megabytes: 12}",  # BE compresses what it writes: 20 MB/s on a slow CPU
        "knee:": "knee: {start_rps: 1000, step_rps: 100, top_rps: 1000}",
        "load:": "load: {kind: constant, rate: 0.5}",
        "slo:": "slo: {target_milliseconds: 50}",  # far from what a cap leaves, and from a second's backlog
    }
    lines = [next((new for key, new in changes.items() if line.startswith(key)), line) for line in text.splitlines()]
    path, result = tmp_path / "disk.yaml", tmp_path / "result.json"
    path.write_text("\n".join(lines))
    done = rlctl("bench", "--scenario", str(path), "--managers", "weights,io-max,frozen", "--duration", "6",
                 "--repeats", "1", "--json", str(result))  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    qos = {name: one["qos_guarantee_percent"]["mean"] for name, one in found["managers"].items()}
    work = {name: one["be_throughput_percent"]["mean"] for name, one in found["managers"].items()}
    assert qos["weights"] < 60.0 < min(qos["io-max"], qos["frozen"])
    assert work["frozen"] < 5.0 < 10.0 < work["io-max"] < work["weights"]
    assert left_behind() <= before


@pytest.mark.host
def test_dry_run_says_what_it_would_do(scenario):
    done = rlctl("bench", "--scenario", str(scenario), "--managers", "heracles", "--dry-run")
    assert done.returncode == 0
    assert "a published core is 0.0278 CPU" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live-nginx", "two-core"])
def test_bes_weight_is_scenarios_unless_given(name):
    own, least = (rlctl("bench", "--scenario", name, "--managers", "frozen", "--dry-run", *given)
                  for given in ((), ("--be-weight", "minimum")))  # fmt: skip
    assert "BE weight equal" in own.stderr
    assert "BE weight minimum" in least.stderr
