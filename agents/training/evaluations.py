"""Policies compared while they learn: QoS first, by a price that no BE work can pay.

The merit of a policy is its BE throughput, mean over the courses, less a penalty. The penalty is PRICE for every
percentage point short of the QoS that must be held, summed over the courses. That is what `frozen` holds on the same
seeds less ALLOWANCE_POINTS, the bar that managers are tuned to (`scripts.studies.tuning`). There QoS comes first
outright. Here a policy is judged every minute on few seeds, where a hundredth of a point is chance. A price lets BE
weigh that up, and a point of QoS still outweighs all BE there is.

The schedulers of a search compare trials by `search_score`. A trial's shortfall is counted in whole steps of
ALLOWANCE_POINTS, rounded up: nothing short is step 0, anything short at least step 1. BE takes what lies between two
steps, so no BE throughput makes up for a step, and within one step more BE is better. Finer steps would have chance
decide: a window is 0.01 points of a course on 16 seeds of 600 s. Only the order of these numbers means anything. On
other seeds, which no trial has seen, the same order says who wins.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.agents.batch_learned import Logits
from rlctl.agents.training.trial import Course, Trial, frozen, score
from rlctl.envs.arrays import Array
from rlctl.envs.whole_file import whole

METRICS = ("qos_percent", "be_percent", "override_percent")
"""Of a trial: windows that held the target, BE work by BE running alone, ticks in which the shield changed the move."""

ALLOWANCE_POINTS = 0.1
PRICE = 100.0

DIGITS = 6
"""Of a shortfall by the allowance: what is left of a difference of floats is not a step."""

MOST_BE_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy on all courses; `merit` is what policies are compared by, the larger the better."""

    timesteps: int
    seconds: float
    trials: dict[str, Trial]
    merit: float

    def mean(self, metric: str) -> float:
        """One of METRICS, mean over courses and seeds."""
        return float(np.mean([getattr(one, metric).mean() for one in self.trials.values()]))

    @property
    def shortfall_points(self) -> float:
        """QoS that lacks, percentage points summed over the courses, not negative."""
        return max((self.mean("be_percent") - self.merit) / PRICE, 0.0)


class Judge:
    """Scores policies on the same courses and seeds.

    Args:
        absent: Sensors that the policies are judged without.
    """

    def __init__(
        self, courses: Sequence[Course], seeds: Sequence[int], lags: Sequence[int], absent: Collection[str] = ()
    ) -> None:
        self._courses, self._seeds, self._lags, self._absent = courses, seeds, lags, absent

    def evaluate(self, logits: Logits, timesteps: int, seconds: float) -> Evaluation:
        """Score one policy; `timesteps` and `seconds` say when."""
        trials = {
            course.name: score(course, logits, self._seeds, self._lags, absent=self._absent) for course in self._courses
        }
        short = sum(max(self.least[name] - one.qos_percent.mean(), 0.0) for name, one in trials.items())
        be_percent = np.mean([one.be_percent.mean() for one in trials.values()])
        return Evaluation(timesteps, seconds, trials, float(be_percent - PRICE * short))

    @functools.cached_property
    def least(self) -> dict[str, float]:
        """The QoS that must be held on each course; simulated once, in about the time of an evaluation."""
        return {one.name: frozen(one, self._seeds).qos_percent.mean() - ALLOWANCE_POINTS for one in self._courses}


class History:
    """All evaluations of a run in its file, of Stable-Baselines3's shape; what stands there is gone on with."""

    def __init__(self, file: Path, courses: Sequence[Course]) -> None:
        self._file, self._courses = file, courses
        self._columns: dict[str, list[Array]] = {}
        if file.is_file():
            with np.load(file) as kept:
                self._columns = {name: list(kept[name]) for name in kept.files if name not in ("courses", "ep_lengths")}

    def __len__(self) -> int:
        return len(self._columns.get("merit", ()))

    @property
    def _merits(self) -> list[float]:
        """Of all policies that have learned: the point before that is no candidate."""
        each = zip(self._columns.get("merit", ()), self._columns.get("timesteps", ()), strict=True)
        return [float(merit) for merit, timesteps in each if timesteps > 0]

    @property
    def best_merit(self) -> float:
        """Of all of them; minus infinity before the first one."""
        return max(self._merits, default=-np.inf)

    @property
    def without_gain(self) -> int:
        """Evaluations since the best one."""
        merits = self._merits
        return len(merits) - 1 - merits.index(max(merits)) if merits else 0

    def add(self, one: Evaluation) -> None:
        """Write an evaluation down."""
        trials = list(one.trials.values())
        row = {
            "timesteps": one.timesteps,
            "seconds": one.seconds,
            "results": np.concatenate([trial.returns for trial in trials]),
            **{name: [getattr(trial, name) for trial in trials] for name in METRICS},
            "merit": one.merit,
        }
        for name, value in row.items():
            self._columns.setdefault(name, []).append(np.asarray(value))
        arrays: dict[str, Any] = {name: np.array(column) for name, column in self._columns.items()}
        lengths = np.repeat([course.ticks for course in self._courses], len(trials[0].returns))
        arrays["ep_lengths"] = np.tile(lengths, (len(self), 1))
        arrays["courses"] = np.array([course.name for course in self._courses])
        with whole(self._file) as file:
            np.savez(file, **arrays)


def shortfall_steps(shortfall_points: float) -> int:
    """Points of QoS that lack, summed over the courses, in whole steps; 0 only where nothing is short."""
    return math.ceil(round(shortfall_points / ALLOWANCE_POINTS, DIGITS))


def search_score(shortfall_points: float, be_percent: float) -> float:
    """The larger is the better: the steps, negative, and mean BE work by BE running alone as a share of one."""
    return min(max(be_percent, 0.0), MOST_BE_PERCENT) / (MOST_BE_PERCENT + 1.0) - shortfall_steps(shortfall_points)
