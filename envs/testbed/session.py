"""A running testbed: a real LC under open-loop load and a real BE job, each in control groups of its own."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.latency.tcp import TcpSource
from rlctl.envs.host.live import Lc, LiveHost, LiveParts
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.host.poller import LcSources, Poller
from rlctl.envs.host.reins.link import LinkRein
from rlctl.envs.host.reins.link_share import LinkShare
from rlctl.envs.host.reins.reins import Reins, SharedRein
from rlctl.envs.host.sensors.of_groups import group_sensors
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.host.topology import exclusive_cpus
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import Reading
from rlctl.envs.testbed.disk.provisioned import ProvisionedDisk
from rlctl.envs.testbed.generator import LoadGenerator
from rlctl.envs.testbed.generator_source import ClientTruth, GeneratorSource
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.jobs import COPIED_BYTES, COPIES, DEPTH, BulkWrite, StressNg, Upload
from rlctl.envs.testbed.knee import MISSED_WINDOWS, find_knee, probe_with
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.network.link import Link, LinkUse
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.traces import Trace, constant
from rlctl.envs.testbed.workloads import BeJob, LcProgram, Work
from rlctl.envs.workload import SLO

log = logging.getLogger(__name__)

GENERATOR_PRIORITY = 50  # SCHED_FIFO: else late by milliseconds (docs/measured/simulator.md, 10)
CONTROLLER_PRIORITY = 40  # else it waits for 43 ms at the median (docs/measured/simulator.md, 10)
TOP_WEIGHT = {1: 262144, 2: 10000}  # the kernel's largest: the rest of the box must not disturb (the same)
SOLO_SECONDS = 8.0
SETTLE_SECONDS = 0.5
DRAIN_SECONDS = 20.0
SINK_PRIORITY = 45  # the client is a machine of its own: its side waits for nobody but the generator


class ReinsInUse:
    """Reads the use of the reins that a plant has now: they come and go with who may move them."""

    name, provides = Reins.name, Reins.provides

    def __init__(self, reins: Callable[[], Reins]) -> None:
        self._reins = reins

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """As `Reins.read`, of the plant that there is now."""
        return self._reins().read(now_seconds)

    def close(self) -> None:
        """They belong to the testbed."""


class DrivenHost(LiveHost):
    """A live host whose load follows a trace: what changes in a run is set at the beginning of each period."""

    drive: Callable[[], None] = staticmethod(lambda: None)

    def wait(self) -> int:
        """Set what the period that begins shall have, then let it pass."""
        self.drive()
        return super().wait()


class Testbed:
    """LC, load generator and BE, started on entry and gone on exit, also after Ctrl-C or a crash.

    The maximum load is searched on entry, with BE absent, as the thesis does in 5.1.3; on a busy machine it is another
    one minutes later, see `search`.

    Args:
        scenario: What to start, and where.
        say: Takes a line on what is being done, for the user.
        lc: The LC in place of the scenario's, not started.

    Attributes:
        plant: The host, as any controller sees it.
        slo: The LC's objective, with the maximum load found.
        searched_seconds: When that was, by the monotonic clock.
        be_group: Where BE's jobs run, for who starts applications of their own there.
        generator: The LC's client; whoever asks it takes the figures from `plant`.
    """

    __test__ = False
    plant: DrivenHost
    slo: SLO
    searched_seconds: float
    be_group: Group
    generator: LoadGenerator

    def __init__(
        self, scenario: LiveScenario, say: Callable[[str], None] = log.info, lc: LcProgram | None = None
    ) -> None:
        self.scenario, self._lc = scenario, lc or scenario.service()
        self._say = say
        self._stack, self._plants = contextlib.ExitStack(), contextlib.ExitStack()
        self._lc_group: Group
        self._actuator: BeActuator
        self._launcher: Launcher
        self._link: Link | None = None
        self._loop: tuple[float, Callable[[], None]] | None = None
        self._due_seconds = 0.0
        self._disk: ProvisionedDisk | None = None
        self._new_be: Callable[[], BeJob]
        self._be: BeJob | None = None
        self._max_load = MaxLoad("lc", float(len(scenario.lc.cpus)))

    def __enter__(self) -> Self:
        """Start everything but BE.

        Raises:
            ConfigError: LC or BE shall have CPUs that this host has not.
            TestbedError: A program is missing or did not start.
            PermissionMissing: Control groups may not be made.
        """
        self.scenario.require_online()
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything and remove every group."""
        self._stack.close()

    def start_be(self) -> None:
        """Start BE, unrestricted: under the smallest quota the start alone takes seconds, and a freeze as well."""
        self.plant.apply(self.plant.limits.full)
        be = self._new_be()
        be.start(self._launcher)
        self._be = be
        be.ready()

    def stop_be(self) -> Work:
        """End BE, and what it has done since its start. The quota is lifted first, or the end would take seconds."""
        be, self._be = self._be, None
        if be is None:
            raise TestbedError("BE does not run")
        self.plant.apply(self.plant.limits.full)
        return be.stop()

    def solo(self) -> Work:
        """BE running alone: all its CPUs, no load on the LC.

        Raises:
            TestbedError: The LC does not get rid of what it was sent before, or BE got nothing done.
        """
        self.settle(constant(0.0))
        self.start_be()
        self._begin_be()
        time.sleep(SOLO_SECONDS)
        work = self.stop_be()
        if not work.bogo_ops > 0.0:
            raise TestbedError(f"BE got nothing done in {SOLO_SECONDS:g} s alone, and its runs are compared with that")
        return work

    def settle(self, trace: Trace) -> None:
        """Hold the load that a trace begins with, without BE, until no old request is left.

        Raises:
            TestbedError: The LC does not get rid of its backlog.
        """
        slo = self.scenario.slo
        self.generator.forget()  # of a run that is over, and that may have left more than a minute's work
        self._drive(trace.rate)
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            time.sleep(SETTLE_SECONDS)
            if self.generator.stats().latency_seconds(slo.quantile) <= slo.target_seconds:
                return
            if time.monotonic() > deadline:
                raise TestbedError(f"the LC still has a backlog {DRAIN_SECONDS:g} s after BE was stopped")

    @contextlib.contextmanager
    def divide_resource(
        self, resource: Literal["link", "disk"], rate_ratio: float, *, follows: bool = False
    ) -> Iterator[None]:
        """Let the kernel divide what is provisioned between LC and BE for as long as the context lasts.

        Args:
            rate_ratio: Rate that the operator takes it to have, as a share of its first one.
            follows: The operator is told each change of a link's rate.

        Raises:
            TestbedError: There is no such thing here, or the kernel cannot divide it.
        """
        provisioned = self._link if resource == "link" else self._disk
        if provisioned is None:
            raise TestbedError(f"there is no {resource} to divide")
        provisioned.divide(rate_ratio)
        if self._link is not None:
            self._link.told_ratio = rate_ratio if follows else None
        try:
            yield
        finally:
            provisioned.unite()

    @contextlib.contextmanager
    def ceiling(
        self, be_link_ratio: Callable[[Mapping[str, Reading]], float | None], period_seconds: float
    ) -> Iterator[None]:
        """Give BE's class on the link a ceiling that follows what the LC sends, for as long as the context lasts.

        Args:
            be_link_ratio: The ceiling as a share of the link's first rate, of the readings of `LinkUse`; None to leave
                it as it is.
            period_seconds: How often it is asked, between the ticks too.

        Raises:
            TestbedError: There is no link, or the kernel has no such class.
        """
        if (link := self._link) is None:
            raise TestbedError("there is no link to divide into classes")
        use = LinkUse(link)

        def hold_be() -> None:
            if (ratio := be_link_ratio(use.read(time.monotonic()))) is not None:
                link.hold_be(ratio)

        link.limit_be()
        try:
            with self.between(period_seconds, hold_be):
                yield
        finally:
            link.unite()

    @contextlib.contextmanager
    def reins(self, memory: Mapping[str, Any]) -> Iterator[Reins]:
        """Let BE's level be moved by the link or the disk too, where there is one, for as long as the context lasts.

        Args:
            memory: What is known of them, see `Reins.state_dict`.

        Raises:
            HostError: The kernel lacks a part of one.
        """
        others: dict[Rein, SharedRein] = {}
        with contextlib.ExitStack() as opened:
            if self._link is not None:
                link = LinkRein.open("host", (), [self.be_group], None, self._link.host.pid)
                others[Rein.LINK] = LinkShare.of(opened.enter_context(link))
            if self._disk is not None:
                others[Rein.DISK] = self._disk.rein(self.be_group)
                opened.callback(others[Rein.DISK].close)
            reins = Reins(self._actuator, others)
            reins.moves = lambda: True
            if memory:
                reins.restore_state(memory)
            self.plant.reins = reins
            try:
                yield reins
            finally:
                self.plant.reins = Reins(self._actuator)

    @contextlib.contextmanager
    def between(self, period_seconds: float, act: Callable[[], None]) -> Iterator[None]:
        """Do something so often between the ticks, or as often as a watch looks, for as long as the context lasts."""
        self._loop, self._due_seconds = (period_seconds, act), time.monotonic() + period_seconds
        try:
            yield
        finally:
            self._loop = None

    def follow(self, trace: Trace, again_seconds: float = math.inf) -> None:
        """Let load (shares of the maximum load) and link go through a run from now on, again after so long.

        BE that waits for it begins with the first control period, when an allocation is in force.
        """
        begun = time.monotonic()
        self._drive(trace.rate, lambda: (time.monotonic() - begun) % again_seconds)

    def _drive(self, load_ratio: Callable[[float], float], t_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """Let load and link be what they are so long after the beginning of a run; without a clock, at it."""

        def drive() -> None:
            now_seconds = t_seconds()
            self.generator.set_rate(load_ratio(now_seconds) * self.slo.max_load_rps)
            if self._link is not None:
                self._link.set_rate_at(now_seconds)

        def begin_period() -> None:
            self._begin_be()
            drive()

        self.plant.drive = begin_period
        drive()

    def _sleep(self, seconds: float) -> None:
        """Let a part of a period pass, with what is to be done between the ticks."""
        end_seconds = time.monotonic() + seconds
        while self._loop and self._due_seconds <= end_seconds:
            period_seconds, act = self._loop
            time.sleep(max(self._due_seconds - time.monotonic(), 0.0))
            act()
            self._due_seconds = time.monotonic() + period_seconds
        time.sleep(max(end_seconds - time.monotonic(), 0.0))

    def _begin_be(self) -> None:
        if self._be is not None:
            self._be.begin()

    def _start(self, stack: contextlib.ExitStack) -> None:
        scenario, layout = self.scenario, Layout.detect()
        knobs = Knobs(None)  # the groups are our own and are removed: there is nothing to put back
        stack.callback(knobs.close)
        janitor = stack.enter_context(Janitor())
        name, shared = f"rlctl-testbed-{os.getpid()}", () if scenario.disk is None else (CgroupController.IO,)
        # The parent sets the testbed apart from the rest of the host, and alone has the controllers of what both share.
        top = stack.enter_context(janitor.group(layout, name, knobs, shared))
        lc, be = (stack.enter_context(janitor.group(layout, f"{name}/{one}", knobs)) for one in ("lc", "be"))
        if top.cpu:
            top.cpu.set_weight(TOP_WEIGHT[layout.mount(CgroupController.CPU).version])
        if lc.cpuset:
            lc.cpuset.set_cpus(scenario.lc.cpus)
        folder = janitor.make_folder()
        inside: tuple[str, ...] = ()
        client: tuple[str, ...] = ()
        if scenario.link is not None:
            holders = stack.enter_context(Launcher(folder, None, janitor))
            self._link = stack.enter_context(Link(scenario.link, holders))
            inside, client = self._link.host.inside, self._link.client.inside
        if scenario.disk is not None:
            holders = stack.enter_context(Launcher(folder, None, janitor))
            self._disk = stack.enter_context(ProvisionedDisk(scenario.disk.megabytes, holders, top, knobs))
            inside = (*inside, *self._disk.inside)
        storage = self._disk.folder if self._disk else None
        self.be_group, self._launcher = be, stack.enter_context(Launcher(folder, be, janitor, inside))
        services = stack.enter_context(Launcher(folder, lc, janitor, inside, storage))
        generator_cpu = stack.enter_context(out_of_the_way(scenario.lc.cpus))
        workers = scenario.be.workers
        match scenario.be.kind:
            case "write" | "copy" if self._disk is not None:
                volume = Path("/dev", self._disk.volume.name)
                depth, copied_bytes = (COPIES, COPIED_BYTES) if scenario.be.kind == "copy" else (DEPTH, 0)
                self._new_be = lambda: BulkWrite(workers, volume, depth, copied_bytes)
            case "upload" | "sendfile" if client:
                sinks = stack.enter_context(Launcher(folder, None, janitor, _remote(client, generator_cpu)))
                way: Literal["compress", "sendfile"] = "sendfile" if scenario.be.kind == "sendfile" else "compress"
                self._new_be = lambda: Upload(workers, sinks, way)
            case "write" | "copy" | "upload" | "sendfile":
                raise TestbedError("an upload needs a link, a writer a disk, and this testbed has none")
            case kind:
                self._new_be = lambda: StressNg(kind, workers)
        self._lc.start(services)
        self._lc.ready()
        load = replace(self._lc.load(), cpu=generator_cpu, fifo_priority=GENERATOR_PRIORITY, inside=client)
        self.generator = stack.enter_context(LoadGenerator(load))
        exclusive = exclusive_cpus(scenario.be.cpus, scenario.lc.cpus)
        limits = Limits(len(scenario.be.cpus), lc_cpus=float(len(scenario.lc.cpus)), exclusive_cpus=exclusive)
        self._lc_group, self._actuator = lc, BeActuator([be], scenario.be.cpus, limits, knobs, lc=lc)
        stack.enter_context(self._plants)
        self._search()

    def search(self) -> None:
        """Search the maximum load anew, BE absent; loads are shares of it from now on: `slo` and `plant` are new.

        Raises:
            TestbedError: The target is missed at the smallest load, or the LC does not get rid of its backlog.
        """
        self.settle(constant(0.0))  # what the last run had not sent yet, and the link as it was at its end
        self._search()

    def _search(self) -> None:
        self._plants.close()  # the sensors of the one before
        asked = self.scenario.slo
        self.slo = SLO(asked.target_seconds, asked.quantile, self._max_load_rps())
        source = GeneratorSource(
            lambda: self.generator.stats(timeout_seconds=0.05),
            self.slo,
            peek=lambda: self.generator.peek(timeout_seconds=0.02),
        )
        slo, max_load, latency = self.slo, None, list[Sensor]([source])
        if self.scenario.source == "tcp":  # nothing is told but the target, and the maximum load is learned
            slo, max_load = replace(slo, max_load_rps=math.inf), self._max_load
            latency = [TcpSource(slo, self._lc.pids), ClientTruth(source)]
        of_link = [LinkUse(self._link)] if self._link else []
        of_reins = ReinsInUse(lambda: self.plant.reins)
        sensors = [*latency, *group_sensors(self._lc_group, [self.be_group]), *of_link, of_reins]
        watched = Lc("lc", slo, sensors, max_load)
        watch = Poller({watched.name: LcSources(self.slo, watched.sensors)}, None, self._sleep)
        parts = LiveParts(watch=watch)
        self.plant = DrivenHost([watched], self._actuator, self.scenario.tick_seconds, lambda: None, parts)
        self._plants.callback(self.plant.close)
        self.searched_seconds = time.monotonic()

    def _max_load_rps(self) -> float:
        slo, knee = self.scenario.slo, self.scenario.knee
        self._say("searching the LC's maximum load, BE absent ...")
        probe = partial(probe_with, self.generator, slo.quantile, settle_seconds=SETTLE_SECONDS)
        bear = probe(windows=knee.borne_windows, missed=MISSED_WINDOWS, target_seconds=slo.target_seconds)
        found = find_knee(probe(), slo.target_seconds, knee, bear if knee.borne_windows else None)
        beyond = ", where the search ends: the LC may take more (knee.top_rps)" if knee.ends_at(found) else ""
        self._say(f"maximum load {found:.0f} rps{beyond}")
        return found


def _remote(client: tuple[str, ...], cpu: int | None) -> tuple[str, ...]:
    """Put before the commands of the client's side, which stands for another machine: they disturb nobody here."""
    place = () if cpu is None else ("taskset", "--cpu-list", str(cpu))
    return (*client, "chrt", "--fifo", str(SINK_PRIORITY), *place)


@contextlib.contextmanager
def out_of_the_way(lc_cpus: tuple[int, ...]) -> Iterator[int | None]:
    """Keep this process off the LC's CPUs and ahead of BE, as far as the host allows; yields a CPU for the load."""
    affinity = os.sched_getaffinity(0)
    others = affinity - set(lc_cpus)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, others or affinity)
    try:
        with ahead():
            yield max(others, default=None)
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, affinity)


@contextlib.contextmanager
def ahead() -> Iterator[None]:
    """Real-time priority, where the host allows it: who waits its turn behind BE decides too late."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(CONTROLLER_PRIORITY))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy & ~os.SCHED_RESET_ON_FORK, priority)
