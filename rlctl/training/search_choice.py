"""Who wins a search: QoS first, then BE throughput, on seeds that all trials share and none has seen.

A trial's QoS is compared with that of a BE which is always frozen, seed by seed: no policy can hold more. What counts
against it in a course is the upper end of the 95 % interval of what it loses there, less the allowance that all
policies have: not what it seems to lose but what the seeds cannot exclude. The sum over the courses, in the steps of
`evaluations`, is its shortfall. The smallest shortfall wins; among equal ones the largest BE throughput.

The interval against the runner-up says how sure that is. It holds for that one comparison; that the winner is the best
of many is a reason to measure it once more, with `rlctl evaluate`, on seeds of a benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS, shortfall_steps
from rlctl.agents.training.trial import Trial
from rlctl.statistics.intervals import Estimate, mean_interval, share_over_seeds
from rlctl.statistics.paired import Difference, paired_difference

Scores = Mapping[str, Trial]
"""By the course's name."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One trial as it is ranked.

    Attributes:
        shortfall_points: QoS that it may lack, percentage points summed over the courses.
        qos_percent, be_percent: Means over courses and seeds, with their intervals.
        override_percent: Mean share of ticks in which its shield changed what it asked for.
    """

    name: str
    shortfall_points: float
    qos_percent: Estimate
    be_percent: Estimate
    override_percent: float
    scores: Scores

    @property
    def key(self) -> tuple[int, float, str]:
        """The smaller is the better; nothing but the name decides between equal ones."""
        return shortfall_steps(self.shortfall_points), -self.be_percent.mean, self.name

    def as_json(self) -> dict[str, object]:
        """Scores and shortfall by name."""
        return {
            "qos_percent": self.qos_percent.as_json(),
            "be_percent": self.be_percent.as_json(),
            "override_percent": round(self.override_percent, 4),
            "shortfall_points": round(self.shortfall_points, 4),
        }


@dataclass(frozen=True, slots=True)
class Lead:
    """The winner against another trial, on the same seeds.

    Attributes:
        qos, be: The winner's less the other's, percentage points.
        by: What the winner is ahead in: `QoS`, `BE`, or `nothing`.
    """

    other: str
    qos: Difference
    be: Difference
    by: str

    @property
    def is_clear(self) -> bool:
        """True when the interval of what it is ahead in is above zero; QoS is ranked by course, not by its mean."""
        ahead = self.qos if self.by == "QoS" else self.be
        return self.by != "nothing" and ahead.mean > 0.0 and ahead.is_clear

    def as_json(self) -> dict[str, object]:
        """Differences by the metric's name."""
        differences = {"qos_percent": self.qos.as_json(), "be_percent": self.be.as_json()}
        return {"other": self.other, "by": self.by, "clear": self.is_clear, **differences}


def ranked(trials: Mapping[str, Scores], frozen: Scores, ticks: Mapping[str, int]) -> list[Standing]:
    """All trials, the winner first.

    Args:
        trials: Their scores by name, all on the same courses and seeds; two seeds at least.
        frozen: What a BE that is always frozen scored there.
    """
    return sorted((_standing(name, scores, frozen, ticks) for name, scores in trials.items()), key=lambda one: one.key)


def lead(winner: Standing, other: Standing) -> Lead:
    """The winner against another one."""
    qos = paired_difference(_mean(winner.scores, "qos_percent"), _mean(other.scores, "qos_percent"))
    be = paired_difference(_mean(winner.scores, "be_percent"), _mean(other.scores, "be_percent"))
    by = "nothing" if winner.key[:2] == other.key[:2] else "QoS" if winner.key[0] < other.key[0] else "BE"
    return Lead(other.name, qos, be, by)


def _standing(name: str, scores: Scores, frozen: Scores, ticks: Mapping[str, int]) -> Standing:
    return Standing(
        name=name,
        shortfall_points=sum(_short(one, frozen[course]) for course, one in scores.items()),
        qos_percent=share_over_seeds(_mean(scores, "qos_percent"), sum(ticks[course] for course in scores)),
        be_percent=mean_interval(_mean(scores, "be_percent"), low=0.0),
        override_percent=float(_mean(scores, "override_percent").mean()),
        scores=scores,
    )


def _short(one: Trial, frozen: Trial) -> float:
    """QoS that a trial may lack in a course."""
    _, most = mean_interval(frozen.qos_percent - one.qos_percent).ci95
    return max(most - ALLOWANCE_POINTS, 0.0)


def _mean(scores: Scores, metric: str) -> NDArray[np.float64]:
    """Over the courses, shape (seeds,)."""
    return np.asarray(np.mean([getattr(one, metric) for one in scores.values()], axis=0))
