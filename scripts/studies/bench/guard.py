"""What the guard between the ticks is worth: a sudden overload on a live testbed, with the guard and without, in turns.

BE has a fixed quota beside an LC at .3 of its maximum load. Then, at a random moment of a control period, the load
steps to .95 of it; with live-network the link halves instead, by a command that takes its time (`command`, the median;
what is measured begins with its end). `held` runs from then until BE has its minimum at most, `of late` from the first
look that showed a request above the target, which may be later: BE fills a queue in bursts. `at once` counts the
windows in a row that then miss, `missed` all within eight: the policy, which knows nothing, goes back to its quota
behind the shield, with the guard (`on`) or without (`off`). `log` is with the guard, which looks at nginx' access log
as in service and not at the load generator. `alone` is the same with BE frozen: what the LC misses by itself.
With `--rein link` BE has what the LC leaves of the link instead, as far as its rate was known before it halved.
At rest, for a while with the guard and nothing changing, every alarm is counted; `false` are those in whose window the
LC met its target. Needs root.
With 20 repeats, half an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.agents import catalogue
from rlctl.bench.scenarios import live_scenario
from rlctl.config.sections import InnerGuardSection
from rlctl.envs.errors import ConfigError, TestbedError
from rlctl.envs.host.latency.line_formats import nginx_lines
from rlctl.envs.host.latency.text_log import TextLog
from rlctl.envs.host.poller import HostSample
from rlctl.envs.reins import Rein
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.services import Nginx
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.traces import Trace, constant
from rlctl.envs.workload import Weight
from rlctl.log.kept import MemoryRecorder
from rlctl.log.record import Tee, Tick
from rlctl.loop.control import Controller
from rlctl.loop.fast_guard import FastGuard
from rlctl.report.page import render
from rlctl.safety.profile import DEFAULT, load_profile
from rlctl.safety.shield import Shield

LOW, HIGH = 0.3, 0.95
STEP_SECONDS = 9.0
"""The shield lets BE have its quota after six."""
AFTER_TICKS = 8
DRIVE_SECONDS = 0.005
QUOTA, REST_RATIO = {"cpu": 0.4, "upload": 0.4}, 0.5
"""Of BE's CPUs, by its kind: beside LOW the target is met, and beside what comes then it is not; and what of it BE has
at rest, where the LC is to be well for minutes."""


class LoggingNginx(Nginx):
    """An nginx that logs each request as `nginx_lines` reads it."""

    @property
    def access_log(self) -> Path:
        """One line per request."""
        return self.folder / "access.log"

    def _configuration(self, folder: Path) -> str:
        logged = "log_format rlctl '$msec $status $request_time'; access_log access.log rlctl;"
        return super()._configuration(folder).replace("access_log off;", logged)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one overload.

    Attributes:
        held_seconds: From the overload until BE had its minimum at most.
        at_once: Windows in a row that then missed the target.
        missed: All windows that missed it since then.
        command_seconds: What it took to bring the overload about.
        of_late_seconds: From the first look with a request above the target until BE was held; without looks not a
            number.
        early: The target was missed, or BE held, before: nothing can be told from this run.
    """

    held_seconds: float
    at_once: int
    missed: int
    command_seconds: float
    of_late_seconds: float
    early: bool


class Step:
    """A load that steps from LOW to a second one, when that was asked for, and when load and link were so in fact."""

    def __init__(self, to: float) -> None:
        self._to = to
        self.asked_seconds = self.seen_seconds = float("nan")

    def rate(self, t_seconds: float) -> float:
        """Share of the maximum load, so long after the beginning of a run."""
        if t_seconds < STEP_SECONDS:
            return LOW
        if self.asked_seconds != self.asked_seconds:
            self.asked_seconds = time.monotonic()
        return self._to

    def driven(self, drive: Callable[[], None]) -> None:
        """Let load and link be what they are now."""
        drive()
        if self.asked_seconds == self.asked_seconds and self.seen_seconds != self.seen_seconds:
            self.seen_seconds = time.monotonic()


class Held:
    """When BE was first held, by a tick or between two; a recorder."""

    def __init__(self, bed: Testbed, step: Step) -> None:
        self._bed, self._step = bed, step
        self.first_seconds = self.late_seconds = float("nan")

    def write(self, _: Tick) -> None:
        """A tick has written."""
        self.note()

    def see(self, sample: HostSample) -> None:
        """See whether requests are late."""
        target, stepped = self._bed.slo.target_seconds, self._step.seen_seconds == self._step.seen_seconds
        oldest = [max(*lc.newest.latencies, lc.newest.oldest_seconds or 0.0, 0.0) for lc in sample.lcs.values()]
        if stepped and self.late_seconds != self.late_seconds and max(oldest) > target:
            self.late_seconds = sample.now_seconds

    def note(self) -> None:
        """See what is in force now."""
        plant, stepped = self._bed.plant, self._step.seen_seconds == self._step.seen_seconds
        held = plant.current.at_most(plant.limits.minimum)
        if held and stepped and self.first_seconds != self.first_seconds:
            self.first_seconds = time.monotonic()


class Reads:
    """Reads a log at each tick, as a service does; what comes after that is seen between two. A recorder."""

    def __init__(self, log: TextLog) -> None:
        self._log = log

    def write(self, tick: Tick) -> None:
        """A tick has written."""
        self._log.read(tick.telemetry.time_seconds)


def started(bed: Testbed, scenario: LiveScenario, trace: Trace) -> None:
    """Load and BE as a run begins with them; the first period begins at a random moment of the trace."""
    bed.settle(constant(LOW))
    bed.plant.set_weight(Weight.EQUAL)  # a lower one leaves the idle class
    bed.plant.set_weight(scenario.be.weight)
    bed.start_be()
    bed.follow(trace)


def controller(
    bed: Testbed, scenario: LiveScenario, recorder: Tee, guard: FastGuard | None, quota_ratio: float
) -> Controller:
    """A fixed quota behind the shield, or at 0 BE frozen, with the guard or without."""
    policy = catalogue.build("static", quota_ratio=quota_ratio) if quota_ratio else catalogue.build("frozen")
    shield = Shield(load_profile(DEFAULT).scale_time(scenario.time_scale), bed.plant.limits)
    one = Controller(bed.plant, policy, shield, recorder)
    one.fast_guard = guard
    return one


def inner_guard(bed: Testbed) -> FastGuard:
    """As `rlctl serve` has it by default."""
    return FastGuard(bed.plant, {"lc": bed.slo}, InnerGuardSection().most_false_alarms, note_cut=bed.plant.note_cut)


ROWS = ("alone", "off", "on")


def overload(bed: Testbed, scenario: LiveScenario, row: str, log: TextLog | None, rein: Rein = Rein.CPU) -> Run:
    """Bring one overload about: BE frozen throughout, without the guard, or with it."""
    running = QUOTA[scenario.be.kind] if rein is Rein.CPU else 1.0
    quota_ratio, guarded = 0.0 if row == "alone" else running, row in ("on", "log")
    step = Step(LOW if scenario.link else HIGH)
    ticks, held = MemoryRecorder(), Held(bed, step)
    guard = inner_guard(bed) if guarded else None
    watch = bed.plant.watch
    if watch is None:
        raise TestbedError("the testbed has no watch")

    def look(sample: HostSample) -> bool:
        held.see(sample)
        soon = guard is not None and guard.look(sample)
        held.note()
        return soon

    lc = watch.lcs["lc"]
    source, lc.source = lc.source, log or lc.source
    started(bed, scenario, step)
    bed.plant.drive = functools.partial(step.driven, bed.plant.drive)
    time.sleep(random.uniform(0.0, scenario.tick_seconds))
    watch.look = look if guarded else None
    try:
        with bed.between(DRIVE_SECONDS, lambda: bed.plant.drive()), held_by(bed, scenario, rein):
            recorder = Tee(ticks, held, *((guard,) if guard else ()), *((Reads(log),) if log else ()))
            loop = controller(bed, scenario, recorder, guard, quota_ratio)
            loop.run(seconds=STEP_SECONDS + AFTER_TICKS * scenario.tick_seconds)
    finally:
        watch.look, lc.source = None, source
        bed.stop_be()
    since = step.seen_seconds
    before = [tick for tick in ticks.ticks if tick.telemetry.time_seconds <= since]
    after = [tick for tick in ticks.ticks if tick.telemetry.time_seconds > since]
    early = missed(before[-2:]) > 0 or before[-1].applied.usable_cpus < 0.99 * quota_ratio * bed.plant.limits.cpus
    of_late = max(held.first_seconds - held.late_seconds, 0.0)
    asked = since - step.asked_seconds
    return Run(held.first_seconds - since, missed_at_once(after), missed(after), asked, of_late, early)


def held_by(bed: Testbed, scenario: LiveScenario, rein: Rein) -> contextlib.AbstractContextManager[object]:
    """A rein that is in hand; the link's knows the rate that a run begins with."""
    if rein is Rein.CPU or scenario.link is None:
        return contextlib.nullcontext()
    return bed.reins({"in_hand": rein, "most": {rein: scenario.link.rate_mbit(0.0) * 1e6 / 8.0}})


def missed(ticks: Sequence[Tick]) -> int:
    """Windows above the target, or of which nothing is known."""
    return sum(map(misses, ticks))


def missed_at_once(ticks: Sequence[Tick]) -> int:
    """The first windows in a row that missed it."""
    from_first = itertools.dropwhile(lambda tick: not misses(tick), ticks)
    return sum(1 for _ in itertools.takewhile(misses, from_first))


def misses(tick: Tick) -> bool:
    """The window was above the target, or nothing is known of it."""
    return (slack := tick.telemetry.slack_ratio) is None or slack < 0.0


def at_rest(bed: Testbed, scenario: LiveScenario, seconds: float, rein: Rein) -> tuple[int, int, int]:
    """Alarms, false ones among them, and missed windows while nothing changes."""
    ticks, guard, watch = MemoryRecorder(), inner_guard(bed), bed.plant.watch
    if watch is None:
        raise TestbedError("the testbed has no watch")
    started(bed, scenario, constant(LOW))
    watch.look = guard.look
    try:
        rest_ratio = REST_RATIO * QUOTA[scenario.be.kind] if rein is Rein.CPU else 1.0
        with held_by(bed, scenario, rein):
            controller(bed, scenario, Tee(ticks, guard), guard, rest_ratio).run(seconds=STEP_SECONDS + seconds)
    finally:
        watch.look = None
        bed.stop_be()
    rest = [tick for tick in ticks.ticks if tick.index * scenario.tick_seconds >= STEP_SECONDS]
    return sum(tick.alarm is not None for tick in rest), sum(tick.false_alarm for tick in rest), missed(rest)


def summary(name: str, runs: Sequence[Run]) -> dict[str, float | int | str | None]:
    """What came of the runs of a row."""
    good = [run for run in runs if not run.early]
    held = [run.held_seconds for run in good if name != "alone" and run.held_seconds == run.held_seconds]
    late = [run.of_late_seconds for run in good if run.of_late_seconds == run.of_late_seconds]
    return {
        "row": name,
        "runs": len(good),
        "left_out": len(runs) - len(good),
        "never_held": None if name == "alone" else len(good) - len(held),
        "held_p50_milliseconds": round(1e3 * float(np.quantile(held, 0.5)), 1) if held else None,
        "held_p95_milliseconds": round(1e3 * float(np.quantile(held, 0.95)), 1) if held else None,
        "of_late_p95_milliseconds": round(1e3 * float(np.quantile(late, 0.95)), 1) if late else None,
        "at_once_mean": round(statistics.fmean(run.at_once for run in good), 2) if good else None,
        "missed_mean": round(statistics.fmean(run.missed for run in good), 2) if good else None,
        "command_milliseconds": round(1e3 * statistics.median(run.command_seconds for run in good), 1)
        if good
        else None,
        "missed_worst": max((run.missed for run in good), default=None),
    }


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("scenario", nargs="?", default="live-nginx", help="live-nginx, live-memcached or live-network")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="overloads with and without (default: 20)")
    parser.add_argument("--rein", choices=("cpu", "link"), default="cpu", help="what holds BE (default: cpu)")
    parser.add_argument("--rest", type=float, default=300.0, metavar="SECONDS", help="at rest (default: 300)")


def run(args: argparse.Namespace) -> tuple[Any, int]:
    """Run, print the table."""
    scenario = calm = live_scenario(args.scenario)
    if scenario.be.kind not in QUOTA:
        raise ConfigError(f"{args.scenario}: its BE has no quota here that fits; there is: {', '.join(QUOTA)}")
    if args.rein == "link" and not scenario.link:
        raise ConfigError(f"{args.scenario} has no link")
    if scenario.link:
        rate = scenario.link.rates[0][1]
        halved = scenario.link.model_copy(update={"rates": ((0.0, rate), (STEP_SECONDS, rate / 2.0))})
        scenario = scenario.model_copy(update={"link": halved})
    nginx = LoggingNginx() if scenario.lc.kind == "nginx" and not scenario.link else None
    rows = (*ROWS, *(("log",) if nginx else ()))
    runs: dict[str, list[Run]] = {row: [] for row in rows}
    with Testbed(scenario, lambda line: print(line, file=sys.stderr, flush=True), nginx) as bed:
        log = TextLog(nginx.access_log, nginx_lines(), bed.slo) if nginx else None
        for repeat in range(args.repeats):
            for row in rows[repeat % len(rows) :] + rows[: repeat % len(rows)]:
                runs[row].append(one := overload(bed, scenario, row, log if row == "log" else None, Rein(args.rein)))
                print(f"repeat {repeat + 1}, {row}: {one}", file=sys.stderr, flush=True)
    with Testbed(calm, lambda line: print(line, file=sys.stderr, flush=True), nginx) as bed:
        alarms, false, rest_missed = at_rest(bed, calm, args.rest, Rein(args.rein))
    found = [summary(row, runs[row]) for row in rows]
    titles = [name.removesuffix("_milliseconds").replace("_", " ") for name in found[0]]
    hour = 3600.0 / args.rest
    rest = {"seconds": args.rest, "alarms": alarms, "false": false, "missed": rest_missed}
    print(render([titles, *(["-" if value is None else str(value) for value in one.values()] for one in found)]))
    print(f"{scenario.name}; held in milliseconds after the {'link halved' if scenario.link else 'step of the load'}")
    print(f"at rest, {args.rest:g} s: {alarms} alarms, {false} false ({false * hour:g} an hour), {rest_missed} missed")
    return {"scenario": scenario.name, "overload": found, "rest": rest}, 0
