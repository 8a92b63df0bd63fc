"""Managers side by side on one scenario of the live host: interleaved, repeated, and scored the same way."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rlctl import __version__
from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.policy import Policy
from rlctl.bench.lineup import NEEDS_MODEL, fitted, policy_for
from rlctl.bench.score import LiveRun, Score, score
from rlctl.envs.errors import RlctlError
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.workloads import Work
from rlctl.envs.workload import Weight
from rlctl.loop.control import Controller
from rlctl.loop.record import MemoryRecorder
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.scenarios.live import LiveScenario

__all__ = ["Outcome", "Plan", "measure", "profile", "run_once", "this_host", "with_model"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        scenario: The scenario, with duration and time scale as they are to be.
        managers: Names, in the order of the table.
        repeats: Runs of each manager; runs are interleaved, each repeat beginning with another manager.
        profile: Shield profile for shielded policies, already on the scenario's time scale.
        threshold_model: PRM's model, or None.
    """

    scenario: LiveScenario
    managers: tuple[str, ...]
    repeats: int
    profile: Profile
    threshold_model: PrmModel | None = None

    def order(self, repeat: int) -> tuple[str, ...]:
        """Managers of one repeat, rotated so that none is always measured first."""
        shift = repeat * max(1, len(self.managers) // self.repeats) % len(self.managers)
        return self.managers[shift:] + self.managers[:shift]

    def policy(self, name: str) -> Policy:
        """A new policy of this name, as this scenario wants it."""
        return policy_for(name, self.scenario, self.threshold_model)

    def weight(self, policy: Policy) -> Weight:
        """BE's weight: the scenario's, but for `weights`, which is nothing else."""
        return policy.weight if policy.name == "weights" else self.scenario.be.weight

    def described(self, load: str) -> str:
        """What a table has to say beneath it, with what was found of the maximum load."""
        scenario = self.scenario
        return (
            f"{scenario.name}: {self.repeats} x {scenario.duration_seconds:g} s, interleaved; "
            f"p{scenario.slo.quantile_percent:g} <= {scenario.slo.target_milliseconds:g} ms over "
            f"{scenario.tick_seconds:g}-s windows; {load}; "
            f"BE weight {scenario.be.weight}; shield {self.profile.name} ({self.profile.digest}) for those shielded: "
            f"{', '.join(name for name in self.managers if self.policy(name).shielded) or 'none'}; "
            f"published periods / {scenario.time_scale:g}; a published core is {scenario.core_cpus:g} CPU. "
            "Intervals: Wilson over windows (which are not independent), Student's t over repeats."
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan.

    Attributes:
        plan: The plan.
        runs: All runs, in the order of time.
        max_load_rps: The LC's maximum load, searched with BE absent.
        solos: BE running alone on its CPUs, once per repeat: the host's speed drifts.
        remarks: What a reader of a manager's row must know.
        interrupted: Why it ended early; empty when it is complete.
        host: What it was measured on, as `this_host` has it.
    """

    plan: Plan
    runs: tuple[LiveRun, ...]
    max_load_rps: float
    solos: tuple[Work, ...]
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interrupted: str = ""
    host: Mapping[str, str] = field(default_factory=lambda: this_host())

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by manager, in the plan's order; those that were not reached are absent."""
        by_name = {name: [run for run in self.runs if run.manager == name] for name in self.plan.managers}
        return {name: score(runs) for name, runs in by_name.items() if runs}

    @property
    def caption(self) -> str:
        """What a table of this outcome has to say beneath it."""
        said = self.plan.described(f"maximum load {self.max_load_rps:.0f} rps")
        return said + (f" INCOMPLETE: {self.interrupted}" if self.interrupted else "")

    def as_json(self) -> dict[str, object]:
        """The contract's JSON, with what else a reader needs to judge it."""
        scenario = self.plan.scenario
        return {
            "schema": 1,
            "plant": "host",
            "scenario": scenario.name,
            "repeats": self.plan.repeats,
            "shield": self.plan.profile.name,
            "shield_digest": self.plan.profile.digest,
            "duration_seconds": scenario.duration_seconds,
            "tick_seconds": scenario.tick_seconds,
            "target_milliseconds": scenario.slo.target_milliseconds,
            "time_scale": scenario.time_scale,
            "core_cpus": scenario.core_cpus,
            "be_weight": scenario.be.weight,
            "max_load_rps": round(self.max_load_rps, 1),
            "solo_rate": round(sum(solo.rate for solo in self.solos) / len(self.solos), 2),
            "interrupted": self.interrupted,
            "host": dict(self.host),
            "managers": {
                name: {**one.as_json(), "remarks": list(self.remarks.get(name, ()))}
                for name, one in self.scores.items()
            },
        }


def this_host() -> dict[str, str]:
    """What a reader must know of where it was measured."""
    return {"kernel": platform.release(), "machine": platform.machine(), "rlctl": __version__}


def with_model(plan: Plan, bed: Testbed, say: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan with PRM's threshold model, recorded now if a manager needs one.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    if not NEEDS_MODEL & set(plan.managers):
        return plan
    say(f"recording the LC alone for PRM's threshold model, {plan.scenario.duration_seconds:g} s ...")
    return replace(plan, threshold_model=profile(plan, bed))


def profile(plan: Plan, bed: Testbed) -> PrmModel:
    """PRM's threshold model of this LC: recorded while it runs alone under the scenario's load.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    recorder = MemoryRecorder()
    bed.settle(plan.scenario.trace)
    bed.follow(plan.scenario.trace)
    Controller(bed.plant, catalogue.build("frozen"), None, recorder).run(seconds=plan.scenario.duration_seconds)
    return fitted(recorder.ticks, bed.plant.limits.lc_cpus, plan.scenario.time_scale)


def measure(plan: Plan, bed: Testbed, done: Callable[[str, int], None] = lambda *_: None) -> Outcome:
    """Run the plan.

    Args:
        plan: What to measure.
        bed: The running testbed.
        done: Called after each run with the manager's name and the repeat, for progress.

    Returns:
        What came of it. An error or Ctrl-C after the first run ends the plan early and is told in the outcome: hours
        of measurement are not lost to a hiccup of the last run.
    """
    runs: list[LiveRun] = []
    solos: list[Work] = []
    remarks: dict[str, tuple[str, ...]] = {}
    interrupted = ""
    try:
        for repeat in range(plan.repeats):
            solos.append(bed.solo())
            for name in plan.order(repeat):
                policy = plan.policy(name)
                runs.append(run_once(plan, bed, policy, solos[-1]))
                remarks[name] = policy.remarks
                done(name, repeat)
    except (RlctlError, KeyboardInterrupt) as error:
        if not runs:
            raise
        interrupted = str(error) or "Ctrl-C"
    return Outcome(plan, tuple(runs), bed.slo.max_load_rps, tuple(solos), remarks, interrupted)


def run_once(plan: Plan, bed: Testbed, policy: Policy, solo: Work) -> LiveRun:
    """One manager, once: settle, start BE, control for the scenario's duration, count BE's work."""
    plant, scenario = bed.plant, plan.scenario
    shield = Shield(plan.profile, plant.limits) if policy.shielded else None
    recorder = MemoryRecorder()
    bed.settle(scenario.trace)
    plant.set_weight(plan.weight(policy))
    bed.start_be()
    bed.follow(scenario.trace)
    cpu_seconds, begun = time.process_time(), time.monotonic()
    Controller(plant, policy, shield, recorder).run(seconds=scenario.duration_seconds)
    used_ratio = (time.process_time() - cpu_seconds) / (time.monotonic() - begun)
    return LiveRun(policy.name, tuple(recorder.ticks), bed.stop_be().share_of(solo), used_ratio)
