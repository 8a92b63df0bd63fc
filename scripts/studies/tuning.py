"""Every manager tuned alike: the same number of candidates, the same training seeds, the same objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import yaml
from numpy.typing import NDArray

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS
from rlctl.bench.participants import NEEDS_MODEL, Budget, Fulfilment, Tuned, TunedManager, ground_of
from rlctl.bench.sim_plan import TRAINING_RUNS, SimPlan, record_model
from rlctl.bench.sim_run import SimResult, SimTask, simulate
from rlctl.bench.sim_scenario import SimScenario
from rlctl.bench.workforce import HERE, Workforce
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim import seeds
from rlctl.envs.sim.seeds import SeedKind, kind_of
from scripts.studies.search_space import Options, Space

CANDIDATES = 24
"""Sets of constants per manager."""

SEEDS = 3
"""Training seeds per scenario."""

DURATION_SECONDS = 1500.0
"""Of a run, half of most of the suite's: more than a day of `diurnal`, two crowds of `flash-crowd`."""

ROUNDS = 3
"""Rounds of perturbations, which share the second half of the candidates."""

QOS, BE = "qos_guarantee_percent", "be_throughput_percent"

YARDSTICK = "frozen"
"""No manager can hold more QoS than BE that never runs."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """What a candidate came to; the larger is the better, QoS before BE.

    Attributes:
        qos_points: QoS below the yardstick's less the allowance, summed over the scenarios, negative; in hundredths.
    """

    qos_points: float
    be_percent: float

    @property
    def fulfilment(self) -> Fulfilment:
        """As the file has it."""
        return Fulfilment(shortfall_points=abs(self.qos_points), be_throughput_percent=round(self.be_percent, 2))


@dataclass(slots=True)
class Quest:
    """The search for one manager's constants.

    Attributes:
        tried: All candidates with their scores, in order; the first is the published one.
    """

    space: Space
    tried: list[tuple[Options, Score]] = field(default_factory=list)

    @property
    def best(self) -> tuple[Options, Score]:
        """The best so far; of equal ones the earliest, so the published constants only yield to better ones."""
        return max(self.tried, key=lambda pair: pair[1])

    @property
    def found(self) -> TunedManager:
        """As the file has it."""
        options, score = self.best
        return TunedManager(options=dict(options), published=self.tried[0][1].fulfilment, tuned=score.fulfilment)


def budget_of(candidates: int = CANDIDATES, count: int = SEEDS, duration_seconds: float = DURATION_SECONDS) -> Budget:
    """A budget on training seeds, none of which PRM's model is recorded on.

    Args:
        candidates: Sets of constants tried per manager.
        count: Seeds per scenario.
        duration_seconds: Longest run, in simulated time.
    """
    numbers = tuple(seeds.training(TRAINING_RUNS + number) for number in range(count))
    return Budget(candidates=candidates, seeds=numbers, duration_seconds=duration_seconds)


def plans_of(scenarios: Sequence[SimScenario], budget: Budget, shield: str) -> list[SimPlan]:
    """The scenarios as they are tuned on.

    Raises:
        ConfigError: A host profile or the shield is not there.
    """
    from rlctl.safety.profile import load_profile

    shortened = [
        one.model_copy(update={"duration_seconds": min(one.duration_seconds, budget.duration_seconds)})
        for one in scenarios
    ]
    return [
        SimPlan(one, one.host(), (YARDSTICK,), len(budget.seeds), load_profile(shield).scale_time(one.time_scale))
        for one in shortened
    ]


def task_count(spaces: Sequence[Space], budget: Budget, plans: Sequence[SimPlan]) -> int:
    """Pieces of work in a search: how often `done` will be called."""
    local = sum(size > 0 for size in _round_sizes(budget.candidates))
    return (len(spaces) * (1 + local) + 1) * len(plans)


def tune(
    spaces: Sequence[Space],
    plans: Sequence[SimPlan],
    budget: Budget,
    shield: str,
    done: Callable[[str], None] = lambda _: None,
    *,
    workers: Workforce = HERE,
) -> Tuned:
    """Search each manager's constants: one set for all scenarios.

    The published constants come first, then a Latin hypercube over the ranges; half of the candidates are
    perturbations of the best so far. All meet the same hosts, noise and load.

    Args:
        plans: The scenarios, see `plans_of`.
        done: Called after each piece of work with the manager's name.
        workers: Who does the work; no number depends on it.

    Raises:
        ConfigError: A seed is not for training, or scikit-learn is needed and not installed.
        PolicyError: A range holds what a manager refuses.
    """
    _refuse_evaluation(budget)
    judge = Judge(_with_models(plans, spaces), budget, workers, done)
    quests = [Quest(space) for space in spaces]
    sizes = _round_sizes(budget.candidates)
    first = budget.candidates - sum(sizes) - 1
    judge.score([(quest, [quest.space.published, *quest.space.spread(first)]) for quest in quests])
    for step, size in enumerate(sizes):
        judge.score([(quest, quest.space.near(quest.best[0], size, step)) for quest in quests])
    return Tuned(
        budget=budget,
        shield=shield,
        scenarios={plan.scenario.name: ground_of(plan.scenario, plan.host, plan.profile) for plan in plans},
        managers={quest.space.manager: quest.found for quest in quests},
    )


class Judge:
    """Runs candidates on all scenarios and scores them.

    Args:
        plans: The scenarios, with PRM's model where it is needed.
        budget: Whose seeds they run on.
        workers: Who does the pieces of work.
        done: Called after each piece of work.
    """

    def __init__(
        self, plans: Sequence[SimPlan], budget: Budget, workers: Workforce, done: Callable[[str], None]
    ) -> None:
        self._plans, self._budget, self._workers, self._done = plans, budget, workers, done
        held = self._run(self._tasks(YARDSTICK, [{}]))
        self._held_percent = {one.task.scenario.name: _means(one, QOS, 1)[0] for one in held}

    def score(self, asked: Sequence[tuple[Quest, Sequence[Options]]]) -> None:
        """Score the candidates of all quests and enter them there; all at once, so that no process idles."""
        tasks = [task for quest, tried in asked if tried for task in self._tasks(quest.space.manager, tried)]
        results = {(one.task.manager, one.task.scenario.name): one for one in self._run(tasks)}
        for quest, tried in asked:
            if tried:
                ordered = [results[quest.space.manager, plan.scenario.name] for plan in self._plans]
                quest.tried += zip(tried, self._scores(ordered, len(tried)), strict=True)

    def _scores(self, results: Sequence[SimResult], count: int) -> list[Score]:
        """Of all candidates, from one result per scenario."""
        least = np.array([self._held_percent[one.task.scenario.name] - ALLOWANCE_POINTS for one in results])
        qos = np.array([_means(one, QOS, count) for one in results])
        be = np.array([_means(one, BE, count) for one in results]).mean(axis=0)
        missed = np.maximum(least[:, None] - qos, 0.0).sum(axis=0)
        return [Score(0.0 - round(float(points), 2), float(each)) for points, each in zip(missed, be, strict=True)]

    def _tasks(self, manager: str, tried: Sequence[Options]) -> list[SimTask]:
        """One for each scenario: a batch in which each candidate has a host for each seed."""
        seeds = self._budget.seeds
        return [
            SimTask(
                scenario=plan.scenario,
                host=plan.host,
                manager=manager,
                seeds=seeds * len(tried),
                weight=plan.weight(manager),
                profile=plan.profile,
                threshold_model=plan.threshold_model if manager in NEEDS_MODEL else None,
                options=tuple(one for one in tried for _ in seeds),
            )
            for plan in self._plans
        ]

    def _run(self, tasks: list[SimTask]) -> list[SimResult]:
        return self._workers.map(simulate, tasks, lambda task: self._done(task.manager))


def _refuse_evaluation(budget: Budget) -> None:
    if judged := [seed for seed in budget.seeds if kind_of(seed) is not SeedKind.TRAINING]:
        raise ConfigError(f"{judged[0]} is an evaluation seed; constants are tuned on training seeds only")


def _with_models(plans: Sequence[SimPlan], spaces: Sequence[Space]) -> list[SimPlan]:
    """PRM's model recorded once for each scenario, as a benchmark does."""
    if not NEEDS_MODEL & {space.manager for space in spaces}:
        return list(plans)
    return [replace(plan, threshold_model=record_model(plan)) for plan in plans]


def _round_sizes(candidates: int) -> list[int]:
    """Half of the candidates, in rounds that differ by one at most."""
    return [len(part) for part in np.array_split(np.arange(candidates // 2), ROUNDS)]


def _means(result: SimResult, metric: str, count: int) -> NDArray[np.float64]:
    """A metric of each of so many candidates, over its seeds."""
    return np.asarray(result.values[metric].reshape(count, -1).mean(axis=1))


def as_yaml(tuned: Tuned) -> str:
    """The file's text; the same for the same search, whenever it ran."""
    data = tuned.model_dump(mode="json")
    return (
        "# Written by scripts/tune-managers: constants for `rlctl bench --plant sim --tuned`, one set per manager for\n"
        "# the whole suite. shortfall_points: QoS below frozen's less "
        f"{ALLOWANCE_POINTS:g}, summed over the scenarios. Training seeds.\n"
        + yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)
    )
