"""BE that uses what it may not: told, suspended as far as a freeze reaches, and never by the noise of two counters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import BE_ALLOWED, Missing, Telemetry, Value, Why
from rlctl.safety.gates import MOST_CPU_SECONDS, TOLERANCE_CPUS, TOLERANCE_RATIO, Excess, Overrun
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Reason

GUARD = Overrun(gap_seconds=60.0)
LIMITS = Limits(cpus=4)
PERIOD_SECONDS = 0.1

Calm = Callable[..., Telemetry]


def lived(calm: Calm, windows: Iterable[tuple[float, float]], period_seconds: float = 1.0) -> Excess:
    """The guard's memory after windows of (CPUs used, CPUs allowed)."""
    memory = GUARD.start()
    for tick, (used, allowed) in enumerate(windows):
        telemetry = calm(tick * period_seconds, be_cpus=Value(used), counters={BE_ALLOWED: Value(allowed)})
        memory = GUARD.advance(memory, telemetry)
    return memory


def test_escaped_task_is_told_within_two_seconds(calm: Calm) -> None:
    """Measured on a live host: `frozen; used .98 CPU`, and no word of it anywhere."""
    memory = lived(calm, [(0.0, 0.0)] + [(0.98, 0.0)] * 2)
    bound = GUARD.bound(memory, calm(2.0), Allocation(1.0, 2), LIMITS)
    assert bound is not None
    assert (bound.most, bound.reason) == (LIMITS.safe, Reason.BE_OVERRUN)
    assert "0.98 CPUs of 0.00" in bound.detail


def test_it_objects_until_as_much_was_left_unused(calm: Calm) -> None:
    back = [(0.0, 0.0)] + [(0.98, 0.0)] * 2 + [(0.0, 1.0)]
    assert lived(calm, back).objects
    assert not lived(calm, [*back, *[(0.0, 1.0)] * 2]).objects


@given(st.floats(0.0, 36.0), st.lists(st.floats(-1.0, 1.0), max_size=30))
def test_the_error_of_two_counters_is_no_overrun(calm: Calm, allowed: float, noise: list[float]) -> None:
    tolerated = TOLERANCE_RATIO * allowed + TOLERANCE_CPUS
    memory = lived(calm, [(allowed + part * tolerated, allowed) for part in noise])
    assert not memory.objects


@given(st.floats(0.05, 2.0), st.integers(0, 9))
def test_quotas_period_is_no_overrun(calm: Calm, quota: float, offset: int) -> None:
    """Ten windows a second beside a period of 100 ms: now and then a window has the work of two periods."""
    uneven = itertools.chain.from_iterable(((2.0 * quota, quota), (0.0, quota)) for _ in range(20))
    memory = lived(calm, list(uneven)[offset:], PERIOD_SECONDS)
    assert memory.cpu_seconds < MOST_CPU_SECONDS


def test_window_without_reading_says_nothing(calm: Calm) -> None:
    held = lived(calm, [(0.0, 0.0)] + [(0.98, 0.0)] * 2)
    for changes in (
        {"be_cpus": Missing(Why.NO_DATA), "counters": {BE_ALLOWED: Value(0.0)}},
        {"be_cpus": Value(float("nan")), "counters": {BE_ALLOWED: Value(0.0)}},
        {"be_cpus": Value(0.0), "counters": {}},
    ):
        assert GUARD.advance(held, calm(3.0, **changes)).objects
        assert not GUARD.advance(GUARD.start(), calm(3.0, **changes)).objects


def test_every_profile_has_it(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), LIMITS)
    for tick in range(40):
        used = Value(0.0 if tick < 37 else 1.5)
        telemetry = calm(float(tick), be_cpus=used, counters={BE_ALLOWED: Value(0.2)})
        verdict = shield.rule(telemetry, LIMITS.full, LIMITS.full)
    assert verdict.allocation == LIMITS.safe
    assert Reason.BE_OVERRUN in {bound.reason for bound in verdict.decisive}
