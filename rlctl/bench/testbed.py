"""Managers side by side on a live testbed: who runs in which order, and one run."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from rlctl import __version__
from rlctl.agents import catalogue
from rlctl.agents.managers.heracles_loops import NETWORK_SECONDS, be_link_ratio
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.table import Levels, read_table
from rlctl.agents.policy import Policy
from rlctl.bench.held import bench_sweep, needs_sweep, swept_levels, table_options
from rlctl.bench.lineup import NEEDS_MODEL, fitted, policy_for
from rlctl.bench.score import LiveRun, score
from rlctl.envs.testbed.session import Testbed, TestbedSpec
from rlctl.envs.testbed.workloads import Work
from rlctl.envs.workload import Weight
from rlctl.loop.control import Controller
from rlctl.loop.record import MemoryRecorder
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.scenarios.live import LiveScenario
from rlctl.ticklog.header import header_of
from rlctl.work.progress import say

LESS_RATIO = 0.95
"""A maximum load that is searched anew on the same quiet host is no nearer to the one before."""


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What to measure on a live testbed.

    Attributes:
        repeats: Runs of each manager; runs are interleaved, each repeat beginning with another manager.
        profile: Constants of the shield for shielded policies, already on the scenario's time scale.
        threshold_model: PRM's model; None where it is not needed or not recorded yet.
        levels: What `table` looks up; none where it is not needed or not swept yet.
        adapt_seconds: So long a policy that learns of its host runs before it is measured, and is not scored.
    """

    scenario: LiveScenario
    managers: tuple[str, ...]
    repeats: int
    profile: Profile
    threshold_model: PrmModel | None = None
    levels: Levels = ()
    adapt_seconds: float = 0.0

    def order(self, repeat: int) -> tuple[str, ...]:
        """Managers of one repeat, rotated so that none is always measured first."""
        shift = repeat * max(1, len(self.managers) // self.repeats) % len(self.managers)
        return self.managers[shift:] + self.managers[:shift]

    def policy(self, name: str) -> Policy:
        """A new policy of this name, as this scenario wants it."""
        swept = table_options(name, self.scenario, self.levels)
        return policy_for(name, self.scenario, self.threshold_model, swept)

    def weight(self, name: str) -> Weight:
        """BE's CPU weight: the scenario's, but for `weights` and other answers of the kernel, who are that alone."""
        own = catalogue.OWN_WEIGHTS.get(name, Weight.MINIMUM)
        return own if name in catalogue.OF_KERNEL else self.scenario.be.weight

    @property
    def weights(self) -> dict[str, str]:
        """BE's CPU weight under each manager, for the tables."""
        return {name: str(self.weight(name)) for name in self.managers}

    def described(self, load: str) -> str:
        """What a table has to say beneath it, with a phrase on the maximum load."""
        scenario = self.scenario
        learning = [name for name in self.managers if self.adapt_seconds and self.policy(name).learns]
        learned = f"{', '.join(learning)} had learned for {self.adapt_seconds:g} s before; " if learning else ""
        return (
            f"{scenario.name}: {self.repeats} x {scenario.duration_seconds:g} s, interleaved; "
            f"p{scenario.slo.quantile_percent:g} <= {scenario.slo.target_milliseconds:g} ms over "
            f"{scenario.tick_seconds:g}-s windows; {load}; "
            f"BE weight {scenario.be.weight}; shield {self.profile.name} ({self.profile.digest}) for those shielded: "
            f"{', '.join(name for name in self.managers if self.policy(name).shielded) or 'none'}; "
            f"{learned}published periods / {scenario.time_scale:g}; a published core is {scenario.core_cpus:g} CPU. "
            "Intervals: Wilson over windows (which are not independent), Student's t over repeats."
        )


@dataclass(frozen=True, slots=True)
class Alone:
    """What begins a repeat: BE running alone, since a host's speed drifts, and the LC's maximum load with BE absent."""

    work: Work
    max_load_rps: float
    host: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a manager, and what a reader of the manager's row must know."""

    run: LiveRun
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a policy has learned of the testbed, and how it did meanwhile, in words; empty where it learns nothing."""

    learned: Mapping[str, Any]
    remark: str = ""


@dataclass(frozen=True)
class OnTestbed:
    """What a host does: it starts its testbed, and then measures one thing at a time."""

    plan: LivePlan
    testbed: Callable[[TestbedSpec, Callable[[str], None]], AbstractContextManager[Testbed]] = Testbed

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Callable[[str], Alone | Measured]]:
        """Yields what runs a manager by its name; the empty name is BE alone, which comes first.

        On a cluster its messages go to the worker's log, which `rlctl -v` shows on the driver.
        """
        with self.testbed(self.plan.scenario.testbed(), say) as bed:
            plan, alone = with_levels(with_model(self.plan, bed), bed), Work(0.0, 0.0)
            memories: dict[str, Memory] = {}

            def step(manager: str) -> Alone | Measured:
                nonlocal alone
                if not manager:
                    alone = bed.solo()
                    return Alone(alone, bed.slo.max_load_rps, this_host())
                if plan.adapt_seconds and manager not in memories:
                    memories[manager] = adapted(plan, bed, manager, alone)
                known, policy = memories.get(manager), plan.policy(manager)
                run = run_once(plan, bed, policy, alone, known)
                if known and known.learned:
                    memories[manager] = Memory(run.experience, known.remark)
                had_learned = (known.remark,) if known and known.remark else ()
                return Measured(run, (*policy.remarks, *had_learned))

            yield step


def this_host() -> dict[str, str]:
    """What a reader must know of where it was measured."""
    return {"kernel": platform.release(), "machine": platform.machine(), "rlctl": __version__}


def with_model(plan: LivePlan, bed: Testbed) -> LivePlan:
    """The plan with PRM's threshold model, recorded while the LC runs alone if a manager needs one.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    if not NEEDS_MODEL & set(plan.managers):
        return plan
    scenario, recorder = plan.scenario, MemoryRecorder()
    say(f"recording the LC alone for PRM's threshold model, {scenario.duration_seconds:g} s ...")
    bed.settle(scenario.trace)
    bed.follow(scenario.trace)
    Controller(bed.plant, catalogue.build("frozen"), None, recorder).run(seconds=scenario.duration_seconds)
    return replace(plan, threshold_model=fitted(recorder.ticks, bed.plant.limits.lc_cpus, scenario.time_scale))


def with_levels(plan: LivePlan, bed: Testbed) -> LivePlan:
    """The plan with what `table` looks up, swept on this very testbed if it takes part: a host's capacity moves."""
    scenario = plan.scenario
    if not needs_sweep(plan.managers, scenario):
        file = scenario.managers.get("table", {}).get("file") if "table" in plan.managers else None
        if file and (swept_rps := read_table(file).max_load_rps) < LESS_RATIO * (here_rps := bed.slo.max_load_rps):
            say(f"{file} was swept with {swept_rps:g} rps, here it is {here_rps:g}: its loads are others")
        return plan
    plan_of_sweep = bench_sweep(scenario)
    minutes = plan_of_sweep.measuring_seconds / 60.0
    say(f"sweeping the host for `table`, {len(plan_of_sweep.points)} cells, about {minutes:.0f} min ...")
    return replace(plan, levels=swept_levels(scenario, bed))


def adapted(plan: LivePlan, bed: Testbed, name: str, alone: Work) -> Memory:
    """What a policy learns of the testbed in runs that do not count, one after the other."""
    memory, runs = Memory({}), []
    if not plan.policy(name).learns:
        return memory
    say(f"{name} learns the host, {plan.adapt_seconds:g} s ...")
    for _ in range(math.ceil(plan.adapt_seconds / plan.scenario.duration_seconds)):
        runs.append(run_once(plan, bed, plan.policy(name), alone, memory))
        memory = Memory(runs[-1].experience)
    one = score(runs)
    cold = f"QoS {one.qos_guarantee_percent.mean:.1f} %, BE {one.be_throughput_percent.mean:.1f} %"
    return Memory(memory.learned, f"had learned for {len(runs)} x {plan.scenario.duration_seconds:g} s before: {cold}")


def run_once(plan: LivePlan, bed: Testbed, policy: Policy, alone: Work, memory: Memory | None = None) -> LiveRun:
    """One manager, once: settle, start BE, control for the scenario's duration, count BE's work.

    Args:
        memory: What is known of the host at its beginning; None for nothing.
    """
    plant, scenario = bed.plant, plan.scenario
    plant.set_weight(Weight.EQUAL)  # a lower one leaves the idle class of the run before
    plant.set_weight(plan.weight(policy.name))  # before anybody reads the limits, which say which it is
    shield = Shield(plan.profile, plant.limits) if policy.shielded else None
    recorder = MemoryRecorder(header_of(plant, policy, shield))
    bed.settle(scenario.trace)
    with divided(policy.name, scenario, bed):
        bed.start_be()
        bed.follow(scenario.trace)
        cpu_seconds, begun = time.process_time(), time.monotonic()
        recall = (lambda host: host.recall(memory.learned)) if memory and memory.learned else (lambda _: None)
        controller = Controller(plant, policy, shield, recorder, recall=recall)
        controller.run(seconds=scenario.duration_seconds)
        used_ratio = (time.process_time() - cpu_seconds) / (time.monotonic() - begun)
        work = bed.stop_be()
        experience = controller.seat.observer.experience.remembered()
    return LiveRun(policy.name, tuple(recorder.ticks), work.share_of(alone), used_ratio, recorder.header, experience)


def divided(name: str, scenario: LiveScenario, bed: Testbed) -> AbstractContextManager[None]:
    """Link or disk as the kernel divides it: as its answer was told, or as Heracles' network loop sets it, told too.

    That loop is faster than a tick, like the published one; its period is divided like all others.
    """
    if name == "heracles" and scenario.link:
        return bed.ceiling(be_link_ratio, NETWORK_SECONDS / scenario.time_scale)
    answer = catalogue.ANSWERS.get(name)
    return bed.divided(answer.resource, answer.rate_ratio) if answer else contextlib.nullcontext()
