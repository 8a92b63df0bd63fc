"""What the guard between the ticks takes for a sign, and what it does not: a healthy LC has late requests, too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.workload import SLO
from rlctl.safety.symptoms import LEAST_LATE, MOST_RECENT_SECONDS, RECENT_SECONDS, Sign, Symptoms

GOAL = SLO(0.010, 0.95, 1000.0)
GOOD, LATE = 0.002, 0.030


def seen(*looks, slo=GOAL, waits=False, apart_seconds=0.020):
    """The signs of the last of some looks."""
    signs = Symptoms(slo)
    return [set(signs.observe(apart_seconds * n, look, waits=waits)) for n, look in enumerate(looks)][-1]


@pytest.mark.parametrize(
    ("latencies", "sign"),
    [
        ([GOOD] * 20, False),
        ([LATE] * 4, False),  # too few to tell
        ([LATE] * LEAST_LATE, True),
        ([LATE] * 10 + [GOOD] * 10, False),  # the quantile allows none of that, but it may be one hiccup
        ([LATE] * 12 + [GOOD] * 8, True),
        ([float("inf")] * 10, True),  # lines without a latency
        ([0.010] * 20, False),  # the target itself is met
    ],
)
def test_most_of_newest_requests_have_to_be_late(latencies, sign):
    assert seen(Newest(latencies)) == ({Sign.LATE} if sign else set())


def test_median_objective_allows_more_late_requests():
    half = Newest([LATE] * 12 + [GOOD] * 8)
    assert seen(half, slo=SLO(0.010, 0.5, 1000.0)) == set()


def test_requests_of_recent_looks_count_together():
    two, three = Newest([LATE] * 2), Newest([LATE] * 3)
    assert seen(two, three) == {Sign.LATE}
    assert seen(two, NOTHING, three) == {Sign.LATE}
    assert seen(two, three, apart_seconds=MOST_RECENT_SECONDS) == set()
    assert seen(Newest([GOOD] * 50), Newest([LATE] * 20)) == set()
    assert seen(Newest([GOOD] * 50), Newest([LATE] * 20), apart_seconds=RECENT_SECONDS) == {Sign.LATE}


def test_slow_service_is_judged_by_newest_requests():
    """Twenty requests a second, of which a log is read in pieces of two."""
    good, late = Newest([GOOD] * 2), Newest([LATE] * 2)
    assert seen(good, good, good, late, late, apart_seconds=0.1) == set()
    assert seen(good, good, good, late, late, late, apart_seconds=0.1) == {Sign.LATE}


def test_old_request_is_a_sign_when_ageing():
    """The quantile leaves room for single slow requests; a queue that grows shows one at every look."""
    old, young = Newest(oldest_seconds=0.012), Newest(oldest_seconds=0.004)
    assert seen(old) == set()
    assert seen(old, old) == {Sign.OLDEST}
    assert seen(old, young, old) == set()
    assert seen(old, NOTHING, old) == set(), "a source that did not answer says nothing"


def test_what_was_seen_once_counts_once():
    """A source that looks by itself tells the same until its next look."""
    once, again = (Newest(oldest_seconds=0.012, seen_seconds=at) for at in (0.0, 0.030))
    assert seen(*[once] * 5, apart_seconds=0.005) == set()
    assert seen(*[once] * 6, again, apart_seconds=0.005) == {Sign.OLDEST}


def test_old_request_counts_sooner_among_late_ones():
    """Close looks: a queue that fills is told from one slow request by those that came out of it."""
    old, others = Newest(oldest_seconds=0.012), Newest([GOOD] * 30 + [LATE] * LEAST_LATE, oldest_seconds=0.012)
    assert seen(old, old, apart_seconds=0.005) == set()
    assert seen(old, others, apart_seconds=0.005) == {Sign.OLDEST}
    assert seen(others) == set()
    assert seen(*[old] * 4, apart_seconds=0.005) == {Sign.OLDEST}


def test_queue_shows_at_the_first_look():
    """All that came out of it was slow. Before a pause of the LC all was well."""
    slow, well = [0.006, 0.008], [GOOD, 0.008]
    assert seen(Newest(slow, oldest_seconds=0.012)) == {Sign.OLDEST}
    assert seen(Newest(well, oldest_seconds=0.012)) == set()
    assert seen(Newest(slow, oldest_seconds=0.009)) == set()
    assert seen(Newest([0.004] * 9, oldest_seconds=0.012)) == set(), "who is slow as a rule has some that are late"


def test_sudden_queue_shows_at_half_the_target():
    """A link that halved: what waits there goes on growing until BE is held. An LC that is always slow is as it was."""
    quick, slow = Newest([0.0005] * 20_000), Newest([0.004, 0.004, 0.005], oldest_seconds=0.006)
    assert seen(quick, slow, apart_seconds=0.005) == {Sign.OLDEST}
    assert seen(slow, slow, slow, apart_seconds=0.005) == set()
    assert seen(quick, Newest([0.004, 0.0005] * 600), slow, apart_seconds=0.005) == set(), "requests of two kinds"
    assert seen(quick, Newest([0.0005, 0.003, 0.003], oldest_seconds=0.006)) == {Sign.OLDEST}
    assert seen(quick, Newest([0.0005, 0.003], oldest_seconds=0.006)) == set(), "one alone is slow"
    assert seen(quick, Newest([0.007, 0.006], oldest_seconds=0.004)) == set(), (
        "what a pause left, the first the longest"
    )
    assert seen(quick, Newest([0.003, 0.003], oldest_seconds=0.004)) == set()
    assert seen(quick, Newest([0.004, 0.004, 0.005], oldest_seconds=0.004)) == set()
    assert seen(quick, Newest([0.003, 0.006]), NOTHING) == set(), "all have ended"


def test_queue_that_grows_is_looked_at_soon():
    for newest, near in (([0.0005, 0.003], True), ([0.003, 0.0005], False), ([], False)):
        signs = Symptoms(GOAL)
        signs.observe(0.0, Newest([0.0005] * 20_000), waits=False)
        signs.observe(0.0, Newest(newest, oldest_seconds=0.001), waits=False)
        assert signs.near is near


def test_queue_about_target_outlasts_a_close_look():
    old, young = Newest(oldest_seconds=0.012), Newest(oldest_seconds=0.008)
    assert seen(old, young, old, apart_seconds=0.005) == set()
    assert seen(old, young, old, old, apart_seconds=0.005) == {Sign.OLDEST}
    assert seen(old, young, young, young, old, apart_seconds=0.005) == set()


def test_request_nearing_target_brings_close_looks():
    signs = Symptoms(GOAL)
    near = []
    for n, oldest in enumerate((0.004, 0.006, 0.012, 0.014, None)):
        signs.observe(0.020 * n, Newest(oldest_seconds=oldest), waits=False)
        near.append(signs.near)
    assert near == [False, True, True, False, False]


def test_late_requests_bring_a_close_look():
    signs = Symptoms(GOAL)
    for late, near in ((1, False), (7, True), (20, False)):
        found = signs.observe(0.1 * late, Newest([LATE] * late + [GOOD] * 18), waits=False)
        assert (signs.near, bool(found)) == (near, late == 20)


def test_window_of_the_next_tick_counts_now():
    assert seen(Newest(tail_seconds=0.011)) == {Sign.TAIL}
    assert seen(Newest(tail_seconds=0.009)) == set()


def test_waiting_for_cpus_is_sign_without_any_request():
    assert seen(NOTHING, waits=True) == {Sign.PRESSURE}


within = st.floats(0.0, 0.010)


@given(st.lists(st.tuples(st.lists(within, max_size=40), st.none() | within), min_size=1, max_size=30))
def test_requests_within_the_target_are_never_a_sign(looks):
    assert seen(*(Newest(latencies, oldest) for latencies, oldest in looks)) == set()
