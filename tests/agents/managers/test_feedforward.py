from collections.abc import Callable

import pytest

from rlctl.agents.managers.feedforward import Demand, Feedforward, spare
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

ONE = Limits(cpus=1)


def test_quota_is_what_lc_leaves_less_margin(drive: Drive, tell: Tell) -> None:
    got = drive(Feedforward(), ONE, [tell(0, slack=0.5, load_ratio=0.5, lc_cpus=0.4)])
    assert got[0].quota_cpus == pytest.approx(1.0 - 0.1 - 0.4)


def test_rising_load_is_met_before_it_is_there(drive: Drive, tell: Tell) -> None:
    # 0.8 CPU per load; 0.5 -> 0.6 in a second foresees 0.7, which needs 0.56.
    ticks = [tell(0, slack=0.5, load_ratio=0.5, lc_cpus=0.4), tell(1, slack=0.5, load_ratio=0.6, lc_cpus=0.48)]
    assert drive(Feedforward(), ONE, ticks)[1].quota_cpus == pytest.approx(0.9 - 0.56)


def test_a_fall_is_not_foreseen(drive: Drive, tell: Tell) -> None:
    ticks = [tell(0, slack=0.5, load_ratio=0.6, lc_cpus=0.48), tell(1, slack=0.5, load_ratio=0.5, lc_cpus=0.4)]
    assert drive(Feedforward(), ONE, ticks)[1].quota_cpus == pytest.approx(0.9 - 0.4)


def test_a_starved_lc_teaches_nothing() -> None:
    demand = Demand()
    demand.learn(0.5, 0.4, starved=False)
    demand.learn(0.9, 0.5, starved=True)
    assert demand.cpus_per_load == pytest.approx(0.8)


def test_dearer_request_is_learned_fast_cheaper_one_slowly() -> None:
    demand = Demand()
    demand.learn(0.5, 0.40, starved=False)
    demand.learn(0.5, 0.45, starved=False)
    assert demand.cpus_per_load == pytest.approx(0.85)  # 0.8 + 0.5 * 0.1
    demand.learn(0.5, 0.40, starved=False)
    assert demand.cpus_per_load == pytest.approx(0.8475)  # 0.85 - 0.05 * 0.05


def test_negative_slack_drains_the_backlog_at_the_minimum(drive: Drive, tell: Tell) -> None:
    got = drive(Feedforward(), ONE, [tell(0, slack=-0.1, load_ratio=0.2, lc_cpus=0.1)])
    assert got[0] == ONE.minimum


def test_small_slack_lets_be_shrink_but_not_grow(drive: Drive, tell: Tell) -> None:
    def tick(now: float, slack: float, use: float) -> Telemetry:
        return tell(now, slack=slack, load_ratio=None, lc_cpus=use)

    got = drive(Feedforward(), ONE, [tick(0, 0.5, 0.5), tick(1, 0.05, 0.3), tick(2, 0.05, 0.7), tick(3, 0.5, 0.3)])
    assert [round(a.quota_cpus, 2) for a in got] == [0.4, 0.4, 0.2, 0.6]


def test_blind_it_gives_the_minimum(drive: Drive, tell: Tell) -> None:
    policy = Feedforward()
    assert drive(policy, ONE, [tell(0)])[0] == ONE.minimum
    assert "neither" in policy.note


def test_a_saturated_lc_leaves_the_minimum_never_less(drive: Drive, tell: Tell) -> None:
    assert drive(Feedforward(), ONE, [tell(0, slack=0.2, load_ratio=1.2, lc_cpus=1.0)])[0].quota_cpus == 0.01


def test_exclusive_cpus_are_taken_where_worth_more() -> None:
    two = Limits(cpus=2)
    # One shared CPU: at use 0.6 a pool on both is worth 2 * 0.3; at 0.2 it is worth 2 * 0.7.
    assert spare(two, 1.0, 0.6, 0.1).cpuset_cpus == 1
    assert spare(two, 1.0, 0.6, 0.1).quota_cpus == 1.0
    assert spare(two, 1.0, 0.2, 0.1).quota_cpus == pytest.approx(1.4)
    assert spare(two, 1.0, 0.2, 0.1).cpuset_cpus == 2


def test_bes_own_cpus_are_those_named(drive: Drive, tell: Tell) -> None:
    seen = [tell(0, slack=0.5, load_ratio=0.6, lc_cpus=0.6)]
    assert drive(Feedforward(), Limits(cpus=2, exclusive_cpus=1), seen)[0] == Allocation(1.0, 1)
    assert drive(Feedforward(), Limits(cpus=2, lc_cpus=2.0), seen)[0].cpuset_cpus == 2


def test_with_nothing_shared_be_gets_all_its_cpus(drive: Drive, tell: Tell) -> None:
    got = drive(Feedforward(shared_cpus=0.0), ONE, [tell(0, slack=0.5, load_ratio=0.9, lc_cpus=0.9)])
    assert got[0].quota_cpus == 1.0


def test_a_configured_cost_is_not_relearned(drive: Drive, tell: Tell) -> None:
    got = drive(Feedforward(cpus_per_load=1.0), ONE, [tell(0, slack=0.5, load_ratio=0.5, lc_cpus=0.1)])
    assert got[0].quota_cpus == pytest.approx(0.4)
