"""What every manager of the catalogue promises, whatever the sensors say."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.catalogue import NAMES, build
from rlctl.agents.conformance import CHECKS
from rlctl.agents.managers.manager import Manager
from rlctl.agents.managers.prm_model import PrmModel, ThresholdBin
from rlctl.agents.policy import Policy
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry

Make = Callable[[], Policy]
OPTIONS = {"table": {"levels": ((0.5, 2.0, 2), (0.9, 0.25, 1))}}
"""What a manager cannot do without."""

Ticks = st.SearchStrategy[list[tuple[Telemetry, Allocation]]]

HOSTS = (Limits(cpus=1), Limits(cpus=2), Limits(cpus=36, lc_cpus=17), Limits(cpus=3, lc_cpus=0.5, min_quota_cpus=0.2))
MODEL = PrmModel(
    lc_cpus=1,
    lcutilmax_percent=90,
    bins=(
        ThresholdBin(low_percent=0, high_percent=200, rows=9, upper={"cpi": 1, "lc_cpu_seconds_per_request": 0.001}),
    ),
)


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
    policy, twin = (build(name, time_scale=scale, model=model, **OPTIONS.get(name, {})) for _ in range(2))
    assert is_legal(policy.start(limits), limits)
    twin.start(limits)
    for tick, current in data.draw(ticks):
        allocation = act(policy, tick, current)
        assert is_legal(allocation, limits)
        assert policy.note
        assert act(twin, tick, current) == allocation, "the same ticks must give the same decisions"
    assert all(isinstance(remark, str) and remark for remark in policy.remarks)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_keeps_what_the_public_checks_ask_of_anybodys_manager(name: str, check: Callable[[Make], None]) -> None:
    check(lambda: build(name, model=MODEL, **OPTIONS.get(name, {})))
