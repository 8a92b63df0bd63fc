"""What one tick's reading and writing costs with 1, 10 and 100 BE groups: real control groups, sensors and journal.

Each tick reads every sensor, looks for groups that came or went (in service once a second), writes another quota to
every group and reads it back. `cpu` is the CPU time of it, which a busy machine disturbs less than the wall clock.
Then as many groups appear at once: how long it takes until all are under control, between ticks, and what a tick takes.
With --depth and --width one BE group holds a family of its own, nested or side by side: CPU time of a start, of a tick
with a change, and of a stop; `own` is without the kernel's. That is linear, and the kernel's is not: at a write of a
quota or of CPUs it looks at all groups beside. The groups are made here and removed at the end; nothing runs in them.
Needs root. Exit code 1 if 100 groups take longer than the budget.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.host import following
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.locks import Claims
from rlctl.envs.host.cgroup.ownership import Ownership, Witness
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.discovery import ByCgroup, selects
from rlctl.envs.host.live import Lc, LiveHost, LiveParts
from rlctl.envs.host.sensors.of_groups import group_sensors
from rlctl.envs.workload import SLO
from rlctl.report.page import render

MOST_P99_MILLISECONDS = 20.0
"""Of 100 groups; the budget that the project sets itself."""

CHANGES = 4
"""Ticks with another quota and other CPUs, of which the mean is told."""

LIMITS = Limits(cpus=len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def live(number: int, later: int = 0) -> Iterator[LiveHost]:
    """A live host with so many BE groups, made for it; and further ones that have just appeared."""
    layout, plain = Layout.detect(), Knobs(None)
    top = f"rlctl-bench-{os.getpid()}"
    with contextlib.ExitStack() as stack:

        def made(name: str) -> Group:
            group = Group.create(layout, name, plain)
            stack.callback(group.remove)
            return group

        made(top)
        lc, be = made(f"{top}/lc"), [made(f"{top}/be-{index}") for index in range(number)]
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(Journal.open(state))
        stack.callback(restore, state, force=True)
        knobs = Knobs(journal)
        witness = Witness(knobs.holds)
        stack.callback(knobs.close)
        stack.callback(witness.close)
        ownership = Ownership(witness=witness)
        order = sorted(os.sched_getaffinity(0))
        actuator = BeActuator(be, order, LIMITS, knobs, lc=lc, ownership=ownership)
        sensors = group_sensors(lc, be)
        for sensor in sensors:
            stack.callback(sensor.close)
        lc_selects, be_selects = (selects(ByCgroup(path=f"/{top}/{name}"), [], layout) for name in ("lc", "be-*"))
        assert be_selects is not None
        claims = stack.enter_context(Claims(state))
        roles = following.GroupRoles(lc, [be_selects], lc_selects)
        follower = following.Follower(layout, knobs, roles, actuator, sensors, ownership.events, claims)
        for index in range(number, number + later):
            made(f"{top}/be-{index}")
        lcs = [Lc("lc", SLO(0.01, max_load_rps=1.0), sensors)]
        parts = LiveParts(events=ownership.events, follow=follower.follow)
        yield LiveHost(lcs, actuator, 1.0, lambda: None, parts)


def measure(host: LiveHost, ticks: int) -> dict[str, float]:
    """Milliseconds of each part; the quota changes at every tick, up and down, and all else stays."""
    spans: list[tuple[float, ...]] = []
    full = float(LIMITS.cpus)
    for tick in range(ticks + 5):
        changed = Allocation(full * (0.3 + 0.5 * (tick % 2)), 1)
        begun, used = time.perf_counter(), time.thread_time()
        host.follow()
        host.read()
        read = time.perf_counter()
        host.apply(changed)
        ended = time.perf_counter()
        used = time.thread_time() - used
        host.apply(changed)  # nothing differs: reading only
        spans.append((ended - begun, read - begun, ended - read, time.perf_counter() - ended, used))
    if events := host.events():
        raise SystemExit(f"something disturbed the measurement: {events[0]}")
    whole, reading, writing, unchanged, used_seconds = np.array(spans[5:]).T * 1e3
    return {
        "p50_milliseconds": float(np.quantile(whole, 0.5)),
        "p99_milliseconds": float(np.quantile(whole, 0.99)),
        "cpu_p50_milliseconds": float(np.quantile(used_seconds, 0.5)),
        "cpu_p99_milliseconds": float(np.quantile(used_seconds, 0.99)),
        "read_p50_milliseconds": float(np.quantile(reading, 0.5)),
        "apply_p50_milliseconds": float(np.quantile(writing, 0.5)),
        "apply_unchanged_p50_milliseconds": float(np.quantile(unchanged, 0.5)),
        "open_files": float(len(os.listdir("/proc/self/fd"))),
    }


def adoption(number: int) -> dict[str, float]:
    """Of so many groups that appear at once: until all are under control, and the longest tick meanwhile."""
    with live(1, later=number) as host:
        begun, ticks, adopted = time.perf_counter(), list[float](), 0
        while adopted < number:
            host.reset()
            host.follow()
            safe = time.perf_counter()
            host.read()
            host.apply(LIMITS.safe)
            ticks.append(1e3 * (time.perf_counter() - safe))
            adopted += sum(event.startswith("group-appeared") for event in host.events())
        return {"adopt_all_milliseconds": 1e3 * (safe - begun), "tick_then_milliseconds": max(ticks)}


def family(depth: int, width: int) -> dict[str, float]:
    """CPU milliseconds of a start, a tick with a change and a stop, where BE's group holds a family of its own."""

    def used() -> np.ndarray:
        return np.array([time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_utime])

    layout, plain, top = Layout.detect(), Knobs(None), f"rlctl-bench-{os.getpid()}"
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Group:
            group = Group.create(layout, name, plain)
            stack.callback(group.remove)
            return group

        group, name = make(top), top
        for _ in range(depth):
            make(name := f"{name}/n")
        for index in range(width):
            make(f"{top}/n{index}")
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        order, full, marks = sorted(os.sched_getaffinity(0)), float(LIMITS.cpus), [used()]
        knobs = Knobs(stack.enter_context(Journal.open(state)))
        stack.callback(knobs.close)
        stack.enter_context(Claims(state)).take(group)
        actuator = BeActuator([group], order, LIMITS, knobs)
        actuator.apply(LIMITS.safe)
        actuator.emergency_plan()
        marks.append(used())
        for tick in range(CHANGES):
            actuator.apply(Allocation(full * (0.3 + 0.5 * (tick % 2)), 1 + tick % LIMITS.cpus))
        marks.append(used())
        restore(state, force=True)
        marks.append(used())
    spans = [1e3 * (after - before) for before, after in itertools.pairwise(marks)]
    spans[1] /= CHANGES
    names = [f"{name}_milliseconds" for name in ("start", "tick", "stop")]
    both, own = zip(*spans, strict=True)
    return dict(zip(names, both, strict=True)) | {f"own_{name}": one for name, one in zip(names, own, strict=True)}


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """One line a row, in milliseconds."""
    titles = {name: name.removesuffix("_milliseconds").replace("_", " ") for name in next(iter(rows.values()))}
    body = [[label, *(f"{row[name]:.3g}" for name in titles)] for label, row in rows.items()]
    print(render([["BE groups", *titles.values()], *body]))


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("groups", nargs="*", type=int, default=[1, 10, 100], metavar="N", help="numbers of BE groups")
    parser.add_argument("--ticks", type=int, default=500, help="ticks of each")
    parser.add_argument("--depth", nargs="*", type=int, default=[], metavar="N", help="groups nested within one of BE")
    parser.add_argument("--width", nargs="*", type=int, default=[], metavar="N", help="groups side by side within one")


def run(args: argparse.Namespace) -> tuple[dict[str, dict[str, float]], int]:
    """Measure, and print the table of groups."""
    following.LOOK_SECONDS = 0.0  # ticks are not a second apart here
    if args.depth or args.width:
        nested = {f"{depth} deep": family(depth, 0) for depth in args.depth}
        families = nested | {f"{width} wide": family(0, width) for width in args.width}
        print_table(families)
        return families, 0
    rows: dict[str, dict[str, float]] = {}
    for number in args.groups:
        with live(number) as host:
            rows[str(number)] = measure(host, args.ticks)
        rows[str(number)] |= adoption(number)
    print_table(rows)
    print("all in milliseconds but for the open files")
    return rows, int(rows.get("100", {}).get("p99_milliseconds", 0.0) > MOST_P99_MILLISECONDS)
