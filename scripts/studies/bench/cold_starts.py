"""Cold starts of `max_load_rps: auto` on live services: what is believed of their maximum, beside what they can do.

The service has CPU 0 (by its cpuset, but for one with a single thread), the client CPU 1, two processes of BE spin on
both. The maximum is measured once a service: a client that asks for more than is answered, BE absent. Where the
service's CPU is not full then, the client's is. What that one reached is no maximum of the service: what a full CPU
would do at that cost counts, marked (~). A start is idle at first, then takes steps of .2 to .8 of what was reached.
Told for each are the estimate at its end and its bounds, the highest load asked for that held for two seconds,
estimate by maximum, and the ticks in which `rlctl serve` suspended BE for the load. Exit code 1 where an estimate is
off by more than 1.5, or more than 3 % below what was held.

Requests cost the service more than the client, which could not fill it otherwise: redis counts to 8000 in Lua, and
memcached looks for keys that are not there; PostgreSQL counts to 2000, on TCP; nginx compresses a text; Python spins
for 2 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.telemetry import MAX_LOAD
from rlctl.envs.testbed.generator import GeneratorConfig, LoadGenerator
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.services import Memcached
from rlctl.envs.testbed.workloads import LcProgram
from rlctl.report.page import render
from scripts.studies.bench import operators
from tests.soak.judging import free_port

IDLE_RATIOS, STEPS = (0.0, 0.07, 0.2), 6
LEVELS = (0.2, 0.4, 0.6, 0.8)
IDLE_RPS = 5.0
SATURATED_SECONDS = 6
FIRST_RPS, MOST_RPS, SATURATED_RATIO = 125.0, 1e6, 0.8
FULL_RATIO = 0.9
"""A CPU of which the service uses so much is full; the kernel's housekeeping has the rest."""
MOST_RATIO = 1.5
COUNTED_RATIO = 0.97
"""Of the requests that a client counts, what the kernel's count may miss (`scripts/bench tcp`: 1.3 % in the median)."""
LC_WEIGHT = 10240
SINGLE = frozenset({"redis", "python"})
"""One thread does all the work: their CPUs are not told, and `auto` has to find that out."""
COUNTING = "EVAL 'for i = 1, 8000 do end return redis.status_reply([[OK]])' 0"
MANY_KEYS = 200
_BETWEEN = re.compile(r"maximum load of \S+: .*?(?:between (\d+) and (\d+))")


class CountingRedis(operators.Redis):
    """One whose requests cost it more than they cost the client."""

    def load(self) -> GeneratorConfig:
        """A loop in Lua."""
        return replace(super().load(), query=COUNTING)


class EmptyMemcached(Memcached):
    """One that looks for keys in vain, as the client reads as much as it writes where they are found."""

    def load(self) -> GeneratorConfig:
        """Gets of many keys."""
        return replace(super().load(), preload_keys=0, keys_per_get=MANY_KEYS)


SERVICES = operators.SERVICES | {"redis": CountingRedis, "memcached": lambda address: EmptyMemcached(address=address)}


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One start; loads are requests a second, NaN where nothing was believed."""

    estimate_rps: float
    lowest_rps: float
    highest_rps: float
    most_rps: float
    held_rps: float
    ticks: int
    suspended: int

    @property
    def wrong(self) -> bool:
        """The estimate is off by more than MOST_RATIO, or below what was held by more than a count may be off."""
        ratio = self.estimate_rps / self.most_rps
        return not 1.0 / MOST_RATIO <= ratio <= MOST_RATIO or self.estimate_rps < COUNTED_RATIO * self.held_rps


def saturate(client: LoadGenerator) -> None:
    """Ask for more than is answered, and not for much more: a client has to draw and drop that, too."""
    rate, done = FIRST_RPS, math.inf
    while done >= SATURATED_RATIO * rate and rate < MOST_RPS:
        rate *= 2.0
        client.set_rate(rate)
        time.sleep(0.5)
        client.stats()
        time.sleep(1.0)
        done = client.stats().done_rps


def maximum(service: LcProgram, lc: Group) -> tuple[float, float]:
    """Requests a second without BE: what the client reached, and what the service would do with its CPU full."""
    aimed = replace(service.load(), cpu=1, fifo_priority=50, queue_limit=1000)
    with LoadGenerator(aimed) as client:
        saturate(client)
        before, begun = operators.cpu_seconds(lc), time.monotonic()
        time.sleep(SATURATED_SECONDS)
        done, seconds = client.stats().done_rps, time.monotonic() - begun
        use = (operators.cpu_seconds(lc) - before) / seconds
    return done, done if use >= FULL_RATIO else done / use


def start(
    service: LcProgram,
    groups: tuple[Group, Group, Group],
    reached: tuple[float, float],
    seed: int,
    args: argparse.Namespace,
) -> ColdStart:
    """One start of `rlctl serve` beside the service and BE."""
    reached_rps, most_rps = reached
    dice, seconds = Random(seed), round(60.0 * args.minutes)
    idle = round(dice.choice(IDLE_RATIOS) * seconds)
    steps = [reached_rps * dice.choice(LEVELS) for _ in range(STEPS)]
    aimed, target = replace(service.load(), cpu=1, fifo_priority=50), args.target
    before, held = 0.0, 0.0
    with (
        tempfile.TemporaryDirectory() as text,
        LoadGenerator(aimed) as client,
        operators.spinning(groups[1], operators.BE_CPUS),
    ):
        folder = Path(text)
        with operators.managed("rlctl", groups, args, folder, args.tick):
            begun = time.monotonic()
            for second in range(seconds):
                client.set_rate(rate := IDLE_RPS if second < idle else steps[second * STEPS // seconds])
                time.sleep(max(begun + second + 1 - time.monotonic(), 0.0))
                stats = client.stats()
                well = rate if stats.samples and stats.latency_seconds(0.95) <= 1e-3 * target else 0.0
                held, before = max(held, min(before, well)), well
            ticks = [json.loads(line) for line in (folder / "ticks/ticks.jsonl").read_text().splitlines()]
        said = _BETWEEN.findall((folder / "serve.log").read_text())
    ticks = [tick for tick in ticks if "log" not in tick]
    told = [tick["counters"][MAX_LOAD]["value"] for tick in ticks if MAX_LOAD in tick["counters"]]
    lowest, highest = map(float, said[-1]) if said else (math.nan, math.nan)
    suspended = sum(any(bound["reason"] == "load-high" for bound in tick["bounds"]) for tick in ticks)
    return ColdStart(told[-1] if told else math.nan, lowest, highest, most_rps, held, len(ticks), suspended)


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the measurement's arguments."""
    parser.add_argument("--services", default=",".join(SERVICES), help="default: %(default)s")
    parser.add_argument("--starts", type=int, default=6, metavar="N", help="of each (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N", help="of a start (default: %(default)s)")
    parser.add_argument("--tick", type=float, default=1.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--target", type=float, default=20.0, metavar="MS", help="default: %(default)s ms")
    parser.set_defaults(apart=False)


def run(args: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Measure and print; the figures for --json."""
    figures, wrong = dict[str, object](), 0
    rows: list[Sequence[str]] = [
        ("service", "start", "estimate", "between", "reached", "maximum", "held", "ratio", "ticks", "suspended")
    ]
    for name in args.services.split(","):
        with tempfile.TemporaryDirectory() as text, operators.three_groups(apart=False) as groups:
            service = SERVICES[name](("127.0.0.1", free_port()))
            try:
                service.start(Launcher(Path(text)))
                service.ready()
                settle(service, groups[0], single=name in SINGLE)
                reached, most = both = maximum(service, groups[0])
                starts = [start(service, groups, both, seed, args) for seed in range(args.starts)]
            finally:
                service.stop()
        figures[name] = {"reached_rps": reached, "maximum_rps": most, "starts": [asdict(one) for one in starts]}
        wrong += sum(one.wrong for one in starts)
        for number, one in enumerate(starts, 1):
            rows.append((
                name, str(number), f"{one.estimate_rps:.0f}", f"{one.lowest_rps:.0f} to {one.highest_rps:.0f}",
                f"{reached:.0f}", f"{most:.0f}{'~' if most > reached else ''}", f"{one.held_rps:.0f}",
                f"{one.estimate_rps / most:.2f}{' WRONG' if one.wrong else ''}", str(one.ticks), str(one.suspended),
            ))  # fmt: skip
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(render(rows))
    print(f"{wrong} wrong: off by more than {MOST_RATIO:g}, or below what was held; ~: the client was full, not the LC")
    return figures, int(wrong > 0)


def settle(service: LcProgram, lc: Group, *, single: bool) -> None:
    """Put the service into its group, on CPU 0; its weight keeps whoever else is on this machine out of the figures."""
    if lc.cpu:
        lc.cpu.set_weight(LC_WEIGHT)
    if lc.cpuset and not single:
        lc.cpuset.set_cpus({0})
    for pid in service.pids():
        with contextlib.suppress(OSError):  # a worker that ended
            lc.attach(pid)
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {0})
