"""Managers side by side on one scenario of the live host: interleaved, repeated, and scored the same way."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlctl import __version__
from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.agents.prm_model import PrmModel
from rlctl.control import Controller
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.workload import Weight
from rlctl.record import MemoryRecorder
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.scenario import Scenario
from rlctl.score import Run, Score, score

__all__ = ["Outcome", "Plan", "measure"]

CORE_STEPPED = frozenset({"prm-eris", "prm-thesis", "prm-hybrid", "heracles"})
"""Managers whose published constants are in cores, and so take `core_cpus`."""


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

    scenario: Scenario
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
        options = dict(self.scenario.managers.get(name, {}))
        if name in CORE_STEPPED:
            options.setdefault("core_cpus", self.scenario.core_cpus)
        return catalogue.build(name, time_scale=self.scenario.time_scale, model=self.threshold_model, **options)

    def weight(self, policy: Policy) -> Weight:
        """BE's weight: the scenario's, but for `weights`, which is nothing else."""
        return policy.weight if policy.name == "weights" else self.scenario.be.weight


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan.

    Attributes:
        plan: The plan.
        runs: All runs, in the order of time.
        max_load_rps: The LC's maximum load, searched with BE absent.
        solo_rate: BE work per second when it runs alone, in stress-ng's bogo operations.
        remarks: What a reader of a manager's row must know.
    """

    plan: Plan
    runs: tuple[Run, ...]
    max_load_rps: float
    solo_rate: float
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by manager, in the plan's order."""
        return {name: score([run for run in self.runs if run.manager == name]) for name in self.plan.managers}

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
            "solo_rate": round(self.solo_rate, 2),
            "host": {"kernel": platform.release(), "machine": platform.machine(), "rlctl": __version__},
            "managers": {
                name: {**one.as_json(), "remarks": list(self.remarks.get(name, ()))}
                for name, one in self.scores.items()
            },
        }

    def write_json(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(path.suffix + ".part")
        partial.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        partial.replace(path)


def measure(plan: Plan, bed: Testbed, done: Callable[[str, int], None] = lambda *_: None) -> Outcome:
    """Run the plan on a testbed that has found its maximum load.

    Args:
        plan: What to measure.
        bed: The running testbed.
        done: Called after each run with the manager's name and the repeat, for progress.
    """
    solo_rate = bed.solo_rate()
    runs: list[Run] = []
    remarks: dict[str, tuple[str, ...]] = {}
    for repeat in range(plan.repeats):
        for name in plan.order(repeat):
            policy = plan.policy(name)
            runs.append(run_once(plan, bed, policy, solo_rate))
            remarks[name] = tuple(policy.remarks)
            done(name, repeat)
    return Outcome(plan, tuple(runs), bed.max_load_rps, solo_rate, remarks)


def run_once(plan: Plan, bed: Testbed, policy: Policy, solo_rate: float) -> Run:
    """One manager, once: settle, start BE, control for the scenario's duration, count BE's work."""
    plant, scenario = bed.plant, plan.scenario
    shield = Shield(plan.profile, plant.limits) if policy.shielded else None
    recorder = MemoryRecorder()
    controller = Controller(plant, policy, shield, recorder)
    plant.set_weight(plan.weight(policy))
    bed.start_be()
    cpu_seconds, begin = time.process_time(), time.monotonic()
    bed.start_trace(scenario.trace)
    controller.run(seconds=scenario.duration_seconds)
    used = (time.process_time() - cpu_seconds) / (time.monotonic() - begin)
    work = bed.stop_be()
    return Run(policy.name, tuple(recorder.ticks), work.bogo_ops / work.seconds / solo_rate, used)


def ranked(scores: Mapping[str, Score], qos_percent: float = 97.0) -> Sequence[str]:
    """Managers that hold the given QoS by BE throughput, best first, then the others by QoS."""

    def key(name: str) -> tuple[bool, float]:
        one = scores[name]
        holds = one.qos_guarantee_percent.mean >= qos_percent
        return holds, one.be_throughput_percent.mean if holds else one.qos_guarantee_percent.mean

    return sorted(scores, key=key, reverse=True)
