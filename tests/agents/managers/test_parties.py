from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.managers.parties import Parties
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry, Value
from rlctl.safety.verdict import Verdict

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

GOOD, SHORT = 0.5, 0.01


def cores(allocations: list[Allocation]) -> list[int]:
    """BE's cores where a core is a CPU."""
    return [0 if a.frozen else round(a.quota_cpus) for a in allocations]


def samples(tell: Tell, *slacks: float | None, tick: float = 0.1) -> list[Telemetry]:
    return [tell(tick * index, slack=slack) for index, slack in enumerate(slacks)]


def test_a_single_service_begins_with_all_cores(thesis_host: Limits) -> None:
    assert Parties().start(thesis_host).frozen


def test_borne_out_downsize_is_followed_by_the_next(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    got = cores(drive(Parties(), thesis_host, samples(tell, *[GOOD] * 12)))
    assert got == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]


def test_quota_and_cpuset_are_the_cores(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    assert drive(Parties(), thesis_host, samples(tell, *[GOOD] * 6))[-1] == Allocation(2.0, 2)
    got = drive(Parties(core_cpus=2 / 36), Limits(cpus=2), samples(tell, *[GOOD] * 6))[-1]
    assert (round(got.quota_cpus, 3), got.cpuset_cpus) == (0.111, 1)


@pytest.mark.parametrize(("short", "kept"), [(2, True), (3, False)])
def test_downsize_is_undone_by_most_of_its_samples(
    drive: Drive, tell: Tell, thesis_host: Limits, short: int, kept: bool
) -> None:
    judged = [SHORT] * short + [GOOD] * (5 - short)
    got = cores(drive(Parties(), thesis_host, samples(tell, GOOD, *judged)))
    assert got[:5] == [1] * 5
    assert (got[5] > 0) is kept


def test_failed_downsize_pauses_a_hundred_intervals(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # Taken at sample 1, undone at 6, watched 7-11. Idle decisions take two waits each, so they fall on 11, 13, ...;
    # the 100 intervals are over at 106.
    got = cores(drive(Parties(), thesis_host, samples(tell, GOOD, *[SHORT] * 5, *[GOOD] * 110)))
    assert [number for number, now in enumerate(got, start=1) if now][:6] == [1, 2, 3, 4, 5, 107]


def test_useless_upsize_stays_and_next_follows(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # Cores 1, 2, 3 at samples 1, 6, 11; undone at 16; watched to 21, waited to 26; upsized at 26 and, with a latency
    # that does not fall, at 31.
    got = cores(drive(Parties(), thesis_host, samples(tell, *[GOOD] * 11, *[SHORT] * 25)))
    changes = [(number, now) for number, (was, now) in enumerate(pairwise(got), start=2) if was != now]
    assert changes == [(6, 2), (11, 3), (16, 2), (26, 1), (31, 0)]


def test_the_newest_slack_and_its_mean_must_agree(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    # At sample 6 the slack is short, but its mean over the second is 0.42.
    got = cores(drive(Parties(), thesis_host, samples(tell, *[GOOD] * 5, SHORT, *[0.1] * 30)))
    assert max(got) == got[-1] == 1


@pytest.mark.parametrize("slack", [0.05, 0.1, 0.2])
def test_between_the_thresholds_nothing_moves(drive: Drive, tell: Tell, thesis_host: Limits, slack: float) -> None:
    assert cores(drive(Parties(), thesis_host, samples(tell, *[GOOD] * 6, *[slack] * 60)))[-1] == 2


def test_the_lc_keeps_a_core(drive: Drive, tell: Tell) -> None:
    got = cores(drive(Parties(), Limits(cpus=4), samples(tell, *[GOOD] * 60)))
    assert got[-1] == 3


def test_a_tick_without_a_latency_is_no_sample(drive: Drive, tell: Tell, thesis_host: Limits) -> None:
    every_second = [GOOD if index % 2 == 0 else None for index in range(24)]
    got = cores(drive(Parties(), thesis_host, samples(tell, *every_second)))
    assert got[::2] == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]


def test_latency_that_is_told_again_is_no_sample(thesis_host: Limits) -> None:
    """A source that is asked once a second, at ticks of 0.2 s."""
    policy = Parties()
    policy.start(thesis_host)
    held = []
    for index in range(60):
        policy.decide(Telemetry(0.2 * index, 1.0, Value(1.0 - GOOD, age_seconds=0.2 * (index % 5))))
        held.append(policy.be_cores)
    assert held[::5] == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("slacks", "overridden", "held"),
    [
        ([GOOD] * 12 + [SHORT] * 5, 17, [1] * 16 + [0]),  # good ones bear nothing out, five short ones undo it
        ([GOOD] * 9, 3, [1] * 8 + [2]),  # after three ticks it is let through: five good ones from then on
    ],
)
def test_what_shield_holds_back_is_not_judged(
    tell: Tell, thesis_host: Limits, slacks: list[float], overridden: int, held: list[int]
) -> None:
    policy = Parties()
    policy.start(thesis_host)
    got = []
    for number, tick in enumerate(samples(tell, *slacks)):
        asked, _ = policy.decide(tick)
        policy.learn_ruling(Verdict(thesis_host.safe if number < overridden else asked, asked))
        got.append(policy.be_cores)
    assert got == held


class TestOnSlowTicks:
    """Ticks of a second: one sample each, while the rest after a failed downsize stays 10 s."""

    def test_one_sample_a_tick_whatever_the_time_scale(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        for scale in (1.0, 15.0):
            got = cores(drive(Parties(time_scale=scale), thesis_host, samples(tell, *[GOOD] * 12, tick=1.0)))
            assert got == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]

    def test_the_rest_is_counted_on_the_clock(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        ticks = samples(tell, GOOD, *[SHORT] * 5, *[GOOD] * 20, tick=1.0)
        got = cores(drive(Parties(), thesis_host, ticks))
        assert [number for number, now in enumerate(got, start=1) if now][5] == 17  # undone at 6, over at 16

    def test_the_mean_is_the_newest_sample(self, drive: Drive, tell: Tell, thesis_host: Limits) -> None:
        # Kept at 6 by three good samples of five, and upsized at once by the short one that is the mean.
        got = cores(drive(Parties(), thesis_host, samples(tell, GOOD, *[GOOD] * 3, SHORT, SHORT, tick=1.0)))
        assert got == [1, 1, 1, 1, 1, 0]


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=80))
def test_cores_move_one_at_time_within_pool(slacks: list[float]) -> None:
    policy = Parties()
    policy.start(Limits(cpus=36))
    held = [policy.be_cores]
    for index, slack in enumerate(slacks):
        policy.decide(Telemetry(0.1 * index, 1.0).but(tail_latency_seconds=Value(1.0 - slack)))
        held.append(policy.be_cores)
    moves = [abs(after - before) for before, after in pairwise(held)]
    assert all(0 <= now <= 35 for now in held)
    assert max(moves) <= 1
