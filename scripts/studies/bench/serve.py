"""What `rlctl serve` itself costs: start, memory and decisions, on real control groups made for it.

`start` runs from the exec to the first shielded tick in the log, of which one control period is waiting for the first
window of readings. Memory is that of the running daemon and its watchdog, heuristic and learned policy, without and
with metrics that are scraped; RSS counts pages of files that other processes share, PSS gives each its part.
`decision` is everything between reading and writing (mask, observe, fallback chain with its thread, rule): `in
service` on the wall clock from the tick log, `chain` replayed in a process of its own, where CPU time of all its
threads is told too; both are the best of several blocks, which a busy machine disturbs least. `busy` is a daemon at 1
Hz with metrics whose latency log grows by so many lines a second, with so many BE groups, and with further ones that
appear at once in mid-run: its ticks, how late they came, its share of a CPU and its memory. Exit code 1 when a bound
is missed. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from in_venv import ROOT

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.report.page import render
from tests.doubles.tick_logs import read_ticks
from tests.soak.judging import free_port, watchdog_of

MOST = {
    "start_seconds": 1.5,
    "rss_megabytes": 80.0,
    "watchdog_rss_megabytes": 15.0,
    "decision_p99_milliseconds": 1.0,
    "tick_p99_milliseconds": 20.0,
    "tick_most_milliseconds": 50.0,
    "cpu_percent": 2.0,
}
"""The project's own budgets; memory is that with the learned policy and metrics, CPU that of the first busy row."""

BUSY = ((1_000, 1, 0), (50_000, 1, 0), (50_000, 100, 0), (50_000, 1, 99))
"""Lines a second, BE groups, and those that appear in mid-run."""

HEURISTIC = "prm-hybrid-tuned"
TICK_SECONDS = 0.1
"""Of the memory runs; a start is timed at the usual second."""

SCRAPES = 10
BLOCKS = 5

CONFIG = """
tick_seconds: {tick_seconds}
lc:
  workload: {{kind: cgroup, path: /{top}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 400}}
  latency: {{kind: jsonl, path: {folder}/requests.jsonl}}
be: {{workloads: [{{kind: cgroup, path: /{top}/be-*}}]}}
policy: {{name: {policy}}}
state_directory: {folder}/state
log: {{directory: {folder}/log}}
{metrics}
"""

WRITER = """
import sys, time
lines = [b'{"latency_seconds": %.4f}\\n' % (0.001 + 0.003 * (count % 17) / 17) for count in range(1000)]
rate, written, begun = int(sys.argv[2]), 0, time.monotonic()
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        due = int((time.monotonic() - begun) * rate) - written
        file.write(b"".join(lines[count % 1000] for count in range(written, written + due)))
        written += due
        time.sleep(0.01)
"""
"""An LC's log; argv: file, lines a second."""

CHAIN = """
import json, sys, time
from pathlib import Path
from rlctl.agents import catalogue
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.sim.seeds import training
from rlctl.safety.profile import DEFAULT, load_profile
from rlctl.safety.shield import Shield

ticks = int(sys.argv[3])
policy = catalogue.build(sys.argv[1])
plant = SimPlant(load_host("thesis-host"), training_load, ticks, seed=training(0))
chain = FallbackPolicy(policy, catalogue.build(sys.argv[2]), plant.tick_seconds)
runner = PolicyRunner(chain, Shield(load_profile(DEFAULT), plant.limits), plant.limits, plant.tick_seconds)
plant.apply(runner.start())
spent, by_policy = [], 0
for _ in range(ticks):
    plant.wait()
    telemetry, current = plant.read(), plant.current
    begun, used = time.perf_counter(), time.process_time()
    decision = runner.decide(telemetry, current)
    spent.append((time.perf_counter() - begun, time.process_time() - used))
    by_policy += decision.acting == policy.name
    plant.apply(decision.verdict.allocation)
chain.close()
print(json.dumps({"spent": spent, "by_policy": by_policy}))
"""
"""Decisions over a simulated host; argv: policy, heuristic, ticks."""


class Bed:
    """An LC and a BE group with a sleeping process each, and requests that an LC might have served."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        layout, plain = Layout.detect(), Knobs(None)
        self.top, self.folder = f"rlctl-bench-{os.getpid()}", Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Compiled once, as an installed package is: the first daemon pays for it.
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment["PYTHONPYCACHEPREFIX"] = str(self.folder / "compiled")
        stack.callback(plain.close)
        self._layout, self._plain, self.checkout = layout, plain, ROOT
        for name in (self.top, f"{self.top}/lc", f"{self.top}/be-0"):
            group = Group.create(layout, name, plain)
            stack.callback(group.remove)
            if name != self.top:
                sleeper = stack.enter_context(subprocess.Popen(["sleep", "infinity"]))
                stack.callback(sleeper.kill)
                group.attach(sleeper.pid)
        stack.callback(lambda: restore(self.folder / "state", force=True))  # a frozen process does not die
        over = threading.Event()
        serving = threading.Thread(target=self._serve_requests, args=(over,))
        serving.start()
        stack.callback(serving.join)
        stack.callback(over.set)

    @contextlib.contextmanager
    def groups(self, first: int, beyond: int) -> Iterator[None]:
        """Further BE groups, with nothing in them."""
        with contextlib.ExitStack() as stack:
            for number in range(first, beyond):
                stack.callback(Group.create(self._layout, f"{self.top}/be-{number}", self._plain).remove)
            yield

    @contextlib.contextmanager
    def lines(self, per_second: int) -> Iterator[None]:
        """So many requests in the log, beside those that are there anyway."""
        command = [sys.executable, "-c", WRITER, str(self.folder / "requests.jsonl"), str(per_second)]
        with subprocess.Popen(command) as writer:
            try:
                yield
            finally:
                writer.kill()

    def _serve_requests(self, over: threading.Event) -> None:
        with (self.folder / "requests.jsonl").open("a", buffering=1) as file:
            count = 0
            while not over.wait(0.05):
                for _ in range(10):
                    count += 1
                    file.write(json.dumps({"latency_seconds": 0.001 + 0.003 * (count % 17) / 17}) + "\n")

    @contextlib.contextmanager
    def served(
        self, policy: str, *, ticks: int, metrics: bool, tick_seconds: float = TICK_SECONDS
    ) -> Iterator[tuple[subprocess.Popen[bytes], float, list[dict[str, Any]]]]:
        """A daemon after so many ticks: its process, when it was started, its log so far. Ends it."""
        section = f'metrics: {{listen: "127.0.0.1:{free_port()}"}}' if metrics else ""
        config, log = self.folder / "serve.yaml", self.folder / "log/ticks.jsonl"
        log.unlink(missing_ok=True)
        config.write_text(
            CONFIG.format(top=self.top, folder=self.folder, policy=policy, metrics=section, tick_seconds=tick_seconds)
        )
        command = [sys.executable, "-m", "rlctl", "serve", "--config", str(config)]
        told = self.folder / "stderr"
        with told.open("wb") as stderr:
            begun = time.time()
            daemon = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=stderr, env=self.environment, cwd=self.checkout
            )
        try:
            written = awaited(daemon, log, ticks, told, scraped=section)
            yield daemon, begun, written
        finally:
            daemon.send_signal(signal.SIGTERM)
            if daemon.wait(20.0):
                raise SystemExit(f"serve ended with {daemon.returncode}: {told.read_text().splitlines()[-1]}")


def awaited(daemon: subprocess.Popen[bytes], log: Path, ticks: int, told: Path, scraped: str) -> list[dict[str, Any]]:
    """The log, once it has so many ticks; metrics are scraped meanwhile, as in service."""
    page, pause = re.search(r"127[^\"]*", scraped), 0.002 if ticks == 1 else 0.5
    scrapes = 0
    while True:
        if daemon.poll() is not None:
            raise SystemExit(f"serve ended with {daemon.returncode}: {told.read_text().splitlines()[-1]}")
        if log.exists() and (ticks == 1 or log.read_bytes().count(b"\n") > ticks):
            written = list(read_ticks(log))
            if len(written) >= ticks:
                return written
        if page and ticks > 1 and log.exists() and log.stat().st_size and scrapes < SCRAPES:
            urllib.request.urlopen(f"http://{page[0]}/metrics", timeout=5.0).read()
            scrapes += 1
        time.sleep(pause)


def memory_of(pid: int) -> dict[str, float]:
    """MB of a process: all its pages, its part of shared ones, those of no file, those of files, the most there was."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB", rollup, re.MULTILINE)}
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0])
    rss, anonymous = kilobytes["Rss"], kilobytes["Anonymous"]
    found = {"rss": rss, "pss": kilobytes["Pss"], "anonymous": anonymous, "file": rss - anonymous, "peak": peak}
    return {f"{name}_megabytes": round(value / 1024, 1) for name, value in found.items()}


def in_blocks(seconds: Sequence[float], at: float, blocks: int = BLOCKS) -> float:
    """The best block's quantile, in milliseconds."""
    size = len(seconds) // blocks
    parts = [sorted(seconds[place * size : (place + 1) * size]) for place in range(blocks)]
    return round(1e3 * min(part[min(int(at * size), size - 1)] for part in parts), 3)


def starts(bed: Bed, policy: str, count: int) -> dict[str, float]:
    """Seconds from the exec to the first shielded tick in the log, and CPU time of all threads until then."""
    seconds, used = [], []
    for _ in range(count):
        with bed.served(policy, ticks=1, metrics=True, tick_seconds=1.0) as (daemon, begun, _written):
            seconds.append(time.time() - begun)
            used.append(_cpu_seconds(daemon.pid))
    return {
        "start_seconds": round(statistics.median(seconds), 3),
        "start_least_seconds": round(min(seconds), 3),
        "start_most_seconds": round(max(seconds), 3),
        "start_cpu_seconds": round(min(used), 3),
    }


def memories(bed: Bed, policy: str, ticks: int) -> tuple[dict[str, dict[str, float]], list[float]]:
    """Memory by what is served, and the decisions of the fullest daemon in seconds."""
    found, decisions = {}, []
    for name, metrics in ((HEURISTIC, False), (HEURISTIC, True), (policy, False), (policy, True)):
        with bed.served(name, ticks=ticks, metrics=metrics) as (daemon, _begun, written):
            label = f"{name}{', metrics' if metrics else ''}"
            found[label] = memory_of(daemon.pid)
            watchdog = watchdog_of(daemon.pid)
            assert watchdog is not None, "the daemon has no watchdog"
            found["watchdog"] = memory_of(watchdog)
        decisions = [tick["decision_seconds"] for tick in written[5:]]
        if others := sum(tick["acting"] != name for tick in written):
            print(f"{label}: {others} of {len(written)} ticks were another's", file=sys.stderr)
    found["watchdog"] = found.pop("watchdog")
    return found, decisions


def busy(bed: Bed, policy: str, seconds: float, row: tuple[int, int, int]) -> dict[str, float]:
    """What a daemon does that has much to read and many groups."""
    lines, groups, further = row
    with contextlib.ExitStack() as stack:
        stack.enter_context(bed.groups(1, groups))
        stack.enter_context(bed.lines(lines))
        daemon, _begun, written = stack.enter_context(bed.served(policy, ticks=10, metrics=True, tick_seconds=1.0))
        used, since = _cpu_seconds(daemon.pid), time.monotonic()
        time.sleep(0.5 * seconds)
        with bed.groups(groups, groups + further):
            time.sleep(0.5 * seconds)
            used, since = _cpu_seconds(daemon.pid) - used, time.monotonic() - since
            memory = memory_of(daemon.pid)
            ticks = list(read_ticks(bed.folder / "log/ticks.jsonl"))[len(written) :]
    spans = sorted(1e3 * tick["tick_seconds"] for tick in ticks)
    times = [tick["time_seconds"] for tick in ticks]
    return {
        "lines_per_second": lines,
        "groups": groups,
        "appear": further,
        "ticks": len(ticks),
        "tick_p50_milliseconds": round(statistics.median(spans), 2),
        "tick_p99_milliseconds": round(spans[int(0.99 * (len(spans) - 1))], 2),
        "tick_most_milliseconds": round(spans[-1], 2),
        "late_most_milliseconds": round(1e3 * max(after - before - 1.0 for before, after in pairwise(times)), 2),
        "cpu_percent": round(100.0 * used / since, 2),
        "rss_megabytes": memory["rss_megabytes"],
    }


def decisions_in_turns(bed: Bed, policy: str, before: Path, seconds: float, rounds: int = 2) -> dict[str, list[float]]:
    """Seconds of two checkouts' decisions, with the most lines and groups of BUSY; five a second."""
    lines, groups, _ = BUSY[2]
    found: dict[str, list[float]] = {"before": [], "now": []}
    with bed.groups(1, groups), bed.lines(lines):
        for checkout in [before, ROOT] * rounds:
            bed.checkout = checkout
            with bed.served(policy, ticks=5 + round(5 * seconds), metrics=True, tick_seconds=0.2) as (*_, written):
                found["now" if checkout is ROOT else "before"] += [tick["decision_seconds"] for tick in written[5:]]
    return found


def _cpu_seconds(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])  # user and system


def chain(policy: str, ticks: int) -> dict[str, float]:
    """The decisions of the fallback chain with its thread, over a simulated host."""
    words = [sys.executable, "-c", CHAIN, policy, HEURISTIC, str(ticks)]
    told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout.splitlines()[-1])
    wall, used = zip(*told["spent"][20:], strict=True)
    return {
        "wall_p50": in_blocks(wall, 0.5), "wall_p99": in_blocks(wall, 0.99),
        "cpu_p50": in_blocks(used, 0.5), "cpu_p99": in_blocks(used, 0.99),
        "by_policy_percent": round(100.0 * told["by_policy"] / ticks, 1),
    }  # fmt: skip


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("bundle", nargs="?", default="ppo", metavar="BUNDLE", help="a folder or ppo, dqn")
    parser.add_argument("--ticks", type=int, default=300, help="before memory is looked at (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=5, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--decisions", type=int, default=5000, help="of the chain (default: %(default)s)")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="only its daemon's decisions and ours, in turns"
    )
    parser.add_argument("--busy", type=float, default=120.0, metavar="SECONDS", help="of each (default: %(default)g)")


def run(args: argparse.Namespace) -> tuple[Any, int]:
    """Print the figures; exit code 1 if a bound is missed."""
    with contextlib.ExitStack() as stack:
        bed = Bed(stack)
        if args.before:
            found = decisions_in_turns(bed, args.bundle, args.before, args.busy)
            for name, each in found.items():
                p50, p99 = in_blocks(each, 0.5, 1), in_blocks(each, 0.99, 1)
                lines, groups, _ = BUSY[2]
                print(f"{name}: {len(each)} decisions in service, {groups} groups, {lines:,} lines a second:")
                print(f"  p50 {p50} ms, p99 {p99} ms, most {1e3 * max(each):.3f} ms")
            return {"schema": 1, "decision_seconds": found}, 0
        starts(bed, args.bundle, 1)
        begun = starts(bed, args.bundle, args.starts)
        memory, decided = memories(bed, args.bundle, args.ticks)
        much = [busy(bed, args.bundle, args.busy, row) for row in BUSY]
    replayed = chain(args.bundle, args.decisions)
    service = {"p50_milliseconds": in_blocks(decided, 0.5, 3), "p99_milliseconds": in_blocks(decided, 0.99, 3)}
    full = memory[f"{args.bundle}, metrics"]
    figures = {
        **begun,
        "rss_megabytes": max(full["rss_megabytes"], *(row["rss_megabytes"] for row in much)),
        "watchdog_rss_megabytes": memory["watchdog"]["rss_megabytes"],
        "decision_p50_milliseconds": service["p50_milliseconds"],
        "decision_p99_milliseconds": service["p99_milliseconds"],
        "tick_p99_milliseconds": max(row["tick_p99_milliseconds"] for row in much),
        "tick_most_milliseconds": max(row["tick_most_milliseconds"] for row in much),
        "cpu_percent": much[0]["cpu_percent"],
        "load_average": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    titles = [name.removesuffix("_megabytes") for name in full]
    print(render([["MB", *titles], *([name, *map(str, row.values())] for name, row in memory.items())]))
    print()
    titles = [name.removesuffix("_milliseconds").replace("_", " ") for name in much[0]]
    print(render([[*titles], *([str(value) for value in row.values()] for row in much)]))
    print()
    print(
        f"start to the first shielded tick: median {begun['start_seconds']:.2f} s of {args.starts} "
        f"(least {begun['start_least_seconds']:.2f}, 1 s of it a window); {begun['start_cpu_seconds']:.2f} s CPU"
        f"\ndecision in service, best block: p50 {service['p50_milliseconds']} ms, p99 {service['p99_milliseconds']} ms"
        f"\nchain, best block: wall p50 {replayed['wall_p50']} ms, p99 {replayed['wall_p99']} ms; CPU p50 "
        f"{replayed['cpu_p50']} ms, p99 {replayed['cpu_p99']} ms; {replayed['by_policy_percent']} % the policy's own"
        f"\nload average {figures['load_average']}"
    )
    missed = [f"{name} is {figures[name]}, the bound is {most}" for name, most in MOST.items() if figures[name] > most]
    for line in missed:
        print(f"bench serve: {line}", file=sys.stderr)
    return {"schema": 1, **figures, "memory": memory, "busy": much, "chain": replayed}, int(bool(missed))
