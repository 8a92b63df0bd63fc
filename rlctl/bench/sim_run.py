"""One manager on some seeds of a simulated scenario: a runner for each host, and all hosts under one clock."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlctl.agents.bounds.bound import UpperBound
from rlctl.agents.bounds.oracle import Oracle
from rlctl.agents.bounds.oracle_model import OracleModel
from rlctl.agents.catalogue import SHIELDED_BOUNDS
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.bench.participants import policy_for
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.run_metrics import Windows, per_run
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.workload import Weight
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield


@dataclass(frozen=True, slots=True)
class SimTask:
    """A piece of work that a process takes: one manager on some seeds.

    Attributes:
        seeds: One simulated host for each.
        options: Constants of the manager in place of its published ones, a mapping for each seed; empty for none.
        adapt_ticks: Windows at the beginning that do not count.
    """

    scenario: SimScenario
    host: HostProfile
    manager: str
    seeds: tuple[int, ...]
    weight: Weight
    profile: Profile
    threshold_model: PrmModel | None = None
    options: tuple[Mapping[str, object], ...] = ()
    adapt_ticks: int = 0


@dataclass(frozen=True, slots=True)
class SimResult:
    """What came of a task.

    Attributes:
        values: Every metric of `rlctl.envs.run_metrics`, shape (seeds,).
        adapting: The same of the windows that do not count; empty where all do, or the manager learns nothing.
        trace: The run on its first seed.
    """

    task: SimTask
    values: dict[str, np.ndarray]
    adapting: dict[str, np.ndarray]
    trace: Windows
    remarks: tuple[str, ...]


def simulate(task: SimTask) -> SimResult:
    """Run one manager on the task's seeds; PolicyError: the manager does not fit the host."""
    hosts, ticks = _hosts(task), task.adapt_ticks + task.scenario.ticks
    foresee, policies = _policies(task, hosts)
    if not policies[0].moves_reins:
        hosts.keep_to_cpus()
    runners = [_runner(policy, task.profile, hosts) for policy in policies]
    windows = Windows.none(ticks, hosts.count)
    foresee()
    hosts.apply([runner.start() for runner in runners])
    with _no_garbage_collection():
        for tick in range(ticks):
            hosts.step()
            windows.see(tick, hosts.truth())
            before = hosts.allocations
            hosts.apply(_decided(tick, windows, runners, foresee, hosts))
            _note_changes(tick, windows, before, hosts.allocations)
    first, counted = (
        Windows._make(column[part] for column in windows)
        for part in (slice(task.adapt_ticks), slice(task.adapt_ticks, None))
    )
    adapting = per_run(first, hosts.tick_seconds) if task.adapt_ticks and policies[0].learns else {}
    trace = Windows._make(column[:, :1].copy() for column in counted)
    return SimResult(task, per_run(counted, hosts.tick_seconds), adapting, trace, policies[0].remarks)


def _decided(
    tick: int, windows: Windows, runners: Sequence[PolicyRunner], foresee: Callable[[], None], hosts: SimBatch
) -> list[Allocation]:
    """What BE may use on each host after this window; notes who was overridden and what deciding took."""
    begun = time.perf_counter()
    foresee()
    foreseen_seconds = (time.perf_counter() - begun) / hosts.count
    allocations = []
    for place, (runner, telemetry, current) in enumerate(
        zip(runners, hosts.telemetry(), hosts.allocations, strict=True)
    ):
        begun = time.perf_counter()
        verdict = runner.decide(telemetry, current).verdict
        windows.decision_seconds[tick, place] = foreseen_seconds + time.perf_counter() - begun
        windows.overridden[tick, place] = verdict.overridden
        allocations.append(verdict.allocation)
    return allocations


def _note_changes(tick: int, windows: Windows, before: Sequence[Allocation], after: Sequence[Allocation]) -> None:
    windows.frozen[tick] = [now.frozen for now in after]
    windows.suspended[tick] = [now.frozen and not was.frozen for was, now in zip(before, after, strict=True)]
    windows.changed[tick] = [now is not was and now != was for was, now in zip(before, after, strict=True)]


def _runner(policy: Policy, profile: Profile, hosts: SimBatch) -> PolicyRunner:
    """A runner that raises what its policy raises: a failure amid a benchmark is a mistake to be shown."""
    shield = Shield(profile, hosts.limits) if policy.shielded else None
    return PolicyRunner(policy, shield, hosts.limits, hosts.tick_seconds, strict=True)


class Foreseen(Policy):
    """What a bound, which looks into the hosts and decides for all of them at once, gives BE on one of them."""

    weight, masked, needs, note = Weight.MINIMUM, False, (), "foreseen"
    remarks = ("a bound on who moves the CPUs alone, no manager: it looks into the simulated host itself",)

    def __init__(self, name: str) -> None:
        self.name, self.shielded = name, name in SHIELDED_BOUNDS
        self.next: Allocation

    def start(self, limits: Limits) -> Allocation:  # noqa: ARG002 - the bound knows them
        """What it gives BE in the first window."""
        return self.next

    def act(self, observation: Observation) -> Allocation:  # noqa: ARG002 - the bound sees more
        """What it gives BE in the next window."""
        return self.next


FORESEEING: Mapping[str, Callable[[SimBatch], UpperBound]] = {
    "oracle": Oracle,
    "oracle-model": OracleModel,
    "oracle-shielded": OracleModel,
}
"""Every bound by its name."""


def _policies(task: SimTask, hosts: SimBatch) -> tuple[Callable[[], None], list[Policy]]:
    """What a bound has to do before the policies of a tick, and a policy for each host."""
    if task.manager not in FORESEEING:
        options = task.options or ({},) * hosts.count
        return lambda: None, [policy_for(task.manager, task.scenario, task.threshold_model, each) for each in options]
    bound, policies = FORESEEING[task.manager](hosts), [Foreseen(task.manager) for _ in range(hosts.count)]

    def foresee() -> None:
        for policy, allocation in zip(policies, bound.act_all(), strict=True):
            policy.next = allocation

    return foresee, [*policies]


def _hosts(task: SimTask) -> SimBatch:
    scenario = task.scenario
    return SimBatch(
        task.host,
        task.seeds,
        scenario.load_model,
        task.adapt_ticks + scenario.ticks,
        scenario.tick_seconds,
        vary=scenario.vary,
        weight=task.weight,
        limits=task.host.limits(task.weight, scenario.levels),
    )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A tick leaves no cycles, and looking for them costs time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
