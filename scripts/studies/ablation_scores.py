"""Policies of an ablation scored on evaluation seeds: under the default shield, there without its mask, and bare.

Every policy meets the same seeds, so its difference to the full training is one of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.catalogue import label
from rlctl.agents.served import bundle
from rlctl.agents.training.evaluations import METRICS
from rlctl.agents.training.trial import Trial, score
from rlctl.bench.comparison import paired_difference
from rlctl.bench.intervals import Estimate, mean_interval, share_over_seeds
from rlctl.bench.sim_outcome import SimOutcome
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs.observations import EXPERIENCE
from rlctl.envs.sim.seeds import evaluation
from rlctl.learn.plan import course_of
from rlctl.report.page import render
from rlctl.safety.profile import DEFAULT

Array = NDArray[np.float64]

SHOWN = ("two-core", "capped-link")
"""Scenarios with columns of their own beside the mean of all."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a policy is judged.

    Attributes:
        masked: It chooses among the moves that the shield lets through.
    """

    name: str
    shield: str | None
    masked: bool


CONDITIONS = (
    Condition(DEFAULT, DEFAULT, True),
    Condition(f"{DEFAULT}, no mask", DEFAULT, False),
    Condition("bare", None, False),
)


@dataclass(frozen=True, slots=True)
class Scores:
    """One policy under one condition.

    Attributes:
        windows: Windows of one seed, by scenario.
        values: Scenario to metric of METRICS to one value per seed, shape (seeds,).
    """

    windows: Mapping[str, int]
    values: Mapping[str, Mapping[str, Array]]

    def mean(self, metric: str) -> Array:
        """Over scenarios, seed by seed, shape (seeds,)."""
        return np.asarray(np.mean([one[metric] for one in self.values.values()], axis=0), float)

    def estimate(self, metric: str, scenario: str | None = None) -> Estimate:
        """With its intervals over seeds, as `rlctl bench` has them; of the mean over scenarios when none is named."""
        values = self.values[scenario][metric] if scenario else self.mean(metric)
        if metric == "qos_percent":
            return share_over_seeds(values, self.windows[scenario] if scenario else sum(self.windows.values()))
        return mean_interval(values, 0.0, 100.0 if metric == "override_percent" else np.inf)

    def plain(self) -> dict[str, Any]:
        """As JSON has it; `from_plain` takes it back."""
        values = {
            scenario: {metric: [round(value, 6) for value in each.tolist()] for metric, each in one.items()}
            for scenario, one in self.values.items()
        }
        return {"windows": dict(self.windows), "values": values}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Scores:
        """The scores that `plain` was called on."""
        values = {
            scenario: {metric: np.array(each, float) for metric, each in one.items()}
            for scenario, one in data["values"].items()
        }
        return cls(data["windows"], values)


def scores_of(folder: Path, condition: Condition, scenarios: Sequence[SimScenario], seeds: int) -> Scores:
    """Score a bundle on the simulated hosts of scenarios.

    Args:
        scenarios: Give host, load and length of the runs.
        seeds: On how many evaluation seeds of each.

    Raises:
        BundleError: It cannot be served.
    """
    policy = bundle.load(folder)
    numbers, lags = [evaluation(number) for number in range(seeds)], policy.card.lags
    courses = [course_of(one, condition.shield) for one in scenarios]
    # One that learned on hosts without memory is judged without; other sensors are there in all scenarios.
    absent = [EXPERIENCE] if all(EXPERIENCE in plant.absent for plant in policy.card.plants) else []
    trials = {
        one.name: score(one, policy.logits, numbers, lags, masked=condition.masked, absent=absent) for one in courses
    }
    return Scores({one.name: one.ticks for one in courses}, {name: _metrics(one) for name, one in trials.items()})


def _metrics(trial: Trial) -> dict[str, Array]:
    return {metric: getattr(trial, metric) for metric in METRICS}


def of_outcomes(outcomes: Sequence[SimOutcome], manager: str) -> Scores:
    """A manager's scores in runs of `rlctl bench`."""
    names = ("qos_guarantee_percent", "be_throughput_percent", "shield_override_percent")
    values = {
        outcome.scenario: dict(zip(METRICS, (outcome.managers[label(manager)][name] for name in names), strict=True))
        for outcome in outcomes
    }
    return Scores({outcome.scenario: outcome.ticks for outcome in outcomes}, values)


def table(rows: Mapping[str, Scores], base: str) -> str:
    """One condition as a Markdown table.

    Args:
        rows: Scores by name, on the same scenarios and seeds.
        base: The row that all are compared with.
    """
    shown = [name for name in SHOWN if name in rows[base].values]
    header = ["", "QoS % mean", "BE % mean", "override % mean", f"QoS - {base}", f"BE - {base}"]
    header += [f"{what} {name}" for name in shown for what in ("QoS %", "BE %", "override %")]
    return render([header, *([name, *_cells(one, rows[base], shown)] for name, one in rows.items())])


def _cells(one: Scores, base: Scores, shown: Sequence[str]) -> list[str]:
    mean = [_cell(one.estimate(metric), digits) for metric, digits in zip(METRICS, (2, 1, 1), strict=True)]
    own = [
        _cell(one.estimate(metric, name), digits)
        for name in shown
        for metric, digits in zip(METRICS, (2, 1, 1), strict=True)
    ]
    return [*mean, *(_difference(one, base, metric) for metric in METRICS[:2]), *own]


def _cell(estimate: Estimate, digits: int) -> str:
    low, high = estimate.ci95
    return f"{estimate.mean:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _difference(one: Scores, base: Scores, metric: str) -> str:
    if one is base:
        return ""
    found = paired_difference(one.mean(metric), base.mean(metric))
    low, high = found.bootstrap95
    return f"{found.mean:+.2f} ({low:+.2f} to {high:+.2f})"


def as_json(rows: Mapping[str, Scores], base: str) -> dict[str, object]:
    """One condition: estimates by scenario, differences to the base, and every seed's values."""
    return {
        name: {
            "mean": {metric: one.estimate(metric).as_json() for metric in METRICS},
            "scenarios": {
                scenario: {metric: one.estimate(metric, scenario).as_json() for metric in METRICS}
                for scenario in one.values
            },
            "less_base": {
                metric: paired_difference(one.mean(metric), rows[base].mean(metric)).as_json() for metric in METRICS
            },
            "per_seed": one.plain()["values"],
        }
        for name, one in rows.items()
    }
