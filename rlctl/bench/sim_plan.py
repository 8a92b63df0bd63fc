"""Managers side by side on one scenario of the simulator: every manager meets the same seeds, scored on the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from rlctl import __version__
from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.table import Levels
from rlctl.bench.participants import NEEDS_MODEL, Tuned, fitted, load_tuned, policy_for
from rlctl.bench.score import SimOutcome
from rlctl.bench.sim_run import SimResult, SimTask, simulate
from rlctl.bench.sim_scenario import SimScenario
from rlctl.bench.sweep import needs_sweep, simulated_levels, table_options
from rlctl.bench.workforce import HERE, Workforce
from rlctl.envs.arrays import Array
from rlctl.envs.sim import seeds
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.workload import Weight
from rlctl.log.kept import MemoryRecorder
from rlctl.log.record import Tick
from rlctl.loop.control import Controller
from rlctl.safety.profile import Profile, load_shield

TRAINING_RUNS = 4
"""Training seeds that PRM's threshold model is recorded on."""


@dataclass(frozen=True, slots=True)
class SimPlan:
    """What to measure on simulated hosts.

    Attributes:
        host: Its host profile, with the scenario's constants in place.
        seeds: How many evaluation seeds; seed i is the same host, noise and load for every manager.
        profile: Shield profile for shielded policies, already on the scenario's time scale.
        scenario_source, shield_source: Name or file that they were loaded from, for `bench verify`.
        tuned: Constants that managers run with in place of their published ones, or None.
        levels: What `table` looks up; of a sweep of the simulated host, where `table` takes part.
        adapt_seconds: Time at the beginning of every run that does not count, in which a host teaches who learns of it.
        unopened: On seeds that nobody looks at before a release.
    """

    scenario: SimScenario
    host: HostProfile
    managers: tuple[str, ...]
    seeds: int
    profile: Profile
    scenario_source: str = ""
    shield_source: str = ""
    threshold_model: PrmModel | None = None
    tuned: Tuned | None = None
    tuned_source: str = ""
    levels: Levels = ()
    adapt_seconds: float = 0.0
    unopened: bool = False

    @classmethod
    def of(
        cls, scenario: SimScenario, managers: Sequence[str], seeds: int, shield: str, source: str = "", tuned: str = ""
    ) -> Self:
        """The plan for a scenario, with all names checked.

        Args:
            tuned: Name or file of tuned constants; empty for published ones.

        Raises:
            ConfigError: An unknown host profile, shield or file of constants.
            PolicyError: An unknown manager, or one that may not be simulated.
        """
        plan = cls(
            scenario=scenario,
            host=scenario.host(),
            managers=tuple(managers),
            seeds=seeds,
            profile=load_shield(shield).scale_time(scenario.time_scale),
            scenario_source=source,
            shield_source=shield,
            tuned=load_tuned(tuned) if tuned else None,
            tuned_source=tuned,
        )
        for name in (*plan.managers, *scenario.managers):
            plan.shielded(name)
        return plan

    @property
    def ticks(self) -> int:
        """Windows of a run that count."""
        return self.scenario.ticks

    @property
    def seed_numbers(self) -> list[int]:
        """The evaluation seeds of the runs."""
        first = seeds.FIRST_UNOPENED if self.unopened else 0
        return [seeds.evaluation(first + number) for number in range(self.seeds)]

    @property
    def adapt_ticks(self) -> int:
        """Windows before them, which do not count."""
        return math.ceil(self.adapt_seconds / self.scenario.tick_seconds)

    def shielded(self, name: str) -> bool:
        """True when a manager is judged behind the shield; of the bounds only one is.

        Raises:
            PolicyError: There is no such manager, or it does not take the scenario's options.
        """
        if name in catalogue.BOUNDS:
            return name in catalogue.SHIELDED_BOUNDS
        return policy_for(name, self.scenario, self.threshold_model, self.options(name)).shielded

    def options(self, name: str) -> Mapping[str, object]:
        """Tuned constants of a manager, none where it runs with its published ones; for `table` what was swept."""
        tuned = self.tuned.options(name) if self.tuned else {}
        return {**tuned, **table_options(name, self.scenario, self.levels)}

    def weight(self, name: str) -> Weight:
        """BE's CPU weight under a manager."""
        return catalogue.OWN_WEIGHTS.get(name, self.scenario.be.weight)

    def loads(self) -> Array:
        """The load that the seeds bring, as a share of the LC's maximum; shape (seeds, windows)."""
        scenario, ticks = self.scenario, self.adapt_ticks + self.ticks
        return np.array([scenario.load_model(seed, ticks, scenario.tick_seconds) for seed in self.seed_numbers])

    @property
    def caption(self) -> str:
        """What a table of the outcome has to say beneath it."""
        scenario, host = self.scenario, self.host
        shielded = ", ".join(name for name in self.managers if self.shielded(name)) or "none"
        tuned = f"constants tuned on training seeds ({self.tuned.digest}), where any; " if self.tuned else ""
        adapted = f", after {self.adapt_seconds:g} s that do not count" if self.adapt_seconds else ""
        own = ", ".join(f"{name}: {self.weight(name)}" for name in catalogue.OWN_WEIGHTS if name in self.managers)
        which = "unopened seeds" if self.unopened else "seeds"
        return (
            f"{scenario.name}, simulated on {host.name} ({host.digest}): {self.seeds} {which} x "
            f"{scenario.duration_seconds:g} s{adapted}; p{100 * host.lc.quantile_ratio:g} <= "
            f"{1e3 * host.lc.target_seconds:g} ms over {scenario.tick_seconds:g}-s windows, scored on the truth; "
            f"BE weight {scenario.be.weight}{f' ({own})' if own else ''}; "
            f"shield {self.profile.name} ({self.profile.digest}) for those shielded: {shielded}; "
            f"{tuned}published periods / {scenario.time_scale:g}; a published core is "
            f"{scenario.core_cpus:g} CPU. "
            "Intervals: Student's t over seeds; of QoS Wilson at the effective number of windows."
        )

    @property
    def facts(self) -> dict[str, object]:
        """What is measured and with what, as the JSON has it."""
        scenario, host = self.scenario, self.host
        tuned = {"tuned_source": self.tuned_source, "tuned_digest": self.tuned.digest} if self.tuned else {}
        adapted = {"adapt_seconds": self.adapt_seconds} if self.adapt_seconds else {}
        return {
            "scenario_source": self.scenario_source or scenario.name,
            "scenario_digest": scenario.digest,
            "profile": host.name,
            "profile_digest": host.digest,
            "seeds": self.seeds,
            **({"unopened": True} if self.unopened else {}),
            "shield": self.profile.name,
            "shield_source": self.shield_source or self.profile.name,
            "shield_digest": self.profile.digest,
            "duration_seconds": scenario.duration_seconds,
            **adapted,
            "tick_seconds": scenario.tick_seconds,
            "target_milliseconds": round(1e3 * host.lc.target_seconds, 6),
            "time_scale": scenario.time_scale,
            "core_cpus": scenario.core_cpus,
            "be_weight": scenario.be.weight,
            "tuned": self.tuned is not None,
            **tuned,
            "rlctl": __version__,
        }

    def tasks(self, workers: int = 1, chunk: int = 0) -> list[SimTask]:
        """The work in pieces, in order of managers and seeds: one manager on some seeds each.

        Args:
            workers: Pieces that are done at a time. As few are made as keep all of them busy, since a step of many
                hosts costs little more than a step of one.
            chunk: Seeds of one piece instead; 0 leaves it to `workers`.
        """
        numbers = self.seed_numbers
        chunk = chunk or -(-self.seeds // max(-(-workers // len(self.managers)), 1))
        return [
            SimTask(
                scenario=self.scenario,
                host=self.host,
                manager=name,
                seeds=tuple(numbers[first : first + chunk]),
                weight=self.weight(name),
                profile=self.profile,
                threshold_model=self.threshold_model if name in NEEDS_MODEL else None,
                options=(self.options(name),) * len(numbers[first : first + chunk]),
                adapt_ticks=self.adapt_ticks,
            )
            for name in self.managers
            for first in range(0, self.seeds, chunk)
        ]


def run_sim(
    plan: SimPlan, workforce: Workforce = HERE, done: Callable[[str], None] = lambda _: None, *, chunk: int = 0
) -> SimOutcome:
    """Run every manager of a plan on every seed.

    Args:
        plan: What to measure; first PRM's threshold model is recorded and the host swept for `table`, if a manager
            needs that and the plan lacks it.
        workforce: Who does the pieces of work; no number in the result depends on it.
        done: Called after each piece of work with the manager's name, for progress.

    Raises:
        ConfigError: scikit-learn is needed and not installed.
    """
    if NEEDS_MODEL & set(plan.managers) and plan.threshold_model is None:
        plan = replace(plan, threshold_model=record_model(plan))
    if needs_sweep(plan.managers, plan.scenario) and not plan.levels:
        plan = replace(plan, levels=simulated_levels(plan.host, plan.scenario.be.weight, plan.scenario.tick_seconds))
    results = workforce.map(simulate, plan.tasks(workforce.count, chunk), lambda task: done(task.manager))
    names = {catalogue.label(name): name for name in plan.managers}
    parts = {label: [part for part in results if part.task.manager == name] for label, name in names.items()}
    scenario = plan.scenario
    return SimOutcome(
        scenario=scenario.name,
        description=scenario.description,
        caption=plan.caption,
        managers={label: _joined([one.values for one in each]) for label, each in parts.items()},
        traces={label: each[0].trace for label, each in parts.items()},
        duration_seconds=scenario.duration_seconds,
        tick_seconds=scenario.tick_seconds,
        remarks={label: (*each[0].remarks, *_learned(plan, each)) for label, each in parts.items()},
        facts=plan.facts,
        names=names,
    )


def record_model(plan: SimPlan) -> PrmModel:
    """PRM's threshold model, of training seeds with BE frozen as on the live host; ConfigError: no scikit-learn."""
    ticks = [tick for number in range(TRAINING_RUNS) for tick in _alone(plan, seeds.training(number))]
    return fitted(ticks, plan.host.lc.lc_cpus, plan.scenario.time_scale)


def _alone(plan: SimPlan, seed: int) -> list[Tick]:
    scenario = plan.scenario
    plant = SimPlant(plan.host, scenario.load_model, plan.ticks, scenario.tick_seconds, seed=seed, vary=scenario.vary)
    recorder = MemoryRecorder()
    Controller(plant, catalogue.build("frozen"), None, recorder).run(ticks=plan.ticks)
    return recorder.ticks


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The metrics of all seeds, from pieces in the seeds' order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _learned(plan: SimPlan, results: Sequence[SimResult]) -> tuple[str, ...]:
    """How a manager did while its hosts taught it, in words; none where they did not."""
    means = {name: values.mean() for name, values in _joined([one.adapting for one in results]).items()}
    if not means:
        return ()
    cold = f"QoS {means['qos_guarantee_percent']:.1f} %, BE {means['be_throughput_percent']:.1f} %"
    return (f"{plan.scenario.name}: had learned for {plan.adapt_seconds:g} s before: {cold}",)
