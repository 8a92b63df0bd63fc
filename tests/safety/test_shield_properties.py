"""Over arbitrary telemetry histories nothing gets past a guard, whoever proposes it."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import Allocation, Limits, most_restrictive
from rlctl.envs.telemetry import FEW_IN_LONG, LC_IDLE, Missing, Quantile, Telemetry, Value, Why
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict
from tests.doubles.shipped import SAFETY_PROFILES
from tests.examples import examples

Histories = st.SearchStrategy[list[Telemetry]]
Allocations = st.SearchStrategy[Allocation]

PROFILES = st.sampled_from([load_profile(name) for name in SAFETY_PROFILES])
"""Drawn and not a fixture: what holds for any history holds for any constants, and is not tried thrice."""

HOSTS = st.sampled_from([Limits(1), Limits(4), Limits(36, 17.0), Limits(3, min_quota_cpus=0.3)])
FREEZE, MINIMUM = ([move.name for move in MOVES].index(name) for name in ("freeze", "minimum"))

few = examples(30)


def lived(profile: Profile, limits: Limits, history: list[Telemetry]) -> Shield:
    """A shield that ruled on all but the last telemetry."""
    shield = Shield(profile, limits)
    for telemetry in history[:-1]:
        shield.rule(telemetry, limits.minimum, limits.full)
    return shield


@few
@given(data=st.data(), profile=PROFILES)
def test_verdict_exceeds_neither_proposal_nor_any_bound(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    history, current, proposed = data.draw(histories), data.draw(allocations), data.draw(allocations)
    verdict = lived(profile, limits, history).rule(history[-1], current, proposed)
    assert verdict.allocation.at_most(proposed)
    assert all(verdict.allocation.at_most(bound.most) for bound in verdict.bounds)
    assert verdict.allocation == most_restrictive(proposed, *(bound.most for bound in verdict.bounds))
    assert verdict.overridden == bool(verdict.decisive)


@few
@given(data=st.data(), profile=PROFILES)
def test_asking_for_less_never_yields_more(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    history, current, proposed = data.draw(histories), data.draw(allocations), data.draw(allocations)
    less = most_restrictive(proposed, data.draw(allocations))
    shield = lived(profile, limits, history)
    ruled_less = shield.rule(history[-1], current, less).allocation
    assert ruled_less.at_most(shield.rule(history[-1], current, proposed).allocation)


@few
@given(data=st.data(), profile=PROFILES)
def test_earlier_proposals_do_not_matter(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    history, current, proposed = data.draw(histories), data.draw(allocations), data.draw(allocations)
    greedy, random = Shield(profile, limits), Shield(profile, limits)
    for telemetry in history[:-1]:
        greedy.rule(telemetry, limits.full, limits.full)
        for _ in range(data.draw(st.integers(1, 3))):  # any number of shadow policies, at least one
            random.rule(telemetry, data.draw(allocations), data.draw(allocations))
            random.mask(telemetry, data.draw(allocations))
    assert repr(greedy.rule(history[-1], current, proposed)) == repr(random.rule(history[-1], current, proposed))


@few
@given(data=st.data(), profile=PROFILES)
def test_ruling_twice_on_one_telemetry_is_ruling_once(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    history, current, proposed = data.draw(histories), data.draw(allocations), data.draw(allocations)
    shield = lived(profile, limits, history)
    first, state = shield.rule(history[-1], current, proposed), shield.state
    assert repr((shield.rule(history[-1], current, proposed), shield.state)) == repr((first, state))


def says(telemetry: Telemetry, counter: str, profile: Profile) -> bool:
    """Whether a fresh reading says yes."""
    said = telemetry.counters.get(counter)
    return isinstance(said, Value) and said.value == 1.0 and 0.0 <= said.age_seconds <= profile.max_age_seconds


def said_to_be_idle(telemetry: Telemetry, profile: Profile) -> bool:
    """The source says that nothing is outstanding, the window is empty, and no reading says otherwise."""
    tail, oldest = telemetry.tail_latency_seconds, telemetry.oldest_request_seconds
    if isinstance(oldest, Missing):
        none_waits = oldest.why in (Why.NOT_CONFIGURED, Why.NOT_SUPPORTED, Why.NO_DATA)
    else:
        none_waits = oldest.value == 0.0 and 0.0 <= oldest.age_seconds <= profile.max_age_seconds
    empty = isinstance(tail, Missing) and tail.why is Why.NO_DATA
    return empty and none_waits and says(telemetry, LC_IDLE, profile)


def believable(telemetry: Telemetry, profile: Profile) -> bool:
    """The issue's list of what must be there, in plain words and without the code under test."""
    tail, load, alive = telemetry.tail_latency_seconds, telemetry.load_ratio, telemetry.lc_alive
    if said_to_be_idle(telemetry, profile):
        tail = Quantile(telemetry.target_seconds, samples=10_000)  # in its place: nothing at all was late
    if isinstance(tail, Missing) or isinstance(load, Missing) or not isinstance(tail, Quantile):
        return False
    if not 0.0 <= tail.age_seconds <= profile.max_age_seconds or not 0.0 <= load.age_seconds <= profile.max_age_seconds:
        return False
    enough = 1 if says(telemetry, FEW_IN_LONG, profile) else profile.min_samples
    if tail.samples < enough or (isinstance(alive, Value) and not alive.value > 0.0):
        return False
    numbers = (telemetry.time_seconds, telemetry.target_seconds, tail.value, load.value)
    return all(math.isfinite(number) for number in numbers) and min(tail.value, telemetry.target_seconds) > 0.0


@few
@given(data=st.data(), profile=PROFILES)
def test_unbelievable_telemetry_ends_safe(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    history, current = data.draw(histories), data.draw(allocations)
    verdict = lived(profile, limits, history).rule(history[-1], current, limits.full)
    if not believable(history[-1], profile):
        assert verdict.allocation.at_most(limits.safe)


@few
@given(data=st.data(), profile=PROFILES)
def test_an_idle_lc_has_all_its_slack(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    """After any history, in which it may have missed, been lost, or been overrun."""
    history, current = data.draw(histories), data.draw(allocations)
    now = Telemetry(2000.0, 0.010, lc_alive=Value(1.0), load_ratio=Value(0.0))
    idle = now.but(tail_latency_seconds=Missing(Why.NO_DATA), counters={LC_IDLE: Value(1.0)})
    well = now.but(tail_latency_seconds=Quantile(1e-300, samples=10_000))
    verdicts = [lived(profile, limits, [*history, last]).rule(last, current, limits.full) for last in (idle, well)]
    assert verdicts[0].allocation == verdicts[1].allocation


@few
@given(data=st.data())
def test_the_responsive_guards_hold_after_any_history(
    data: st.DataObject, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    responsive = load_profile("responsive")
    history, current = data.draw(histories), data.draw(allocations)
    now = history[-1]
    ruled = lived(responsive, limits, history).rule(now, current, limits.full).allocation
    slack = None if now.target_seconds == 0.0 else now.slack_ratio
    if isinstance(now.load_ratio, Value) and now.load_ratio.value > 0.95:
        assert ruled.frozen
    if slack is not None and slack < 0.10:
        assert ruled.at_most(current)
    if slack is not None and slack < 0.05:
        assert ruled.quota_cpus <= max(0.10 * limits.cpus, limits.min_quota_cpus)
    if slack is not None and slack < 0.0:
        assert ruled.at_most(limits.minimum)


@few
@given(data=st.data(), profile=PROFILES)
def test_the_mask_is_the_rule(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    history, current = data.draw(histories), limits.clip(data.draw(allocations))
    shield = lived(profile, limits, history)
    passed = [
        not shield.rule(history[-1], current, decode(index, current, limits)).overridden for index in range(len(MOVES))
    ]
    mask = shield.mask(history[-1], current)
    assert mask.shape == (len(MOVES),)
    assert mask.dtype == np.dtype(np.bool_)
    assert mask.tolist() == passed


@few
@given(data=st.data(), profile=PROFILES, limits=HOSTS)
def test_freeze_is_always_allowed_and_done_as_asked(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    """A learner's mask is never empty, and what it was shown to be allowed it is not charged for."""
    history, current = data.draw(histories), limits.clip(data.draw(allocations))
    shield = lived(profile, limits, history)
    asked = decode(FREEZE, current, limits)
    assert asked == limits.safe
    assert shield.mask(history[-1], current)[FREEZE]
    verdict = shield.rule(history[-1], current, asked)
    assert (verdict.allocation, verdict.overridden) == (limits.safe, False)


@few
@given(data=st.data(), profile=PROFILES, limits=HOSTS)
def test_minimum_is_refused_only_where_be_is_suspended(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Histories, allocations: Allocations
) -> None:
    """Between all and nothing there is always a move that keeps BE alive, however little slack there is."""
    history, current = data.draw(histories), limits.clip(data.draw(allocations))
    shield = lived(profile, limits, history)
    asked = decode(MINIMUM, current, limits)
    assert asked == limits.minimum.but(frozen=current.frozen)
    verdict = shield.rule(history[-1], current, asked)
    suspended = any(bound.most.frozen for bound in verdict.bounds)
    assert shield.mask(history[-1], current)[MINIMUM] == (current.frozen or not suspended) == (not verdict.overridden)
    assert verdict.allocation == (limits.safe if current.frozen or suspended else limits.minimum)


@few
@given(data=st.data(), profile=PROFILES)
def test_growth_never_outruns_the_clock(
    data: st.DataObject, profile: Profile, limits: Limits, telemetries: st.SearchStrategy[Telemetry]
) -> None:
    """A greedy policy's CPUs after any history are at most the minimum plus the rate times the time seen to pass."""
    shield, current = Shield(profile, limits), limits.safe
    moved, last = 0.0, None
    for telemetry in data.draw(st.lists(telemetries, max_size=12)):
        current = shield.rule(telemetry, current, limits.full).allocation
        if math.isfinite(telemetry.time_seconds):
            moved += 0.0 if last is None else max(telemetry.time_seconds - last, 0.0)
            last = telemetry.time_seconds
        running_cpus = 0.0 if current.frozen else min(current.quota_cpus, limits.cpus)
        assert running_cpus <= limits.min_quota_cpus + profile.growth_ratio_per_second * limits.cpus * moved + 1e-6


@few
@given(data=st.data(), profile=PROFILES)
def test_cool_down_lasts_whatever_clock_and_sensors_do(
    data: st.DataObject, profile: Profile, limits: Limits, calm: object, telemetries: st.SearchStrategy[Telemetry]
) -> None:
    assert callable(calm)
    shield = Shield(profile, limits)
    for tick in range(profile.suspend_after_strikes):
        verdict = shield.rule(calm(tick, slack=-0.5), limits.minimum, limits.full)
    start = float(profile.suspend_after_strikes - 1)
    assert verdict.allocation.frozen
    passed, last = 0.0, start
    for telemetry in data.draw(st.lists(telemetries, max_size=12)):
        verdict = shield.rule(telemetry, limits.safe, limits.full)
        if math.isfinite(telemetry.time_seconds):
            passed += max(telemetry.time_seconds - last, 0.0)
            last = telemetry.time_seconds
        assert verdict.allocation.frozen or passed >= profile.cool_down_seconds - 1e-6


def test_verdicts_carry_their_reasons(profile: Profile, limits: Limits, calm: object) -> None:
    assert callable(calm)
    verdict: Verdict = Shield(profile, limits).rule(calm(0.0, load=0.99, slack=0.02), limits.full, limits.full)
    assert {bound.reason for bound in verdict.decisive} >= {"load-high", "slack-tiny"}
    assert all(bound.guard and bound.detail for bound in verdict.bounds)
