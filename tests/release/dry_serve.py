"""Runs `rlctl serve --dry-run` with the shipped `ppo` beside a made-up LC, in control groups of its own.

Needs root and the environment's Python; used by scripts/release-check. Prints nothing but what the command prints.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout

NAME = f"rlctl-release-{os.getpid()}"
SERVE = """
tick_seconds: 0.5
lc:
  workload: {{kind: cgroup, path: /{name}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 100}}
  latency: {{kind: jsonl, path: {folder}/requests.jsonl}}
be: {{workloads: [{{kind: cgroup, path: /{name}/be}}]}}
policy: {{name: ppo}}
state_directory: {folder}/state
log: {{directory: {folder}/log}}
"""


def main() -> int:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for child in ("", "/lc", "/be"):
            group = Group.create(Layout.detect(), NAME + child, Knobs(None))
            stack.callback(group.remove)
            if child:
                group.cpuset.set_cpus({0})  # v2 begins with an empty list, which the kernel does not take back
                sleeper = subprocess.Popen(["sleep", "600"])
                stack.callback(sleeper.wait)
                stack.callback(sleeper.kill)
                group.attach(sleeper.pid)
        config, requests = folder / "serve.yaml", folder / "requests.jsonl"
        config.write_text(SERVE.format(name=NAME, folder=folder))
        requests.touch()
        words = [sys.executable, "-m", "rlctl", "serve", "--config", config, "--dry-run", "--duration", "5"]
        served = stack.enter_context(subprocess.Popen(words))
        while served.poll() is None:
            with requests.open("a") as file:
                file.writelines(json.dumps({"latency_seconds": 0.002}) + "\n" for _ in range(5))
            time.sleep(0.1)
        return served.returncode


if __name__ == "__main__":
    sys.exit(main())
