"""Error budgets: how many windows a day may miss an LC's target, how fast they go, and what happens when they are gone.

What is a miss: the tail is above the target, or the LC is dead, more requests fail than may, or requests come in and
none is completed. A window of which nothing is known is none: no traffic, or a source that does not answer.

A budget that is spent, or burns so fast that it would be spent within hours, holds BE at its minimum. That can only
restrict BE further: it is a bound of the shield (`Shield.hold`). Burn rates are those of Google's SRE workbook,
chapter "Alerting on SLOs": 1 spends exactly the whole budget.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlctl.config.serve import LcSection
from rlctl.envs.allocation import Limits
from rlctl.envs.observation import MOST_PRICE
from rlctl.envs.telemetry import Missing, Telemetry, Value, Why, number
from rlctl.log.record import Tick
from rlctl.safety.verdict import Bound, Reason

log = logging.getLogger("rlctl.serve")

HOUR_MINUTES, DAY_MINUTES = 60, 1440
MOST_MINUTES = 2 * DAY_MINUTES
"""Of which misses are kept: those of a day, and as many of a time to come."""

FAST = 6.0
"""Burn rate over an hour that spends a quarter of a day's budget: so long nobody should wait."""

SCHEMA = 2


OBJECTIVE = {"target_milliseconds", "quantile_percent"}
"""Keys of `slo` that say what a miss is; with the control period, which is a window's."""


class ErrorBudget:
    """The budget of one LC: its misses of the last day, minute by minute.

    What counts is the misses against the windows of a whole day or hour, however long the service has run: so one that
    has just begun has its budget too.

    Args:
        lc: Name of the LC.
        budget_ratio: Share of a day's windows that may miss the target.
        clock: Answers the Unix time.
        objective: What a miss is measured by, as plain data: target and quantile. Misses of another one do not count.
    """

    def __init__(
        self,
        lc: str,
        budget_ratio: float,
        tick_seconds: float,
        clock: Callable[[], float] = time.time,
        objective: Mapping[str, Any] | None = None,
    ) -> None:
        self.lc, self.name = lc, f"error budget of {lc}"
        self._by_minute = budget_ratio * 60.0 / tick_seconds
        self._clock = clock
        self._of = {**(objective or {}), "tick_seconds": tick_seconds}
        self._missed: dict[int, int] = {}
        self._is_stalled = False

    def observe(self, lc: Telemetry) -> None:
        """Count the window of a tick.

        Args:
            lc: The LC's own readings.
        """
        # One window in which requests came and none was completed may be one that came at its very end. Of two in a row
        # the first one's requests have waited for a whole window.
        stalled = _is_stalled(lc)
        self.count(missed=_is_missed(lc) or (stalled and self._is_stalled))
        self._is_stalled = stalled

    def count(self, *, missed: bool) -> None:
        """A window has ended, and has missed the target or not."""
        minute = self._minute()
        if missed:
            self._missed[minute] = self._missed.get(minute, 0) + 1
        if len(self._missed) > MOST_MINUTES:
            self._missed = self._counting_misses()

    def burn_rate(self, minutes: int) -> float:
        """How many times as fast as it may the budget was spent in the last minutes."""
        return sum(self._last(minutes).values()) / (self._by_minute * minutes)

    @property
    def remaining_ratio(self) -> float:
        """What is left of the day's budget; 0 when it is spent."""
        return max(1.0 - self.burn_rate(DAY_MINUTES), 0.0)

    @property
    def trouble(self) -> str:
        """Why BE has to be held, in a few words; empty while the budget is in order."""
        day, hour = self.burn_rate(DAY_MINUTES), self.burn_rate(HOUR_MINUTES)
        if day >= 1.0:
            return f"{self.name} is spent: {day:.0%} of a day's"
        return f"{self.name} burns at {hour:.1f} times its rate, by the last hour" if hour >= FAST else ""

    def state_dict(self) -> Mapping[str, Any]:
        """The misses by minute of Unix time, as plain data for `restore_state`."""
        return {"schema": SCHEMA, "of": self._of, "missed": sorted(map(list, self._counting_misses().items()))}

    def restore_state(self, memory: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` said; ValueError: it is none of that."""
        if memory.get("schema") != SCHEMA:
            raise ValueError("is no error budget")
        if memory["of"] != self._of:
            raise ValueError(f"its misses are of {memory['of']}, not of {self._of}")
        self._missed = {_whole(minute): _whole(count) for minute, count in memory["missed"]}
        self._missed = self._counting_misses()

    def _minute(self) -> int:
        return int(self._clock() // 60.0)

    def _last(self, minutes: int) -> dict[int, int]:
        """Misses of the last minutes; of a time to come, before a clock was set back, nothing is believed yet."""
        now = self._minute()
        return {minute: count for minute, count in tuple(self._missed.items()) if now - minutes < minute <= now}

    def _counting_misses(self) -> dict[int, int]:
        """Misses that count or will: those of a time to come too, for a clock that was behind may be set again."""
        begin = self._minute() - DAY_MINUTES
        return dict(sorted(item for item in tuple(self._missed.items()) if item[0] > begin)[:MOST_MINUTES])


class Budgets:
    """The error budgets of a service's LCs, those that have one. A recorder, and bounds for the shield.

    Args:
        lcs: Sections of the configuration by the names of the LCs.
    """

    def __init__(
        self, lcs: Mapping[str, LcSection], tick_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.each = tuple(
            ErrorBudget(name, percent / 100.0, tick_seconds, clock, lc.slo.model_dump(mode="json", include=OBJECTIVE))
            for name, lc in lcs.items()
            if (percent := lc.slo.error_budget_percent) is not None
        )
        self._told: dict[str, tuple[bool, bool]] = {}

    def write(self, tick: Tick) -> None:
        """Count the window of a tick."""
        telemetry = tick.telemetry
        for budget in self.each:
            # With several LCs the telemetry is that of the worst one; a budget counts its own LC's windows.
            if (own := telemetry.lcs.get(budget.lc if telemetry.ruling else "")) is not None:
                budget.observe(own)

    @property
    def price(self) -> float:
        """What a violation costs learned policies: 1 where the budget goes as fast as it may, or there is none.

        So one bundle is bold for an operator who can lose many windows, and careful where they go too fast.
        """
        # The hour reacts within minutes; over a day the price would follow a bad morning until the evening.
        rates = [budget.burn_rate(HOUR_MINUTES) for budget in self.each]
        return min(max(*rates, 1.0 / MOST_PRICE), MOST_PRICE) if rates else 1.0

    def bounds(self, limits: Limits) -> tuple[Bound, ...]:
        """BE's minimum for each budget that is not in order."""
        # The minimum, not the safe allocation: a spent budget is about the day, and BE harms nobody at its minimum.
        troubles = [(budget, budget.trouble) for budget in self.each]
        for budget, trouble in troubles:
            state = bool(trouble), not budget.remaining_ratio
            if state != self._told.get(budget.name, (False, False)):
                self._told[budget.name] = state
                log.warning("%s", f"{trouble}; BE gets its minimum" if trouble else f"{budget.name} is in order again")
        return tuple(
            Bound("error-budget", Reason.ERROR_BUDGET, limits.minimum, trouble) for _, trouble in troubles if trouble
        )


def _is_missed(lc: Telemetry) -> bool:
    """What the readings of one window say by themselves."""
    # A dead LC answers nothing and so has no tail: that is a miss all the same.
    dead = isinstance(lc.lc_alive, Value) and lc.lc_alive.value == 0.0
    return dead or bool(lc.missed)


def _is_stalled(lc: Telemetry) -> bool:
    """Requests came in, none was completed, and the source does not tell how long they have waited."""
    tail, offered, done = lc.tail_latency_seconds, lc.counters.get("offered_rps"), lc.counters.get("done_rps")
    silent = isinstance(tail, Missing) and tail.why is Why.NO_DATA and isinstance(lc.oldest_request_seconds, Missing)
    return silent and bool(offered and number(offered)) and not (done and number(done))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
