"""A whole machine divided, and BE's applications in its managed part: in the guest, whose root is ours."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.host,
    pytest.mark.guest,
]

ROOT = Path("/sys/fs/cgroup")


def rlctl(*words):
    done = subprocess.run(
        [sys.executable, "-m", "rlctl", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_applications_live_in_a_partitions_clusters(tmp_path):
    (ROOT / "lc").mkdir()
    requests, log, state = tmp_path / "requests.jsonl", tmp_path / "log", tmp_path / "state"
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"""
tick_seconds: 1
lc:
  workload: {{kind: cgroup, path: /lc}}
  slo: {{target_milliseconds: 1000, max_load_rps: 1000000}}
  latency: {{kind: jsonl, path: {requests}}}
  cpus: [0]
be:
  applications: {{platform: discovered, directory: {tmp_path}/apps}}
policy: {{name: static, options: {{quota_ratio: 0.5}}}}
state_directory: {state}
log: {{directory: {log}}}
"""
    )
    (tmp_path / "busy.yaml").write_text("name: busy\nmodes: [{cpus: 0.1, threads: 1, value: 1}]\n")
    running = []
    try:
        running.append(lc := subprocess.Popen(["sleep", "600"]))
        (ROOT / "lc/cgroup.procs").write_text(str(lc.pid))
        before = {path: path.read_text() for path in (ROOT / "cgroup.subtree_control", ROOT / "lc/cpuset.cpus")}
        words = ["app", "run", "--config", config, tmp_path / "busy.yaml", "--", "sh", "-c", "while :; do :; done"]
        early = subprocess.run(
            [sys.executable, "-m", "rlctl", *map(str, words)], capture_output=True, text=True, check=False
        )
        assert (early.returncode, "rlctl partition apply" in early.stderr) == (75, True), "no group that nobody holds"
        rlctl("partition", "apply", "--state", state)
        running.append(app := subprocess.Popen([sys.executable, "-m", "rlctl", *map(str, words)]))
        running.append(serve := subprocess.Popen([sys.executable, "-m", "rlctl", "serve", "--config", str(config)]))
        deadline, shares = time.monotonic() + PATIENCE_SECONDS, {}
        while not any(shares.values()):
            assert time.monotonic() < deadline
            assert serve.poll() is None
            with requests.open("a") as file:
                file.write('{"latency_seconds": 0.001}\n' * 200)
            time.sleep(0.5)
            lines = (log / "ticks.jsonl").read_text().splitlines() if (log / "ticks.jsonl").exists() else []
            shares = json.loads(lines[-1]).get("shares", {}) if len(lines) > 1 else {}
        (name,) = shares
        (folder,) = ROOT.glob(f"rlctl-mdev/*/{name}")
        assert os.sched_getaffinity(int(name.partition(":")[0])) == {1}
        serve.terminate()
        assert serve.wait(PATIENCE_SECONDS) == 0
        app.terminate()
        app.wait(PATIENCE_SECONDS)
        assert not folder.exists()
        rlctl("partition", "undo", "--state", state)
        assert not (ROOT / "rlctl-mdev").exists()
        assert {path: path.read_text() for path in before} == before
    finally:
        for one in running:
            one.kill()
            one.wait()
        (ROOT / "lc").rmdir()
