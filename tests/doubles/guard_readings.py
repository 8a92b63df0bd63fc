"""Any telemetry as the array shield reads it, host by host, so that both shields can be shown the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Why
from rlctl.safety.many.readings import Column, GuardReadings
from rlctl.safety.trust import NEVER_THERE


def guard_readings(telemetries: Sequence[Telemetry]) -> GuardReadings:
    """The readings of some hosts in arrays."""
    tails = [telemetry.tail_latency_seconds for telemetry in telemetries]
    return GuardReadings(
        np.array([telemetry.time_seconds for telemetry in telemetries]),
        np.array([telemetry.target_seconds for telemetry in telemetries]),
        _column(tails, frozenset()),
        np.array([float(tail.samples) if isinstance(tail, Quantile) else 0.0 for tail in tails]),
        _column([telemetry.oldest_request_seconds for telemetry in telemetries], NEVER_THERE | {Why.NO_DATA}),
        _column([telemetry.load_ratio for telemetry in telemetries], frozenset()),
        _column([telemetry.lc_alive for telemetry in telemetries], NEVER_THERE),
    )


def _column(readings: Sequence[Reading], excused: frozenset[Why]) -> Column:
    missing = np.array([isinstance(reading, Missing) for reading in readings])
    lost = np.array([isinstance(reading, Missing) and reading.why not in excused for reading in readings])
    value = np.array([0.0 if isinstance(reading, Missing) else reading.value for reading in readings])
    return Column(value, np.array([reading.age_seconds for reading in readings]), missing, lost)
