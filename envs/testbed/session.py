"""A running testbed: a real LC under open-loop load and a real BE job, each in control groups of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.envs.host.latency.generator import GeneratorSource
from rlctl.envs.host.live import LiveHost
from rlctl.envs.host.sensors.cpu import GroupCpus, HostCpus, LcAlive
from rlctl.envs.host.sensors.members import CgroupMembers
from rlctl.envs.host.sensors.psi import Psi
from rlctl.envs.host.sensors.schedstat import RunDelay
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.testbed.generator import GeneratorConfig, LoadGenerator
from rlctl.envs.testbed.traces import Trace
from rlctl.envs.testbed.hedge import StressNg, Work, start_lc
from rlctl.envs.workload import SLO

__all__ = ["DrivenHost", "Testbed", "TestbedSpec"]

log = logging.getLogger(__name__)

GENERATOR_PRIORITY = 50  # SCHED_FIFO: a normal-priority sender is late by milliseconds beside a busy BE (host.md)
CONTROLLER_PRIORITY = 40  # a normal-priority controller waited 43 ms at the median, 780 ms at worst (host.md)
TOP_WEIGHT = {1: 262144, 2: 10000}  # the kernel's largest: the rest of the box must not disturb (host.md)
SOLO_SECONDS = 6.0
SETTLE_SECONDS = 1.0
DRAIN_SECONDS = 10.0
PROBE_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class TestbedSpec:
    """What to start, and where.

    Attributes:
        lc: Kind of LC.
        lc_cpus: CPUs that it is pinned to.
        be: Kind of BE.
        be_workers: Worker processes of it.
        be_cpus: CPUs that BE may get, the safest for the LC first.
        target_seconds: The LC's tail-latency target.
        quantile: Which quantile, as a ratio.
        tick_seconds: Control period.
    """

    lc: Literal["nginx", "memcached"]
    lc_cpus: tuple[int, ...]
    be: Literal["cpu", "memory", "mixed"]
    be_workers: int
    be_cpus: tuple[int, ...]
    target_seconds: float
    quantile: float = 0.95
    tick_seconds: float = 1.0
    knee: tuple[float, float, float] = (100.0, 100.0, 2000.0)

    __test__ = False


class DrivenHost(LiveHost):
    """A live host whose load follows a trace: the rate is set at the beginning of each period."""

    drive: Callable[[], None] = staticmethod(lambda: None)

    def wait(self) -> int:
        """Set the rate for the period that begins, then let it pass."""
        self.drive()
        return super().wait()


class Testbed:
    """LC, load generator and BE, started on entry and gone on exit, whatever happens in between.

    The maximum load is searched on entry, with BE absent, as the thesis does in 5.1.3.

    Args:
        spec: What to start.
        say: Takes a line on what is being done, for the user.

    Attributes:
        plant: The host, as any controller sees it.
        generator: The load.
        slo: The LC's objective, with the maximum load found.
    """

    __test__ = False
    plant: DrivenHost
    generator: LoadGenerator
    slo: SLO

    def __init__(self, spec: TestbedSpec, say: Callable[[str], None] = log.info) -> None:
        self.spec = spec
        self._say = say
        self._stack = contextlib.ExitStack()
        self._folder: Path
        self._be_group: Group
        self._be: StressNg | None = None

    def __enter__(self) -> Self:
        """Start everything but BE.

        Raises:
            TestbedError: A program is missing or did not start.
            PermissionMissing: Control groups may not be made.
        """
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything and remove every group."""
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        spec, knobs = self.spec, Knobs(None)  # groups of our own: they are removed, there is nothing to put back
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlctl-testbed-")))
        layout = Layout.detect()
        top = _group(stack, layout, f"rlctl-testbed-{os.getpid()}", knobs)
        lc = _group(stack, layout, f"{top.name}/lc", knobs)
        self._be_group = _group(stack, layout, f"{top.name}/be", knobs)
        if top.cpu:
            top.cpu.set_weight(TOP_WEIGHT[layout.mount(Controller.CPU).version])
        if lc.cpuset:
            lc.cpuset.set_cpus(spec.lc_cpus)
        stack.enter_context(_out_of_the_way(spec.lc_cpus))
        load = self._start_lc(stack, lc)
        self.generator = stack.enter_context(LoadGenerator(load))
        self.slo = SLO(spec.target_seconds, spec.quantile, self._max_load_rps())
        limits = Limits(len(spec.be_cpus), lc_cpus=float(len(spec.lc_cpus)))
        actuator = BeActuator([self._be_group], spec.be_cpus, limits, knobs, lc=lc)
        self.plant = DrivenHost(limits, self.slo, spec.tick_seconds, actuator, self._sensors(lc), lambda: None)
        stack.callback(self.plant.close)
        stack.callback(self._abandon_be)

    def _start_lc(self, stack: contextlib.ExitStack, lc: Group) -> GeneratorConfig:
        p = start_lc(self.spec.lc, self._folder, lc)
        stack.callback(lambda: (p.terminate(), p.wait()))
        kind = "http" if self.spec.lc == "nginx" else "memcached"
        cpus = sorted(os.sched_getaffinity(0))
        return GeneratorConfig(kind, unix_path=self._folder / "socket", http_path="/text", cpu=cpus[-1], fifo_priority=GENERATOR_PRIORITY)

    def start_be(self) -> None:
        self.plant.apply(self.plant.limits.full)
        self._be = StressNg(self.spec.be, self.spec.be_workers, self._be_group, self._folder)
        deadline = time.monotonic() + 3
        while len(self._be_group.pids()) < 1 + self.spec.be_workers and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        self.plant.apply(self.plant.limits.minimum)

    def stop_be(self) -> Work:
        self.plant.apply(self.plant.limits.full)
        be, self._be = self._be, None
        return be.stop()

    def _abandon_be(self) -> None:
        if self._be is not None:
            self.stop_be()

    def solo_rate(self) -> float:
        """BE work per second when it has all its CPUs and the LC has no load."""
        self.generator.set_rate(0.0)
        self.start_be()
        self.plant.apply(self.plant.limits.full)
        time.sleep(SOLO_SECONDS)
        work = self.stop_be()
        return work.bogo_ops / work.seconds

    def start_trace(self, trace: Trace) -> None:
        """Let the load follow a trace (shares of the maximum load) from now on."""
        begun = time.monotonic()
        self.plant.drive = lambda: self._set_load(trace.rate(time.monotonic() - begun))

    def settle(self, load_ratio: float) -> None:
        """Hold a load without BE until no old request is left.

        Raises:
            TestbedError: The LC does not get rid of its backlog.
        """
        self.plant.drive = lambda: None
        self._set_load(load_ratio)
        deadline = time.monotonic() + DRAIN_SECONDS
        time.sleep(SETTLE_SECONDS)
        while self.generator.stats().tail_seconds > self.spec.target_seconds:
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.spec.lc} still has a backlog {DRAIN_SECONDS:g} s after BE was stopped")
            time.sleep(SETTLE_SECONDS)

    def _set_load(self, ratio: float) -> None:
        self.generator.set_rate(ratio * self.slo.max_load_rps)

    def _max_load_rps(self) -> float:
        """The largest load that meets the target, BE absent."""
        self._say(f"searching the maximum load of {self.spec.lc} with BE absent ...")
        found, (start, step, top) = 0.0, self.spec.knee
        while start <= top and self._tail_at(start) <= self.spec.target_seconds:
            found, start = start, start + step
        for _ in range(3):
            step /= 2
            if self._tail_at(found + step) <= self.spec.target_seconds:
                found += step
        self._say(f"maximum load {found:.0f} rps")
        return found

    def _tail_at(self, rps: float) -> float:
        self.generator.set_rate(rps)
        time.sleep(PROBE_SECONDS / 3)
        self.generator.stats()
        time.sleep(PROBE_SECONDS)
        return self.generator.stats().tail_seconds

    def _sensors(self, lc: Group) -> list[Sensor]:
        """Every sensor this host has, the generator first so that its window ends with the tick."""
        members = CgroupMembers(lc.procs_file)
        sensors: list[Sensor] = [
            GeneratorSource(lambda: self.generator.stats(timeout_seconds=0.05), self.slo),
            LcAlive(members),
            RunDelay(CgroupMembers(lc.procs_file)),
            HostCpus(),
        ]
        if lc.usage_file and self._be_group.usage_file:
            sensors.append(GroupCpus(lc.usage_file, [self._be_group.usage_file]))
        if lc.pressure_file and self._be_group.pressure_file:
            sensors.append(Psi(lc.pressure_file, [self._be_group.pressure_file]))
        return sensors


def _group(stack: contextlib.ExitStack, layout: Layout, name: str, knobs: Knobs) -> Group:
    group = Group.create(layout, name, knobs)
    stack.callback(group.remove)
    return group


@contextlib.contextmanager
def _out_of_the_way(lc_cpus: tuple[int, ...]) -> Iterator[None]:
    """Keep this process off the LC's CPUs and ahead of BE, as far as the host allows."""
    affinity, policy, priority = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    others = affinity - set(lc_cpus)
    with contextlib.suppress(OSError):
        if others:
            os.sched_setaffinity(0, others)
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(CONTROLLER_PRIORITY))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy & ~os.SCHED_RESET_ON_FORK, priority)
            os.sched_setaffinity(0, affinity)
