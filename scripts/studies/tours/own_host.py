"""The way to a policy for one's own host, whole, on a live testbed: with the minutes that each step takes.

What docs/howto/calibrate-and-train.md and shadow-and-promote.md say: the host is swept, a policy is trained for it,
judged in the simulator and signed; it looks on while the policy that ships acts, the gate is asked, it is promoted by
SIGHUP; and then it stands in a live table beside the one that ships, BE at the least weight, as `rlctl serve` gives it.
Ends with the minutes. The shipped gate asks for a day: here it is asked for all else, and the promotion is shown
whatever it says, since nobody depends on a testbed.

Needs root (it makes control groups), what the scenario needs, and a machine that does nothing else. Everything is kept
in out/tour-own-host/SCENARIO, which is begun anew. Exit code: 0, or that of the step that failed.
`scripts/tour own-host` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from in_venv import ROOT, run_main

from rlctl.bench.live_scenario import LiveScenario
from rlctl.bench.scenarios import live_scenario
from rlctl.envs.errors import ConfigError, TestbedError, require_installed
from rlctl.envs.testbed.session import Testbed
from rlctl.log.progress import say
from rlctl.report.page import render
from tests.faults.client import Endpoint

RLCTL = str(ROOT / ".venv/bin/rlctl")
SHIPPED, RIVALS = "ppo", "frozen,weights,feedforward"
ADAPT_SECONDS, RUN_SECONDS, REPEATS = 300, 60, 2
PROMOTED_SECONDS, PATIENCE_SECONDS = 30.0, 60.0
JUDGED = "two-core,capped-link"
GATE = {"least_hours": 0.01, "load": {"from_percent": 20, "to_percent": 80, "least_minutes_per_band": 0}}
"""What the shipped gate asks for, but for the day."""


def parsed() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="live-nginx", help="a live one, from `rlctl scenarios` (%(default)s)")
    parser.add_argument("--train-seconds", type=int, default=300, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--watch-seconds", type=int, default=120, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the minutes of each step")
    return parser.parse_args()


class Steps:
    """Commands as one would type them, in a folder; and how long each step took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.minutes = folder, dict[str, float]()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What is done within is one step, and timed."""
        print(f"\n== {len(self.minutes) + 1}. {name}", flush=True)
        begun = time.monotonic()
        yield
        self.minutes[name] = (time.monotonic() - begun) / 60.0

    def run(self, *command: str, may_refuse: bool = False) -> None:
        """Run a command; SystemExit: it fails, with its exit code.

        Args:
            may_refuse: Exit code 1 is an answer, too.
        """
        print(f"\n$ {shlex.join(command)}\n", flush=True)
        code = subprocess.run([RLCTL, *command[1:]] if command[0] == "rlctl" else command, cwd=self.folder).returncode
        if code and not (may_refuse and code == 1):
            sys.exit(code)


class Served:
    """`rlctl serve` on a testbed, as on a host: it knows two control groups, and an address that tells latencies.

    Args:
        stack: Ends all of it.
        policy: Who acts first.
    """

    def __init__(self, stack: contextlib.ExitStack, scenario: LiveScenario, folder: Path, policy: str) -> None:
        self._folder = folder
        self._bed = stack.enter_context(Testbed(scenario.testbed(), say))
        self._endpoint = Endpoint()
        stack.callback(self._endpoint.close)
        self._bed.settle(scenario.trace)
        self._bed.start_be()
        self._bed.follow(scenario.trace)
        ended = threading.Event()
        driver = threading.Thread(target=self._drive, args=(ended,), name="driver", daemon=True)
        driver.start()
        stack.callback(driver.join)
        stack.callback(ended.set)
        self.write(policy)
        self._said = folder / "serve.log"
        said = stack.enter_context(self._said.open("w"))
        self._process = subprocess.Popen([RLCTL, "serve", "--config", "serve.yaml"], cwd=folder, stderr=said)
        stack.callback(self._process.wait)
        stack.callback(self._process.terminate)
        self.until(lambda: (folder / "log").is_dir() and any((folder / "log").iterdir()), "first tick")

    def write(self, policy: str) -> None:
        """Write serve.yaml with this policy."""
        group, spec = self._bed.be_group.name, self._bed.spec
        tail = f"p{100 * spec.quantile:g}_seconds"
        figures = {"tail": tail, "oldest": "oldest_seconds", "window": "interval_seconds"}
        same = {name: name for name in ("samples", "offered_rps", "done_rps", "stamp")}
        slo = {"target_milliseconds": 1e3 * spec.target_seconds, "quantile_percent": 100 * spec.quantile}
        told: dict[str, Any] = {
            "lc": {
                "workload": {"kind": "cgroup", "path": f"/{Path(group).parent}/lc"},
                "slo": {**slo, "max_load_rps": round(self._bed.slo.max_load_rps, 1)},
                "latency": {"kind": "http", "url": self._endpoint.config["url"], **figures, **same},
                "cpus": list(spec.lc_cpus),
            },
            "be": {"workloads": [{"kind": "cgroup", "path": f"/{group}"}], "cpus": list(spec.be_cpus)},
            "policy": {"name": policy},
            "state_directory": str(self._folder / "state"),
            "log": {"directory": str(self._folder / "log")},
        }
        if "/" in policy:
            told["policy"]["trusted_keys"] = [str(self._folder / "rlctl-key.pub")]
            told["fallback"] = {"name": "prm-hybrid-tuned"}
        (self._folder / "serve.yaml").write_text(yaml.safe_dump(told, sort_keys=False))

    def promote(self, bundle: str) -> None:
        """Another policy, by SIGHUP; TestbedError: it was not taken."""
        self.write(bundle)
        print(f"\n$ kill -HUP {self._process.pid}\n", flush=True)
        self._process.send_signal(signal.SIGHUP)
        self.until(lambda: "reloaded: policy" in self._said.read_text(), "reload")
        time.sleep(PROMOTED_SECONDS)
        print("\n".join(line for line in self._said.read_text().splitlines() if "reloaded" in line))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the service does; TestbedError: it does not."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TestbedError(f"no {what} within {PATIENCE_SECONDS:g} s; rlctl said: {self._said.read_text()}")
            time.sleep(0.1)

    def _drive(self, ended: threading.Event) -> None:
        """Drive the load, and tell what its client measures, as the exporter of a service does."""
        while not ended.is_set():
            self._bed.plant.wait()
            self._endpoint.figures = asdict(self._bed.client())


def main() -> int:
    """Go the way, and say what it took."""
    asked = parsed()
    require_installed("it", "train,cli", "torch", "stable_baselines3", "sb3_contrib", "scipy")
    if shutil.which("ssh-keygen") is None:
        raise ConfigError("ssh-keygen is not installed: apt-get install openssh-client")
    scenario = live_scenario(asked.scenario)
    folder = ROOT / "out" / "tour-own-host" / scenario.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps = Steps(folder)
    with steps.step("Sweep the host, and fit a simulated one to it"):
        steps.run("rlctl", "calibrate", "--config", asked.scenario, "--out", "mine.yaml")
    with steps.step("Train a policy, half of whose hosts are this one"):
        steps.run(
            "rlctl", "train", "--algo", "ppo", "--profile", "mine.yaml", "--out", "run",
            "--max-seconds", str(asked.train_seconds),
        )  # fmt: skip
    with steps.step("Judge it in the simulator"):
        steps.run(
            "rlctl", "evaluate", "run/bundle", "--scenario", JUDGED, "--shield", "measured", "--seeds", "10",
            "--managers", SHIPPED, "--write-card",
        )  # fmt: skip
        managers = f"{SHIPPED},{folder / 'run/bundle'}"
        steps.run(
            "rlctl", "bench", "--scenario", JUDGED, "--seeds", "10", "--managers", managers, "--json", "bench.json"
        )
    with steps.step("Sign it"):
        steps.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "rlctl-key")
        steps.run("rlctl", "sign", "run/bundle", "--key", "rlctl-key")
    bundle = str(folder / "run/bundle")
    with contextlib.ExitStack() as stack:
        with steps.step(f"Let it look on while {SHIPPED} acts"):
            served = Served(stack, scenario, folder, SHIPPED)
            steps.run("rlctl", "shadow", "watch", "log", "--policy", bundle, "--duration", str(asked.watch_seconds))
        with steps.step("Ask the gate"):
            gate = yaml.safe_load((ROOT / "configs/shadow/gate.yaml").read_text()) | GATE
            (folder / "gate.yaml").write_text(yaml.safe_dump(gate))
            steps.run(
                "rlctl", "shadow", "report", "log", "--gate", "gate.yaml", "--bench", "bench.json", may_refuse=True,
            )  # fmt: skip
        with steps.step("Promote it"):
            served.promote(bundle)
            steps.run("rlctl", "why", "--config", "serve.yaml")
    with steps.step(f"A live table, each having run for {ADAPT_SECONDS} s before"):
        steps.run(
            "rlctl", "bench", "--plant", "host", "--scenario", asked.scenario, "--be-weight", "minimum",
            "--adapt", str(ADAPT_SECONDS), "--duration", str(RUN_SECONDS), "--repeats", str(REPEATS),
            "--managers", f"{RIVALS},{SHIPPED},{bundle}", "--json", "live.json",
        )  # fmt: skip
    taken = steps.minutes | {"all": sum(steps.minutes.values())}
    print("\n" + render([("step", "minutes"), *((name, f"{minutes:.1f}") for name, minutes in taken.items())]))
    if asked.json:
        asked.json.write_text(json.dumps({"scenario": scenario.name, "minutes": steps.minutes}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_main(main)
