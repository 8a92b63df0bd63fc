"""One manager on some seeds of a simulated scenario: the tick's sentence, host by host under one clock."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlctl.agents.bounds.bound import Bound
from rlctl.agents.bounds.oracle import Oracle
from rlctl.agents.bounds.oracle_model import OracleModel
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.policy import Policy
from rlctl.agents.seat import Seat
from rlctl.bench.lineup import policy_for
from rlctl.bench.sim_score import Floats, Record, per_seed
from rlctl.bench.suite import BOUNDS, SHIELDED_BOUNDS, Trace
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.sim.hosts import Window
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile
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


class Crew:
    """Whoever decides on the hosts of a batch: a seat for each host.

    Args:
        batch: The hosts.
        policies: Who decides on each.
        profile: Constants of the shield, for policies that are judged behind one.
        look: Called before each tick's first decision.
    """

    def __init__(
        self, batch: SimBatch, policies: Sequence[Policy], profile: Profile, look: Callable[[], None] = lambda: None
    ) -> None:
        self._batch, self._look = batch, look
        self._seats = [
            Seat(one, Shield(profile, batch.limits) if one.shielded else None, batch.limits, batch.tick_seconds,
                 strict=True)
            for one in policies
        ]  # fmt: skip

    @property
    def remarks(self) -> tuple[str, ...]:
        """The policy's; complete once it has run."""
        return self._seats[0].policy.remarks

    def begin(self) -> list[Allocation]:
        """Where BE starts, host by host."""
        self._look()
        return [seat.start() for seat in self._seats]

    def decide(self) -> Decisions:
        """After each window, what BE may use from then on."""
        begun = time.perf_counter()
        self._look()
        looked_seconds = (time.perf_counter() - begun) / self._batch.count
        decided = Decisions([], [], [])
        for seat, telemetry, before in zip(self._seats, self._batch.telemetry(), self._batch.allocations, strict=True):
            begun = time.perf_counter()
            verdict = seat.decide(telemetry, before).verdict
            decided.seconds.append(looked_seconds + time.perf_counter() - begun)
            decided.allocations.append(verdict.allocation)
            decided.overridden.append(verdict.overridden)
        return decided


class Foreseen(Policy):
    """What a bound, which looks into the batch itself and decides for all hosts at once, gives BE on one of them."""

    weight, masked, needs, note = Weight.MINIMUM, False, (), "foreseen"
    remarks = ("a bound, no manager: it looks into the simulated host itself",)

    def __init__(self, name: str) -> None:
        self.name, self.shielded = name, name in SHIELDED_BOUNDS
        self.next: Allocation

    def start(self, limits: Limits) -> Allocation:  # noqa: ARG002 - the bound knows them
        """What it gives BE in the first window."""
        return self.next

    def act(self, observation: Observation) -> Allocation:  # noqa: ARG002 - the bound sees more
        """What it gives BE in the next window."""
        return self.next


def _crew(task: Task, batch: SimBatch) -> Crew:
    if task.manager not in BOUNDS:
        asked = (task.manager, task.scenario, task.threshold_model)
        return Crew(
            batch, [policy_for(*asked, options) for options in task.options or ({},) * batch.count], task.profile
        )
    bound, hosts = FORESEEING[task.manager](batch), [Foreseen(task.manager) for _ in range(batch.count)]

    def look() -> None:
        for host, allocation in zip(hosts, bound.act_all(), strict=True):
            host.next = allocation

    return Crew(batch, hosts, task.profile, look)


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
    crew = _crew(task, batch)
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
