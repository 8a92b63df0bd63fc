"""Whether a policy may act: budgets over sliding windows, and a hold-down that doubles when it disappoints again.

All of it counts ticks, so it does the same in a replay as it did live, and no clock that jumps can change it.
"""

from __future__ import annotations

from collections import deque
from typing import Self

from pydantic import Field, model_validator

from rlctl.envs.yaml_edge import Strict

LEAST_FAILURES = 2
"""One or two failures are never too many, however few ticks the window has."""

ANSWER_RATIO = 0.25
"""Most of a tick that a policy may take; the rest is for reading and writing."""


class FailureBudget(Strict):
    """How often a policy may fail before it is demoted, and for how long then; keys of `fallback` as a file has them.

    Attributes:
        answer_milliseconds: Time that the policy has for an answer; a quarter of the tick where that is less. A tick
            without a usable answer in time is the heuristic's.
        failure_percent: Share of the ticks of `failure_window_seconds` that may be without a usable answer; with more
            the policy is demoted: the heuristic decides.
        failure_window_seconds: The window of `failure_percent`.
        override_percent: Share of the ticks of `window_seconds` that the shield may override; with more the policy is
            demoted.
        drift_percent: Share of the ticks of `window_seconds` that may be unlike the policy's training; with more it is
            demoted, until that is over.
        window_seconds: The window of `override_percent` and `drift_percent`.
        hold_seconds: How long it stays demoted the first time; twice as long each time it must be demoted again within
            `failure_window_seconds` of its return.
        most_hold_seconds: The longest that it stays demoted.
    """

    answer_milliseconds: float = Field(default=100.0, ge=1.0, le=10_000.0)
    failure_percent: float = Field(default=1.0, ge=0.0, le=100.0)
    failure_window_seconds: float = Field(default=600.0, ge=1.0, le=86_400.0)
    override_percent: float = Field(default=50.0, ge=0.0, le=100.0)
    drift_percent: float = Field(default=50.0, ge=0.0, le=100.0)
    window_seconds: float = Field(default=60.0, ge=1.0, le=86_400.0)
    hold_seconds: float = Field(default=60.0, ge=1.0, le=86_400.0)
    most_hold_seconds: float = Field(default=3600.0, ge=1.0, le=864_000.0)

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.most_hold_seconds < self.hold_seconds:
            raise ValueError(f"most_hold_seconds is less than hold_seconds, {self.hold_seconds:g}")
        return self

    def answer_within(self, tick_seconds: float) -> float:
        """Seconds that a policy has for an answer."""
        return min(self.answer_milliseconds / 1e3, ANSWER_RATIO * tick_seconds)


class Meter:
    """Counts the marked ticks among the last `ticks`: a share of `ratio`, or `least` of them, may be marked."""

    def __init__(self, ticks: int, ratio: float, least: int = 0) -> None:
        self.ticks = ticks
        self.most = max(int(ratio * ticks), least)
        self._marked: deque[int] = deque()

    def mark(self, tick: int) -> None:
        """Mark the tick of this number."""
        self._marked.append(tick)

    def count(self, tick: int) -> int:
        """Number of marked ticks in the window that ends with this one."""
        while self._marked and self._marked[0] <= tick - self.ticks:
            self._marked.popleft()
        return len(self._marked)

    def is_exceeded(self, tick: int) -> bool:
        """Whether more ticks are marked than may be."""
        return self.count(tick) > self.most

    def clear(self) -> None:
        """Forget all marks so far."""
        self._marked.clear()


class CircuitBreaker:
    """A policy's breaker: may it act, and if not, why (`demoted`, empty while it may) and for how long."""

    def __init__(self, budgets: FailureBudget, tick_seconds: float) -> None:
        def ticks(seconds: float) -> int:
            return max(round(seconds / tick_seconds), 1)

        self.demoted = ""
        self.demotions = 0
        self._tick = 0
        self._failures = Meter(ticks(budgets.failure_window_seconds), budgets.failure_percent / 100.0, LEAST_FAILURES)
        self._overrides = Meter(ticks(budgets.window_seconds), budgets.override_percent / 100.0)
        self._strange = Meter(ticks(budgets.window_seconds), budgets.drift_percent / 100.0)
        self._first_hold, self._most_hold = ticks(budgets.hold_seconds), ticks(budgets.most_hold_seconds)
        self._hold = 0
        self._promoted = self._until = 0

    @property
    def ticks_to_retry(self) -> int:
        """Ticks until it gets another try, if nothing speaks against it then; 0 while it may act."""
        return max(self._until - self._tick, 1) if self.demoted else 0

    def next(self, strange: str, busy: bool) -> None:
        """Begin a tick: demote for drift, or let the policy act again unless a call of it still hangs."""
        self._tick += 1
        if strange:
            self._strange.mark(self._tick)
        drifted = self._strange.is_exceeded(self._tick)
        # Promoted when the hold is over, unless a call still hangs or the ticks are still unlike its training.
        if self.demoted and self._tick >= self._until and not drifted and not busy:
            self._promote()
        elif drifted and not self.demoted:
            self._demote(f"{self._share(self._strange)} unlike its training: {strange or 'until now'}")

    def record_failure(self, why: str) -> None:
        """Count a tick without a usable answer."""
        self._failures.mark(self._tick)
        if self._failures.is_exceeded(self._tick):
            self._demote(f"{self._share(self._failures)} without a usable answer, the last: {why}")

    def record_override(self) -> None:
        """Count a tick in which the shield did not let its answer through as it was."""
        self._overrides.mark(self._tick)
        if self._overrides.is_exceeded(self._tick):
            self._demote(f"{self._share(self._overrides)} overridden by the shield")

    def _demote(self, why: str) -> None:
        # hold = first hold, twice the last one if that was not long ago, at most most_hold_seconds: a policy that fails
        # again and again gets fewer and fewer tries.
        forgiven = self._tick - self._promoted >= self._failures.ticks
        self._hold = self._first_hold if forgiven or not self._hold else min(2 * self._hold, self._most_hold)
        self._until = self._tick + self._hold
        self.demoted = why
        self.demotions += 1

    def _promote(self) -> None:
        self.demoted = ""
        self._promoted = self._tick
        self._failures.clear()
        self._overrides.clear()

    def _share(self, meter: Meter) -> str:
        return f"{meter.count(self._tick)} of {meter.ticks} ticks"
