"""What every manager of the catalogue promises, whatever the sensors say."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.catalogue import NAMES, build
from rlctl.agents.manager import Manager
from rlctl.agents.prm_model import PrmModel, ThresholdBin
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry

Tell = Callable[..., Telemetry]
Ticks = st.SearchStrategy[list[tuple[Telemetry, Allocation]]]

HOSTS = (Limits(cpus=1), Limits(cpus=2), Limits(cpus=36, lc_cpus=17), Limits(cpus=3, lc_cpus=0.5, min_quota_cpus=0.2))
MODEL = PrmModel(
    lc_cpus=1,
    lcutilmax_percent=90,
    bins=(
        ThresholdBin(low_percent=0, high_percent=200, rows=9, upper={"cpi": 1, "lc_cpu_seconds_per_request": 0.001}),
    ),
)
HISTORY = [(0.5, 0.5), (-0.2, 0.9), (0.5, 0.3), (0.02, 0.82), (0.9, 0.1)] * 6


def act(policy: Manager, tick: Telemetry, current: Allocation) -> Allocation:
    return policy.act(Observation(tick, current))


def is_legal(allocation: Allocation, limits: Limits) -> bool:
    quota = allocation.quota_cpus
    fits = quota == UNLIMITED or (math.isfinite(quota) and limits.min_quota_cpus <= quota <= limits.cpus)
    return fits and 1 <= allocation.cpuset_cpus <= limits.cpus and isinstance(allocation.cpuset_cpus, int)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_telemetry_gets_a_legal_allocation_and_a_note(name: str, data: st.DataObject, ticks: Ticks) -> None:
    limits = data.draw(st.sampled_from(HOSTS))
    scale, model = data.draw(st.sampled_from([1.0, 15.0])), data.draw(st.sampled_from([None, MODEL]))
    policy, twin = (build(name, time_scale=scale, model=model) for _ in range(2))
    assert is_legal(policy.start(limits), limits)
    twin.start(limits)
    for tick, current in data.draw(ticks):
        allocation = act(policy, tick, current)
        assert is_legal(allocation, limits)
        assert policy.note
        assert act(twin, tick, current) == allocation, "the same ticks must give the same decisions"
    assert all(isinstance(remark, str) and remark for remark in policy.remarks)


@pytest.mark.parametrize("name", NAMES)
def test_start_forgets_everything(name: str, tell: Tell) -> None:
    def trace(policy: Manager) -> list[Allocation]:
        current, got = policy.start(HOSTS[2]), []
        for index, (slack, load) in enumerate(HISTORY):
            tick = tell(15.0 * index, slack=slack, load_ratio=load, lc_cpus=17 * load, be_cpus=1.0, cpi=0.5 + load)
            got.append(current := act(policy, tick, current))
        return got

    policy = build(name, model=MODEL)
    assert trace(policy) == trace(policy)


@pytest.mark.parametrize("name", NAMES)
def test_without_any_reading_be_is_never_given_more_than_at_the_start(name: str, tell: Tell) -> None:
    policy = build(name)
    start = policy.start(HOSTS[2])
    for now in range(100):
        assert act(policy, tell(float(now)), start).at_most(start)


@pytest.mark.parametrize("name", NAMES)
def test_a_shield_that_never_lets_it_through_does_not_confuse_it(name: str, tell: Tell) -> None:
    policy = build(name)
    policy.start(HOSTS[0])
    for now in range(100):
        tick = tell(float(now), slack=0.5, load_ratio=0.5, lc_cpus=0.3, be_cpus=0.0)
        assert is_legal(act(policy, tick, HOSTS[0].safe), HOSTS[0])


@pytest.mark.parametrize("name", NAMES)
def test_describes_itself_before_it_has_run(name: str) -> None:
    policy = build(name)
    assert policy.note
    assert isinstance(policy.remarks, tuple)
