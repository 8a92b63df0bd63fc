"""What an operator gets who tells two names and a target: BE's CPU time and the LC's QoS, beside what a weight gives.

An LC on CPU 0 and a BE of two spinning processes on both CPUs, in control groups of their own (v1), under a load that
is idle, low, middle, near the knee, and idle again. `none` is equal weights and nobody; `weight` is the kernel's least
weight set by hand; `rlctl` is `rlctl serve` with nothing but both groups and the target, begun anew for each run.
Rounds are interleaved. QoS is the share of seconds whose p95, by the client, met the target, over all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from in_venv import ROOT

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.testbed.generator import GeneratorConfig, LoadGenerator
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.memcached import Memcached
from rlctl.envs.testbed.nginx import Nginx
from rlctl.envs.testbed.workloads import LcProgram
from rlctl.envs.workload import Weight
from rlctl.report.page import render

MODES = ("none", "weight", "rlctl")
LOADS = {"idle": 0.0, "low": 0.2, "middle": 0.5, "near": 0.8, "idle again": 0.0}
"""Shares of the load that each service bears alone on its CPU."""

KNEES = {"nginx": 480.0, "memcached": 9000.0, "python": 330.0}
SPINNERS = 2
START_SECONDS = 15.0

SERVER = """
import asyncio, sys, time
async def serve(reader, writer):
    while line := await reader.readline():
        while line not in (b"\\r\\n", b""):
            line = await reader.readline()
        begun = time.thread_time()
        while time.thread_time() - begun < 0.002:
            pass
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
        await writer.drain()
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


class PythonServer(LcProgram):
    """One process with one thread, two milliseconds of CPU time a request, as a FastAPI under uvicorn is."""

    name = "python"
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = b"200 OK"

    def load(self) -> GeneratorConfig:
        """GET of two bytes."""
        return self._aim_at_listener(GeneratorConfig("http"))

    def _command(self, launcher: Launcher) -> list[str]:
        self._make_folder(launcher)
        assert self.address is not None
        return [sys.executable, "-c", SERVER, str(self.address[1])]


SERVICES: dict[str, Callable[[tuple[str, int]], LcProgram]] = {
    "nginx": lambda address: Nginx(address=address),
    "memcached": lambda address: Memcached(address=address),
    "python": lambda address: PythonServer(address),
}


@contextlib.contextmanager
def two_groups() -> Iterator[tuple[Group, Group]]:
    """Groups for LC and BE, side by side; removed with all that is in them."""
    knobs, layout = Knobs(None), Layout.detect()
    made: list[Group] = []
    try:
        made.append(lc := Group.create(layout, f"rlctl-operators-{os.getpid()}-lc", knobs))
        made.append(be := Group.create(layout, f"rlctl-operators-{os.getpid()}-be", knobs))
        yield lc, be
    finally:
        for group in made:
            if group.freezer:
                group.freezer.order(False)
            for pid in group.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            group.remove()


@contextlib.contextmanager
def spinning(group: Group) -> Iterator[None]:
    """Best-effort work that takes all the CPU time that it gets."""
    jobs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(SPINNERS)]
    for job in jobs:
        group.attach(job.pid)
    try:
        yield
    finally:
        if group.freezer:
            group.freezer.order(False)
        for job in jobs:
            job.kill()
            job.wait()


@contextlib.contextmanager
def managed(mode: str, lc: Group, be: Group, target: float, folder: Path, tick_seconds: float = 1.0) -> Iterator[None]:
    """BE as a mode has it; the weight and rlctl's settings are gone afterwards."""
    if be.cpu is None:
        raise OSError("there is no CPU controller for BE's group")
    be.cpu.set_weight(Weight.MINIMUM if mode == "weight" else Weight.EQUAL)
    if mode != "rlctl":
        yield
        return
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(configuration(lc, be, target, folder) | {"tick_seconds": tick_seconds}))
    with (folder / "serve.log").open("a") as log:
        serve = subprocess.Popen([ROOT / ".venv/bin/rlctl", "serve", "--config", path], stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (folder / "ticks/ticks.jsonl").exists() or not (folder / "ticks/ticks.jsonl").stat().st_size:
                if serve.poll() is not None or time.monotonic() > deadline:
                    raise OSError(f"rlctl serve did not begin: {(folder / 'serve.log').read_text()[-600:]}")
                time.sleep(0.1)
            yield
        finally:
            serve.terminate()
            serve.wait()
    (folder / "ticks/ticks.jsonl").unlink(missing_ok=True)


def configuration(lc: Group, be: Group, target: float, folder: Path) -> dict[str, object]:
    """Two names and a target; the folders only keep what is measured out of the host's own."""
    return {
        "lc": {"workload": {"kind": "cgroup", "path": f"/{lc.name}"}, "slo": {"target_milliseconds": target}},
        "be": {"workloads": [{"kind": "cgroup", "path": f"/{be.name}"}]},
        "state_directory": str(folder / "state"),
        "log": {"directory": str(folder / "ticks")},
    }


def cpu_seconds(group: Group) -> float:
    """CPU time that a group has used since it was made."""
    text = (group.paths[CgroupController.CPUACCT] / "cpuacct.usage").read_text()
    return int(text) * 1e-9


def phase(client: LoadGenerator, be: Group, rate: float, seconds: int, target: float) -> tuple[float, int, int]:
    """BE's CPUs, and of the seconds with requests how many met the target, and how many there were."""
    client.set_rate(rate)
    client.stats()
    begun, used, held, told = time.monotonic(), cpu_seconds(be), 0, 0
    for second in range(seconds):
        time.sleep(max(begun + second + 1 - time.monotonic(), 0.0))
        stats = client.stats()
        if stats.samples or stats.oldest_seconds > 1e-3 * target:
            told += 1
            held += stats.latency_seconds(0.95) <= 1e-3 * target
    return (cpu_seconds(be) - used) / (time.monotonic() - begun), held, told


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the measurement's arguments."""
    parser.add_argument("--services", default=",".join(SERVICES), help="default: %(default)s")
    parser.add_argument("--seconds", type=int, default=15, metavar="N", help="of each load (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--target", type=float, default=20.0, metavar="MS", help="default: %(default)s ms")


def run(args: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Measure and print; the figures for --json."""
    figures: dict[str, object] = {}
    rows: list[Sequence[str]] = [("service", "load", *(f"{mode}: QoS % / CPUs" for mode in MODES))]
    for name in args.services.split(","):
        found: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
        for turn in range(args.rounds):
            for mode in MODES[turn % len(MODES) :] + MODES[: turn % len(MODES)]:
                for load, one in one_run(name, mode, args).items():
                    found[load, mode].append(one)
                print(f"{name}, round {turn + 1}, {mode}", file=sys.stderr)
        for load in LOADS:
            cells = {mode: summary(found[load, mode]) for mode in MODES}
            rows.append((name, load, *(f"{qos} / {cpus:.2f}" for qos, cpus in cells.values())))
            figures[f"{name}, {load}"] = {mode: {"qos": qos, "cpus": cpus} for mode, (qos, cpus) in cells.items()}
    print(render(rows))
    return figures, 0


def one_run(name: str, mode: str, args: argparse.Namespace) -> dict[str, tuple[float, int, int]]:
    """All loads of one service under one mode."""
    with tempfile.TemporaryDirectory() as text, two_groups() as (lc, be):
        folder = Path(text)
        service = SERVICES[name](("127.0.0.1", free_port()))
        launcher = Launcher(folder)
        try:
            service.start(launcher)
            service.ready()
            for pid in service.pids():
                lc.attach(pid)
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), {0})
            aimed = replace(service.load(), cpu=1, fifo_priority=50)
            with LoadGenerator(aimed) as client, spinning(be), managed(mode, lc, be, args.target, folder):
                return {
                    load: phase(client, be, share * KNEES[name], args.seconds, args.target)
                    for load, share in LOADS.items()
                }
        finally:
            service.stop()


def summary(runs: Sequence[tuple[float, int, int]]) -> tuple[str, float]:
    """QoS in percent, or a dash without requests, and mean CPUs."""
    held, told = sum(one[1] for one in runs), sum(one[2] for one in runs)
    return f"{100.0 * held / told:.0f}" if told else "-", sum(one[0] for one in runs) / len(runs)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
