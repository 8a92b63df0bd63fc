"""What an operator gets who tells two names and a target: BE's CPU time and the LC's QoS, beside what a weight gives.

An LC on CPU 0 and a BE of a spinning process on each CPU, in control groups of their own (v1), under a load that
is idle, low, middle, near the knee, and idle again. `none` is equal weights and nobody; `weight` is the kernel's least
weight set by hand; `rlctl` is `rlctl serve` with nothing but both groups and the target, begun anew for each run;
`warm` is rlctl that has watched all loads for --watch seconds, and keeps what it remembers from round to round. Rounds
are interleaved. QoS is the share of seconds whose p95, by the client, met the target, over all rounds.

The bar, in every cell: BE of rlctl at least 95 % of the weight's; QoS not below it by more than the interval of their
difference (Newcombe's of Wilson's; seconds depend on one another, so that is strict). Exit code 1 where it is missed.
With --json FILE each run is written when it is over, and one that was cut off goes on where it was:

  scripts/bench operators --json table.json                          # a whole table in 25 minutes
  scripts/bench operators --rounds 5 --seconds 30 --watch 600 --json table.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from in_venv import ROOT

from rlctl.bench.intervals import wilson
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.testbed.generator import GeneratorConfig, LoadGenerator
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.services import Memcached, Nginx, Postgres
from rlctl.envs.testbed.workloads import LcProgram
from rlctl.envs.workload import Weight
from rlctl.report.page import render
from tests.soak.judging import free_port

WARM = "warm"
MODES = ("none", "weight", "rlctl", WARM)
LOADS = {"idle": (0.0, 1.0), "low": (0.2, 1.0), "middle": (0.5, 1.0), "near": (0.8, 1.5), "idle again": (0.0, 0.5)}
"""Shares of the load that each service bears alone on its CPU; and its time, in --seconds."""

LEAST_BE_RATIO = 0.95
"""The bar: BE's CPUs beside rlctl in those beside the weight."""

KNEES = {"nginx": 480.0, "memcached": 9000.0, "redis": 20000.0, "postgres": 2500.0, "python": 330.0}
BE_CPUS, APART_CPUS = [1, 0], [0]
"""CPUs of BE, safest first; and those where the machine is used by others too."""

MOST_SHARES = 262144
"""The most that cpu.shares takes."""

START_SECONDS = 60.0

SETTLE_SECONDS = 4.0
"""Not counted after each start, of the ten that a cold one may take until BE has what the weight gives."""

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


class Redis(LcProgram):
    """A redis of our own that keeps nothing."""

    name = "redis"
    request = b"PING\r\n"
    answer = b"+PONG"

    def load(self) -> GeneratorConfig:
        """One PING a request."""
        return self._aim_at_listener(GeneratorConfig("redis"))

    def _command(self, launcher: Launcher) -> list[str]:
        assert self.address is not None
        folder = self._make_folder(launcher)
        options = {"port": self.address[1], "bind": self.address[0], "save": "", "appendonly": "no", "dir": folder}
        program = find_program("redis-server", "redis-server")
        return [program, *(str(part) for key, value in options.items() for part in (f"--{key}", value))]


class TcpPostgres(Postgres):
    """PostgreSQL on TCP, with a query that takes CPU time and no disk."""

    def load(self) -> GeneratorConfig:
        """One query a request."""
        return self._aim_at_listener(GeneratorConfig("postgres", query="SELECT count(*) FROM generate_series(1, 2000)"))

    def _command(self, launcher: Launcher) -> list[str]:
        assert self.address is not None
        return [*super()._command(launcher), f"--listen_addresses={self.address[0]}", f"--port={self.address[1]}"]


SERVICES: dict[str, Callable[[tuple[str, int]], LcProgram]] = {
    "nginx": lambda address: Nginx(address=address),
    "memcached": lambda address: Memcached(address=address),
    "redis": Redis,
    "postgres": TcpPostgres,
    "python": PythonServer,
}


def remove_with_all(group: Group) -> None:
    """End what is in a group of the bench's own, and the group."""
    if group.freezer:
        group.freezer.order(False)
    for pid in group.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    group.remove()


@contextlib.contextmanager
def three_groups(*, apart: bool) -> Iterator[tuple[Group, Group, Group]]:
    """Groups for LC and BE, side by side, and one for rlctl; removed with all that is in them.

    Args:
        apart: They are in groups that have the largest weight, ahead of whatever else runs on the machine.
    """
    knobs, layout = Knobs(None), Layout.detect()
    above, made = f"rlctl-operators-{os.getpid()}", list[Group]()
    try:
        # The kernel divides a group's weight among CPUs by what runs on each: rlctl is not to take any from BE's.
        for name in (above, f"{above}-rlctl"):
            made.append(Group.create(layout, name, knobs))
            if apart:
                (made[-1].paths[CgroupController.CPU] / "cpu.shares").write_text(str(MOST_SHARES))
        made += (Group.create(layout, f"{above}/{name}", knobs) for name in ("lc", "be"))
        yield made[2], made[3], made[1]
    finally:
        for group in reversed(made):
            remove_with_all(group)


@contextlib.contextmanager
def spinning(group: Group, cpus: Sequence[int]) -> Iterator[None]:
    """Best-effort work that takes all the CPU time that it gets."""
    jobs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in cpus]
    for job in jobs:
        group.attach(job.pid)
        # Afterwards: before Linux 6.2 a task that comes into a cpuset has all of its CPUs.
        os.sched_setaffinity(job.pid, cpus)
    try:
        yield
    finally:
        if group.freezer:
            group.freezer.order(False)
        for job in jobs:
            job.kill()
            job.wait()


@contextlib.contextmanager
def managed(
    mode: str, groups: tuple[Group, Group, Group], args: argparse.Namespace, folder: Path, tick_seconds: float = 1.0
) -> Iterator[None]:
    """BE as a mode has it; the weight and rlctl's settings are gone afterwards."""
    lc, be, own = groups
    if be.cpu is None:
        raise OSError("there is no CPU controller for BE's group")
    be.cpu.set_weight(Weight.MINIMUM if mode == "weight" else Weight.EQUAL)
    if mode not in ("rlctl", WARM):
        yield
        return
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(configuration(lc, be, args, folder) | {"tick_seconds": tick_seconds}))
    with (folder / "serve.log").open("a") as log:
        serve = subprocess.Popen([ROOT / ".venv/bin/rlctl", "serve", "--config", path], stderr=log)
        own.attach(serve.pid)
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


def configuration(lc: Group, be: Group, args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Two names and a target; the folders only keep what is measured out of the host's own."""
    cpus = {"cpus": APART_CPUS} if args.apart else {}
    return {
        "lc": {"workload": {"kind": "cgroup", "path": f"/{lc.name}"}, "slo": {"target_milliseconds": args.target}},
        "be": {"workloads": [{"kind": "cgroup", "path": f"/{be.name}"}]} | cpus,
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
    parser.add_argument(
        "--seconds", type=int, default=5, metavar="N", help="of a load; near has half more, the second idle half"
    )
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--target", type=float, default=20.0, metavar="MS", help="default: %(default)s ms")
    parser.add_argument(
        "--watch", type=int, default=40, metavar="N", help="seconds of all loads before `warm` counts first; 0: no warm"
    )
    parser.add_argument(
        "--apart", action="store_true", help="on CPU 0 alone, ahead of all else on a machine that others use"
    )


def run(args: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Measure and print; the figures for --json, and 1 where a cell misses the bar."""
    modes = MODES if args.watch else MODES[:-1]
    settings = {name: getattr(args, name) for name in ("seconds", "target", "watch", "apart")}
    told: dict[str, Any] = {"settings": settings, "runs": {}}
    if args.json and args.json.exists():
        told = json.loads(args.json.read_text())
        if told["settings"] != settings:
            raise SystemExit(f"{args.json} holds runs of other settings: {told['settings']}")
    rows: list[Sequence[str]] = [("service", "load", *(f"{mode}: QoS % / CPUs" for mode in modes), "the bar")]
    missed = 0
    for name in args.services.split(","):
        found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        with tempfile.TemporaryDirectory() as memory:
            for turn in range(args.rounds):
                for mode in modes[turn % len(modes) :] + modes[: turn % len(modes)]:
                    key = f"{name}, round {turn + 1}, {mode}"
                    if key not in told["runs"]:
                        told["runs"][key] = one_run(name, mode, args, Path(memory))
                        print(key, file=sys.stderr)
                        if args.json:
                            args.json.write_text(json.dumps(told) + "\n")
                    for load, one in told["runs"][key].items():
                        found[load, mode].append(one)
        for load in LOADS:
            cells = {mode: Cell.of(found[load, mode]) for mode in modes}
            misses = [f"{mode}: {why}" for mode in modes[2:] for why in cells[mode].below(cells["weight"])]
            rows.append((name, load, *map(str, cells.values()), "; ".join(misses) or "held"))
            missed += bool(misses)
    print(render(rows))
    print(f"\n{missed} of {len(rows) - 1} cells miss the bar; load average {os.getloadavg()[0]:.1f}")
    return told, int(missed > 0)


def one_run(name: str, mode: str, args: argparse.Namespace, memory: Path) -> dict[str, tuple[float, int, int]]:
    """All loads of one service under one mode.

    Args:
        memory: Where `warm` keeps what it remembers.
    """
    with tempfile.TemporaryDirectory() as text, three_groups(apart=args.apart) as groups:
        folder, (lc, be, _), cpus = Path(text), groups, APART_CPUS if args.apart else BE_CPUS
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
            known = memory / "state"
            if mode == WARM and known.exists():
                shutil.copytree(known, folder / "state")
            with LoadGenerator(aimed) as client, spinning(be, cpus), managed(mode, groups, args, folder):

                def run_loads(seconds: float) -> dict[str, tuple[float, int, int]]:
                    return {
                        load: phase(client, be, share * KNEES[name], max(round(ratio * seconds), 1), args.target)
                        for load, (share, ratio) in LOADS.items()
                    }

                time.sleep(SETTLE_SECONDS)
                if mode == WARM and not known.exists():
                    run_loads(args.watch / sum(ratio for _, ratio in LOADS.values()))
                measured = run_loads(args.seconds)
            if mode == WARM:
                shutil.rmtree(known, ignore_errors=True)
                shutil.copytree(folder / "state", known)
            return measured
        finally:
            service.stop()


@dataclass(frozen=True, slots=True)
class Cell:
    """What the runs of one load under one mode came to: BE's mean CPUs, and of so many seconds those on target."""

    cpus: float
    held: int
    told: int

    @classmethod
    def of(cls, runs: Sequence[Sequence[float]]) -> Cell:
        """Of runs as `phase` gives them."""
        cpus, held, told = zip(*runs, strict=True)
        return cls(sum(cpus) / len(runs), int(sum(held)), int(sum(told)))

    def __str__(self) -> str:
        return f"{100.0 * self.held / self.told:.0f} / {self.cpus:.2f}" if self.told else f"- / {self.cpus:.2f}"

    def below(self, other: Cell) -> list[str]:
        """What of the bar it misses beside the weight's cell."""
        misses = []
        if self.cpus < LEAST_BE_RATIO * other.cpus:
            misses.append(f"BE {self.cpus / other.cpus:.0%}")
        if self.told and other.told:
            own, by_weight = self.held / self.told, other.held / other.told
            doubt = math.hypot(
                wilson(own, self.told, 0.95)[1] / 100.0 - own,
                by_weight - wilson(by_weight, other.told, 0.95)[0] / 100.0,
            )
            if own + doubt < by_weight:
                misses.append(f"QoS {100.0 * (own - by_weight):.0f} +{100.0 * doubt:.0f}")
        return misses
