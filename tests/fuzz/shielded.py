"""What the shield lets through when everything was well a second ago and a policy asks for all: the freest there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value
from rlctl.safety.profile import DEFAULT, load_profile
from rlctl.safety.shield import advance, bounds, judge

LIMITS = Limits(cpus=4)
TARGET_SECONDS = 0.010
WARM_SECONDS = 400.0
"""Longer than any cool-down of the profile."""

_FIELDS = frozenset(one.name for one in fields(Telemetry))
_GUARDS = load_profile(DEFAULT).guards()


def telemetry(readings: Mapping[str, Reading], now_seconds: float) -> Telemetry:
    """A tick's readings; what is no field of telemetry is a counter."""
    known = {name: reading for name, reading in readings.items() if name in _FIELDS}
    others = {name: reading for name, reading in readings.items() if name not in _FIELDS}
    return Telemetry(now_seconds, TARGET_SECONDS, **known, counters=others)  # type: ignore[arg-type]


def _warm() -> tuple[object, ...]:
    memories: tuple[object, ...] = tuple(guard.start() for guard in _GUARDS)
    for second in range(int(WARM_SECONDS)):
        well = {"tail_latency_seconds": Quantile(0.002, 0.0, 500, 1.0), "load_ratio": Value(0.3)}
        memories = advance(_GUARDS, memories, telemetry(well, float(second)))
    return memories


_MEMORIES = _warm()


def allowed(seen: Telemetry) -> Allocation:
    """The verdict on a policy that asks for all and has it already."""
    memories = advance(_GUARDS, _MEMORIES, seen)
    return judge(bounds(_GUARDS, memories, seen, LIMITS.full, LIMITS), LIMITS.full).allocation


def sane(readings: Mapping[str, Reading], most: float = math.inf) -> str:
    """Check that every reading is missing, or a finite number from 0 up with an age; says which of the two prevails."""
    for name, reading in readings.items():
        if isinstance(reading, Missing):
            assert not math.isnan(reading.age_seconds), f"{name}: {reading}"
            continue
        assert math.isfinite(reading.value), f"{name}: {reading}"
        assert 0.0 <= reading.value <= most, f"{name}: {reading}"
        assert reading.age_seconds >= 0.0, f"{name}: {reading}"
    first = next(iter(readings.values()))
    return f"missing {first.why}: {first.detail}" if isinstance(first, Missing) else "accepted"
