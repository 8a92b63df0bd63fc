"""One manager on some seeds of a simulated scenario: the tick's sentence, host by host under one clock."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlctl.agents.bounds.bound import Bound
from rlctl.agents.bounds.oracle import Oracle
from rlctl.agents.bounds.oracle_model import OracleModel
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.policy import Policy
from rlctl.bench.lineup import policy_for
from rlctl.bench.sim_score import Floats, Record, per_seed
from rlctl.bench.suite import BOUNDS, SHIELDED_BOUNDS, Trace
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observer
from rlctl.envs.sim.hosts import Window
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.scenarios.sim import SimScenario

__all__ = ["Task", "TaskResult", "run_task"]


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work that a process takes: one manager on some seeds.

    Attributes:
        scenario, host, manager, weight, profile, threshold_model: As in `rlctl.bench.sim.SimPlan`.
        first: Place of the first seed among the plan's.
        seeds: The seeds themselves.
        options: Constants of the manager in place of its published ones, a mapping for each seed; none for none.
    """

    scenario: SimScenario
    host: HostProfile
    manager: str
    first: int
    seeds: tuple[int, ...]
    weight: Weight
    profile: Profile
    threshold_model: PrmModel | None = None
    options: tuple[Mapping[str, object], ...] = ()

    @property
    def ticks(self) -> int:
        """Windows of a run."""
        return self.scenario.ticks


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What came of a task.

    Attributes:
        task: The task.
        values: Every metric, shape (seeds,).
        trace: The run on its first seed.
        remarks: The manager's.
    """

    task: Task
    values: dict[str, Floats]
    trace: Trace
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was decided for every host of a batch, in its order.

    Attributes:
        allocations: What BE may use from now on.
        overridden: Where the shield changed what was asked for.
        seconds: Time that each decision took.
    """

    allocations: list[Allocation]
    overridden: list[bool]
    seconds: list[float]


class Crew(Protocol):
    """Whoever decides on the hosts of a batch."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the results must know; complete after the run."""
        ...

    def begin(self) -> list[Allocation]:
        """Where BE starts, host by host."""
        ...

    def decide(self) -> Decisions:
        """After each window, what BE may use from then on."""
        ...


class Managers:
    """A policy for each host, with its observer and, where it is judged behind one, its shield."""

    def __init__(self, task: Task, batch: SimBatch) -> None:
        self._batch = batch
        asked = (task.manager, task.scenario, task.threshold_model)
        policies = [policy_for(*asked, options) for options in task.options or ({},) * batch.count]
        self._stations = [Station(one, task.profile, batch.limits, batch.tick_seconds) for one in policies]

    @property
    def remarks(self) -> tuple[str, ...]:
        """The policy's, complete once it has run."""
        return self._stations[0].policy.remarks

    def begin(self) -> list[Allocation]:
        """Where each policy begins."""
        return [station.begin() for station in self._stations]

    def decide(self) -> Decisions:
        """The tick's sentence, host by host."""
        decided = Decisions([], [], [])
        telemetries, current = self._batch.telemetry(), self._batch.allocations
        for station, telemetry, before in zip(self._stations, telemetries, current, strict=True):
            begun = time.perf_counter()
            allocation, overridden = station.rule(telemetry, before)
            decided.seconds.append(time.perf_counter() - begun)
            decided.allocations.append(allocation)
            decided.overridden.append(overridden)
        return decided


class Station:
    """Who decides on one host."""

    __slots__ = ("limits", "observer", "policy", "shield")

    def __init__(self, policy: Policy, profile: Profile, limits: Limits, tick_seconds: float) -> None:
        self.policy = policy
        self.limits = limits
        self.observer = Observer(limits, tick_seconds)
        self.shield = Shield(profile, limits) if policy.shielded else None

    def begin(self) -> Allocation:
        """Where the policy begins; under a shield that is the safe allocation."""
        start = self.policy.start(self.limits)
        return self.limits.safe if self.shield else start

    def rule(self, telemetry: Telemetry, current: Allocation) -> tuple[Allocation, bool]:
        """The next allocation, and whether the shield changed what was asked for."""
        shield = self.shield
        mask = shield.mask(telemetry, current) if shield and self.policy.masked else None
        proposed = decode(self.policy.act(self.observer.observe(telemetry, current, mask)), current, self.limits)
        if shield is None:
            return proposed, False
        verdict = shield.rule(telemetry, current, proposed)
        return verdict.allocation, verdict.overridden


class Foreseeing:
    """A bound, which looks into the batch itself and decides for all hosts at once; one of them behind the shield."""

    remarks = ("a bound, no manager: it looks into the simulated host itself",)

    def __init__(self, task: Task, batch: SimBatch) -> None:
        self._batch = batch
        self._bound: Bound = FORESEEING[task.manager](batch)
        shielded = task.manager in SHIELDED_BOUNDS
        self._shields = [Shield(task.profile, batch.limits) for _ in range(batch.count)] if shielded else []

    def begin(self) -> list[Allocation]:
        """What it gives BE in the first window."""
        asked = self._bound.act_all()
        return [self._batch.limits.safe] * self._batch.count if self._shields else asked

    def decide(self) -> Decisions:
        """What it gives BE in the next window."""
        begun = time.perf_counter()
        asked = self._bound.act_all()
        allowed = self._ruled(asked) if self._shields else asked
        each = (time.perf_counter() - begun) / self._batch.count
        overridden = [one != was for one, was in zip(allowed, asked, strict=True)]
        return Decisions(allowed, overridden, [each] * self._batch.count)

    def _ruled(self, asked: list[Allocation]) -> list[Allocation]:
        rows = zip(self._shields, self._batch.telemetry(), self._batch.allocations, asked, strict=True)
        return [shield.rule(telemetry, current, wanted).allocation for shield, telemetry, current, wanted in rows]


FORESEEING: Mapping[str, Callable[[SimBatch], Bound]] = {
    "oracle": Oracle,
    "oracle-model": OracleModel,
    "oracle-shielded": OracleModel,
}
"""Every bound by its name."""


class Tape:
    """What is kept of every window, for n hosts."""

    def __init__(self, ticks: int, batch: SimBatch) -> None:
        shape = (ticks, batch.count)
        self.latency, self.load, self.be_work, self.lc_cpus = (np.zeros(shape) for _ in range(4))
        self.frozen, self.overridden = np.zeros(shape, bool), np.zeros(shape, bool)
        self.decision_seconds = np.zeros(shape)
        self.suspensions, self.reconfigurations = np.zeros(batch.count), np.zeros(batch.count)
        constants = batch.constants
        self._per_target, self._per_max = 1.0 / constants.target_seconds, 1.0 / constants.max_load_rps

    def see(self, tick: int, window: Window) -> None:
        """The truth of one window."""
        self.latency[tick] = window.latency_seconds * self._per_target
        self.load[tick] = window.offered_rps * self._per_max
        self.be_work[tick] = window.be_work_ratio
        self.lc_cpus[tick] = window.lc_cpus

    def note(self, tick: int, decided: Decisions, before: list[Allocation], applied: list[Allocation]) -> None:
        """What was made of it."""
        self.overridden[tick] = decided.overridden
        self.decision_seconds[tick] = decided.seconds
        self.frozen[tick] = [one.frozen for one in applied]
        self.suspensions += [one.frozen and not was.frozen for was, one in zip(before, applied, strict=True)]
        self.reconfigurations += [one is not was and one != was for was, one in zip(before, applied, strict=True)]

    def record(self, tick_seconds: float) -> Record:
        """All windows."""
        return Record(
            tick_seconds=tick_seconds,
            latency_ratio=self.latency,
            load_ratio=self.load,
            be_work_ratio=self.be_work,
            lc_cpus=self.lc_cpus,
            frozen=self.frozen,
            overridden=self.overridden,
            suspensions=self.suspensions,
            reconfigurations=self.reconfigurations,
            decision_seconds=self.decision_seconds,
        )

    def trace(self, tick_seconds: float) -> Trace:
        """The first host's run."""
        load, latency, be_work = (kept[:, 0].copy() for kept in (self.load, self.latency, self.be_work))
        return Trace(load, latency, be_work, self.frozen[:, 0].copy(), tick_seconds)


def run_task(task: Task) -> TaskResult:
    """Run one manager on the task's seeds.

    Raises:
        PolicyError: The manager does not fit the host.
    """
    batch = _batch(task)
    crew: Crew = Foreseeing(task, batch) if task.manager in BOUNDS else Managers(task, batch)
    tape = Tape(task.ticks, batch)
    batch.apply(crew.begin())
    with _uncollected():
        for tick in range(task.ticks):
            tape.see(tick, batch.step())
            before, decided = batch.allocations, crew.decide()
            batch.apply(decided.allocations)
            tape.note(tick, decided, before, batch.allocations)
    values = per_seed(tape.record(batch.tick_seconds))
    return TaskResult(task, values, tape.trace(batch.tick_seconds), crew.remarks)


def _batch(task: Task) -> SimBatch:
    scenario = task.scenario
    return SimBatch(
        task.host,
        task.seeds,
        scenario.load_model,
        task.ticks,
        scenario.tick_seconds,
        vary=scenario.vary,
        weight=task.weight,
        limits=task.host.limits(scenario.levels),
    )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: a tick leaves no cycles, and looking for them costs time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
