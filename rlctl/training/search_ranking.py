"""Who wins a search: QoS first, then BE throughput, on seeds that all trials share and none has seen.

A trial's QoS is compared with that of a BE which is always frozen, seed by seed: no policy can hold more. What counts
against it in a course is the upper end of the 95 % interval of what it loses there, less the allowance that all
policies have: not what it seems to lose but what the seeds cannot exclude. The sum over the courses, in the steps of
`evaluations`, is its shortfall. The smallest shortfall wins; among equal ones the largest BE throughput.

The interval against the runner-up holds for that one comparison. The winner is the best of many: measure it once more,
with `rlctl evaluate`, on seeds of a benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.evaluations import ALLOWANCE_POINTS, shortfall_steps
from rlctl.agents.training.trial import Trial
from rlctl.bench.intervals import Estimate, mean_interval, share_over_seeds
from rlctl.bench.paired import Difference, paired_difference

Scores = Mapping[str, Trial]
"""By the course's name."""


@dataclass(frozen=True, slots=True)
class TrialRanking:
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

    def difference(self, other: TrialRanking, metric: str) -> Difference:
        """Its metric less the other's on the same seeds, percentage points."""
        return paired_difference(_mean(self.scores, metric), _mean(other.scores, metric))

    def lead_over(self, other: TrialRanking) -> dict[str, object]:
        """What it is ahead of a lower one in, `by` QoS, BE or nothing, and whether the interval is above zero."""
        qos, be = self.difference(other, "qos_percent"), self.difference(other, "be_percent")
        by, ahead = ("QoS", qos) if self.key[0] < other.key[0] else ("BE", be)
        # QoS is ranked by course, so the mean of the better one may be lower.
        clear = ahead.mean > 0.0 and ahead.is_clear
        if self.key[:2] == other.key[:2]:
            by, clear = "nothing", False
        return {"other": other.name, "by": by, "clear": clear, "qos_percent": qos.as_json(), "be_percent": be.as_json()}


def ranked(trials: Mapping[str, Scores], frozen: Scores, ticks: Mapping[str, int]) -> list[TrialRanking]:
    """All trials, the winner first.

    Args:
        trials: Their scores by name, all on the same courses and seeds; two seeds at least.
        frozen: What a BE that is always frozen scored there.
    """
    return sorted((_ranking(name, scores, frozen, ticks) for name, scores in trials.items()), key=lambda one: one.key)


def _ranking(name: str, scores: Scores, frozen: Scores, ticks: Mapping[str, int]) -> TrialRanking:
    return TrialRanking(
        name=name,
        shortfall_points=sum(_shortfall(one, frozen[course]) for course, one in scores.items()),
        qos_percent=share_over_seeds(_mean(scores, "qos_percent"), sum(ticks[course] for course in scores)),
        be_percent=mean_interval(_mean(scores, "be_percent"), low=0.0),
        override_percent=float(_mean(scores, "override_percent").mean()),
        scores=scores,
    )


def _shortfall(one: Trial, frozen: Trial) -> float:
    """QoS that a trial may lack in a course, percentage points."""
    _, most = mean_interval(frozen.qos_percent - one.qos_percent).ci95
    return max(most - ALLOWANCE_POINTS, 0.0)


def _mean(scores: Scores, metric: str) -> NDArray[np.float64]:
    """Over the courses, shape (seeds,)."""
    return np.asarray(np.mean([getattr(one, metric) for one in scores.values()], axis=0))
