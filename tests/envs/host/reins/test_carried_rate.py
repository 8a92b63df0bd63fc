"""What a link is taken to carry: never more than passed and a step, less by evidence, more by trial."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.host.reins.carried_rate import (
    BEYOND_SECONDS,
    CUT_RATIO,
    DISK_SHARES,
    FULL_RATIO,
    LEAST_BYTES,
    LINK_SHARES,
    NEW_STEPS,
    RETRY_SECONDS,
    CarriedRate,
    bound_of,
    fall,
    hold,
    judge_window,
)
from rlctl.envs.reins import CARRIED_RATIO

FAST, SLOW = 20e6, 10e6


class Rate(CarriedRate):
    """With the laws that `judge_window` chooses among, one by one."""

    @property
    def bound(self):
        return bound_of(self.row)

    def fall(self, allowed, *, cut=False):
        fall(self.row, allowed, cut)

    def hold(self, *, calm):
        hold(self.row, calm)


class Link:
    """A link with a rate, which BE fills as far as it may; what it has no room for makes the LC late."""

    def __init__(self, rate):
        self.rate, self.carried = rate, Rate(rate)

    def pass_windows(self, count):
        """So many windows; those that were missed."""
        missed = 0
        for _ in range(count):
            late = self.carried.bound > self.rate
            allowed = self.carried.bound
            drops = 1.1 if allowed < 1.4 * self.rate else 1.3
            self.carried.see(min(allowed, drops * self.rate), 1.0)
            missed += late
            if late:
                self.carried.fall(allowed)
            else:
                self.carried.hold(calm=True)
        return missed


def test_one_window_alone_is_no_rate():
    carried = Rate()
    carried.see(FAST, 1.0)
    assert carried.carried == FAST / 2
    carried.see(FAST, 1.0)
    carried.see(0.0, 1.0)
    assert (carried.carried, carried.bound) == (FAST, CARRIED_RATIO * FAST)


def test_halved_link_costs_one_window():
    link = Link(FAST)
    link.rate = SLOW
    assert link.pass_windows(5) == 1
    assert 0.8 * SLOW < link.carried.bound < SLOW


def test_link_that_is_back_is_found_again():
    link = Link(FAST)
    link.rate = SLOW
    link.pass_windows(5)
    link.rate = FAST
    assert link.pass_windows(int(RETRY_SECONDS) + 8) == 0
    assert link.carried.carried == FAST


def test_fall_after_a_trial_costs_one_window():
    link = Link(FAST)
    link.rate = SLOW
    link.pass_windows(2)
    link.rate = FAST
    while link.carried.carried < FAST:
        link.pass_windows(1)
    link.rate = SLOW
    assert link.pass_windows(5) == 1


def test_link_that_grew_is_found_in_minutes():
    link = Link(SLOW)
    link.rate = FAST
    assert link.pass_windows(int(BEYOND_SECONDS) + 9) <= 1
    assert link.carried.bound > 0.8 * FAST


def test_link_that_stays_is_seldom_tried():
    link = Link(FAST)
    link.rate = SLOW
    assert link.pass_windows(3600) <= 9
    assert link.pass_windows(3600) <= 3
    assert link.carried.bound > 0.8 * SLOW


def test_failed_trial_is_taken_back_at_once():
    carried = Link(FAST).carried
    for _ in range(int(BEYOND_SECONDS)):
        carried.see(carried.bound, 1.0)
        carried.hold(calm=True)
    assert carried.carried > FAST
    carried.see(carried.bound, 1.0)
    carried.hold(calm=False)
    assert carried.carried <= FAST


@pytest.mark.parametrize("falls", [True, False])
def test_fall_in_a_trial_is_no_failure(falls):
    """Only what is missed again, beside what held before, was no fault of the trial: the next one does not wait."""
    link = Link(FAST)
    while link.carried.carried == FAST:
        link.pass_windows(1)
    before = link.carried.row.copy()
    link.carried.see(FAST / 10, 1.0)
    link.carried.fall(link.carried.bound, cut=True)
    link.rate = SLOW if falls else FAST
    link.pass_windows(1)
    after = link.carried.row
    assert (after["wait_seconds"] == before["wait_seconds"]) == falls
    assert (after["most_bytes"] == before["most_bytes"]) == falls


def test_new_link_is_found_in_seconds():
    link = Link(FAST)
    link.carried = Rate()
    for _ in range(2):
        link.carried.see(FAST / 8, 1.0)
    assert link.pass_windows(25) <= 2
    assert 0.8 * FAST < link.carried.bound < FAST
    assert link.pass_windows(200) <= 3
    assert 0.95 * FAST < link.carried.bound < FAST, "shorter trials come nearer"


def test_rate_a_little_too_high_is_lowered():
    link = Link(FAST)
    link.rate = 0.99 * CARRIED_RATIO * FAST
    assert link.pass_windows(60) == 2
    assert link.carried.most < FAST


def test_queue_that_stays_short_lowers_it_a_little():
    """No window is missed, and none is calm: what is sent is what the link carries."""
    carried = Link(FAST).carried
    for _ in range(20):
        carried.see(carried.bound, 1.0)
        carried.hold(calm=False)
    assert carried.carried == FULL_RATIO * FAST
    assert carried.most == FAST, "a trial comes back to it"


def test_flood_that_passed_for_more_is_corrected():
    """What was dropped and sent again counts twice: a later run must not begin with it."""
    link = Link(FAST)
    link.carried = Rate(1.18 * FAST)
    assert link.pass_windows(30) == 2
    assert 0.95 * FAST < CARRIED_RATIO * link.carried.most < FAST


def test_misses_by_chance_lower_it_for_seconds():
    link = Link(FAST)
    for _ in range(20):
        link.carried.see(link.carried.bound, 1.0)
        link.carried.fall(link.carried.bound)
        link.pass_windows(40)
        assert link.carried.carried == FAST


def test_cut_window_tells_little():
    carried = Link(FAST).carried
    carried.see(1e6, 1.0)
    carried.fall(FAST, cut=True)
    assert carried.carried == pytest.approx(CUT_RATIO * CARRIED_RATIO * FAST)


def test_hundredth_of_a_link_is_noticed():
    """Burst credits that run out: BE fills what is left, which is next to nothing of what it was."""
    link = Link(FAST)
    missed = 0
    for _ in range(60):
        sent = min(link.carried.bound, FAST / 100)
        late = link.carried.bound > FAST / 100
        link.carried.see(sent, 1.0)
        judge_window(link.carried.row, link.carried.bound, 0.9 * sent, 1.0, late, not late, 1.0)
        missed += late
    assert missed < 12


def test_cut_that_spared_the_window_lowers_it():
    """Else BE would be as it was in the next one, and be cut again."""
    for calm in (True, False):
        carried = Link(FAST).carried
        carried.see(1e6, 1.0)
        judge_window(carried.row, carried.bound, 1e6, 1.0, False, calm, 0.05)
        assert carried.carried == pytest.approx(CUT_RATIO * CARRIED_RATIO * FAST)


WINDOWS = st.tuples(
    st.floats(0.0, 1e9) | st.just(1.0), st.sampled_from(["fall", "cut", "hold", "near", "other"]), st.booleans()
)


@given(
    st.lists(WINDOWS, max_size=200),
    st.floats(1.0, 60.0),
    st.sampled_from([LINK_SHARES, DISK_SHARES]),
)
@settings(deadline=None, max_examples=300)
def test_never_above_what_passed_and_a_step(windows, seconds, shares):
    carried, most, (all_ratio, step, _) = Rate(None, LEAST_BYTES, shares), LEAST_BYTES, shares
    for sent, what, full in windows:
        sent, before = carried.bound if full else sent, carried.carried
        carried.see(sent, seconds)
        # What held a full window is carried, and so is as much more as a full window is short of all.
        most = max(most, sent / (FULL_RATIO * all_ratio))
        seen, sure = carried.carried, carried.row["sure_bytes"]
        if what in ("fall", "cut"):
            carried.fall(sent if full else 2.0 * sent, cut=what == "cut")
            assert carried.carried <= seen
            assert what == "cut" or sure or carried.carried <= max(sent, LEAST_BYTES, all_ratio * seen)
        elif what != "other":
            carried.hold(calm=what == "hold")
            assert what == "hold" or carried.carried <= seen
        assert carried.carried >= min(before, LEAST_BYTES)
        assert LEAST_BYTES <= carried.carried <= (1.0 + NEW_STEPS * step) * most
