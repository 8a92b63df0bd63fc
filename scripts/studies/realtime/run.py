"""Runs the real-time isolation matrix on this host: a cyclictest and its load, cell by cell, in groups of their own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from rlctl.agents import catalogue
from rlctl.bench.testbed import this_host
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError, TestbedError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.latency.figures import TimeUnit
from rlctl.envs.host.latency.text_log import TextLog
from rlctl.envs.host.live import Lc, LiveHost
from rlctl.envs.host.sensors.of_groups import group_sensors
from rlctl.envs.host.topology import cpu_order, read_topology
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.session import out_of_the_way
from rlctl.envs.workload import SLO
from rlctl.log.kept import MemoryRecorder
from rlctl.log.record import Tick
from rlctl.loop.control import Controller
from rlctl.loop.stopping import Request
from rlctl.safety.shield import Shield
from scripts.studies.realtime.cyclictest import Cyclictest, cyclictest_lines
from scripts.studies.realtime.isolation import Cell, Outcome, Plan, Run
from scripts.studies.realtime.rtgroups import Condition, Places, Rig, disk_of, in_memory
from scripts.studies.realtime.rtload import BLOCK_BYTES, Load, RtLoad

SHARED_MEMORY = Path("/dev/shm")
LOOK_SECONDS = 0.05
TRIAL_SECONDS = 1.0
PATIENCE = 3.0
"""A task that wakes up so many times more seldom than it should is not waited for: the cell gets what there is."""

TARGET_OF_ALONE = 2.0
"""The target, where the user names none: so many times the tail of the task running alone."""

ALONE_SECONDS = 2.0

LOAD_OF_A_TASK = 0.5
"""A real-time task's load does not vary; the load guards are to see one that is neither idle nor full."""


def measure(plan: Plan, done: Callable[[Cell, int], None] = lambda *_: None) -> Outcome:
    """Run the plan; `done` is called after each run with the cell and the round, for progress.

    An error or Ctrl-C after the first run ends the plan early, and is the outcome's `interrupted`.

    Raises:
        RlctlError: Nothing could be measured.
    """
    runs: list[Run] = []
    interrupted = ""
    with Session(plan) as session:
        if session.missing.keys() >= set(plan.cells):
            raise TestbedError(f"none of these cells can be measured here: {next(iter(session.missing.values()))}")
        try:
            for number in range(plan.rounds):
                for cell in plan.order(number):
                    if cell not in session.missing:
                        runs.append(session.run(cell))
                    done(cell, number)
        except (RlctlError, KeyboardInterrupt) as error:
            if not runs:
                raise
            interrupted = str(error) or "Ctrl-C"
        return Outcome(session.plan, runs, session.missing, session.remarks, this_host(), interrupted)


class Session:
    """What cells share: folders, janitor, conditions, the plan with a measured target. A context manager."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.missing: dict[Cell, str] = {}
        self.remarks: tuple[str, ...] = ()
        self._stack = contextlib.ExitStack()
        self._rig: Rig
        self._task_folder = self._load_folder = Path()

    def __enter__(self) -> Self:
        """Prepare everything, and try each condition once.

        Raises:
            TestbedError: cyclictest is not installed.
            PermissionMissing: No place for the records of what is started.
        """
        find_program("cyclictest", "rt-tests")
        with contextlib.ExitStack() as stack:
            knobs = Knobs(None)  # the groups are our own and are removed: there is nothing to put back
            stack.callback(knobs.close)
            janitor = stack.enter_context(Janitor())
            rt_cpu, *others = sorted(read_topology().keys() & os.sched_getaffinity(0))
            stack.enter_context(out_of_the_way((rt_cpu,)))
            self._task_folder = janitor.make_folder(SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None)
            self._load_folder = janitor.make_folder(self.plan.folder)
            disk = disk_of(self._load_folder)
            self._rig = Rig(Layout.detect(), knobs, janitor, rt_cpu, tuple(others), disk)
            self._examine()
            managed = {cell for cell in self.plan.cells if cell.condition is Condition.RLCTL}
            if self.plan.control.target_us is None and managed - self.missing.keys():
                self.plan = replace(self.plan, control=replace(self.plan.control, target_us=self._target_us()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything and remove every group and folder."""
        self._stack.close()

    def run(self, cell: Cell) -> Run:
        """Measure one cell once; nothing of it is left afterwards, also when this raises.

        Raises:
            TestbedError: The task or its load ended, or never woke up.
            PermissionMissing: The task may not be real-time.
        """
        plan = self.plan
        with (
            self._rig.placed(cell.condition) as places,
            self._beside(cell.load, places) as load,
            self._task(places) as task,
        ):
            watch = _Watch(task, load, plan.run_wake_ups, plan.run_seconds, plan.warm_up_seconds(cell))
            ticks = self._control(task, places, watch) if cell.condition is Condition.RLCTL else watch.wait()
            return watch.measured(cell, ticks)

    @contextlib.contextmanager
    def _task(self, places: Places) -> Iterator[Cyclictest]:
        """The real-time task, for as long as this lasts."""
        with Launcher(self._task_folder, places.rt, self._rig.janitor) as launcher:
            task = Cyclictest(self.plan.interval_us)
            task.start(launcher)
            yield task

    def _target_us(self) -> float:
        """The target by the tail of the task running alone, under no cgroups."""
        plan = self.plan
        with self._task(Places()) as task:
            watch = _Watch(task, None, round(ALONE_SECONDS * 1e6 / plan.interval_us), ALONE_SECONDS, 0.0)
            alone = watch.measured(Cell(Condition.NONE, Load.NONE), watch.wait()).latencies_ns
        tail_us = float(np.quantile(alone / 1e3, plan.control.quantile_ratio, method="higher"))
        return round(TARGET_OF_ALONE * tail_us, 1)

    def _examine(self) -> None:
        """Find out which cells there cannot be, and what the others are like."""
        plan = self.plan
        if in_memory(self._load_folder):
            why = f"{plan.folder} is in memory: nothing would be written to a disk; name a folder on one"
            self.missing |= {cell: why for cell in plan.cells if cell.load is Load.IO}
        elif {Condition.IO, Condition.CPUSET_IO} & set(plan.conditions):
            self._rig = replace(self._rig, io_bytes_per_second=self._free_io_bytes_per_second())
        remarks: list[str] = []
        for condition in plan.conditions:
            try:
                with self._rig.placed(condition) as places:
                    remarks += places.remarks
            except (ConfigError, HostError, PermissionMissing) as error:
                self.missing |= {cell: str(error) for cell in plan.cells if cell.condition is condition}
        self.remarks = tuple(dict.fromkeys(remarks))

    def _free_io_bytes_per_second(self) -> float:
        with self._beside(Load.IO, Places()) as load:
            assert load is not None
            before, begun = load.rounds(), time.monotonic()
            time.sleep(TRIAL_SECONDS)
            return (load.rounds() - before) * BLOCK_BYTES / (time.monotonic() - begun)

    @contextlib.contextmanager
    def _beside(self, load: Load, places: Places) -> Iterator[RtLoad | None]:
        """The load, if any, for as long as this lasts."""
        if load is Load.NONE:
            yield None
            return
        with Launcher(self._load_folder, places.load, self._rig.janitor) as launcher:
            running = RtLoad(load, self.plan.threads[load])
            running.start(launcher)
            yield running

    def _control(self, task: Cyclictest, places: Places, watch: _Watch) -> tuple[Tick, ...]:
        """The control loop over the load, until enough is measured; the ticks of that time."""
        assert places.rt is not None
        assert places.load is not None
        control, rig, target_us = self.plan.control, self._rig, self.plan.control.target_us
        assert target_us is not None
        order = cpu_order({rig.rt_cpu}, (rig.rt_cpu, *rig.other_cpus))
        limits = Limits(len(order))
        rate = 1e6 / self.plan.interval_us
        slo = SLO(target_us * 1e-6, control.quantile_ratio, rate / LOAD_OF_A_TASK)
        lines = TextLog(task.output, cyclictest_lines(TimeUnit.NANOSECONDS), slo, window_seconds=control.tick_seconds)
        actuator = BeActuator([places.load], order, limits, rig.knobs, lc=places.rt)
        sensors = [lines, *group_sensors(places.rt, [places.load])]
        policy = catalogue.build(control.policy, time_scale=control.time_scale)
        recorder, stop = MemoryRecorder(), Request()

        def between() -> None:
            warm = watch.begun
            if watch.look():
                stop.set()
            elif watch.begun and not warm:
                recorder.ticks.clear()

        def release() -> None:
            """Under the smallest quota the load would take long to die."""
            with contextlib.suppress(RlctlError):
                actuator.apply(limits.full)

        plant = LiveHost([Lc("lc", slo, sensors)], actuator, control.tick_seconds, release)
        with contextlib.closing(plant):
            Controller(plant, policy, Shield(control.profile, limits), recorder).run(stop=stop, between=between)
        return tuple(recorder.ticks)


@dataclass(frozen=True, slots=True)
class _Mark:
    seconds: float
    wake_ups: int
    rounds: int


class _Watch:
    """Looks at the task and its load, after a warm-up, until it has woken up often enough or far too seldom."""

    def __init__(
        self, task: Cyclictest, load: RtLoad | None, wake_ups: int, seconds: float, warm_up_seconds: float
    ) -> None:
        self._task, self._load, self._wake_ups = task, load, wake_ups
        self._most_seconds = PATIENCE * seconds + 1.0
        self._warm_seconds = time.monotonic() + warm_up_seconds
        self._begin: _Mark | None = None
        self._end: _Mark | None = None

    @property
    def begun(self) -> bool:
        """Whether the warm-up is over, so that wake-ups count."""
        return self._begin is not None

    def look(self) -> bool:
        """Look at the task and its load; whether that is enough.

        Raises:
            TestbedError: One of them ended.
            PermissionMissing: The task may not be real-time.
        """
        self._task.check()
        if self._load is not None:
            self._load.check()
        now = _Mark(time.monotonic(), self._task.count(), self._load.rounds() if self._load else 0)
        if self._begin is None:
            self._begin = now if now.seconds >= self._warm_seconds else None
            return False
        late = now.seconds - self._begin.seconds > self._most_seconds
        if late or now.wake_ups - self._begin.wake_ups >= self._wake_ups:
            self._end = now
        return self._end is not None

    def wait(self) -> tuple[Tick, ...]:
        """Until it is enough; without control there is no tick."""
        while not self.look():
            time.sleep(LOOK_SECONDS)
        return ()

    def measured(self, cell: Cell, ticks: tuple[Tick, ...]) -> Run:
        """End the task; what was measured of it; TestbedError: it did not wake up once in all that time."""
        assert self._begin is not None
        assert self._end is not None
        begin, end = self._begin, self._end
        latencies = self._task.stop()[begin.wake_ups : begin.wake_ups + self._wake_ups]
        if not latencies.size:
            raise TestbedError(f"{cell}: cyclictest did not wake up once in {end.seconds - begin.seconds:.1f} s")
        work_rate = (end.rounds - begin.rounds) / (end.seconds - begin.seconds)
        return Run(cell, latencies, work_rate, ticks)
