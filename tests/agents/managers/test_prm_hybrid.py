from collections.abc import Callable
from typing import Literal

import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.managers.manager import BeState, Manager
from rlctl.agents.managers.prm_hybrid import Branch, PrmHybrid, listing_as_printed, prose
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]
Readings = list[tuple[float | None, float | None]]


def polls(tell: Tell, readings: Readings, period: float = 15.0) -> list[Telemetry]:
    return [tell(period * index, slack=slack, load_ratio=load) for index, (slack, load) in enumerate(readings)]


def test_grows_core_every_two_seconds_from_signal_on(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = drive(PrmHybrid(), thesis_host, [tell(now, slack=0.5, load_ratio=0.5) for now in range(7)])
    # 1000 us, plus a core at 0, 2, 4 and 6 s.
    assert [round(a.quota_cpus, 2) for a in got] == [1.01, 1.01, 2.01, 2.01, 3.01, 3.01, 4.01]
    assert all(a.cpuset_cpus == 36 for a in got)


def test_is_capped_at_the_host(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = drive(PrmHybrid(), thesis_host, [tell(now, slack=0.5, load_ratio=0.5) for now in range(100)])
    assert got[-1].quota_cpus == 36.0


def test_tuned_adds_fiftieth_of_host_every_two_seconds(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=0.5, load_ratio=0.5) for now in range(5)]
    got = drive(build("prm-hybrid-tuned"), thesis_host, ticks)
    assert [round(a.quota_cpus, 2) for a in got] == [0.73, 0.73, 1.45, 1.45, 2.17]  # 0.01 + n * 36 / 50


def test_load_hysteresis(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    loads = [0.79, 0.85, 0.80, 0.86, 0.85, 0.80, 0.79, 0.84]
    got = drive(PrmHybrid(), thesis_host, polls(tell, [(0.5, load) for load in loads]))
    #        enabled, band,  band,  above, band, band, below, band
    assert [a.frozen for a in got] == [False, False, False, True, True, True, False, False]


def test_tuned_gates(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    loads = [0.89, 0.95, 0.951, 0.92, 0.90, 0.89]
    got = drive(build("prm-hybrid-tuned"), thesis_host, polls(tell, [(0.5, load) for load in loads]))
    assert [a.frozen for a in got] == [False, False, True, True, True, False]


def test_in_the_band_be_waits_until_enabled(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = drive(PrmHybrid(), thesis_host, polls(tell, [(0.5, 0.82), (0.5, 0.82)]))
    assert [(a.quota_cpus, a.frozen) for a in got] == [(0.01, False), (0.01, False)]


@pytest.mark.parametrize(("slack", "grows"), [(0.0, False), (0.05, False), (0.10, False), (0.1001, True)])
def test_a_slack_of_exactly_a_tenth_is_hold(
    drive: Drive, tell: Tell, thesis_host: Limits, slack: float, grows: bool
) -> None:
    got = drive(PrmHybrid(), thesis_host, polls(tell, [(slack, 0.5)]))
    assert (got[0].quota_cpus > 0.01) is grows
    assert not got[0].frozen


def test_hold_keeps_quota_and_stops_sub_loop(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=0.5 if now < 15 else 0.05, load_ratio=0.5) for now in range(30)]
    got = drive(PrmHybrid(), thesis_host, ticks)
    assert got[14].quota_cpus == pytest.approx(8.01)  # at 0, 2, ..., 14
    assert got[29] == got[14]


@pytest.mark.parametrize(("name", "seconds"), [("prm-hybrid", 300), ("prm-hybrid-tuned", 180)])
def test_the_cool_down_lasts_exactly(drive: Drive, tell: Tell, thesis_host: Limits, name: str, seconds: int) -> None:
    ticks = [tell(now, slack=-0.1 if now == 15 else 0.5, load_ratio=0.5) for now in range(seconds + 40)]
    got = drive(build(name), thesis_host, ticks)
    frozen = [now for now, allocation in enumerate(got) if allocation.frozen]
    assert frozen == list(range(15, 15 + seconds))


def test_violation_during_cool_down_counts_at_its_end(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=-0.1 if now < 301 else 0.5, load_ratio=0.5) for now in range(620)]
    got = drive(PrmHybrid(), thesis_host, ticks)
    assert [now for now, a in enumerate(got) if not a.frozen] == list(range(600, 620))


def test_a_violation_between_polls_is_not_seen(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=-0.1 if now == 7 else 0.5, load_ratio=0.5) for now in range(16)]
    assert not any(a.frozen for a in drive(PrmHybrid(), thesis_host, ticks))


def test_after_the_cool_down_the_load_still_decides(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    ticks = [tell(now, slack=-0.1 if now == 0 else 0.5, load_ratio=0.82) for now in range(330)]
    assert all(a.frozen for a in drive(PrmHybrid(), thesis_host, ticks))


@pytest.mark.parametrize(("resume", "quota"), [("minimum", 1.01), ("last", 9.01)])
def test_resume_level(
    drive: Drive, tell: Tell, thesis_host: Limits, resume: Literal["minimum", "last"], quota: float
) -> None:
    # Grown to 8.01 by 14 s, suspended at 15, enabled and signalled at 30: one core at once.
    loads = [0.9 if 15 <= now < 30 else 0.5 for now in range(31)]
    ticks = [tell(now, slack=0.5, load_ratio=load) for now, load in enumerate(loads)]
    assert drive(PrmHybrid(resume_level=resume), thesis_host, ticks)[-1].quota_cpus == pytest.approx(quota)


def test_suspension_by_the_minimum_quota(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = drive(PrmHybrid(suspend="minimum", resume_level="last"), thesis_host, polls(tell, [(0.5, 0.5), (0.5, 0.9)]))
    assert (got[1].quota_cpus, got[1].frozen) == (0.01, False)


@pytest.mark.parametrize(("slack", "load"), [(None, 0.5), (0.5, None), (None, None)])
def test_a_missing_reading_keeps_the_setting_without_growth(
    drive: Drive, tell: Tell, thesis_host: Limits, slack: float | None, load: float | None
) -> None:
    ticks = [*polls(tell, [(0.5, 0.5), (slack, load)]), tell(17.0, slack=slack, load_ratio=load)]
    got = drive(PrmHybrid(), thesis_host, ticks)
    assert got[1:] == [got[0], got[0]]


def test_what_is_known_still_suspends(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    assert drive(PrmHybrid(), thesis_host, [tell(0, slack=-0.1)])[0].frozen
    assert drive(PrmHybrid(), thesis_host, [tell(0, load_ratio=0.9)])[0].frozen


def test_time_scale_halves_poll_and_cool_down(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    slacks = [-0.1 if half == 15 else 0.5 for half in range(340)]
    ticks = [tell(half / 2, slack=slack, load_ratio=0.5) for half, slack in enumerate(slacks)]
    assert drive(PrmHybrid(time_scale=2.0), thesis_host, ticks) == drive(
        PrmHybrid(), thesis_host, [tell(float(t), slack=s, load_ratio=0.5) for t, s in enumerate(slacks)]
    )


def test_loop_faster_than_tick_keeps_its_rate(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # 2 s / 15: once at the signal, then 7.5 a tick: 1 + 7 + 8 steps of 1/36 CPU by the third tick.
    got = drive(
        PrmHybrid(time_scale=15.0, core_cpus=1 / 36),
        thesis_host,
        [tell(t, slack=0.5, load_ratio=0.5) for t in range(3)],
    )
    assert got[-1].quota_cpus == pytest.approx(0.01 + 16 / 36)


class TestErratumOfListing31:
    """Branch 3 of code listing 3.1 tests `slack < 0.80` where the prose of 3.3 says load below 80 %."""

    GATES = PrmHybrid()

    @pytest.mark.parametrize("slack", [0.0, 0.05, 0.10, 0.5, 0.79])
    def test_branch_3_makes_hold_unreachable(self, slack: float) -> None:
        for load in (0.1, 0.79, 0.82, 0.85):
            assert listing_as_printed(slack, load, self.GATES) is Branch.ENABLE

    @pytest.mark.parametrize("slack", [0.80, 0.95, 1.0])
    def test_growth_needs_slack_of_080(self, slack: float) -> None:
        assert listing_as_printed(slack, 0.5, self.GATES) is Branch.GROW

    def test_the_load_gate_has_no_hysteresis_as_printed(self) -> None:
        assert listing_as_printed(0.5, 0.84, self.GATES) is Branch.ENABLE
        assert prose(0.5, 0.84, BeState.SUSPENDED, self.GATES) is Branch.KEEP

    def test_branches_before_slip_are_as_in_prose(self) -> None:
        for slack, load in ((-0.1, 0.5), (0.5, 0.86), (-0.1, 0.9)):
            printed = listing_as_printed(slack, load, self.GATES)
            assert printed is prose(slack, load, BeState.ENABLED, self.GATES)
        assert listing_as_printed(None, 0.5, self.GATES) is Branch.KEEP

    def test_as_manager_it_waits_at_half_slack(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        ticks = [tell(now, slack=0.5, load_ratio=0.5) for now in range(31)]
        policy = PrmHybrid(literal_listing=True)
        assert drive(policy, thesis_host, ticks)[-1].quota_cpus == 0.01
        assert "as printed" in policy.remarks[-1]
        ticks = [tell(now, slack=0.9, load_ratio=0.5) for now in range(3)]
        assert drive(policy, thesis_host, ticks)[-1].quota_cpus == pytest.approx(2.01)


def test_hybrid_and_tuned_differ_by_load_gate(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # Field notes 0.3: on 350k..450k of 450k rps, load < 0.80 opens below 360k only, load < 0.90 below 405k.
    def opens(policy: Manager, rps: float) -> bool:
        return drive(policy, thesis_host, [tell(0, slack=0.5, load_ratio=rps / 450)])[0].quota_cpus > 0.01

    assert opens(PrmHybrid(), 359)
    assert not opens(PrmHybrid(), 361)
    assert opens(build("prm-hybrid-tuned"), 404)
    assert not opens(build("prm-hybrid-tuned"), 406)
