from collections.abc import Callable

import pytest

from rlctl.agents.heracles import Heracles
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]


def test_begins_with_one_core_and_grows_one_every_two_seconds(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = drive(Heracles(), thesis_host, [tell(now, slack=0.5, load_ratio=0.5) for now in range(5)])
    assert Heracles().start(thesis_host) == Allocation(1.0, 1)
    assert got == [Allocation(float(n), n) for n in (2, 2, 3, 3, 4)]


def test_growth_needs_slack_at_the_core_loop_too(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=0.5 if now < 4 else 0.10, load_ratio=0.5) for now in range(14)]
    assert drive(Heracles(), thesis_host, ticks)[-1].cpuset_cpus == 3  # at 0 and 2 s; none between 4 and 14


def test_a_tiny_slack_leaves_two_cores(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # A core at 0, 2, ..., 14 s makes 9 by the poll at 15 s, which takes away 9 - 2.
    ticks = [tell(now, slack=0.5 if now < 15 else 0.04, load_ratio=0.5) for now in range(20)]
    got = drive(Heracles(), thesis_host, ticks)
    assert got[14].cpuset_cpus == 9
    assert {a.cpuset_cpus for a in got[15:]} == {2}


def test_removing_never_adds(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    assert drive(Heracles(), thesis_host, [tell(0, slack=0.01, load_ratio=0.5)])[0] == Allocation(1.0, 1)


@pytest.mark.parametrize("slack", [0.05, 0.099])
def test_a_small_slack_holds(drive: Drive, tell: Tell, thesis_host: Limits, slack: float) -> None:
    ticks = [tell(now, slack=0.5 if now < 15 else slack, load_ratio=0.5) for now in range(40)]
    assert drive(Heracles(), thesis_host, ticks)[-1].cpuset_cpus == 9


def test_load_gates_and_return_to_the_first_core(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    loads = [0.5, 0.86, 0.82, 0.79]
    ticks = [tell(now, slack=0.5, load_ratio=loads[now // 15]) for now in range(46)]
    got = drive(Heracles(), thesis_host, ticks)
    assert [a.frozen for a in got[::15]] == [False, True, True, False]
    assert got[45].quota_cpus == 1.0  # re-enabled with the first core
    assert drive(Heracles(), thesis_host, [*ticks, tell(46, slack=0.5, load_ratio=0.5)])[-1].quota_cpus == 2.0


def test_the_cool_down_lasts_exactly(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=-0.1 if now == 15 else 0.5, load_ratio=0.5) for now in range(330)]
    got = drive(Heracles(), thesis_host, ticks)
    assert [now for now, a in enumerate(got) if a.frozen] == list(range(15, 315))


def test_missing_readings_neither_enable_nor_grow(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    assert drive(Heracles(), thesis_host, [tell(t) for t in range(20)])[-1] == Allocation(1.0, 1)
    assert drive(Heracles(), thesis_host, [tell(0, load_ratio=0.9)])[-1].frozen


def test_cores_of_a_small_host_are_quota_first_and_cpuset_where_they_need_it(drive: Drive, tell: Tell) -> None:
    # Two CPUs stand for 36 cores: 16 cores are 0.89 CPU on the safest CPU, 20 are 1.11 CPU on both.
    policy = Heracles(core_cpus=2 / 36)
    got = drive(policy, Limits(cpus=2), [tell(now, slack=0.5, load_ratio=0.5) for now in range(80)])
    sizes = {
        policy_cores: (round(a.quota_cpus, 2), a.cpuset_cpus)
        for policy_cores, a in zip(range(2, 37), got[::2], strict=False)
    }
    assert sizes[16] == (0.89, 1)
    assert sizes[18] == (1.0, 1)
    assert sizes[20] == (1.11, 2)
    assert got[-1] == Allocation(2.0, 2)


def test_says_that_it_is_a_part_of_heracles() -> None:
    assert "core part" in Heracles().remarks[0]


def test_gates_that_would_flap_are_refused() -> None:
    with pytest.raises(PolicyError, match="flap"):
        Heracles(enable_load_ratio=0.9)
