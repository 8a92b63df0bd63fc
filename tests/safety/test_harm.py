"""BE of the least weight is free until it harms the LC, and the LC's own misses are not held against it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.reins import FELL, USE, Rein
from rlctl.envs.telemetry import LC_IDLE, Missing, Quantile, Telemetry, Value, Why
from rlctl.safety.harm import HarmEvidence
from rlctl.safety.profile import DEFAULT, load_profile
from rlctl.safety.shield import Shield

Calm = Callable[..., Telemetry]

LEAST = Limits(cpus=4, least_weight=True)
MISSES = Callable[[int, float], bool]
"""Whether the LC misses in a second, given what BE used in it."""


def live(
    calm: Calm, misses: MISSES, seconds: int, limits: Limits = LEAST, load: float = 0.5
) -> list[tuple[float, bool]]:
    """CPUs that a greedy BE had in each second, and whether the LC missed in it."""
    shield, current, lived = Shield(load_profile("measured"), limits), limits.safe, []
    for second in range(seconds):
        used = current.usable_cpus
        missed = misses(second, used)
        lived.append((used, missed))
        telemetry = calm(float(second), load, -0.5 if missed else 0.5, be_cpus=Value(used))
        current = shield.rule(telemetry, current, limits.full).allocation
    return lived


def never(second: int, used_cpus: float) -> bool:
    return False


def test_free_from_first_good_reading(calm: Calm) -> None:
    assert [used for used, _ in live(calm, never, 4)] == [0.0, 4.0, 4.0, 4.0]


def test_equal_weight_still_grows_slowly(calm: Calm) -> None:
    assert live(calm, never, 3, Limits(cpus=4))[-1][0] == pytest.approx(0.01 + 0.48)


def test_one_miss_costs_one_second(calm: Calm) -> None:
    lived = live(calm, lambda second, _: second == 5, 9)
    assert [used for used, _ in lived[4:]] == [4.0, 4.0, pytest.approx(0.01), 4.0, 4.0]


def test_two_misses_suspend_be_for_cool_down(calm: Calm) -> None:
    lived = live(calm, lambda second, used: second in (5, 7) and used > 1.0, 60)
    assert {used for used, _ in lived[8:37]} == {0.0}
    assert lived[40][0] < 2.5, "it grows back as slowly as at any weight"


def test_link_that_fell_is_no_harm(calm: Calm) -> None:
    def live_with(fell_ratio: float) -> list[float]:
        shield, current, had = Shield(load_profile("measured"), LEAST), LEAST.safe, []
        for second in range(10):
            had.append(current.usable_cpus)
            reading = calm(float(second), 0.5, -0.5 if second in (5, 6) else 0.5, be_cpus=Value(had[-1]))
            fell = {FELL[Rein.LINK]: Value(fell_ratio if second == 6 else 0.0)}
            current = shield.rule(reading.but(counters=fell), current, LEAST.full).allocation
        return had

    assert live_with(0.5)[5:] == [4.0, pytest.approx(0.01), 0.0, 4.0, 4.0]
    assert live_with(0.0)[5:] == [4.0, pytest.approx(0.01), 0.0, 0.0, 0.0]


def test_what_lc_misses_alone_costs_no_cool_down(calm: Calm) -> None:
    """An overload of its own, or neighbours: BE is held until the control has shown that, and is free then."""
    lived = live(calm, lambda second, _: second >= 100, 400)
    assert all(used == 0.0 for used, _ in lived[102:112])
    free = sum(used == 4.0 for used, _ in lived[100:])
    assert free >= 0.95 * 300


def test_seldom_own_misses_leave_be_its_share(calm: Calm) -> None:
    lived = live(calm, lambda second, _: second % 9 < 2, 1200)
    assert sum(used for used, _ in lived[100:]) >= 0.9 * 4.0 * 1100


def test_harm_is_tried_ever_more_seldom(calm: Calm) -> None:
    """Where no weight helps, as on a shared disk, BE that is free has the LC miss."""
    missed = {
        limits.least_weight: sum(one for _, one in live(calm, lambda _, used: used > 2.0, 7200, limits))
        for limits in (LEAST, Limits(cpus=4))
    }
    assert missed[True] <= missed[False] + 10


def test_old_overload_excuses_no_later_harm(calm: Calm) -> None:
    """The control is of a load near the one then."""
    shield, current = Shield(load_profile("measured"), LEAST), LEAST.safe
    for second in range(200):
        overload = second < 150
        missed = overload or current.usable_cpus > 1.0
        telemetry = calm(
            float(second), 0.9 if overload else 0.3, -0.5 if missed else 0.5, be_cpus=Value(current.usable_cpus)
        )
        current = shield.rule(telemetry, current, LEAST.full).allocation
    assert current.frozen


def test_idle_lc_needs_no_cool_down(calm: Calm) -> None:
    shield, current = Shield(load_profile("measured"), LEAST), LEAST.safe
    nothing = {"tail_latency_seconds": Missing(Why.NO_DATA), "counters": {LC_IDLE: Value(1.0)}}
    had = []
    for second in range(40):
        readings = nothing if 15 <= second < 20 else {}
        late = second in (10, 11)
        telemetry = calm(float(second), 0.5, -0.5 if late else 0.5, be_cpus=Value(current.usable_cpus), **readings)
        current = shield.rule(telemetry, current, LEAST.full).allocation
        had.append(current.usable_cpus)
    assert had[14] == had[20] == had[39] == 0.0
    assert had[15] == had[19] == 4.0


def test_late_request_in_long_window_counts_once(calm: Calm) -> None:
    """A window that grows while few requests come shows the same one again and again."""
    shield, current = Shield(load_profile("measured"), LEAST), LEAST.safe
    had = []
    for second in range(40):
        late = 20 <= second < 30
        tail = Quantile(0.015 if late else 0.005, samples=20, window_seconds=10.0)
        telemetry = calm(float(second), 0.02, be_cpus=Value(current.usable_cpus), tail_latency_seconds=tail)
        current = shield.rule(telemetry, current, LEAST.full).allocation
        had.append(current.usable_cpus)
    assert had[20] == pytest.approx(0.01)
    assert set(had[21:]) == {4.0}


def test_unknown_use_of_be_is_no_control(calm: Calm) -> None:
    shield = Shield(load_profile("measured"), LEAST)
    for second in range(100):
        verdict = shield.rule(calm(float(second), slack=-0.5), LEAST.safe, LEAST.full)
    assert verdict.allocation.frozen


def test_void_weight_waives_nothing_any_more(calm: Calm) -> None:
    shield = Shield(load_profile("measured"), LEAST)
    seen = calm(0.0, 0.5, 0.5, be_cpus=Value(0.0))
    assert shield.rule(seen, LEAST.safe, LEAST.full).allocation == LEAST.full
    shield.follow_weight(least=False)
    assert shield.rule(seen, LEAST.safe, LEAST.full).allocation.quota_cpus == LEAST.min_quota_cpus


@pytest.mark.parametrize("name", USE.values())
def test_be_that_needs_no_cpu_is_no_control(calm: Calm, name: str) -> None:
    """Whoever copies whole files uses next to no CPU, and fills a disk or a link: what is missed is his doing."""
    evidence = next(guard for guard in load_profile(DEFAULT).guards() if isinstance(guard, HarmEvidence))
    records = []
    for share in (0.0, 0.9):
        record = evidence.start()
        for second in range(30):
            counters = {name: Value(share)}
            record = evidence.advance(record, calm(float(second), 0.5, -1.0, be_cpus=Value(0.0), counters=counters))
        records.append(record)
    alone, beside = records
    assert alone.held_windows > 0.0 == beside.held_windows
    assert beside.free_missed_ratio == 1.0
    assert not beside.cleared
