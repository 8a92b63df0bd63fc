"""`latency: {kind: tcp}` against the client's truth, second by second: five services, alone and beside a spinner.

The service has CPU 0, the load generator CPU 1; in every second phase a process that spins shares CPU 0. `nginx, link`
answers over a link of 40 Mbit/s, which an upload fills in every second phase; `nginx, jitter` over one on which each
packet, either way, takes up to 2 ms, in turn (this kernel has no NETEM). --cpu-percent is what the looks may cost:
with less of it there are fewer of them. Told are the windows in which client and kernel see the target on the same
side, false alarms, the median error of p95 and of the count of requests, and what looking costs; then that cost at
other numbers of connections, all of them idle.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from rlctl.envs.host.latency.inet_diag import InetDiag
from rlctl.envs.host.latency.tcp import TcpSource
from rlctl.envs.host.latency.tcp_requests import RequestTracker
from rlctl.envs.telemetry import Missing, Reading
from rlctl.envs.testbed.generator import GeneratorConfig, LoadGenerator
from rlctl.envs.testbed.jobs import Upload
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.namespace import Namespace
from rlctl.envs.testbed.network.link import CLIENT_ADDRESS, HOST_ADDRESS, LC_PORT, Link, LinkConfig
from rlctl.envs.testbed.workloads import LcProgram
from rlctl.envs.workload import SLO
from rlctl.report.page import render
from scripts.studies.bench.operators import SERVICES
from tests.soak.judging import free_port

LINK, JITTER = "nginx, link", "nginx, jitter"
RATES = {
    "nginx": (60.0, 120.0, 200.0), "memcached": (1000.0, 2500.0, 4000.0), "redis": (2000.0, 5000.0, 8000.0),
    "postgres": (200.0, 500.0, 900.0), "python": (40.0, 80.0, 130.0), LINK: (60.0, 120.0, 200.0),
    JITTER: (60.0, 120.0, 200.0),
}  # fmt: skip
SPIN = "while True: pass"
JITTER_SECONDS = 0.002
ENDS = {"rlctl-jitter-h": HOST_ADDRESS, "rlctl-jitter-c": CLIENT_ADDRESS}
PASS_ON = """
import contextlib, fcntl, os, random, select, struct, sys, time
most, dice, ends = float(sys.argv[1]), random.Random(1), []
for name in sys.argv[2:]:
    ends.append(os.open("/dev/net/tun", os.O_RDWR))
    fcntl.ioctl(ends[-1], 0x400454CA, struct.pack("16sH", name.encode(), 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
os.sched_setaffinity(0, {1})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(51))
print("ready", flush=True)
queues = {end: [] for end in ends}  # by where packets go: when, and what
while True:
    due = min((queue[0][0] for queue in queues.values() if queue), default=None)
    readable = select.select(ends, [], [], None if due is None else max(due - time.monotonic(), 0.0))[0]
    for end in readable:
        other = ends[1 - ends.index(end)]
        at = time.monotonic() + dice.uniform(0.0, most)
        queues[other].append((max([at, *(when for when, _ in queues[other][-1:])]), os.read(end, 65536)))
    for end, queue in queues.items():
        while queue and queue[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # that end is not up yet
                os.write(end, queue.pop(0)[1])
"""
"""Passes packets on between two interfaces, each a while later, none before the one that came before it."""


@dataclass(frozen=True, slots=True)
class Second:
    """What client and kernel say of a second; latencies are the larger of p95 and the oldest request, in seconds."""

    rate_rps: float
    beside: bool
    requests: int
    counted: float
    truth_seconds: float
    kernel_seconds: float


Neighbour = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[tuple[LcProgram, GeneratorConfig, Neighbour]]:
    """The service on CPU 0, what its load generator needs, and who is beside it in every second phase."""
    with contextlib.ExitStack() as stack:
        inside: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        address, beside = ("127.0.0.1", free_port()), spinning
        if name in {LINK, JITTER}:
            ends = link_ends if name == LINK else jittered
            host, client = stack.enter_context(ends(Launcher(folder)))
            inside, address = (host.inside, client.inside), (HOST_ADDRESS, LC_PORT)
        if name == LINK:
            beside = partial(uploading, *(Launcher(folder, inside=one) for one in inside))
        service = SERVICES[name.partition(",")[0]](address)
        stack.callback(service.stop)
        service.start(Launcher(folder, inside=inside[0]))
        service.ready()
        for pid in service.pids():
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {0})
        yield service, replace(service.load(), cpu=1, fifo_priority=50, inside=inside[1]), beside


@contextlib.contextmanager
def link_ends(launcher: Launcher) -> Iterator[tuple[Namespace, Namespace]]:
    """The namespaces of the service and of the client, a link of 40 Mbit/s between them."""
    with Link(LinkConfig.model_validate({"rates": [[0.0, 40.0]]}), launcher) as link:
        yield link.host, link.client


@contextlib.contextmanager
def jittered(launcher: Launcher) -> Iterator[tuple[Namespace, Namespace]]:
    """The same, but each packet takes up to JITTER_SECONDS."""
    ends = Namespace("namespace of the LC"), Namespace("namespace of the client")
    command = [sys.executable, "-c", PASS_ON, str(JITTER_SECONDS), *ENDS]
    with contextlib.ExitStack() as stack:
        for end in ends:
            stack.callback(end.stop)
            end.start(launcher)
        passing = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(passing.kill)
        assert passing.stdout is not None
        passing.stdout.readline()
        for end, (name, address) in zip(ends, ENDS.items(), strict=True):
            subprocess.run(["ip", "link", "set", name, "netns", str(end.pid)], check=True)
            up = (("ip", "link", "set", each, "up") for each in ("lo", name))
            end.run([("ip", "address", "add", f"{address}/30", "dev", name), *up])
        yield ends


@contextlib.contextmanager
def uploading(host: Launcher, client: Launcher) -> Iterator[None]:
    """An upload that takes what it can get of the link."""
    upload = Upload(1, client, "sendfile")
    upload.start(host)
    try:
        upload.ready()
        upload.begin()
        yield
    finally:
        upload.stop()


def compare(
    name: str, rates: Sequence[float], seconds: int, slo: SLO, cpu_ratio: float = 0.05
) -> tuple[list[Second], str]:
    """Every second of every rate, alone and beside its neighbour, and what looking cost in words."""
    found = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service, aimed, neighbour = stack.enter_context(running(name, folder))
        client = stack.enter_context(LoadGenerator(aimed))
        source = stack.enter_context(contextlib.closing(TcpSource(slo, service.pids, cpu_ratio=cpu_ratio)))
        for rate in rates:
            for beside in (False, True):
                client.set_rate(rate)
                with neighbour() if beside else contextlib.nullcontext():
                    found += _seconds(client, source, rate, seconds, beside=beside)
        return found, str(source)


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """A process that takes what it can get of CPU 0."""
    with subprocess.Popen(["taskset", "1", sys.executable, "-c", SPIN]) as spinner:
        try:
            yield
        finally:
            spinner.kill()


def _seconds(client: LoadGenerator, source: TcpSource, rate: float, seconds: int, *, beside: bool) -> list[Second]:
    client.stats()
    found, began = [], time.monotonic()
    for second in range(seconds):
        time.sleep(max(began + second + 1 - time.monotonic(), 0.0))
        truth, kernel = client.stats(), source.read(time.monotonic())
        seen = max(number(kernel["tail_latency_seconds"]), number(kernel["oldest_request_seconds"]))
        counted = number(kernel["done_rps"]) * truth.interval_seconds
        found.append(Second(rate, beside, truth.samples, counted, truth.latency_seconds(0.95), seen))
    return found[1:]  # the first one holds what was before


def number(reading: Reading) -> float:
    """A reading's number; 0 where it is missing, for then nothing was late."""
    return 0.0 if isinstance(reading, Missing) else reading.value


def summary(found: Sequence[Second], target_seconds: float) -> dict[str, float]:
    """Agreement, false alarms and errors over some seconds."""
    sides = [(one.truth_seconds > target_seconds, one.kernel_seconds > target_seconds) for one in found]
    # Beyond that the client queues, which no server sees.
    known = [one for one in found if 0.0 < one.truth_seconds < 10.0 * target_seconds] or found
    return {
        "windows": len(found),
        "same side %": 100.0 * sum(truth == kernel for truth, kernel in sides) / len(sides),
        "false alarms %": 100.0 * sum(kernel and not truth for truth, kernel in sides) / len(sides),
        "false and beyond a jiffy %": 100.0
        * sum(one.kernel_seconds > target_seconds >= one.truth_seconds + 0.004 for one in found)
        / len(sides),
        "p95 off by ms": 1e3 * median(abs(one.kernel_seconds - one.truth_seconds) for one in known),
        "count off by %": 100.0 * median(abs(one.counted / max(one.requests, 1) - 1.0) for one in known),
    }


def cost_milliseconds(connections: int, looks: int = 20) -> float:
    """CPU time of a look at so many idle connections on loopback."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        address = listener.getsockname()
        for _ in range(connections):
            opened.enter_context(socket.create_connection(address))
            opened.enter_context(listener.accept()[0])
        diag, tracker = opened.enter_context(contextlib.closing(InetDiag())), RequestTracker(20.0)
        began = time.thread_time()
        for _ in range(looks):
            tracker.see(time.monotonic(), diag.connections(address[1:2], (socket.AF_INET,)))
        return 1e3 * (time.thread_time() - began) / looks


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the measurement's arguments."""
    parser.add_argument("--seconds", type=int, default=10, metavar="N", help="of each phase (default: %(default)s)")
    parser.add_argument("--target", type=float, default=10.0, metavar="MS", help="default: %(default)s ms")
    parser.add_argument("--cpu-percent", type=float, default=5.0, metavar="P", help="of a core (default: %(default)s)")
    parser.add_argument("--services", default=";".join(RATES), help="default: '%(default)s'")


def run(args: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Measure and print; the figures for --json."""
    slo, figures = SLO(args.target / 1e3, 0.95, math.inf), dict[str, object]()
    rows: list[list[str]] = []
    seconds = list[Second]()
    for name in args.services.split(";"):
        found, cost = compare(name, RATES[name], args.seconds, slo, args.cpu_percent / 100.0)
        figures[name] = told = summary(found, slo.target_seconds)
        rows.append([name, *(f"{value:.3g}" for value in told.values())])
        seconds += found
        print(f"{name}: {cost}")
    rows.append(["all", *(f"{value:.3g}" for value in summary(seconds, slo.target_seconds).values())])
    print(render([["service", *told], *rows]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    costs = {str(n): cost_milliseconds(n) for n in (10, 100, 1000, 9000) if 2 * n + 100 < most}
    shares = [["connections", "ms a look", "looks a second at 2 % of a core"]]
    shares += [[n, f"{ms:.2f}", f"{min(50.0, 20.0 / ms):.0f}"] for n, ms in costs.items()]
    print(render(shares))
    return figures | {"milliseconds_a_look": costs}, 0
