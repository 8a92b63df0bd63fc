"""A daemon loads what it needs and nothing of training: a single import of torch would cost it 500 MB."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]

DAEMON = """
import json, sys
from pathlib import Path
import rlctl.commands.serve, rlctl.cli
from rlctl.serve.policy_setup import Configuration
from tests.doubles.host import FakeHost, run_service
from rlctl.loop.stopping import Request

path = Path(sys.argv[1])
deciders = Configuration(path).deciders
host = FakeHost(loads=(0.3,), tick_seconds=0.05)
run_service(host, deciders, Request(), path.parent, seconds=0.2, metrics={"listen": "127.0.0.1:0"})
print(json.dumps({"policy": deciders.policy.policy.name, "modules": sorted(sys.modules)}))
"""


def never():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(one["forbidden_modules"] for one in contracts if one["name"].startswith("The serving path"))


def test_daemon_with_ppo_and_metrics_loads_nothing_heavy(make_bundle, serve_yaml, tmp_path):
    bundle = make_bundle(tmp_path / "tiny")
    config = serve_yaml("policy: {name: frozen}", f"policy: {{name: {bundle}}}")
    done = subprocess.run([sys.executable, "-c", DAEMON, str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["policy"] == str(bundle)
    assert {"prometheus_client", "rlctl.agents.served.worker"} <= {*told["modules"]}, "it served"
    assert {*never()} & {*told["modules"]} == set()
