"""The LC's maximum load: the largest that meets the target with BE absent; load 1.0 from then on.

As in the thesis (section 5.1.3), raise the load in equal steps until the tail crosses the target. Then look closer
between the last load that met it and the first that did not. There by a second row of smaller steps, here by bisection,
which takes fewer measurements for the same resolution. What was found so has then to be borne for longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Self

from pydantic import Field, model_validator

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.generator import HIGHEST_RATE_RPS, LoadGenerator
from rlctl.envs.yaml_edge import Strict

RESOLUTION_RATIO = 0.03  # of the load, between the last good one and the first bad
LOWEST_DIVISOR = 8  # a host may be slower than the one that a scenario was written on, or busy with its neighbours
MOST_STEPS = 1000  # beyond it the step is a slip of the pen
CLEAR_RATIO = 0.5  # p95 of a 1-s window varies by 18 % (docs/measured/simulator.md, 7): half the target is no chance
SETTLE_SECONDS = 1.0
WINDOW_SECONDS = 1.5
MISSED_WINDOWS = 1  # of those for which a load has to be borne
DRAIN_SECONDS = 10.0
POLL_SECONDS = 0.05


class KneeSection(Strict):
    """Range and step of the search for the LC's maximum load (thesis 5.1.3).

    Attributes:
        start_rps: First load tried, requests per second.
        step_rps: Added for each further try.
        top_rps: Last load tried.
        borne_windows: Windows for which what was found just below a miss is held then, and lowered until all but one
            are well: for an LC that is to be near its knee, where single windows are chance; 0 leaves it at that.
    """

    start_rps: float = Field(gt=0.0)
    step_rps: float = Field(gt=0.0)
    top_rps: float = Field(gt=0.0)
    borne_windows: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        start, step, top = self.start_rps, self.step_rps, self.top_rps
        if not start <= top <= HIGHEST_RATE_RPS:
            raise ValueError(
                f"impossible knee search: start {start:g}, step {step:g}, top {top:g} rps: start is not above top, and "
                f"no load is above {HIGHEST_RATE_RPS:g}"
            )
        if (top - start) / step > MOST_STEPS:
            raise ValueError(f"a step of {step:g} rps takes more than {MOST_STEPS} steps to {top:g}; take larger ones")
        return self

    def ends_at(self, found_rps: float) -> bool:
        """Whether a maximum load is only where the search ends, so that the LC may bear more."""
        return found_rps >= self.top_rps > self.start_rps


def find_knee(
    measure: Callable[[float], float],
    target_seconds: float,
    knee: KneeSection,
    bear: Callable[[float], float] | None = None,
) -> float:
    """Search the maximum load: the largest, in requests per second, that met the target.

    A load is judged by one measurement when that is clearly good, and otherwise by two of three: single ones lie.

    Args:
        measure: Offers a load (requests per second) and returns the latency in seconds.
        target_seconds: The SLO's target; meeting it exactly is meeting it.
        knee: Where the first load misses the target, a half, a quarter and an eighth of it are tried.
        bear: As `measure`, but for longer: what was found just below a miss is lowered until it bears that, too.

    Raises:
        TestbedError: The target is missed at an eighth of the first load, or what was found there is not borne.
    """
    jury, lowest = _Jury(measure, target_seconds), knee.start_rps / LOWEST_DIVISOR
    good, bad = knee.start_rps, None
    while not jury.meets(good):
        good, bad = good / 2.0, good
        if good < lowest:
            raise _miss_error(target_seconds, bad, jury.measured_seconds)
    if bad is None:
        good, bad = _climb(jury, knee)
    while bad is not None and bad - good > RESOLUTION_RATIO * bad:
        middle = (good + bad) / 2
        if not good < middle < bad:  # as near as floats come
            break
        good, bad = (middle, bad) if jury.meets(middle) else (good, middle)
    while bear and bad is not None and (seconds := bear(good)) > target_seconds:
        lower = good * (1.0 - RESOLUTION_RATIO)
        if lower < lowest:
            raise _miss_error(target_seconds, good, seconds)
        good = lower
    return good


def _miss_error(target_seconds: float, rps: float, seconds: float) -> TestbedError:
    return TestbedError(
        f"the target of {target_seconds * 1e3:g} ms is missed at {rps:g} rps even with BE absent (measured "
        f"{seconds * 1e3:.1f} ms): begin the search lower, or set a target that the service meets"
    )


def _climb(jury: _Jury, knee: KneeSection) -> tuple[float, float | None]:
    """The last load that met the target, and the first that did not."""
    good = knee.start_rps
    for step in range(1, math.ceil((knee.top_rps - knee.start_rps) / knee.step_rps) + 1):
        load = min(knee.start_rps + step * knee.step_rps, knee.top_rps)
        if not jury.meets(load):
            return good, load
        good = load
    return good, None


class _Jury:
    """Judges loads; `measured_seconds` is the last latency that it saw."""

    def __init__(self, measure: Callable[[float], float], target_seconds: float) -> None:
        self._measure = measure
        self._target_seconds = target_seconds
        self.measured_seconds = math.nan

    def meets(self, rps: float) -> bool:
        first = self._once(rps)
        if first <= CLEAR_RATIO * self._target_seconds:
            return True
        votes = [first <= self._target_seconds]
        while votes.count(True) < 2 and votes.count(False) < 2:
            votes.append(self._once(rps) <= self._target_seconds)
        return votes.count(True) == 2

    def _once(self, rps: float) -> float:
        self.measured_seconds = self._measure(rps)
        return self.measured_seconds


def probe_with(
    generator: LoadGenerator,
    quantile: float,
    *,
    settle_seconds: float = SETTLE_SECONDS,
    window_seconds: float = WINDOW_SECONDS,
    drain_seconds: float = DRAIN_SECONDS,
    windows: int = 1,
    missed: int = 0,
    target_seconds: float = math.inf,
) -> Callable[[float], float]:
    """A measurement for `find_knee` on the live service.

    Each one offers the load, lets it settle, and measures. Then the backlog drains at no load, so that a load beyond
    the knee does not spoil the next measurement.

    Args:
        generator: Sends the load; left at rate 0.
        quantile: Which one counts as the tail.
        settle_seconds: Time before the first window.
        windows, missed: The latency is that of the worst of so many windows, so many left out.
        target_seconds: One window more than these above it ends a measurement at once.
        drain_seconds: Limit for the backlog to be served; exceeded, the measurement raises TestbedError.
    """

    def measure(rps: float) -> float:
        generator.set_rate(rps)
        time.sleep(settle_seconds)
        generator.stats()
        latencies: list[float] = []
        while len(latencies) < windows and sum(one > target_seconds for one in latencies) <= missed:
            time.sleep(window_seconds)
            stats = generator.stats()
            latencies.append(stats.latency_seconds(quantile) if stats.samples > 0 else math.inf)
        generator.set_rate(0.0)
        generator.forget()  # what was not sent would take minutes where the load was many times what is borne
        _drain(generator, rps, drain_seconds)
        return sorted(latencies)[-1 - min(missed, len(latencies) - 1)]

    return measure


def _drain(generator: LoadGenerator, rps: float, limit_seconds: float) -> None:
    deadline = time.monotonic() + limit_seconds
    while (outstanding := generator.stats().outstanding) > 0:
        if time.monotonic() > deadline:
            raise TestbedError(
                f"after {rps:g} rps {outstanding} requests were still unanswered {limit_seconds:g} s later: does the "
                "service hang? Search to a lower top"
            )
        time.sleep(POLL_SECONDS)
