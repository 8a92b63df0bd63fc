from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.managers.koord_suppress import KoordSuppress
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import Telemetry, Value

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

NODE = Limits(cpus=10)


def ticks(tell: Tell, *uses: tuple[float, float, float]) -> list[Telemetry]:
    """Seconds of (LC's use, BE's use, all use), in CPUs."""
    return [tell(float(now), lc_cpus=lc, be_cpus=be, host_cpus=host) for now, (lc, be, host) in enumerate(uses)]


def lc_only(tell: Tell, *uses: float) -> list[Telemetry]:
    return ticks(tell, *[(lc, 0.0, lc) for lc in uses])


def quotas(allocations: list[Allocation]) -> list[float]:
    return [round(a.quota_cpus, 3) for a in allocations]


def test_the_first_quota_is_written_as_it_is(drive: Drive, tell: Tell) -> None:
    # 6.5 less the LC's 2 and the system's 7 - 2 - 4.
    assert KoordSuppress().start(NODE) == NODE.full
    assert drive(KoordSuppress(), NODE, ticks(tell, (2.0, 4.0, 7.0))) == [Allocation(3.5, 10)]


def test_grows_by_a_tenth_shrinks_at_once(drive: Drive, tell: Tell) -> None:
    got = drive(KoordSuppress(), NODE, lc_only(tell, 3.0, 0.0, 0.0, 0.0, 0.0, 6.0))
    assert quotas(got) == [3.5, 4.5, 5.5, 6.5, 6.5, 0.5]


def test_change_below_a_hundredth_is_ignored(drive: Drive, tell: Tell) -> None:
    got = drive(KoordSuppress(), NODE, lc_only(tell, 3.0, 2.91, 3.09, 2.9, 3.0))
    assert quotas(got) == [3.5, 3.5, 3.5, 3.6, 3.5]


def test_least_quota_is_two_thousandths_of_period(drive: Drive, tell: Tell) -> None:
    got = drive(KoordSuppress(), NODE, lc_only(tell, 6.45, 9.0, 12.0))
    assert quotas(got) == [0.05, 0.02, 0.02]


def test_a_floor_and_a_reserve(drive: Drive, tell: Tell) -> None:
    assert quotas(drive(KoordSuppress(floor_ratio=0.2), NODE, lc_only(tell, 9.0))) == [2.0]
    busy = ticks(tell, (2.0, 0.0, 3.0))
    assert quotas(drive(KoordSuppress(reserved_cpus=0.5), NODE, busy)) == [3.5]  # the larger of 1 used, 0.5 reserved
    assert quotas(drive(KoordSuppress(reserved_cpus=1.5), NODE, busy)) == [3.0]


def test_cpuset_has_two_cpus_at_least(drive: Drive, tell: Tell) -> None:
    # 65 % of 36 is 23.4: less 17 it is 6.4, 7 CPUs; then 24, by a tenth of 36 rounded up to 4 a step.
    uses = (17.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 30.0)
    got = drive(KoordSuppress(policy="cpuset"), Limits(cpus=36), lc_only(tell, *uses))
    assert [a.cpuset_cpus for a in got] == [7, 11, 15, 19, 23, 24, 24, 2]
    assert {a.quota_cpus for a in got} == {UNLIMITED}
    assert drive(KoordSuppress(policy="cpuset"), Limits(cpus=1), lc_only(tell, 1.0)) == [Allocation(UNLIMITED, 1)]


@pytest.mark.parametrize("absent", ["lc_cpus", "be_cpus", "host_cpus"])
class TestMissingReadingKeepsTheLastSetting:
    """As published: koordlet returns early, and what it wrote last stays in force however old it is."""

    def test_for_ever(self, drive: Drive, tell: Tell, absent: str) -> None:
        full = {"lc_cpus": 9.0, "be_cpus": 0.0, "host_cpus": 9.0, absent: None}
        told = [*lc_only(tell, 0.0), *[tell(float(now), slack=-5.0, **full) for now in range(1, 600)]]
        assert set(drive(KoordSuppress(), NODE, told)) == {Allocation(6.5, 10)}

    def test_at_the_start_be_stays_unrestricted(self, drive: Drive, tell: Tell, absent: str) -> None:
        full = {"lc_cpus": 9.0, "be_cpus": 0.0, "host_cpus": 9.0, absent: None}
        assert drive(KoordSuppress(), NODE, [tell(0.0, **full)]) == [NODE.full]


def test_client_beside_bes_cpus_can_be_left_out(drive: Drive, tell: Tell) -> None:
    told = ticks(tell, (0.3, 0.2, 1.5))
    assert quotas(drive(KoordSuppress(), Limits(cpus=1), told)) == [0.02]
    assert quotas(drive(KoordSuppress(busy="workloads"), Limits(cpus=1), told)) == [0.35]


def test_loop_faster_than_tick_grows_at_its_rate(drive: Drive, tell: Tell) -> None:
    assert quotas(drive(KoordSuppress(time_scale=2.0), NODE, lc_only(tell, 6.0, 0.0, 0.0))) == [0.5, 2.5, 4.5]


@given(
    st.lists(st.tuples(*[st.floats(0.0, 20.0)] * 3), min_size=1, max_size=20),
    st.sampled_from(["quota", "cpuset"]),
)
def test_never_above_threshold_once_set_but_for_floor(uses: list[tuple[float, float, float]], by: Any) -> None:
    policy = KoordSuppress(policy=by)
    policy.start(NODE)
    for now, (lc, be, host) in enumerate(uses):
        tick = Telemetry(float(now), 1.0, lc_cpus=Value(lc), be_cpus=Value(be), host_cpus=Value(host))
        allocation, _ = policy.decide(tick)
        assert min(allocation.quota_cpus, allocation.cpuset_cpus) <= (6.5 if by == "quota" else 7.0)
