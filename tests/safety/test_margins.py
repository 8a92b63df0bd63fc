"""A tighter margin of a shield only ever tightens it: over whole histories BE never gets more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Limits
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield
from tests.doubles.shipped import SAFETY_PROFILES
from tests.examples import examples

MARGINS = {
    "load_suspend_ratio": -1,
    "load_resume_ratio": -1,
    "slack_hold_ratio": 1,
    "slack_floor_ratio": 1,
    "floor_cpus": -1,
    "floor_ratio": -1,
    "growth_ratio_per_second": -1,
    "ceiling_ratio": -1,
}
"""Where tighter is: 1 upwards, -1 downwards. BE that is suspended earlier is back earlier: strikes are none of them."""

PROFILES = st.sampled_from([load_profile(name) for name in SAFETY_PROFILES])
HOSTS = st.sampled_from([Limits(1), Limits(4), Limits(36, 17.0)])
DAYS = st.lists(st.tuples(st.floats(0.0, 1.2), st.floats(-0.5, 0.9)), min_size=1, max_size=60)
"""Load and slack, second by second."""

few = examples(40)


def tightened(profile: Profile, name: str, share: float) -> Profile:
    """The profile with a margin so far on the way to its tightest end; thresholds that it overtakes follow it."""
    own = float(getattr(profile, name))
    value = own + share * (1.0 - own) if MARGINS[name] > 0 else own * (1.0 - 0.95 * share)
    changed = {**profile.model_dump(), name: value}
    changed["slack_hold_ratio"] = max(changed["slack_hold_ratio"], changed["slack_floor_ratio"])
    changed["load_resume_ratio"] = min(changed["load_resume_ratio"], changed["load_suspend_ratio"])
    return Profile.model_validate(changed)


def never_more(loose: Profile, tight: Profile, host: Limits, history: list[Telemetry]) -> None:
    """Rule a greedy policy by both, each from where it has got."""
    shields = Shield(loose, host), Shield(tight, host)
    more = less = host.safe
    for telemetry in history:
        more = shields[0].rule(telemetry, more, host.full).allocation
        less = shields[1].rule(telemetry, less, host.full).allocation
        assert less.at_most(more)


@few
@given(day=DAYS, profile=PROFILES, host=HOSTS, name=st.sampled_from(sorted(MARGINS)), share=st.floats(0.0, 1.0))
def test_over_a_day_second_by_second(
    day: list[tuple[float, float]], profile: Profile, host: Limits, name: str, share: float
) -> None:
    history = [
        Telemetry(
            time_seconds=float(second),
            target_seconds=0.010,
            tail_latency_seconds=Quantile(0.010 * (1.0 - slack), samples=500, window_seconds=1.0),
            oldest_request_seconds=Value(0.0),
            load_ratio=Value(load),
            lc_alive=Value(1.0),
        )
        for second, (load, slack) in enumerate(day)
    ]
    never_more(profile, tightened(profile, name, share), host, history)


@few
@given(data=st.data(), profile=PROFILES, host=HOSTS, name=st.sampled_from(sorted(MARGINS)), share=st.floats(0.0, 1.0))
def test_over_telemetry_of_any_kind(
    data: st.DataObject,
    profile: Profile,
    host: Limits,
    name: str,
    share: float,
    histories: st.SearchStrategy[list[Telemetry]],
) -> None:
    never_more(profile, tightened(profile, name, share), host, data.draw(histories))
