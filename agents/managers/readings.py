"""Readings as managers compute with them: numbers, or None."""

from __future__ import annotations

import math

from rlctl.envs.telemetry import Reading, Telemetry, Value


def number(reading: Reading) -> float | None:
    """The reading's number; None when it is missing, not finite or negative."""
    if isinstance(reading, Value) and math.isfinite(reading.value) and reading.value >= 0.0:
        return reading.value
    return None


def slack_of(telemetry: Telemetry) -> float | None:
    """(target - latency) / target; None when the latency is missing or no number, minus infinity when it is endless."""
    slack = telemetry.slack_ratio
    return None if slack is None or math.isnan(slack) else slack


class Mean:
    """Mean of a reading over the ticks of a control period that is longer than a tick."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, reading: Reading) -> None:
        """Take in one tick; a missing reading adds nothing."""
        value = number(reading)
        if value is not None:
            self._sum += value
            self._count += 1

    def take(self) -> float | None:
        """The mean since the last call, or None when there was no reading; begins anew."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean
