"""The operating role in about three minutes: rlctl on a live testbed, with faults injected, and everything put back.

Starts nginx under a load that comes and goes, and stress-ng as best-effort work beside it, in control groups of its
own. Writes a serve.yaml, checks it, serves it, and shows what an operator looks at. Then the latency source stalls, the
configuration becomes garbage, the controller is killed, and controller and watchdog are killed together; BE's settings
are watched from outside all the while. Ends with a table and out/tour-operate/tour.png. The groups and processes are
gone at the end. `scripts/tour operate` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from in_venv import ROOT, run_main

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import JOURNAL
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.sensors.cpu import usage_seconds
from rlctl.envs.telemetry import Missing
from rlctl.envs.testbed.generator import LoadGenerator
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.knee import find_knee, probe_with
from rlctl.envs.testbed.launch import Launcher, Process
from rlctl.envs.testbed.nginx import Nginx
from rlctl.envs.testbed.session import TOP_WEIGHT, out_of_the_way
from rlctl.envs.testbed.stress import StressConfig, StressNg
from rlctl.envs.testbed.traces import sinusoid
from rlctl.log.progress import say
from rlctl.report.page import render
from tests.faults.client import Endpoint
from tests.faults.judging import judge, rulings
from tests.faults.onlooker import Onlooker
from tests.faults.stage import ORIGINAL_QUOTA, Service, settings
from tests.soak.judging import free_port

OUT = ROOT / "out" / "tour-operate"

TARGET_SECONDS = 0.010
KNEE_RPS = (400.0, 200.0, 3000.0)  # as scenario live-nginx searches it
LOAD = sinusoid(0.25, 0.65, 40.0)
GENERATOR_PRIORITY = 50
FIGURES_SECONDS = 1.0
POLL_SECONDS = 0.01
UNMANAGED_SECONDS, SERVED_SECONDS, STALL_SECONDS = 15.0, 40.0, 9.0
AFTERWARDS_SECONDS = 4.0
PATIENCE_SECONDS = 90.0
FREE_CPUS = 0.04
SECOND_POLICY = "feedforward"
MOST_LINES, MOST_COLUMNS, MOST_WORDS = 14, 118, 72
WATCHDOG = re.compile(r"watchdog started: pid (\d+)")
WANTED_METRICS = re.compile("slack_ratio|quota_cpus|ticks_total")

SERVE = """\
lc:
  workload: {{kind: cgroup, path: /{name}/web}} # yours is more likely {{kind: unit, unit: nginx.service}}
  slo: {{target_milliseconds: 10, max_load_rps: {max_load_rps:.0f}}}
  latency: {{kind: http, url: "{url}", tail: p95_seconds, samples: samples, oldest: oldest_seconds,
            offered_rps: offered_rps, done_rps: done_rps, window: interval_seconds, stamp: stamp}}
  cpus: [0]
be:
  workloads: [{{kind: cgroup, path: /{name}/batch}}]
  cpus: [0]
policy: {{name: {policy}}}
state_directory: {folder}/state
log: {{directory: {folder}/log}}
metrics: {{listen: "127.0.0.1:{port}"}}
watchdog: {{restore_after_seconds: 8}} # 30 by default: longer than any supervisor takes to start rlctl again
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a fault, for the table."""

    what: str
    seconds: float | None
    freer: int | None
    back: str
    says: str


@dataclass
class Tour:
    """What has been shown so far, for table and figure; times are monotonic."""

    rows: list[Row] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    steps: int = 0
    begun_seconds: float = field(default_factory=time.monotonic)

    def heading(self, text: str) -> None:
        """Print the next step's heading."""
        self.steps += 1
        print(f"\n== {self.steps}. {text} ({time.monotonic() - self.begun_seconds:.0f} s)", flush=True)

    def mark(self, text: str) -> float:
        """What happens now, for the figure."""
        self.marks.append((time.monotonic(), text))
        return self.marks[-1][0]


class Bed:
    """nginx under load in one group, stress-ng in its sibling, and somebody who watches the latter.

    Args:
        stack: Ends all of it.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.name, self.folder = f"rlctl-tour-{os.getpid()}", OUT
        self._layout, self._knobs = Layout.detect(), Knobs(None)
        stack.callback(self._knobs.close)
        self._janitor = stack.enter_context(Janitor())
        top, self.web, self.batch, control = (
            stack.enter_context(self._janitor.group(self._layout, path, self._knobs))
            for path in (self.name, f"{self.name}/web", f"{self.name}/batch", f"{self.name}-rlctl")
        )
        for group in (top, control):  # set apart from the rest of the host, as rlctl.slice sets rlctl apart
            if group.cpu:
                group.cpu.set_weight(TOP_WEIGHT[self._layout.mount(CgroupController.CPU).version])
        for group in (self.web, self.batch):
            if group.cpuset:
                group.cpuset.set_cpus((0,))
        if self.batch.cpu:
            self.batch.cpu.set_quota(ORIGINAL_QUOTA)  # nobody's default, so that it can be told again
        scratch = self._janitor.make_folder()
        services = stack.enter_context(Launcher(scratch, self.web, self._janitor))
        jobs = stack.enter_context(Launcher(scratch, self.batch, self._janitor))
        self._controllers = stack.enter_context(Launcher(OUT, control, self._janitor))
        self._started = 0
        nginx, self._be = Nginx(), StressNg(StressConfig("cpu", 2))
        nginx.start(services)
        nginx.ready()
        cpu = stack.enter_context(out_of_the_way((0,)))
        load = replace(nginx.load(), cpu=cpu, fifo_priority=GENERATOR_PRIORITY)
        self._generator = stack.enter_context(LoadGenerator(load))
        self.max_load_rps = self._searched()
        self._be.start(jobs)
        self.originals = {**settings(self.web), **settings(self.batch)}
        self.endpoint = Endpoint()
        stack.callback(self.endpoint.close)
        self.onlooker = Onlooker(
            self._layout, self.batch.name, (0,), POLL_SECONDS, pids=self.batch.pids, service_pids=tuple
        )  # fmt: skip
        stack.callback(self.onlooker.close)
        self.port, self.limits = free_port(), Limits(1)
        self.seen: list[tuple[float, float, float, float]] = []  # time, tail and load of nginx, CPU seconds of BE
        ended = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(ended,), name="feeder", daemon=True)
        feeder.start()
        stack.callback(feeder.join)
        stack.callback(ended.set)

    def serve(self) -> Service:
        """Start `rlctl serve`; its log goes on in serve.err."""
        self._started += 1
        return Service(self.start(f"serve-{self._started}", "serve", "--config", "serve.yaml"), self._janitor)

    def start(self, name: str, *arguments: str) -> Process:
        """Start an rlctl in the tour's folder; it comes before all others, as a unit in rlctl.slice does."""
        return self._controllers.start(name, [str(ROOT / ".venv/bin/rlctl"), *arguments])

    @property
    def latest(self) -> Allocation:
        """What BE is allowed now, as the kernel's files have it."""
        found = self.onlooker.latest
        if found is None:
            raise TestbedError("BE's group is gone")
        return found

    def back(self) -> bool:
        """Every setting of both groups is what it was before, byte for byte; says which are not."""
        now = {**settings(self.web), **settings(self.batch)}
        changed = [path for path, text in self.originals.items() if now.get(path) != text]
        for path in changed:
            print(f"   NOT PUT BACK: {path} is {now.get(path)!r}, was {self.originals[path]!r}")
        if not changed:
            print(f"   {len(now)} settings of both groups read back, every byte as it was before rlctl came")
        return not changed

    def _searched(self) -> float:
        start, step, top = KNEE_RPS
        say("searching the largest load that meets the target without best-effort work ...")
        measure = probe_with(self._generator, 0.95, settle_seconds=0.5)
        found = find_knee(measure, TARGET_SECONDS, start_rps=start, step_rps=step, top_rps=top)
        self._generator.set_rate(0.0)
        return found

    def _feed(self, ended: threading.Event) -> None:
        """Drive the load, and tell what its client measures, as the exporter of a service does."""
        begun = time.monotonic()
        while not ended.wait(FIGURES_SECONDS):
            now = time.monotonic()
            self._generator.set_rate(LOAD.rate(now - begun) * self.max_load_rps)
            stats = self._generator.stats()
            self.endpoint.figures = asdict(stats)
            load_ratio = stats.offered_rps / self.max_load_rps
            self.seen.append((now, stats.latency_seconds(0.95), load_ratio, used_seconds(self.batch)))


def used_seconds(group: Group) -> float:
    """CPU time of a group since it was made; NaN where it cannot be told."""
    file = group.usage_file
    found = usage_seconds(file.read_bytes()) if file else math.nan
    return math.nan if isinstance(found, Missing) else found


def see(text: str) -> None:
    """What to look at in what was just printed."""
    print(f"   -> {text}", flush=True)


def rlctl(bed: Bed, *arguments: str, only: str = "", most: int = MOST_LINES) -> str:
    """Run a command as one would type it, print it and what it says, stdout first.

    Args:
        bed: Whose folder it runs in.
        arguments: What follows `rlctl` on the command line.
        only: Print the lines that have this in them.
        most: Lines of its output that are printed.

    Raises:
        TestbedError: It fails.
    """
    command = ["rlctl", *arguments]
    print(f"   $ {shlex.join(command)}{f' | grep {only!r}' if only else ''}", flush=True)
    process = bed.start(arguments[0], *arguments)
    code = process.wait(PATIENCE_SECONDS)
    said = "".join(path.read_text(errors="replace") for path in (process.output, process.errors))
    process.stop()
    lines = [line for line in said.splitlines() if only in line]
    show(lines[:most] + ([f"... ({len(lines) - most} more lines)"] if len(lines) > most else []))
    if code:
        raise TestbedError(f"{shlex.join(command)} ended with code {code}")
    return said


def show(lines: list[str]) -> None:
    """Output, indented and cut to the width of a terminal."""
    for line in lines:
        print(f"     {line[: MOST_COLUMNS - 3]}{'...' if len(line) > MOST_COLUMNS else ''}", flush=True)


def until(condition: Callable[[], bool], what: str, service: Service) -> None:
    """Wait for something that a service does.

    Raises:
        TestbedError: It does not happen.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TestbedError(f"not within {PATIENCE_SECONDS:g} s: {what}; rlctl said: {service.process.tail()}")
        time.sleep(0.02)


def said(service: Service, word: str, most: int = 2) -> str:
    """Print the lines of the service's log with a word in them; the last of them."""
    lines = [line for line in service.said.splitlines() if word in line][-most:]
    show(lines)
    return lines[-1] if lines else ""


def look(tour: Tour, bed: Bed, policy: str) -> None:
    """From the empty folder to a configuration that is known to be right."""
    tour.heading("What does this host offer?")
    rlctl(bed, "doctor", most=10)
    see("`yes` and `no`, each with its reason; exit code 0: `rlctl serve` can run here")
    tour.heading("A configuration for this service, and is it right?")
    file = OUT / "serve.yaml"
    file.write_text(configured(bed, policy))
    print("   $ cat serve.yaml")
    show(file.read_text().splitlines())
    rlctl(bed, "config", "check", "serve.yaml")
    tour.heading("What would it do? A dry run reads, decides and writes nothing")
    rlctl(bed, "serve", "--config", "serve.yaml", "--dry-run", "--duration", "4", only="dry run", most=8)
    see("no BE setting was touched:")
    bed.back()


def configured(bed: Bed, policy: str) -> str:
    """The text of the tour's serve.yaml."""
    url = bed.endpoint.config["url"]
    return SERVE.format(name=bed.name, max_load_rps=bed.max_load_rps, url=url, policy=policy, folder=OUT, port=bed.port)


def serve(tour: Tour, bed: Bed, policy: str) -> Service:
    """For real, and what an operator looks at."""
    tour.heading(f"{UNMANAGED_SECONDS:g} s without anybody in charge, for the comparison")
    tour.mark("nobody")
    time.sleep(UNMANAGED_SECONDS)
    see(f"nginx's p95, worst second: {worst_milliseconds(bed, UNMANAGED_SECONDS):.0f} ms, target 10 ms")
    tour.heading("Serve for real")
    print("   $ rlctl serve --config serve.yaml &")
    service = started(tour, bed, f"serve: {policy}")
    time.sleep(SERVED_SECONDS)
    said(service, "BE ", most=6)
    see("one line where a decision changes, not one a tick")
    rlctl(bed, "top", "--config", "serve.yaml", "--once", most=20)
    rlctl(bed, "why", "--config", "serve.yaml", most=40)
    see("what was seen, asked for, allowed, written and read back, and what came of it")
    url = f"http://127.0.0.1:{bed.port}/metrics"
    print(f"   $ curl -s {url} | grep -E 'slack_ratio|quota_cpus|ticks_total'")
    with urllib.request.urlopen(url) as page:
        lines = page.read().decode().splitlines()
    show([one for one in lines if not one.startswith("#") and WANTED_METRICS.search(one)])
    half = SERVED_SECONDS / 2.0
    see(f"nginx's p95, worst second of the last {half:g}: {worst_milliseconds(bed, half):.0f} ms")
    return service


def started(tour: Tour, bed: Bed, mark: str) -> Service:
    """`rlctl serve`, with its watchdog known and its first ticks done."""
    tour.mark(mark)
    service = bed.serve()
    until(lambda: bool(WATCHDOG.search(service.said)), "a watchdog", service)
    _ = service.watchdog  # so that the janitor knows it
    until(lambda: bed.latest.at_most(bed.limits.safe), "BE taken over", service)
    return service


def worst_milliseconds(bed: Bed, seconds: float) -> float:
    """The largest tail latency that the client has seen in the last seconds."""
    since = time.monotonic() - seconds
    return 1e3 * max((tail for at, tail, _, _ in bed.seen if at >= since), default=math.nan)


def stall(tour: Tour, bed: Bed, service: Service) -> None:
    """The latency source repeats itself, as an exporter that hangs does."""
    tour.heading("Fault: the latency source stalls")
    until(lambda: free(bed), "BE freer than safe", service)
    at = tour.mark("source stalls")
    bed.endpoint.stall()
    time.sleep(STALL_SECONDS)
    says = rlctl(bed, "why", "--config", "serve.yaml", only="tail_latency_seconds: ")
    see(f"what is stale is not believed, however good it looks; BE is at {bed.latest}")
    end = tour.mark("answers again")
    bed.endpoint.resume()
    until(lambda: free(bed), "BE free again", service)
    time.sleep(AFTERWARDS_SECONDS)
    stale = says.partition("tail_latency_seconds: ")[2].partition("\n")[0]
    tour.rows.append(judge_row("the latency source stalls", bed, at, end, bed.limits.safe, stale))


def garbage(tour: Tour, bed: Bed, service: Service) -> None:
    """A configuration that is none changes nothing; a right one exchanges the policy between two ticks."""
    tour.heading("Fault: the configuration becomes garbage, and SIGHUP")
    at = tour.mark("garbage")
    (OUT / "serve.yaml").write_bytes(bytes(range(255, 0, -1)))
    print(f"   $ head -c 200 /dev/urandom > serve.yaml; kill -HUP {service.pid}")
    service.signal(signal.SIGHUP)
    until(lambda: "not reloaded" in service.said, "a word on the configuration", service)
    says = said(service, "not reloaded")
    time.sleep(AFTERWARDS_SECONDS)
    tour.rows.append(judge_row("the configuration becomes garbage", bed, at, time.monotonic(), None, says[9:]))
    see("all stays as it was; now a right one, with another policy:")
    (OUT / "serve.yaml").write_text(configured(bed, SECOND_POLICY))
    print(f"   $ kill -HUP {service.pid}")
    service.signal(signal.SIGHUP)
    until(lambda: "reloaded: policy" in service.said, "the other policy", service)
    tour.mark(f"policy {SECOND_POLICY}")
    said(service, "reloaded: policy")
    time.sleep(5 * AFTERWARDS_SECONDS)


def kill_controller(tour: Tour, bed: Bed, service: Service) -> None:
    """Nobody starts it again: its watchdog gives back what it found."""
    tour.heading("Fault: SIGKILL to the controller, and nobody starts it again")
    until(lambda: free(bed), "BE freer than safe", service)
    at = tour.mark("kill -9")
    print(f"   $ kill -9 {service.pid}")
    service.signal(signal.SIGKILL)
    until(lambda: not (OUT / "state" / JOURNAL).exists(), "the originals put back by the watchdog", service)
    end = min(time.monotonic(), at + 8.0)
    tour.mark("put back")
    said(service, "has ended")
    see("the watchdog took BE to the safe allocation, waited 8 s for a successor, and put everything back:")
    back = bed.back()
    tour.rows.append(
        judge_row("SIGKILL to the controller", bed, at, end, bed.limits.safe, said(service, "originals back"), back)
    )
    time.sleep(AFTERWARDS_SECONDS)


def kill_both(tour: Tour, bed: Bed) -> None:
    """Nobody is left; `rlctl restore` needs no daemon."""
    tour.heading("Fault: SIGKILL to controller and watchdog; restore by hand")
    service = started(tour, bed, "serve")
    time.sleep(AFTERWARDS_SECONDS)
    print(f"   $ kill -9 {service.watchdog} {service.pid}")
    tour.mark("kill -9 both")
    for pid in (service.watchdog, service.pid):
        os.kill(pid, signal.SIGKILL)
    service.process.stop()
    time.sleep(AFTERWARDS_SECONDS)
    see(f"BE stays as it was, at {bed.latest}: nobody is left to look after it. systemd would start rlctl again now")
    says = rlctl(bed, "restore", "--config", "serve.yaml").splitlines()[0]
    tour.mark("restore")
    tour.rows.append(Row("SIGKILL to both, then rlctl restore", None, None, "yes" if bed.back() else "NO", says))
    time.sleep(AFTERWARDS_SECONDS)


def leave(tour: Tour, bed: Bed) -> None:
    """SIGTERM, as `systemctl stop` sends it."""
    tour.heading("The ordinary end: SIGTERM")
    service = started(tour, bed, "serve")
    time.sleep(AFTERWARDS_SECONDS)
    print(f"   $ kill -TERM {service.pid}")
    tour.mark("stop")
    service.signal(signal.SIGTERM)
    if code := service.process.wait(PATIENCE_SECONDS):
        raise TestbedError(f"after SIGTERM the exit code is {code}: {service.process.tail()}")
    says = said(service, "leaving after")[9:]
    tour.rows.append(Row("SIGTERM", None, None, "yes" if bed.back() else "NO", says))
    time.sleep(AFTERWARDS_SECONDS)


def free(bed: Bed) -> bool:
    """BE has more than the safe allocation."""
    found = bed.latest
    return not found.frozen and found.quota_cpus >= FREE_CPUS


def judge_row(
    what: str, bed: Bed, at: float, end: float, wanted: Allocation | None, says: str, back: bool | None = None
) -> Row:
    """When BE was where it had to be, and whether it was ever freer than the verdict in force."""
    ruled, _ = rulings(sorted((OUT / "log").glob("*.jsonl*")))
    found = judge(bed.onlooker.samples, ruled, wanted, at, (at, end), stays=wanted is not None)
    return Row(what, found.seconds, found.freer, "-" if back is None else "yes" if back else "NO", says)


def table(rows: list[Row]) -> str:
    """Rows in columns for a terminal."""
    cells = [("what happened", "BE <= verdict after, s", "freer than it", "settings came back", "what the log says")]
    for row in rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.2f}"
        freer = "-" if row.freer is None else "never" if not row.freer else f"{row.freer} times"
        cells.append((row.what, seconds, freer, row.back, row.says[:MOST_WORDS]))
    width = max(len(row[-1]) for row in cells)
    return render([(*row[:-1], row[-1].ljust(width)) for row in cells])


def figure(tour: Tour, bed: Bed) -> Path:
    """Tail latency, BE's quota as the kernel had it, and BE's CPU time, with what happened when."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(14, 8), layout="constrained")
    tail_axis, quota_axis, used_axis = drawn.subplots(3, 1, sharex=True)
    begin = bed.seen[0][0]
    at = [one[0] - begin for one in bed.seen]
    tail_axis.semilogy(
        at, [1e3 * one[1] for one in bed.seen], color="#1f5f99", label="nginx p95, as its client sees it"
    )
    tail_axis.axhline(1e3 * TARGET_SECONDS, color="#b3261e", linestyle="--", label="target")
    tail_axis.set_ylabel("ms")
    samples = [(one.begun_seconds - begin, one.found) for one in bed.onlooker.samples if one.found is not None]
    sampled = [seconds for seconds, _ in samples]
    quota = [min(in_force.quota_cpus, 2.0) for _, in_force in samples]
    quota_axis.step(sampled, quota, where="post", color="#d9822b", label="BE's quota in the kernel's file")
    quota_axis.fill_between(
        sampled, 0, 2, where=[in_force.frozen for _, in_force in samples], step="post", color="#d8d0ea", label="frozen"
    )
    quota_axis.set_ylabel("CPUs")
    used = [(now[3] - then[3]) / (now[0] - then[0]) for then, now in zip(bed.seen, bed.seen[1:], strict=False)]
    used_axis.step(at[1:], used, color="#6a9f58", label="CPU time that BE used")
    used_axis.plot(at, [one[2] for one in bed.seen], color="#7f7f7f", label="load of nginx, share of its maximum")
    used_axis.set_ylabel("CPUs, share")
    used_axis.set_xlabel("seconds")
    for axis in (tail_axis, quota_axis, used_axis):
        for moment, _ in tour.marks:
            axis.axvline(moment - begin, color="#555555", linewidth=0.7, linestyle=":")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
        axis.margins(x=0)
    for moment, text in tour.marks:
        tail_axis.annotate(
            text, (moment - begin, 1.0), xycoords=("data", "axes fraction"), rotation=35, fontsize=8, va="bottom"
        )
    path = OUT / "tour.png"
    drawn.savefig(path, dpi=110)
    return path


def main() -> int:
    """Take all steps of the tour."""
    parser = argparse.ArgumentParser(prog="tour operate", description=__doc__)
    parser.add_argument("--policy", default="ppo", help="who decides, from `rlctl managers` (%(default)s)")
    policy = parser.parse_args().policy
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tour = Tour()
    with contextlib.ExitStack() as stack:
        bed = Bed(stack)
        look(tour, bed, policy)
        service = serve(tour, bed, policy)
        stall(tour, bed, service)
        garbage(tour, bed, service)
        kill_controller(tour, bed, service)
        kill_both(tour, bed)
        leave(tour, bed)
        path = figure(tour, bed)
    told = table(tour.rows)
    (OUT / "table.md").write_text(told + "\n")
    print(f"\n{told}\n\nfigure: {path}\nthe tick log, serve.yaml and rlctl's own words are beside it")
    return int(any(row.back == "NO" or row.freer or row.seconds == float("inf") for row in tour.rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run_main(main)
