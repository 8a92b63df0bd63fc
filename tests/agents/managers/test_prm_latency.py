from collections.abc import Callable

from rlctl.agents.managers.prm_latency import PrmLatency
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]


def test_twelve_polls_to_eight_busy_cores(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # A level is 36 / 50 = 0.72 CPU; 11 levels are 7.92, 12 are 8.64 >= 8 busy cores: 12 * 18.5 = 222 s.
    ticks = [tell(18.5 * poll, slack=0.5) for poll in range(1, 13)]
    got = [allocation.quota_cpus for allocation in drive(PrmLatency(), thesis_host, ticks)]
    assert [quota >= 8.0 for quota in got] == [False] * 11 + [True]
    assert got[0] == 0.72


def test_the_last_level_is_48(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(18.5 * poll, slack=0.5) for poll in range(60)]
    got = drive(PrmLatency(), thesis_host, ticks)
    assert got[47] == got[-1]
    assert got[-1].quota_cpus == 34.56  # 48 * 0.72: CFS never takes over


def test_a_latency_at_the_target_is_a_violation(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    slacks = [0.001, 0.001, 0.0, 0.001, -0.1]
    ticks = [tell(18.5 * poll, slack=slack) for poll, slack in enumerate(slacks)]
    assert [a.quota_cpus for a in drive(PrmLatency(), thesis_host, ticks)] == [0.72, 1.44, 0.01, 0.72, 0.01]


def test_only_polls_decide(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=-1.0 if 1 <= now <= 18 else 0.5) for now in range(20)]
    assert [a.quota_cpus for a in drive(PrmLatency(), thesis_host, ticks)] == [0.72] * 19 + [1.44]


def test_without_a_latency_the_setting_is_kept(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    policy = PrmLatency()
    got = drive(policy, thesis_host, [tell(0, slack=0.5), tell(18.5)])
    assert [a.quota_cpus for a in got] == [0.72, 0.72]
    assert "no latency" in policy.note


def test_time_scale_halves_the_period(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(9.25 * poll, slack=0.5) for poll in range(1, 13)]
    assert drive(PrmLatency(time_scale=2.0), thesis_host, ticks)[-1].quota_cpus == 8.64
