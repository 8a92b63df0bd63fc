from collections.abc import Callable
from itertools import pairwise

import pytest

from rlctl.agents.managers.prm_eris import PrmEris
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

MODEL = PrmModel(lc_cpus=17, lcutilmax_percent=1700)


def quotas(allocations: list[Allocation]) -> list[float]:
    return [allocation.quota_cpus for allocation in allocations]


def test_from_minimum_to_no_quota_in_280_seconds(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # 20 levels x 7 clean cycles x 2 s = 280 s; a level is int(1.7e6 us / 20) = 85000 us = 0.85 CPU.
    calm = [tell(now, lc_cpus=5.0, be_cpus=1.0) for now in range(2, 282, 2)]
    got = quotas(drive(PrmEris(model=MODEL), thesis_host, calm))
    assert got[5] == 0.01
    assert got[6] == 0.85  # after 14 s
    assert got[13] == 1.70
    assert got[138] == pytest.approx(19 * 0.85)
    assert got[139] == UNLIMITED  # after 280 s


def test_margin_is_half_a_core(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # (LC + BE) * 1000 + 50000 > 1700000 holds from 1650 % on, exclusively.
    def after(lc: float) -> float:
        ticks = [tell(now, lc_cpus=5.0, be_cpus=0.0) for now in range(0, 14, 2)] + [tell(14, lc_cpus=lc, be_cpus=0.5)]
        return drive(PrmEris(model=MODEL), thesis_host, ticks)[-1].quota_cpus

    assert after(16.0) == 0.85
    assert after(16.01) == 0.01


def test_an_excess_starts_the_count_over(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    uses = [5.0] * 6 + [17.0] + [5.0] * 7
    got = quotas(
        drive(PrmEris(model=MODEL), thesis_host, [tell(2 * i, lc_cpus=u, be_cpus=0) for i, u in enumerate(uses)])
    )
    assert got[:13] == [0.01] * 13
    assert got[13] == 0.85


def test_full_falls_to_the_minimum_at_one_excess(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, lc_cpus=5.0, be_cpus=1.0) for now in range(0, 290, 2)]
    got = quotas(drive(PrmEris(model=MODEL), thesis_host, [*ticks, tell(290, lc_cpus=17.0, be_cpus=1.0)]))
    assert got[-2:] == [UNLIMITED, 0.01]


@pytest.mark.parametrize("lc", [0.0, None])
def test_no_lc_activity_counts_as_an_excess(drive: Drive, tell: Tell, thesis_host: Limits, lc: float | None) -> None:
    ticks = [tell(now, lc_cpus=5.0, be_cpus=1.0) for now in range(0, 14, 2)] + [tell(14, lc_cpus=lc, be_cpus=1.0)]
    assert quotas(drive(PrmEris(model=MODEL), thesis_host, ticks))[-2:] == [0.85, 0.01]


def test_without_bes_use_the_cycle_is_skipped(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, lc_cpus=5.0, be_cpus=1.0) for now in range(0, 14, 2)] + [tell(14, lc_cpus=17.0)]
    policy = PrmEris(model=MODEL)
    assert quotas(drive(policy, thesis_host, ticks))[-1] == 0.85
    assert "missing" in policy.note


def test_hold_is_off_in_eris(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # LC and BE use 15.7 CPUs: with the margin 16.2 is no excess of 17, with a step of 0.85 more, 17.05, it would be.
    ticks = [tell(now, lc_cpus=15.2, be_cpus=0.5) for now in range(0, 14, 2)]
    assert drive(PrmEris(model=MODEL), thesis_host, ticks)[-1].quota_cpus == 0.85
    assert drive(PrmEris(model=MODEL, enable_hold=True), thesis_host, ticks)[-1].quota_cpus == 0.01


def test_maximum_is_raised_when_lc_exceeds_it(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    policy = PrmEris(model=PrmModel(lc_cpus=17, lcutilmax_percent=1000))
    got = drive(policy, thesis_host, [tell(0, lc_cpus=12.0, be_cpus=0.0)])
    assert policy.quota_max_cpus == 12.0
    assert got[0].quota_cpus == 0.01  # 12 + 0.5 > 12: it is still an excess
    # The next climb uses the raised step: 12 / 20 = 0.6.
    ticks = [tell(0, lc_cpus=12.0, be_cpus=0)] + [tell(now, lc_cpus=2.0, be_cpus=0) for now in range(2, 16, 2)]
    assert drive(policy, thesis_host, ticks)[-1].quota_cpus == 0.6


def test_without_model_guard_is_void_and_says_so(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    policy = PrmEris()
    drive(policy, thesis_host, [tell(0, lc_cpus=17.0, be_cpus=8.0)])
    assert policy.quota_max_cpus == 36.0
    assert "void" in policy.remarks[0]
    assert "no model" in policy.note
    assert PrmEris(model=MODEL).remarks == ()


@pytest.mark.parametrize(
    ("limits", "all_cpus"),
    [
        (Limits(cpus=12, lc_cpus=4.0, exclusive_cpus=12), 16.0),  # the LC on CPUs that BE never has
        (Limits(cpus=36, lc_cpus=17.0, exclusive_cpus=1), 36.0),  # on some that BE has as well
        (Limits(cpus=2, lc_cpus=1.0, exclusive_cpus=1), 2.0),
        (Limits(cpus=1), 1.0),
        (Limits(cpus=2, lc_cpus=4.0), 4.0),  # on all that BE has, and more
    ],
)
def test_without_model_all_cpus_are_theirs(limits: Limits, all_cpus: float) -> None:
    policy = PrmEris()
    policy.start(limits)
    assert policy.quota_max_cpus == all_cpus


def test_utilisation_is_the_mean_of_the_cycle(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # Ticks of 1 s; 17 and 15 CPUs average to 16: with BE at 0.4 and the margin 16.9, no excess.
    uses = [5.0] + [17.0, 15.0] * 6
    ticks = [tell(now, lc_cpus=use, be_cpus=0.4) for now, use in enumerate(uses)]
    assert drive(PrmEris(model=MODEL), thesis_host, ticks)[-1].quota_cpus == 0.85


def test_time_scale_halves_the_climb(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, lc_cpus=5.0, be_cpus=1.0) for now in range(1, 141)]
    got = quotas(drive(PrmEris(model=MODEL, time_scale=2.0), thesis_host, ticks))
    assert got[6] == 0.85
    assert got[139] == UNLIMITED
    assert all(before <= after for before, after in pairwise(got))


def test_core_of_small_host_scales_margin(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # 16.95 + 0.5 / 36 = 16.964 is below 17.
    ticks = [tell(now, lc_cpus=16.95, be_cpus=0.0) for now in range(0, 14, 2)]
    assert drive(PrmEris(model=MODEL, core_cpus=1 / 36), thesis_host, ticks)[-1].quota_cpus == 0.85


def test_impossible_use_is_as_good_as_missing(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(2 * i, lc_cpus=1.797693134862316e303, be_cpus=0.0) for i in range(8)]
    assert quotas(drive(PrmEris(model=MODEL), thesis_host, ticks)) == [0.01] * 8
