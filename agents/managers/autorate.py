"""cake-autorate's law (OpenWrt): the shaper's rate goes up under load while delay is good, and down at once when not.

After the defaults and the documentation of lynxthecat/cake-autorate. What it does to a shaper for one box and its
round trips is done here to BE's level, on whichever rein is in hand, by the LC's latency.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Manager, slack_of
from rlctl.agents.managers.options import Positive, PositiveShare
from rlctl.envs.allocation import Allocation
from rlctl.envs.reins import OTHERS, Rein, used_cpus
from rlctl.envs.telemetry import Telemetry, Value, number

HIGH_LOAD_RATIO = 0.75
"""high_load_thr: BE that uses less of its level has nothing to gain from more."""

MOST_UP, MOST_DOWN, LEAST_DOWN = 1.04, 0.75, 0.99
"""shaper_rate_max_adjust_up_load_high, shaper_rate_max_adjust_down_bufferbloat and shaper_rate_min_...: of a step."""

TO_BASE = 0.99
"""shaper_rate_adjust_down_load_low; up it is 1.01: a step towards the base where there is little load."""

_NONE = Value(0.0)

FULL_UP, FULL_DOWN = 10.0 / 30.0, 60.0 / 30.0
"""Delays with the largest step up and down, by the one that counts as too long: 10, 30 and 60 ms there."""


@dataclass(kw_only=True, eq=False)
class Autorate(Manager):
    """One step for each reading of the delay: a window's tail stands for the six round trips that the program looks at.

    Args:
        delay_ratio: Latency by the target that counts as too long.
        base_ratio: Level to begin with, and to go back to where there is little load; 20 of 35 Mbit/s there.
        least_ratio: Level that it never leaves; 5 of 35 Mbit/s there.
    """

    name = "autorate"
    moves_reins = True
    delay_ratio: Positive = 0.8
    base_ratio: PositiveShare = 20.0 / 35.0
    least_ratio: PositiveShare = 5.0 / 35.0

    def begin(self) -> Allocation:
        """The level that it goes back to under little load."""
        self._ratio = self.base_ratio
        return self._level()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The level after one step."""
        slack = slack_of(telemetry)
        if slack is None:  # no reflector answers: the program falls back to its least rates
            self._ratio = self.least_ratio
            return self._level(), "latency unknown: the least"
        delay = (1.0 - slack) / self.delay_ratio
        # On a link the shaper's rate is that of all together, as the program has it, and its load too; a level of BE is
        # a share of what the others leave.
        others = number(telemetry.counters.get(OTHERS, _NONE)) or 0.0 if telemetry.rein == Rein.LINK else 0.0
        used = used_cpus(telemetry, self.limits.cpus)
        loaded = used is None or others + (1.0 - others) * used / self.limits.cpus >= HIGH_LOAD_RATIO * self._ratio
        step, why = self._step(delay, loaded=loaded)
        self._ratio = min(max(self._ratio * step, self.least_ratio), 1.0)
        return self._level(others), f"{why}: x {step:.3f}"

    def _step(self, delay: float, *, loaded: bool) -> tuple[float, str]:
        # 1. Too long: down by 1 to 25 %, the more the longer.
        if delay > 1.0:
            return _between(delay, 1.0, FULL_DOWN, LEAST_DOWN, MOST_DOWN), "delay too long"
        # 2. Good, and BE wants more: up by 4 % at most, the less the longer it is.
        if loaded:
            return _between(delay, FULL_UP, 1.0, MOST_UP, 1.0), "delay good under load"
        # 3. Little load shows nothing of the delay at this rate: back towards the base.
        towards = TO_BASE if self._ratio > self.base_ratio else 2.0 - TO_BASE
        return (towards if self._ratio != self.base_ratio else 1.0), "little load"

    def _level(self, others: float = 0.0) -> Allocation:
        quota_cpus = (self._ratio - others) / max(1.0 - others, 1e-9) * self.limits.cpus
        return Allocation(min(max(quota_cpus, self.limits.min_quota_cpus), self.limits.cpus), self.limits.cpus)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What stands for the round trips of the published program."""
        return (f"delay is the LC's tail by {self.delay_ratio:g} of its target, one step a window",)


def _between(at: float, low: float, high: float, first: float, last: float) -> float:
    """From `first` at `low` to `last` at `high` on a straight line, and no further."""
    share = min(max((at - low) / (high - low), 0.0), 1.0)
    return first + share * (last - first)
