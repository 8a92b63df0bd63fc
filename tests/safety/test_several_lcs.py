"""Several LCs: what may be written is never freer than what any one of them alone would allow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits, most_restrictive
from rlctl.envs.telemetry import Missing, Quantile, SeveralTelemetry, Telemetry, Value, Why, worst_of
from rlctl.log.reader import telemetry_of
from rlctl.log.record import Tick, tick_as_json
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.shipped import SAFETY_PROFILES
from tests.examples import examples

LIMITS = Limits(4)
NAMES = ("web", "cache", "search")


def a_telemetry(time, latency=0.005, load=0.3, target=0.01, alive=1.0):
    return Telemetry(
        time,
        target,
        tail_latency_seconds=Missing(Why.STALE, "", 2.0) if latency is None else Quantile(latency, 0.1, 100, 1.0),
        load_ratio=Missing(Why.GONE) if load is None else Value(load, 0.1),
        lc_alive=Value(alive),
        lc_cpus=Value(0.5),
        be_cpus=Value(1.0),
    )


readings = st.builds(
    dict,
    latency=st.one_of(st.none(), st.floats(0.0, 0.03)),
    load=st.one_of(st.none(), st.floats(0.0, 1.2)),
    target=st.sampled_from([0.01, 0.02]),
    alive=st.sampled_from([0.0, 1.0, 1.0, 1.0]),
)
ticks = st.lists(st.tuples(readings, readings, readings), min_size=1, max_size=25)
allocations = st.builds(Allocation, st.sampled_from([0.01, 0.5, 2.0, 4.0, UNLIMITED]), st.integers(1, 4), st.booleans())


@pytest.mark.parametrize("profile", SAFETY_PROFILES)
@examples(10)
@given(run=ticks, step=st.sampled_from([0.2, 1.0, 7.0]), asked=allocations)
def test_verdict_is_of_all_shields_together(profile, run, step, asked):
    profile = load_profile(profile)
    together, alone = Shield(profile, LIMITS), {name: Shield(profile, LIMITS) for name in NAMES}
    current = LIMITS.safe
    for number, each in enumerate(run):
        lcs = {name: a_telemetry(number * step, **one) for name, one in zip(NAMES, each, strict=True)}
        verdict = together.rule(worst_of(lcs), current, asked)
        single = [alone[name].rule(lcs[name], current, asked).allocation for name in NAMES]
        assert verdict.allocation == most_restrictive(*single)
        current = verdict.allocation


def test_who_cools_down_is_not_forgotten():
    shield = Shield(load_profile("heracles"), LIMITS)
    asked, current = LIMITS.full, LIMITS.safe
    bad = {"web": a_telemetry(0.0, latency=0.05), "cache": a_telemetry(0.0)}
    shield.rule(worst_of(bad), current, asked)
    later = {"web": a_telemetry(16.0, latency=0.0), "cache": a_telemetry(16.0, latency=0.004)}
    assert worst_of(later).ruling == "cache"
    verdict = shield.rule(worst_of(later), current, asked)
    assert verdict.allocation.frozen
    assert any(bound.detail.startswith("LC web") for bound in verdict.bounds)


def test_readings_failed_whole_count_for_all():
    shield = Shield(load_profile("responsive"), LIMITS)
    shield.rule(worst_of({name: a_telemetry(0.0) for name in NAMES}), LIMITS.safe, LIMITS.full)
    verdict = shield.rule(Telemetry(1.0, 0.01), LIMITS.safe, LIMITS.full)
    assert verdict.allocation.at_most(LIMITS.safe)
    shield.reset()
    assert shield.state == Shield(load_profile("responsive"), LIMITS).state


def test_the_worst_off_speaks_for_all():
    found = worst_of({"web": a_telemetry(3.0, 0.008), "cache": a_telemetry(3.0, 0.015, load=0.2, target=0.02)})
    assert (found.ruling, found.target_seconds) == ("web", 0.01)
    assert found.slack_ratio == pytest.approx(0.2)
    assert found.load_ratio == Value(0.3, 0.1)
    assert found.lc_cpus == Value(1.0, 0.0)
    assert found.lcs["cache"].slack_ratio == pytest.approx(0.25)
    other = worst_of({"web": a_telemetry(3.0, 0.001), "cache": a_telemetry(3.0, 0.015, load=0.2, target=0.02)})
    assert other.ruling == "cache"
    assert other.targets_seconds == found.targets_seconds == {"web": 0.01, "cache": 0.02}, "whoever rules"


@pytest.mark.parametrize("lost", [None, math.nan])
def test_unknown_latency_is_the_worst_off(lost):
    found = worst_of({"web": a_telemetry(0.0, 0.05), "cache": a_telemetry(0.0, lost)})
    assert found.ruling == "cache"


def test_dead_or_unknown_one_is_not_covered_up():
    found = worst_of({"web": a_telemetry(0.0, 0.05), "cache": a_telemetry(0.0, load=None, alive=0.0)})
    assert found.ruling == "web"
    assert isinstance(found.load_ratio, Missing)
    assert found.lc_alive == Value(0.0)


def a_tick(index, telemetry, verdict, before):
    return Tick(index, 1e9 + index, telemetry, before, verdict.proposed, verdict, verdict.allocation, "none")


@given(run=ticks)
def test_log_brings_back_who_ruled(run):
    profile = load_profile("responsive")
    shield, replayed, current = Shield(profile, LIMITS), Shield(profile, LIMITS), LIMITS.safe
    for number, each in enumerate(run):
        lcs = {name: a_telemetry(float(number), **one) for name, one in zip(NAMES, each, strict=True)}
        telemetry = worst_of(lcs)
        verdict = shield.rule(telemetry, current, LIMITS.full)
        said = tick_as_json(a_tick(number, telemetry, verdict, current))
        again = telemetry_of(said)
        assert isinstance(again, SeveralTelemetry)
        assert again == telemetry
        assert said["lc"] == telemetry.ruling
        assert replayed.rule(again, current, LIMITS.full).bounds == verdict.bounds
        current = verdict.allocation


def test_replay_goes_on_from_a_header():
    profile = load_profile("heracles")
    shield, replayed = Shield(profile, LIMITS), Shield(profile, LIMITS)
    telemetry = worst_of({"web": a_telemetry(0.0, 0.05), "cache": a_telemetry(0.0)})
    shield.rule(telemetry, LIMITS.safe, LIMITS.full)
    assert replayed.resume(shield.state, telemetry)
    assert (
        replayed.rule(telemetry, LIMITS.safe, LIMITS.full).bounds
        == shield.rule(telemetry, LIMITS.safe, LIMITS.full).bounds
    )
