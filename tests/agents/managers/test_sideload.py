from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.managers.sideload import Overload, Sideload
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import Telemetry, Value

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

HOST = Limits(cpus=10)


def ticks(tell: Tell, *uses: tuple[float, float]) -> list[Telemetry]:
    """Seconds of (BE's use, all use), in CPUs."""
    return [tell(float(now), be_cpus=be, host_cpus=host) for now, (be, host) in enumerate(uses)]


def frozen(allocations: list[Allocation]) -> list[int]:
    return [now for now, allocation in enumerate(allocations) if allocation.frozen]


def test_without_ten_seconds_of_history_it_is_overload(drive: Drive, tell: Tell) -> None:
    # Means are 0 before 10 s, so the last overload is at 9 s and its hold of 10 s ends at 19 s.
    got = drive(Sideload(), HOST, ticks(tell, *[(0.0, 3.0)] * 25))
    assert Sideload().start(HOST).frozen
    assert frozen(got) == list(range(19))
    assert got[19] == Allocation(5.0, 10)  # 7 idle, less 20 % of 10


def test_the_worse_of_two_means_counts(drive: Drive, tell: Tell) -> None:
    # One second of (1, 6 idle) after (5, 2 idle): 5-s means 4.2 and 2.8. The source takes the larger use and the
    # smaller idle share, 4.2 + 2.8 - 2; the field notes' smaller use would give 1 + 2.8 - 2.
    got = drive(Sideload(), HOST, ticks(tell, *[(5.0, 8.0)] * 25, (1.0, 4.0)))
    assert got[24].quota_cpus == pytest.approx(5.0)
    assert got[25].quota_cpus == pytest.approx(5.0)


def test_burst_of_lc_is_answered_within_a_second(drive: Drive, tell: Tell) -> None:
    # The 10-s margin is still 6.3 - 2 CPU, so BE runs on.
    got = drive(Sideload(), HOST, ticks(tell, *[(0.0, 3.0)] * 25, (0.0, 10.0)))
    assert got[25] == Allocation(0.5, 10)


def test_a_ten_second_margin_below_ten_percent_freezes(drive: Drive, tell: Tell) -> None:
    # From 25 s on 10 of 10 are busy without BE: the mean of idle is 0.7 * (10 - n); less 2, below 1 at n = 6.
    got = drive(Sideload(), HOST, ticks(tell, *[(0.0, 3.0)] * 25, *[(0.0, 10.0)] * 10, *[(0.0, 3.0)] * 40))
    assert frozen(got)[19:22] == [30, 31, 32]
    # Idle again from 35 s: 0.7 * n - 2 is at least 1 at n = 5, so the last overload is at 38 s. The hold had decayed
    # by 0.5 s in each pass from 19 s to 29 s, to 4.5 s, and is 14.5 s now.
    assert frozen(got)[-1] == 52


def test_hold_grows_by_repeats_and_decays_between_them() -> None:
    overload = Overload(step_seconds=10.0, most_seconds=30.0, decay_seconds=0.5)
    holds = []
    for now in range(100):
        overload.update(float(now), overloaded=not overload.active and now % 2 == 0, passes=1)
        holds.append((overload.active, overload.hold_seconds))
    assert holds[0] == holds[9] == (True, 10.0)
    assert holds[10] == (False, 9.5)
    assert holds[11] == (False, 9.0)
    assert holds[12] == holds[30] == (True, 19.0)
    assert holds[31] == (False, 18.5)
    assert holds[32] == (True, 28.5)
    assert holds[60] == (True, 28.5)  # until 60.5
    assert holds[61] == (False, 28.0)
    assert holds[62] == (True, 30.0)


def test_a_missing_reading_decides_nothing(drive: Drive, tell: Tell) -> None:
    known = ticks(tell, *[(0.0, 3.0)] * 25)
    got = drive(Sideload(), HOST, [*known, tell(25.0, be_cpus=1.0), tell(26.0, host_cpus=10.0), tell(27.0)])
    assert got[25:] == [got[24]] * 3


def test_machine_is_bes_cpus(drive: Drive, tell: Tell) -> None:
    # LC 0.3 and BE 0.2 on one CPU, the load's client a whole CPU elsewhere.
    told = [tell(float(now), be_cpus=0.2, lc_cpus=0.3, host_cpus=1.5) for now in range(25)]
    assert drive(Sideload(), Limits(cpus=1), told)[-1].frozen
    got = drive(Sideload(busy="workloads"), Limits(cpus=1), told)[-1]
    assert (got.frozen, round(got.quota_cpus, 3)) == (False, 0.5)


def test_time_scale_divides_everything(drive: Drive, tell: Tell) -> None:
    uses = [(0.0, 3.0)] * 25 + [(0.0, 10.0)] * 10 + [(0.0, 3.0)] * 40
    fast = [tell(now / 2, be_cpus=be, host_cpus=host) for now, (be, host) in enumerate(uses)]
    assert drive(Sideload(time_scale=2.0), HOST, fast) == drive(Sideload(), HOST, ticks(tell, *uses))


def test_hold_shorter_than_tick_ends_with_next(drive: Drive, tell: Tell) -> None:
    assert frozen(drive(Sideload(time_scale=15.0), HOST, ticks(tell, *[(0.0, 3.0)] * 4))) == [0]


def test_a_live_hosts_jitter_changes_nothing(drive: Drive, tell: Tell) -> None:
    uses = [(0.0, 3.0)] * 25 + [(5.0, 8.0)] * 5 + [(0.0, 10.0)] * 15 + [(0.0, 3.0)] * 40
    jitter = [
        tell(now + (0.004 if now % 2 else -0.004) + 1.0, be_cpus=be, host_cpus=host)
        for now, (be, host) in enumerate(uses)
    ]
    even, uneven = drive(Sideload(), HOST, ticks(tell, *uses)), drive(Sideload(), HOST, jitter)
    assert frozen(uneven) == frozen(even)
    assert [a.quota_cpus for a in uneven] == pytest.approx([a.quota_cpus for a in even], abs=0.05)


@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 3), min_size=1, max_size=20))
def test_any_use_gets_quota_between_floor_and_machine(uses: list[tuple[float, float, float]]) -> None:
    policy = Sideload(time_scale=15.0)
    policy.start(HOST)
    for now, be, host in uses:
        allocation, _ = policy.decide(Telemetry(now, 1.0, be_cpus=Value(be), host_cpus=Value(host)))
        assert 0.5 <= HOST.clip(allocation).quota_cpus <= 10.0
        assert allocation.quota_cpus != UNLIMITED
