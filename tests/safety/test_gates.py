"""The load gate and the slack gate through time, as an operator would see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

Calm = Callable[..., Telemetry]

LIMITS = Limits(cpus=2)
LOST = {"tail_latency_seconds": Missing(Why.GONE)}


def frozen(shield: Shield, telemetry: Telemetry) -> bool:
    return shield.rule(telemetry, LIMITS.minimum, LIMITS.full).allocation.frozen


@pytest.mark.parametrize(("name", "suspend", "resume"), [("heracles", 0.85, 0.80), ("responsive", 0.95, 0.90)])
def test_hysteresis_of_the_load_gate(name: str, suspend: float, resume: float, calm: Calm) -> None:
    shield = Shield(load_profile(name), LIMITS)
    band = (suspend + resume) / 2
    loads = [(band, True), (resume, True), (0.5, False), (band, False), (suspend, False), (suspend + 0.01, True)]
    loads += [(band, True), (resume, True), (resume - 0.01, False), (band, False)]
    assert [frozen(shield, calm(15.0 * i, load)) for i, (load, _) in enumerate(loads)] == [want for _, want in loads]


@pytest.mark.parametrize(
    ("wavers", "opens"),
    [(0.002, 0.94), (0.008, 0.93), (0.024, 0.91), (0.04, 0.91)],
    ids=["quiet", "little", "more", "much"],
)
def test_gate_opens_nearer_where_load_hardly_wavers(wavers: float, opens: float, calm: Calm) -> None:
    """A gap for the loudest host holds BE of the quiet one back for nothing. What wavers opens it by its dips."""
    shield, seconds = Shield(load_profile("measured"), LIMITS), iter(range(10000))

    def frozen_at(load: float, ticks: int) -> bool:
        """At the end of so many ticks around a load; then once at that load itself."""
        for tick in range(ticks):
            frozen(shield, calm(float(next(seconds)), load + wavers / 2 * (-1) ** tick))
        return frozen(shield, calm(float(next(seconds)), load))

    assert frozen_at(0.92, 1)  # before anything was measured it wavers by much
    assert not frozen_at(0.5, 100)
    assert frozen_at(1.0, 200)
    steps = [round(0.99 - 0.01 * step, 2) for step in range(15)]
    assert next(load for load in steps if not frozen_at(load, 60)) == opens


def test_repeated_reading_is_no_quiet_load(calm: Calm) -> None:
    """A source may be slower than the tick."""
    noises = []
    for times in (1, 3):
        shield = Shield(load_profile("measured"), LIMITS)
        for second in range(300):
            frozen(shield, calm(float(second), 0.5 + 0.02 * (second // times % 2)))
        noises.append(shield.state["load-gate"]["noise_ratio"])
    assert noises == pytest.approx([0.02, 0.02], abs=1e-3)


def test_absurd_load_does_not_lock_the_gate(calm: Calm) -> None:
    shield = Shield(load_profile("measured"), LIMITS)
    for second, load in enumerate([0.5, float("inf"), float("inf"), 1e308, -1.0, float("nan"), 0.5, 0.5]):
        frozen(shield, calm(float(second), load))
    assert not frozen(shield, calm(9.0, 0.5))
    assert 0.0 <= shield.state["load-gate"]["noise_ratio"] <= 0.05


def test_heracles_judges_every_fifteen_seconds(calm: Calm) -> None:
    shield = Shield(load_profile("heracles"), LIMITS)
    answers = [frozen(shield, calm(float(t), 0.5 if t == 0 else 0.99)) for t in range(17)]
    assert answers == [False] * 15 + [True] * 2


def test_heracles_loses_sensors_at_once_and_judges_again(calm: Calm) -> None:
    shield = Shield(load_profile("heracles"), LIMITS)
    assert not frozen(shield, calm(0.0))
    assert frozen(shield, calm(1.0, **LOST))
    assert frozen(shield, calm(15.0, **LOST))
    assert frozen(shield, calm(16.0, slack=-0.1))  # the poll at 15 s had nothing to judge


def test_heracles_cools_down_for_five_minutes(calm: Calm) -> None:
    shield = Shield(load_profile("heracles"), LIMITS)
    answers = [frozen(shield, calm(float(t), slack=-0.1 if t == 0 else 0.5)) for t in range(320)]
    # Suspended by the poll at 0 s; the cool-down counts from there.
    assert answers == [True] * 300 + [False] * 20


def test_a_further_strike_restarts_the_cool_down(calm: Calm) -> None:
    shield = Shield(load_profile("heracles"), LIMITS)  # 300 s from the last strike, here the one at 150 s
    answers = [frozen(shield, calm(float(t), slack=-0.1 if t in {0, 150} else 0.5)) for t in range(460)]
    assert answers == [True] * 450 + [False] * 10


def test_zero_slack_is_not_a_strike(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), LIMITS)
    for second in range(5):
        bounds = shield.rule(calm(float(second), slack=0.0), LIMITS.minimum, LIMITS.full).bounds
        assert "slack-gate" not in {bound.guard for bound in bounds}


def test_responsive_shrinks_first_and_suspends_second(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), LIMITS)
    shield.rule(calm(0.0), LIMITS.full, LIMITS.full)
    assert shield.rule(calm(1.0, slack=-0.1), LIMITS.full, LIMITS.full).allocation == LIMITS.minimum
    assert [frozen(shield, calm(2.0 + t, slack=-0.1 if t == 0 else 0.5)) for t in range(31)] == [True] * 30 + [False]


@pytest.mark.parametrize(("calm_seconds", "suspended"), [(1, True), (9, True), (10, False)])
def test_a_second_strike_within_ten_seconds_suspends(calm_seconds: int, suspended: bool, calm: Calm) -> None:
    """Else a greedy policy would be late once per regrowth for ever."""
    shield = Shield(load_profile("responsive"), LIMITS)
    frozen(shield, calm(0.0, slack=-0.1))
    assert not any(frozen(shield, calm(float(t))) for t in range(1, calm_seconds + 1))
    assert frozen(shield, calm(calm_seconds + 1.0, slack=-0.1)) == suspended


def test_strike_is_not_forgotten_over_lost_sensor(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), LIMITS)
    shield.rule(calm(0.0, slack=-0.1), LIMITS.full, LIMITS.full)
    shield.rule(calm(1.0, **LOST), LIMITS.full, LIMITS.full)
    frozen(shield, calm(2.0, slack=-0.1))
    assert frozen(shield, calm(3.0))  # cooling down


def test_clock_going_back_leaves_a_cool_down(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), LIMITS)
    for t in (1000.0, 1001.0):
        frozen(shield, calm(t, slack=-0.1))
    assert all(frozen(shield, calm(float(t))) for t in range(30))
    assert not frozen(shield, calm(30.0))


def test_leaping_clock_does_not_end_cool_down(calm: Calm) -> None:
    shield = Shield(load_profile("heracles"), LIMITS)
    assert frozen(shield, calm(0.0, slack=-0.1))
    assert frozen(shield, calm(1e9))


def test_a_suspended_be_resumes_from_the_minimum(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), LIMITS)
    shield.rule(calm(0.0), LIMITS.full, LIMITS.full)
    suspended = shield.rule(calm(1.0, load=0.99), LIMITS.full, LIMITS.full).allocation
    assert suspended == LIMITS.safe
    resumed = shield.rule(calm(2.0), suspended, LIMITS.full).allocation
    assert resumed.quota_cpus == pytest.approx(LIMITS.min_quota_cpus + 0.12 * LIMITS.cpus)


def test_a_time_scale_divides_poll_and_cool_down(calm: Calm) -> None:
    shield = Shield(load_profile("heracles").scale_time(15.0), LIMITS)
    answers = [frozen(shield, calm(float(t), slack=-0.1 if t == 3 else 0.5)) for t in range(25)]
    assert answers == [False] * 3 + [True] * 20 + [False] * 2
