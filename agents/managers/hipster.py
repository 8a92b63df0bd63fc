"""Hipster (Nishtala et al., HPCA 2017; nishtala/hipster): a heuristic, and a table by load that it fills.

The release's configurations are numbers of big and small cores and their frequency, ordered by the power that the LC
has. Here the LC's configuration is what is withheld from BE: 1, 2, ... all levels of BE's CPUs, and BE has the rest.

Faults of the release that are not repeated: the alert threshold multiplies the target by a percentage; all that is not
an alert steps down, so its "safe" threshold is never read; a reward is booked on a configuration that had not run yet
when its latency was read; the table's choice is never stored; and 99.5 % of choices stay random for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlctl.agents.managers.manager import HAIR, Every, Manager, slack_of
from rlctl.agents.managers.options import Index, Positive, PositiveShare, Share, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import PolicyError
from rlctl.envs.telemetry import Telemetry, number
from rlctl.safety.verdict import Verdict

WORST_LATENCY_RATIO = 10.0
"""An endless latency counts as so many targets: minus infinity in the table would never leave it."""


def bucket_of(load_ratio: float, width_ratio: float) -> int:
    """The nearest bucket of the load, the lower one when it lies between two; loads above 1 are in the last."""
    return math.ceil(min(load_ratio, 1.0) / width_ratio - 0.5 - HAIR)


def reward(latency_ratio: float, be_ratio: float, alert_ratio: float, warning: float) -> float:
    """What a configuration earns; BE throughput as a share of its largest, the warning a draw from [0, 1)."""
    # With r = latency / target and a term for BE's throughput: -1 - r + BE above the target; 1 + r + BE below it, the
    # nearer the better, for then BE has more; less a random draw in the danger zone, which makes it risky.
    if latency_ratio >= 1.0:
        return -1.0 - latency_ratio + be_ratio
    return 1.0 + latency_ratio - (warning if latency_ratio >= alert_ratio else 0.0) + be_ratio


@dataclass(kw_only=True, eq=False)
class Hipster(Manager):
    """Latency at 0.8 of the target or more: withhold a level more; below 0.2: a level less; after 300 s the table.

    A step needs a fresh latency and load: at most one a tick, and none without them. The paper's return to the
    heuristic when QoS falls is not in the release, nor here. Without BE's work rate its term is 0.

    Args:
        time_scale: Divides the two periods.
        period_seconds: Period of the control loop.
        learn_seconds: Length of the heuristic phase, of the code; the paper is said to have 500 s.
        alert_ratio, safe_ratio: Latency over target, at or above which the LC gets more; below which it gets less.
        learning_rate: alpha, of the code; 0.6 is said to be the paper's.
        discount: gamma, of the code; 0.9 is said to be the paper's.
        explore_ratio: Share of random choices; the code's 0.995 is taken for the share of greedy ones.
        bucket_ratio: Width of a load bucket. The release's 24 of 38000 requests are 1584 buckets, which a step a
            second does not fill; the default makes 21.
        first_index: Configuration to begin with, 0 (the release's) withholds the least.
        seed: Seed of the random choices; each start begins with it again.
    """

    name = "hipster"
    needs = ("tail_latency_seconds", "load_ratio")
    time_scale: TimeScale = 1.0
    period_seconds: Positive = 1.0
    learn_seconds: Positive = 300.0
    alert_ratio: Share = 0.80
    safe_ratio: Share = 0.20
    learning_rate: Share = 0.9
    discount: Share = 0.2
    explore_ratio: Share = 0.005
    bucket_ratio: PositiveShare = 0.05
    first_index: Index = 0
    seed: Index = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.safe_ratio > self.alert_ratio:
            raise PolicyError(f"{self.name}: safe_ratio is above alert_ratio; BE would flap")

    def begin(self) -> Allocation:
        """The first configuration, and an empty table."""
        self._step = Every(self.period_seconds / self.time_scale)
        self._learning = Every(self.learn_seconds / self.time_scale)
        self._started = self._by_table = False
        self._random = np.random.default_rng(self.seed)
        self.values = np.zeros((bucket_of(1.0, self.bucket_ratio) + 1, self.limits.levels))
        self.index = min(self.first_index, self.limits.levels - 1)
        self._bucket: int | None = None
        self._why = "start"
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """Book the reward of the configuration that ran, then choose the next one."""
        if self._step.due(telemetry.time_seconds):
            self._advance(telemetry.time_seconds)
            slack, load = slack_of(telemetry), number(telemetry.load_ratio)
            if slack is None or load is None:
                self._bucket = None
                self._why = "latency or load missing: kept"
            else:
                latency_ratio = min(max(1.0 - slack, 0.0), WORST_LATENCY_RATIO)
                be_ratio = min(number(telemetry.be_work_rate) or 0.0, 1.0)
                self._learn_and_choose(latency_ratio, load, be_ratio)
        return self._allocation(), f"{self._why}; {self.index + 1}/{self.limits.levels} withheld"

    def learn_ruling(self, verdict: Verdict) -> None:
        """Book nothing on a configuration that a shield did not let run as it is."""
        if verdict.overridden:
            self._bucket = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What stands for the configurations, and which of its choices are random."""
        return (
            f"an LC configuration is a share of BE's CPUs withheld (no core types, no frequency, no power term); alpha "
            f"{self.learning_rate:g}, gamma {self.discount:g}, {self.explore_ratio:.1%} random choices, seed "
            f"{self.seed}; at most one step a tick",
        )

    def _advance(self, now_seconds: float) -> None:
        """The table decides when the heuristic phase is over, which begins with the first step."""
        if not self._started:
            self._started = True
            self._learning.rest(now_seconds, self.learn_seconds / self.time_scale)
        self._by_table = self._by_table or bool(self._learning.due(now_seconds))

    def _learn_and_choose(self, latency_ratio: float, load_ratio: float, be_ratio: float) -> None:
        bucket = bucket_of(load_ratio, self.bucket_ratio)
        # Q[b, c] += alpha * (reward + gamma * max Q[b', .] - Q[b, c]), from the first step on, where b' is the bucket
        # of the load now; the release takes the maximum of the old bucket b.
        if self._bucket is not None:
            earned = reward(latency_ratio, be_ratio, self.alert_ratio, self._random.uniform())
            old = self.values[self._bucket, self.index]
            target = earned + self.discount * self.values[bucket].max()
            self.values[self._bucket, self.index] = old + self.learning_rate * (target - old)
        self._bucket = bucket
        if self._by_table:
            self._consult(bucket)
        else:
            self._climb(latency_ratio)

    def _climb(self, latency_ratio: float) -> None:
        # The heuristic: latency >= 0.8 target: the next stronger configuration; < 0.2 target: the next weaker one.
        if latency_ratio >= self.alert_ratio - HAIR:
            self.index = min(self.index + 1, self.limits.levels - 1)
            self._why = "heuristic: alert, stronger"
        elif latency_ratio < self.safe_ratio - HAIR:
            self.index = max(self.index - 1, 0)
            self._why = "heuristic: safe, weaker"
        else:
            self._why = "heuristic: kept"

    def _consult(self, bucket: int) -> None:
        # The table: the best configuration of the bucket; of equal ones that in force, else the strongest; and a small
        # share of choices at random.
        if self._random.uniform() < self.explore_ratio:
            self.index = int(self._random.integers(self.limits.levels))
            self._why = f"table, bucket {bucket}: explores"
        else:
            values = self.values[bucket]
            if values[self.index] < values.max():
                self.index = int(np.flatnonzero(values == values.max())[-1])
            self._why = f"table, bucket {bucket}: best value {values.max():.2f}"

    def _allocation(self) -> Allocation:
        # BE has what the LC's configuration leaves; the strongest leaves nothing (the release sends SIGSTOP).
        left = self.limits.levels - 1 - self.index
        if not left:
            return self.limits.safe
        quota_cpus = self.limits.quota_at(left)
        return Allocation(quota_cpus, max(1, math.ceil(quota_cpus - HAIR)))
