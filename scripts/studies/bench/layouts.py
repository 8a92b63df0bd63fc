"""BE's share of a CPU beside a busy LC, by where the two lie in the tree of control groups; and what rlctl says of it.

Siblings and cousins, each with BE alone and not. One process of the LC and one of each BE group spin on one CPU: with
equal weights, with the least weight at BE's own group, and with it where rlctl sets it. Then a start of `rlctl serve`,
`rlctl doctor --config` and the metric `rlctl_be_effective_share`, in their own words. Needs root; the groups are made
here and removed. On a v2 kernel: scripts/guest -- python3 scripts/bench layouts
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from in_venv import ROOT

from rlctl.envs.allocation import Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.sensors.cpu import usage_seconds
from rlctl.envs.workload import Weight
from rlctl.report.page import render
from scripts.studies.bench.operators import remove_with_all, spinning
from tests.soak.judging import free_port

LAYOUTS = {
    "siblings": ("lc", ["be"], []),
    "siblings, BE in two": ("lc", ["be-1", "be-2"], []),
    "cousins, BE alone": ("services/lc", ["batch/be"], []),
    "cousins, others there": ("services/lc", ["users/be"], ["users/shell"]),
}
"""The LC's group, BE's, and others'."""

RLCTL = [sys.executable, "-m", "rlctl"]
START_SECONDS = 300.0
_SHARE = re.compile(r"^rlctl_be_effective_share (\S+)", re.MULTILINE)


@contextlib.contextmanager
def groups(names: list[str]) -> Iterator[dict[str, Group]]:
    """Groups below one of our own, with those on the way; removed with all that runs in them."""
    top, layout, made = f"rlctl-layouts-{os.getpid()}", Layout.detect(), dict[str, Group]()
    ways = [str(way) for name in names for way in reversed(Path(name).parents)]
    try:
        for name in dict.fromkeys([*ways, *names]):
            made[name] = Group.create(layout, str(Path(top, name)), Knobs(None))
        yield made
    finally:
        for group in reversed(made.values()):
            remove_with_all(group)


def share(lc: Group, be: list[Group], seconds: float) -> float:
    """BE's part of the CPU time of both, in percent."""

    def used(group: Group) -> float:
        assert group.usage_file is not None
        usage = usage_seconds(group.usage_file.read_bytes())
        assert isinstance(usage, float)
        return usage

    before = used(lc), sum(map(used, be))
    time.sleep(seconds)
    of_lc, of_be = used(lc) - before[0], sum(map(used, be)) - before[1]
    return 100.0 * of_be / (of_lc + of_be)


def measure(lc: Group, be: list[Group], seconds: float, folder: Path) -> dict[str, float]:
    """BE's share by each way to weigh it."""
    found = {"equal": share(lc, be, seconds)}
    for group in be:
        if group.cpu:
            group.cpu.set_weight(Weight.MINIMUM)
    found["least at BE"] = share(lc, be, seconds)
    for group in be:
        if group.cpu:
            group.cpu.set_weight(Weight.EQUAL)
    with Journal.open(folder) as journal:
        knobs = Knobs(journal)
        BeActuator(be, sorted(os.sched_getaffinity(0)), Limits(cpus=1), knobs, lc=lc).set_weight(Weight.MINIMUM)
        found["rlctl"] = share(lc, be, seconds)
        knobs.close()
        restore(folder, force=True)
    return found


def words(lc: Group, be: list[Group], folder: Path) -> dict[str, str]:
    """What a start says, and a dry run's, doctor, and the metric."""
    port, config, said = free_port(), folder / "serve.yaml", dict[str, str]()
    workloads = [{"kind": "cgroup", "path": f"/{group.name}"} for group in be]
    slo = {"target_milliseconds": 10, "max_load_rps": 1}
    one = {"workload": {"kind": "cgroup", "path": f"/{lc.name}"}, "slo": slo, "latency": {"kind": "waiting"}}
    config.write_text(json.dumps({
        "lc": one, "be": {"workloads": workloads}, "policy": {"name": "weights"}, "state_directory": str(folder),
        "log": {"directory": str(folder / "log")}, "metrics": {"listen": f"127.0.0.1:{port}"},
    }))  # fmt: skip
    doctor = subprocess.run(
        [*RLCTL, "doctor", "--config", str(config)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    said["doctor"] = next((line for line in doctor.stdout.splitlines() if "CPU weight" in line), doctor.stderr)
    dry = [*RLCTL, "serve", "--config", str(config), "--dry-run", "--duration", "1"]
    said["dry run"] = _of_weight(subprocess.run(dry, capture_output=True, text=True, check=False, cwd=ROOT).stderr)
    log = folder / "serve.log"
    with log.open("w") as file:
        serve = subprocess.Popen([*RLCTL, "serve", "--config", config], stderr=file, cwd=ROOT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "metric" not in said and time.monotonic() < deadline and serve.poll() is None:
            time.sleep(0.2)
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                if shown := _SHARE.search(page.read().decode()):
                    said["metric"] = shown[1]
    finally:
        serve.terminate()
        serve.wait()
    said["start"] = _of_weight(log.read_text())
    return said


def _of_weight(log: str) -> str:
    return " | ".join(line[9:] for line in log.splitlines() if "weight" in line and "policy weights" not in line)


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the measurement's arguments."""
    parser.add_argument("--seconds", type=float, default=3.0, metavar="N", help="of each way (default: %(default)s)")


def run(args: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Measure and print; the figures for --json."""
    figures = dict[str, object]()
    rows: list[tuple[str, ...]] = [("layout", "equal %", "least at BE %", "rlctl %", "metric %")]
    for name, (lc, be, others) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as text, groups([lc, *be, *others]) as made:
            members = [made[one] for one in be]
            with contextlib.ExitStack() as stack:
                for group in (made[lc], *members):  # all on one CPU
                    stack.enter_context(spinning(group, [max(os.sched_getaffinity(0))]))
                found = measure(made[lc], members, args.seconds, Path(text))
                said = words(made[lc], members, Path(text))
        figures[name] = {**found, **said}
        metric = 100.0 * float(said.get("metric", "nan"))
        rows.append((name, *(f"{one:.2f}" for one in (*found.values(), metric))))
        for who in ("start", "dry run", "doctor"):
            print(f"{name}: {who}: {said[who]}")
    print(f"cgroups: {Layout.detect().kind}", render(rows), sep="\n")
    return figures, 0
