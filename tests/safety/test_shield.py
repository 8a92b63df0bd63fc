"""The shield as the loop uses it: state for the log, reset, masks, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Reason
from tests.doubles.plant import FakePlant

Calm = Callable[..., Telemetry]

LIMITS = Limits(cpus=2)
HALF = Allocation(1.0, 1)
GROWING = {"quota-51%", "quota-60%", "quota-71%", "quota-84%", "quota-100%", "leap", "cpuset+1"}
"""The moves that are more than HALF."""


def allowed(shield: Shield, telemetry: Telemetry, current: Allocation) -> set[str]:
    return {move.name for move, ok in zip(MOVES, shield.mask(telemetry, current), strict=True) if ok}


def test_a_fresh_shield_lets_nothing_grow(profile: Profile, calm: Calm) -> None:
    shield = Shield(profile, LIMITS)
    assert allowed(shield, calm(0.0), HALF).isdisjoint(GROWING)


def test_with_slack_every_move_is_allowed(profile: Profile, calm: Calm) -> None:
    shield = Shield(profile, LIMITS)
    shield.mask(calm(0.0), LIMITS.minimum)
    assert allowed(shield, calm(1.0), HALF) == {move.name for move in MOVES} - {"leap"}
    for second in range(2, 61):
        assert allowed(shield, calm(float(second)), HALF) >= {move.name for move in MOVES} - {"leap"}
    assert ("leap" in allowed(shield, calm(61.0), HALF)) == (profile.measured is not None)


def test_less_than_every_bound_stays_as_asked(profile: Profile, calm: Calm) -> None:
    shield, less = Shield(profile, LIMITS), Allocation(0.25, 1)
    shield.rule(calm(0.0), HALF, HALF)
    verdict = shield.rule(calm(1.0), HALF, less)
    assert verdict.bounds
    assert verdict.allocation == less


def test_frozen_be_may_be_kept_suspended(profile: Profile, calm: Calm) -> None:
    moves = allowed(Shield(profile, LIMITS), calm(0.0, load=1.0), LIMITS.safe)
    assert "keep" in moves
    assert "thaw" not in moves


def test_reset_forgets(profile: Profile, calm: Calm) -> None:
    shield = Shield(profile, LIMITS)
    fresh = shield.state
    telemetry = calm(0.0, slack=-0.5)
    shield.rule(telemetry, LIMITS.full, LIMITS.full)
    assert shield.state != fresh
    shield.reset()
    assert shield.state == fresh


def test_the_state_can_be_logged(profile: Profile, calm: Calm) -> None:
    shield = Shield(profile, LIMITS)
    shield.rule(calm(0.0), LIMITS.full, LIMITS.full)
    state = json.loads(json.dumps(shield.state))
    gap = profile.load_suspend_ratio - profile.load_resume_ratio
    assert state["load-gate"] == {"closed": False, "load_ratio": 0.5, "polled_seconds": 0.0, "noise_ratio": gap}


def test_greedy_policy_is_seldom_late(profile: Profile) -> None:
    plant = FakePlant(limits=LIMITS, loads=(0.5, 0.6, 0.7, 0.6))
    shield = Shield(profile, LIMITS)
    plant.apply(shield.rule(plant.read(), plant.current, LIMITS.safe).allocation)
    late = 0
    for _ in range(600):
        plant.wait()
        telemetry = plant.read()
        late += (telemetry.slack_ratio or 0.0) < 0.0
        plant.apply(shield.rule(telemetry, plant.current, LIMITS.full).allocation)
    assert late <= 40


def test_speed_of_a_ruling(benchmark: Any, calm: Calm) -> None:
    """Each round learns from a new telemetry and judges it by seven guards."""
    shield = Shield(load_profile("responsive"), LIMITS)

    def fresh() -> tuple[tuple[Telemetry, Allocation, Allocation], dict[str, object]]:
        return (calm(0.0), LIMITS.minimum, LIMITS.full), {}

    verdict = benchmark.pedantic(shield.rule, setup=fresh, rounds=2000)
    assert verdict.allocation.at_most(LIMITS.full)


def test_before_first_reading_nothing_is_high() -> None:
    """Once an idle LC read as one without room: whoever saw it went to look for a load that there was not."""
    limits, unknown = Limits(cpus=4), Missing(Why.NO_DATA)
    shield = Shield(load_profile("responsive"), limits)
    idle = Telemetry(0.0, 0.01, tail_latency_seconds=unknown, load_ratio=unknown)
    reasons = {bound.reason for bound in shield.rule(idle, limits.full, limits.full).bounds}
    assert reasons >= {Reason.LOAD_UNKNOWN, Reason.SLACK_UNKNOWN}
    assert not reasons & {Reason.LOAD_HIGH, Reason.SLACK_TINY, Reason.SLACK_SMALL}
