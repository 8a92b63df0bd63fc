"""LC and BE as two applications of BarbequeRTRM."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlctl.agents.managers.barbeque import Barbeque
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

HOST = Limits(cpus=20, lc_cpus=20)


def quota(allocation: Allocation) -> float:
    return 0.0 if allocation.frozen else allocation.quota_cpus


def test_be_gets_what_lc_and_its_headroom_leave(drive: Drive, tell: Tell) -> None:
    (given,) = drive(Barbeque(), HOST, [tell(0.0, slack=0.5, lc_cpus=5.0)])
    # The LC reserves 6 of 20 (5 and 10 %, in steps of 1). Of the other 14 all are worth it: a mode more is
    # 0.5 * 0.4 / 20 = 0.010, against 0.125 * (1 / 6 / 20 + 0.25 / 5) + 0.25 * 0.1 / 14 = 0.0091 in the last quarter.
    assert given == Allocation(14.0, 20)


def test_taking_scarce_things_whole_is_less_fair(drive: Drive, tell: Tell) -> None:
    (given,) = drive(Barbeque(), HOST, [tell(0.0, slack=0.5, lc_cpus=12.0)])
    # 14 reserved; of the other 6 all but 1 are in the last quarter, where a mode now costs 0.25 * 0.1 / 6 + 0.0073.
    assert given.quota_cpus == 1.0


def test_dear_congestion_keeps_be_out_of_last_quarter(drive: Drive, tell: Tell) -> None:
    (given,) = drive(Barbeque(congestion_weight=10.0), HOST, [tell(0.0, slack=0.5, lc_cpus=5.0)])
    assert given.quota_cpus == 9.0


def test_be_stops_while_lc_misses_its_goal(drive: Drive, tell: Tell) -> None:
    slacks = (0.5, -0.3, -0.01, 0.0, 0.5)
    given = drive(Barbeque(), HOST, [tell(float(now), slack=slack, lc_cpus=5.0) for now, slack in enumerate(slacks)])
    assert [quota(one) > 0.0 for one in given] == [True, False, False, True, True]


def test_a_goal_below_the_target_is_missed_earlier(drive: Drive, tell: Tell) -> None:
    ticks = [tell(0.0, slack=0.3, lc_cpus=5.0)]
    assert quota(drive(Barbeque(goal_ratio=0.6), HOST, ticks)[0]) == 0.0
    assert quota(drive(Barbeque(goal_ratio=0.8), HOST, ticks)[0]) > 0.0


def test_what_lc_used_of_late_stays_its_own(drive: Drive, tell: Tell) -> None:
    uses = {0.0: 5.0, 1.0: 12.0, 2.0: 5.0, 10.0: 5.0, 11.0: 5.0}
    given = drive(Barbeque(), HOST, [tell(now, slack=0.5, lc_cpus=use) for now, use in uses.items()])
    assert [quota(one) for one in given] == [14.0, 1.0, 1.0, 1.0, 14.0]


def test_without_the_lcs_use_be_is_deferred(drive: Drive, tell: Tell) -> None:
    given = drive(Barbeque(), HOST, [tell(0.0, slack=0.5), tell(1.0, slack=0.5, lc_cpus=3.0), tell(20.0, slack=0.5)])
    assert [one.frozen for one in given] == [True, False, True]


def test_an_lc_without_requests_leaves_be_running(drive: Drive, tell: Tell) -> None:
    assert quota(drive(Barbeque(), HOST, [tell(0.0, lc_cpus=0.0)])[0]) > 15.0


def test_large_goal_gap_waits_for_no_period(drive: Drive, tell: Tell) -> None:
    slacks = (0.5, -0.1, -0.3, 0.5)
    ticks = [tell(float(now), slack=slack, lc_cpus=5.0) for now, slack in enumerate(slacks)]
    given = drive(Barbeque(period_seconds=10.0), HOST, ticks)
    assert [quota(one) > 0.0 for one in given] == [True, True, False, False]


def test_a_small_change_is_not_worth_a_reconfiguration(drive: Drive, tell: Tell) -> None:
    ticks = [tell(float(now), slack=0.5, lc_cpus=use) for now, use in enumerate((6.0, 5.5))]
    first, second = drive(Barbeque(reclaim_seconds=0.5), HOST, ticks)
    assert first.quota_cpus == second.quota_cpus == 13.0


def test_says_what_is_ours(drive: Drive, tell: Tell) -> None:
    manager = Barbeque()
    drive(manager, HOST, [tell(0.0, slack=-0.5, lc_cpus=5.0)])
    assert manager.note == "goal gap 50 %: LC 20.00 CPU, BE deferred"
    assert "no LC or BE" in manager.remarks[0]


@pytest.mark.parametrize(
    "wrong", [{"host_levels": 0}, {"host_levels": 2.5}, {"goal_ratio": 1.5}, {"headroom_ratio": -0.1}]
)
def test_impossible_constants_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match="barbeque"):
        Barbeque(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="weights"):
        Barbeque(fairness_weight=-1.0)
