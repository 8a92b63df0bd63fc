"""PARTIES (Chen et al., ASPLOS 2019; sc2682cornell/PARTIES, manager/PARTIES.py): one resource step at a time.

Each step is judged by the latency samples that follow it.

The release manages several LC services. For one LC beside BE: BE owns the pool of free cores, so an upsize of the LC
takes a core from BE, and a downsize gives one to BE. Its frequency and cache steps have no actuator here.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import repeat

from rlctl.agents.managers.manager import HAIR, Every, Manager, almost, slack_of
from rlctl.agents.managers.options import Count, Positive, Share, TimeScale
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry, Value
from rlctl.safety.verdict import Verdict

SAME_SECONDS = 1e-3
"""Two latencies whose windows ended no further apart are one and the same, told twice."""


@dataclass(kw_only=True, eq=False)
class Parties(Manager):
    """Slack below 0.05: the LC gets a core back; above 0.20: it gives one; each step is judged by five samples.

    The LC begins with all cores, as a single service of the release does, and keeps one. The release draws the first
    resource at random; as only cores can move here, any draw decides the same.

    A decision needs a fresh latency. A slower tick, or one in which several intervals elapsed, is one sample. A tick
    without a latency, or with the previous one, is none (the release would judge the old one again). Nor is a latency
    that is good while a shield held back what was asked for: with that it might not be.

    Args:
        time_scale: Divides all periods.
        core_cpus: CPUs here that stand for a core of the published machine.
        interval_seconds: INTERVAL of the release; the paper's is said to be 0.5 s.
        mean_seconds: Time over which LSlack, the second of the two slacks, is a mean.
        tolerance_samples: TOLERANCE, the number of samples that judge a step.
        upsize_slack_ratio, downsize_slack_ratio: Slack below which the LC gets a core, above which it gives one.
        rest_intervals: REST, the number of intervals without a downsize after one that failed.
    """

    name = "parties"
    needs = ("tail_latency_seconds",)
    time_scale: TimeScale = 1.0
    core_cpus: Positive = 1.0
    interval_seconds: Positive = 0.1
    mean_seconds: Positive = 1.0
    tolerance_samples: Count = 5
    upsize_slack_ratio: Share = 0.05
    downsize_slack_ratio: Share = 0.20
    rest_intervals: Count = 100

    def begin(self) -> Allocation:
        """BE has no core, and so is frozen; the LC has all."""
        self._interval = Every(self.interval_seconds / self.time_scale)
        self._samples: list[tuple[float, float]] = []
        self._slack = self._mean_slack = 0.0
        self._resting = 0
        self._ended, self._held_back = -math.inf, False
        self.be_cores = 0
        self._why = "start: the LC has all cores"
        self._loop = self._run()
        next(self._loop)
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """One sample for the loop, when an interval has elapsed and there is a latency that was not there before."""
        now_seconds, slack, latency = telemetry.time_seconds, slack_of(telemetry), telemetry.latency_seconds
        intervals = self._interval.due(now_seconds)
        self._resting = max(self._resting - intervals, 0)
        # A source may be asked more seldom than there are ticks; after a clock was set back a latency is fresh, too.
        ended = now_seconds - latency.age_seconds if isinstance(latency, Value) else self._ended
        if intervals and slack is not None and slack <= 1.0 and abs(ended - self._ended) > SAME_SECONDS:
            # Short of slack it is also with less than was asked for, and must not wait for the shield to let go.
            if slack < self.upsize_slack_ratio - HAIR or not self._held_back:
                self._take(now_seconds, slack)
                next(self._loop)
            self._ended, self._held_back = ended, False
        return self._allocation(), f"{self._why}; {self.be_cores} cores"

    def learn_ruling(self, verdict: Verdict) -> None:
        """Remember, until the next latency, that a shield let through less than was asked for."""
        self._held_back = self._held_back or verdict.overridden

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which resources cannot be moved here, and what a core is."""
        return (
            f"one LC, BE owns the free pool; the wheel skips cache and frequency (no actuator); at most one sample a "
            f"tick; a core is {self.core_cpus:g} CPU",
        )

    def _run(self) -> Iterator[None]:
        """The release's main loop; each `yield` is its wait for the next sample."""
        while True:
            yield
            while (judgement := self._choose()) is not None:
                yield from judgement
            if not (self._is_short or self._is_roomy):
                yield

    # Both decisions need the newest slack (Slack) and its mean over a second (LSlack) to agree.

    @property
    def _is_short(self) -> bool:
        return max(self._slack, self._mean_slack) < self.upsize_slack_ratio - HAIR

    @property
    def _is_roomy(self) -> bool:
        return min(self._slack, self._mean_slack) > self.downsize_slack_ratio + HAIR and not self._resting

    def _choose(self) -> Iterator[None] | None:
        """Take a step and return how it is judged; None when there is no cause, or nothing left to move."""
        # Slack < 0.05 and LSlack < 0.05: upsize the LC.
        if self._is_short:
            taken = self._step(-1)
            self._why = "slack short: LC upsized" if taken else "slack short: no way to upsize"
            # Of the release's wheel only cores move here: an upsize that does not help turns to nothing else. It is not
            # undone; the next step waits for as many samples as would judge it.
            return repeat(None, self.tolerance_samples) if taken else None
        # Slack > 0.20 and LSlack > 0.20, and no rest after a failed downsize: downsize it.
        if self._is_roomy:
            taken = self._step(+1)
            self._why = "slack ample: LC downsized" if taken else "slack ample: no way to downsize"
            return self._judge_downsize() if taken else None
        self._why = f"kept, resting {self._resting} intervals" if self._resting else "kept"
        return None

    def _judge_downsize(self) -> Iterator[None]:
        # A downsize after which slack is short is undone, and the LC is not downsized again for REST intervals (LDOWN
        # of the release).
        if not (yield from self._watch()):
            return
        self.be_cores -= 1
        self._resting = self.rest_intervals
        self._why = "downsize failed: undone"
        if (yield from self._watch()):
            yield from repeat(None, self.tolerance_samples)

    def _watch(self) -> Generator[None, None, bool]:
        """Whether slack is short in at least half of the next samples: -1 for each below 0.05, else +1."""
        score = 0
        for _ in range(self.tolerance_samples):
            yield
            score += -1 if self._slack < self.upsize_slack_ratio - HAIR else 1
        return score <= 0

    def _step(self, be_cores: int) -> bool:
        """Move a core, the only spoke of the release's wheel that there is here; False where none is left to move."""
        if not 0 <= self.be_cores + be_cores <= self._most_cores:
            return False
        self.be_cores += be_cores
        return True

    def _take(self, now_seconds: float, slack: float) -> None:
        longest_seconds = almost(self.mean_seconds / self.time_scale)
        self._samples.append((now_seconds, slack))
        self._samples = [(when, known) for when, known in self._samples if 0.0 <= now_seconds - when < longest_seconds]
        self._slack = slack
        self._mean_slack = sum(known for _, known in self._samples) / len(self._samples)

    @property
    def _most_cores(self) -> int:
        return max(int(self.limits.cpus / self.core_cpus + HAIR) - 1, 0)

    def _allocation(self) -> Allocation:
        if not self.be_cores:
            return self.limits.safe
        quota_cpus = self.be_cores * self.core_cpus
        return Allocation(quota_cpus, math.ceil(quota_cpus - HAIR))
