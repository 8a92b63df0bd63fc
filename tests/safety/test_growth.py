"""What holds a running BE down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.actions import MOVES, RISE_RATIO
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.safety.growth import Ceiling, GrowthRate, Pace, SeenSlack, SlackFloor, SlackHold
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.trust import Trust
from rlctl.safety.verdict import Reason

Calm = Callable[..., Telemetry]

LIMITS = Limits(cpus=4)
INDEX = {move.name: index for index, move in enumerate(MOVES)}
TRUST = Trust(max_age_seconds=3.0, min_samples=20)


def test_slack_not_seen_yet_holds_be_down(profile: Profile) -> None:
    current = Allocation(2.0, 2)
    for guard in profile.guards():
        if isinstance(guard, SlackHold | SlackFloor):
            bound = guard.bound(SeenSlack(), Telemetry(0.0, 0.01), current, LIMITS)
            assert bound is not None
            assert bound.most.at_most(current)
            assert bound.reason is Reason.SLACK_UNKNOWN


@pytest.mark.parametrize(
    ("cpus", "floor"), [(2, Allocation(0.2, 1)), (36, Allocation(2.0, 2)), (16, Allocation(1.6, 2))]
)
def test_floor_is_two_cores_or_tenth_of_host(cpus: int, floor: Allocation) -> None:
    guard = next(g for g in load_profile("heracles").guards() if isinstance(g, SlackFloor))
    assert guard.floor(Limits(cpus=cpus)) == floor


def test_floor_is_never_below_what_host_can_write() -> None:
    limits = Limits(cpus=2, min_quota_cpus=0.5)
    assert SlackFloor(load_profile("heracles"), TRUST).floor(limits) == limits.minimum


@pytest.mark.parametrize(
    ("current", "passed_seconds", "most"),
    [
        (Allocation(1.0, 1), 1.0, Allocation(2.0, 2)),
        (Allocation(1.0, 1), 0.5, Allocation(1.5, 2)),
        (Allocation(1.0, 1), 0.0, Allocation(1.0, 1)),
        (Allocation(3.2, 3), 1.0, Allocation(UNLIMITED, 4)),
        (Allocation(4.0, 3), 0.0, Allocation(4.0, 3)),
        (Allocation(UNLIMITED, 3), 0.0, Allocation(UNLIMITED, 3)),
        (Allocation(1 / 3, 1), 0.0, Allocation(1 / 3, 1)),
        (Allocation(3.0, 4, frozen=True), 1.0, Allocation(1.01, 2)),  # thawing three CPUs would be a leap
    ],
)
def test_the_rate_of_growth(current: Allocation, passed_seconds: float, most: Allocation) -> None:
    guard = GrowthRate(load_profile("measured").model_copy(update={"growth_ratio_per_second": 0.25}), TRUST)
    bound = guard.bound(Pace(0.0, passed_seconds, 59.0), Telemetry(0.0, 0.010), current, LIMITS)
    assert bound is not None
    assert bound.most == most


def test_where_misses_are_rare_it_grows_faster(calm: Calm) -> None:
    profile, limits = load_profile("measured"), Limits(10)
    shield, wells = Shield(profile, limits), {}
    shield.rule(calm(0.0), limits.safe, limits.safe)
    for second in range(1, 240):
        late, lost = second in {90, 230}, second == 20  # an overload may blind its sensors
        telemetry = calm(float(second), slack=-0.1 if late else 0.5)
        if lost:
            telemetry = replace(
                telemetry, tail_latency_seconds=Missing(Why.STALE), oldest_request_seconds=Missing(Why.NO_DATA)
            )
        grown = shield.rule(telemetry, Allocation(2.0, 2), limits.full).allocation
        wells[second] = grown.quota_cpus, grown.cpuset_cpus
    assert wells[79] == (pytest.approx(3.2), 3)
    assert wells[80] == wells[89] == (pytest.approx(8.0), 8)
    assert wells[90] == (pytest.approx(0.01), 1)
    assert wells[101] == wells[140] == (pytest.approx(3.2), 3)
    assert wells[141] == (pytest.approx(8.0), 8)
    assert wells[231] == (pytest.approx(8.0), 8)  # one miss in a long while


def test_five_misses_use_up_any_saved_time(calm: Calm) -> None:
    guard = GrowthRate(load_profile("measured"), TRUST)
    memory = guard.start()
    for second in range(2000):
        memory = guard.advance(memory, calm(float(second)))
    left = []
    for second in range(2000, 2005):
        memory = guard.advance(memory, calm(float(second), slack=-0.1))
        left.append(memory.well_seconds)
    assert left == [240.0, 180.0, 120.0, 60.0, 0.0]


def test_a_late_tick_earns_no_leap(calm: Calm) -> None:
    shield = Shield(load_profile("responsive"), Limits(cpus=100))
    shield.rule(calm(0.0), LIMITS.minimum, LIMITS.minimum)
    grown = shield.rule(calm(3600.0), LIMITS.minimum, Limits(cpus=100).full).allocation
    assert grown.quota_cpus == pytest.approx(0.01 + 2.0 * 12.0)


@pytest.mark.parametrize("ratio", [0.3, 0.7, 0.9])
def test_ceiling_on_grid_lets_its_own_level_through(ratio: float) -> None:
    limits = Limits(cpus=3, levels=20)
    bound = Ceiling(ratio).bound(None, Telemetry(0.0, 0.010), limits.minimum, limits)
    assert bound is not None
    assert Allocation(limits.quota_at(round(ratio * 20)), 3).at_most(bound.most)
    assert not Allocation(limits.quota_at(round(ratio * 20) + 1), 3).at_most(bound.most)


def test_ceiling_of_one_still_knows_size_of_host() -> None:
    bound = Ceiling(1.0).bound(None, Telemetry(0.0, 0.010), LIMITS.minimum, LIMITS)
    assert bound is not None
    assert bound.most == LIMITS.full


@given(data=st.data())
def test_only_a_leap_outgrows_a_full_tick(data: st.DataObject, profile: Profile) -> None:
    """Otherwise the mask would forbid growing moves for ever, and each target far above would be an override."""
    limits = data.draw(st.sampled_from([Limits(1), Limits(4), Limits(36), Limits(3, min_quota_cpus=0.3)]))
    quotas = st.one_of(st.floats(limits.min_quota_cpus, limits.cpus), st.just(UNLIMITED))
    current = data.draw(st.builds(Allocation, quotas, st.integers(1, limits.cpus)))
    guard = next(one for one in profile.guards() if isinstance(one, GrowthRate))
    for begun in (current, limits.safe):  # a BE that was suspended resumes from the minimum
        for well_seconds in (0.0, 60.0):
            bound = guard.bound(Pace(0.0, 1.0, well_seconds), Telemetry(0.0, 0.010), begun, limits)
            assert bound is not None
            for move in MOVES:
                if move.name != "leap" or (profile.measured is not None and well_seconds):
                    assert move.of(begun, limits).at_most(bound.most), move.name


@pytest.mark.parametrize("cpus", [1, 36])
def test_a_far_target_is_reached_without_an_override(profile: Profile, calm: Calm, cpus: int) -> None:
    limits, whole = Limits(cpus), next(move for move in MOVES if move.quota_ratio == 1.0)
    shield, current = Shield(profile, limits), limits.safe
    shield.rule(calm(0.0), current, current)
    for second in range(1, 1 + max(10, cpus)):  # a CPU a second is opened, a tenth of the quota is
        verdict = shield.rule(calm(float(second)), current, whole.of(current, limits))
        assert not verdict.overridden
        current = verdict.allocation
    assert current == Allocation(float(cpus), cpus)


@pytest.mark.parametrize("cpus", [1, 2, 36])
@pytest.mark.parametrize("quota", ["half", "all", "lifted"])
def test_after_its_freeze_policy_thaws_and_grows(profile: Profile, calm: Calm, cpus: int, quota: str) -> None:
    """A freeze that left quota and cpuset wide would leave `thaw` no way through: it would ask for all at once."""
    limits = Limits(cpus)
    wide = Allocation({"half": cpus / 2, "all": float(cpus), "lifted": UNLIMITED}[quota], cpus)
    shield, seconds = Shield(profile, limits), iter(range(1000))

    def step(name: str, current: Allocation) -> Allocation:
        telemetry = calm(float(next(seconds)))
        assert shield.mask(telemetry, current)[INDEX[name]], name
        verdict = shield.rule(telemetry, current, MOVES[INDEX[name]].of(current, limits))
        assert not verdict.overridden, name
        return verdict.allocation

    assert step("freeze", step("keep", wide)) == limits.safe
    assert step("thaw", limits.safe) == limits.minimum
    current, grown = step("quota-100%", limits.safe), [limits.minimum]  # a target thaws as well, and is on its way
    while len(grown) < 60 and current != grown[-1]:
        grown.append(current)
        current = step("quota-100%", current)
    assert current == Allocation(float(cpus), cpus)
    for before, after in pairwise(grown):
        risen = after.quota_cpus - before.quota_cpus
        assert risen == pytest.approx(RISE_RATIO * cpus) or after.quota_cpus == cpus
        assert after.cpuset_cpus - before.cpuset_cpus <= profile.growth_cpuset_cpus


def test_a_threshold_itself_is_enough_slack() -> None:
    assert not SeenSlack(0.10).below(0.10)
    assert SeenSlack(0.0999).below(0.10)
    assert SeenSlack().below(0.10)
