"""Several LCs on one host: each has its own target and readings, and the one that is worst off speaks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from rlctl.envs.telemetry import Missing, Reading, Telemetry, Value

OF_EACH_LC = (
    "tail_latency_seconds", "oldest_request_seconds", "load_ratio", "lc_alive", "cpi", "lc_cpu_seconds_per_request",
    "lc_cpus", "lc_pressure_ratio", "lc_run_delay_ratio",
)  # fmt: skip
"""Readings that each LC has of its own; all others are the host's and BE's."""


@dataclass(frozen=True, slots=True)
class SeveralTelemetry(Telemetry):
    """One tick's readings of a host with several LCs, for those who know of one: see `worst_of`.

    Attributes:
        ruling: Name of the LC whose latency and target these are.
        lcs: Each LC's own readings, by name.
    """

    ruling: str = ""
    lcs: Mapping[str, Telemetry] = field(default_factory=dict)


def worst_of(lcs: Mapping[str, Telemetry]) -> SeveralTelemetry:
    """The readings of the LC with the least slack; of one whose slack is not known, if there is such.

    The load is the highest of all, all must be alive, and their CPU use is added up; where one's is missing, nobody
    knows.
    """
    ruling = min(lcs, key=lambda name: _badness(lcs[name].slack_ratio))
    chosen = lcs[ruling]
    shared = {field.name: getattr(chosen, field.name) for field in fields(Telemetry)}
    shared |= {
        "load_ratio": _together((lc.load_ratio for lc in lcs.values()), max),
        "lc_alive": _together((lc.lc_alive for lc in lcs.values()), min),
        "lc_cpus": _together((lc.lc_cpus for lc in lcs.values()), sum),
    }
    return SeveralTelemetry(**shared, ruling=ruling, lcs=dict(lcs))


def _badness(slack: float | None) -> tuple[bool, float]:
    known = slack is not None and math.isfinite(slack)
    return known, slack if known and slack is not None else 0.0


def _together(readings: Iterable[Reading], combine: Callable[[Iterable[float]], float]) -> Reading:
    values = []
    for reading in readings:
        if isinstance(reading, Missing):
            return reading
        values.append(reading)
    return Value(combine([reading.value for reading in values]), max(reading.age_seconds for reading in values))
