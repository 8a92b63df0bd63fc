"""What is remembered of a host: pooled, given up when it is wrong, kept as plain data."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlctl.envs.allocation import Limits
from rlctl.envs.experience import SafeLevelMemory
from rlctl.envs.level_counts import (
    BINS,
    DISCOUNT,
    HELD_HALF_LIFE_SECONDS,
    LADDER,
    MISSED_HALF_LIFE_SECONDS,
    MOST_COUNT,
    TOP,
    add_alone,
    add_held,
    add_missed,
    bin_of,
    free_holds,
    level_of,
    load_of,
)

LIMITS = Limits(4)


class OneHost(SafeLevelMemory):
    """What one host has taught, told window by window."""

    def __init__(self, held=(), missed=()):
        super().__init__(LIMITS)
        for windows, add in ((held, self.add_held), (missed, self.add_missed)):
            for load, level in windows:
                add(load, level)

    def add_held(self, load, level):
        add_held(self.rows[0], bin_of(load), level)

    def add_missed(self, load, level, badly=False, apart=False):
        add_missed(self.rows[0], bin_of(load), level, badly, apart)

    def add_alone(self, held, missed):
        add_alone(self.rows[0], held, missed)

    def free_holds(self, load):
        return free_holds(self.rows[0], load)

    @property
    def cells(self):
        return dict(zip(("held", "missed", "badly"), self.counts(), strict=True))


def kept(host):
    """Another one that was told what this one keeps."""
    again = OneHost()
    again.restore_state(json.loads(json.dumps(host.plain() | {"calm": []}, allow_nan=False)))
    return again


def test_nothing_is_known_at_first():
    assert OneHost().look_up(0.5) == (-1, TOP)


def test_what_held_at_more_load_holds_at_less():
    evidence = OneHost(held=[(0.6, 4)] * 2)
    assert evidence.look_up(0.3) == (4, TOP)
    assert evidence.look_up(0.6) == (4, TOP)
    assert evidence.look_up(0.9) == (-1, TOP), "says nothing of more load"


def test_one_window_is_not_enough():
    assert OneHost(held=[(0.6, 4)]).look_up(0.6)[0] == -1


def test_missed_at_less_is_not_tried_at_more():
    evidence = OneHost(held=[(0.6, 4)] * 2, missed=[(0.4, 5)])
    assert evidence.look_up(0.6) == (4, 4)
    assert evidence.look_up(0.2) == (4, TOP), "says nothing of less load"


def test_miss_is_tried_again_after_a_while():
    evidence = OneHost(held=[(0.6, 4)] * 2, missed=[(0.6, 5)])
    evidence.age(0.9 * MISSED_HALF_LIFE_SECONDS)
    assert evidence.look_up(0.6) == (4, 4)
    evidence.age(0.2 * MISSED_HALF_LIFE_SECONDS)
    assert evidence.look_up(0.6) == (4, TOP)
    evidence.age(-MISSED_HALF_LIFE_SECONDS)  # a clock that was set back
    assert evidence.look_up(0.6) == (4, TOP)
    evidence.age(HELD_HALF_LIFE_SECONDS)
    assert evidence.look_up(0.6)[0] == -1


def test_far_misses_are_tried_again_later():
    """Behind a link that somebody capped each try costs some windows in a row."""

    def barred(seconds, badly, level=5):
        host = OneHost(held=[(0.6, 4)] * 2)
        host.add_missed(0.6, level, badly)
        host.age(seconds)
        assert kept(host).look_up(0.6) == host.look_up(0.6)
        return host.look_up(0.6)[1] < 10

    assert [barred(seconds, badly=False) for seconds in (500.0, 700.0, 3900.0)] == [True, False, False]
    assert [barred(seconds, badly=True) for seconds in (500.0, 700.0, 3900.0)] == [True, True, False]
    assert not barred(700.0, badly=True, level=0), "what the LC misses beside the minimum is its own"


def test_evidence_ages_the_same_in_small_steps():
    once, often = OneHost(held=[(0.6, 4)] * 5, missed=[(0.6, 5)]), OneHost(held=[(0.6, 4)] * 5, missed=[(0.6, 5)])
    once.age(600.0)
    for _ in range(600):
        often.age(1.0)
    assert often.cells["missed"] == pytest.approx(once.cells["missed"], rel=1e-5)
    assert often.cells["held"] == pytest.approx(once.cells["held"])


@pytest.mark.slow
def test_changed_host_is_found_out_within_misses():
    evidence = OneHost(held=[(0.6, 4)] * 100_000)
    assert evidence.cells["held"].max() == MOST_COUNT
    misses = 0
    while evidence.look_up(0.6)[0] == 4:
        evidence.add_missed(0.6, 4)
        misses += 1
    assert misses <= 4


def test_bad_misses_under_quota_count_no_more():
    host = OneHost()
    for _ in range(1000):
        host.add_missed(0.5, 4, badly=True)
    assert host.cells["missed"][:, TOP].sum() <= 2.0
    assert kept(host).plain() == host.plain(), "no count is beyond what is kept"


def test_a_miss_in_a_hundred_windows_changes_nothing():
    evidence = OneHost()
    for _ in range(20):
        for _ in range(100):
            evidence.add_held(0.6, 4)
        evidence.add_missed(0.6, 4)
        assert evidence.look_up(0.6)[0] == 4


def share_known(every, missed, known, seconds=1200):
    """How much of the second half of the time something is known, where one window in `every` is missed."""
    host, ticks = OneHost(), []
    for second in range(1, seconds + 1):
        if second % every == 0:
            missed(host)
        else:
            host.add_held(0.5, 8 if missed is miss_under_a_quota else TOP)
        host.age(1.0)
        ticks.append(known(host))
    return sum(ticks[seconds // 2 :]) / (seconds // 2)


def miss_under_a_quota(host):
    host.add_missed(0.5, 8)


def miss_beside_everything(host):
    host.add_missed(0.5, TOP, apart=True)


@pytest.mark.parametrize(("every", "share"), [(50, 1.0), (20, 0.0)])
def test_level_holds_up_to_three_percent_missed(every, share):
    assert share_known(every, miss_under_a_quota, lambda host: host.look_up(0.5)[0] == 8) == share


@pytest.mark.parametrize(("every", "share"), [(25, 1.0), (10, 0.0)])
def test_free_be_may_miss_six_percent(every, share):
    known = share_known(every, miss_beside_everything, lambda host: host.free_holds(0.5))
    assert known == share


windows = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, TOP)), max_size=40)


@given(windows, windows, st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_more_load_is_never_known_to_bear_more(held, missed, one, other):
    evidence = OneHost(held, missed)
    less, more = sorted((one, other))
    assert all(np.less_equal(evidence.look_up(more), evidence.look_up(less)))


@given(windows, windows)
@example(held=[(0.6, 4)] * 3, missed=[(0.1, 0)] * 8)  # 3 / 2^8: so little is as good as nothing
def test_what_is_kept_is_recalled(held, missed):
    host = OneHost(held, missed)
    again = kept(host)
    assert again.plain() == host.plain()
    assert again.cells["held"] == pytest.approx(host.cells["held"], abs=0.011)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"schema": 1, "cells": []},
        {"schema": 3, "cells": {}},
        {"schema": 3, "cells": [[0.5, 1, 2.0, 1.0]]},
        {"schema": 3, "cells": [[0.5, 1, 2.0, "many", 0.0]]},
        {"schema": 3, "cells": [[0.5, 0.1, -2.0, 1.0, 0.0]]},
        {"schema": 3, "cells": [[0.5, 1.1, 2.0, 1.0, 0.0]]},
        {"schema": 3, "cells": [[0.5, 1, float("nan"), 1.0, 0.0]]},
        {"schema": 3, "cells": [[0.5, 1, 1e300, 1.0, 0.0]]},
        {"schema": 3, "cells": [[True, 1, 1.0, 1.0, 0.0]]},
        {"schema": 3, "cells": [], "alone": [1.0]},
        {"schema": 3, "cells": [], "alone": [1.0, float("nan")]},
        {"schema": 3, "cells": [], "alone": {"0": 1.0}},
        {"schema": 3, "cells": [[0.5, 1, 1.0, 1.0, -1.0]]},
        {"schema": 3, "cells": [[0.5, 1, 1.0, 1.0, 1.0, 1.0]]},
    ],
)
def test_no_memory_is_refused_and_changes_nothing(plain):
    evidence = OneHost(held=[(0.6, 4)] * 2)
    with pytest.raises(ValueError, match=r"."):
        evidence.restore_state({"calm": []} | plain)
    assert evidence.look_up(0.6)[0] == 4


@given(st.floats(allow_nan=False))
@example(7e306)
def test_every_load_has_a_bin(load):
    assert 0 <= bin_of(load) < BINS


def test_bin_and_level_are_their_numbers():
    assert [bin_of(load_of(place)) for place in range(BINS)] == list(range(BINS))
    assert [level_of(share) for share in LADDER] == list(range(TOP + 1))
    assert [level_of(share - 1e-6) for share in LADDER[1:]] == list(range(TOP))
    assert DISCOUNT < 1.0


def of_least_weight(free, quota, calm=0):
    """Whether BE of the least weight may be free: windows that held and that missed, without a quota and under one.

    Args:
        calm: Windows of either kind that held at half of the load before.
    """
    host = OneHost()
    for (held, missed), level in ((free, TOP), (quota, TOP - 3)):
        for _ in range(calm):
            host.add_held(0.25, level)
        for window in range(held + missed):
            if missed and window % ((held + missed) // missed) == 0:
                host.add_missed(0.5, level, apart=True)
            else:
                host.add_held(0.5, level)
    return host.free_holds(0.5)


@pytest.mark.parametrize(
    ("free", "quota", "holds"),
    [
        ((0, 0), (0, 0), True),  # taken to be enough until the host has shown that it is not
        ((98, 2), (0, 0), True),
        ((85, 15), (0, 0), False),
        ((85, 15), (85, 15), True),  # so much the LC misses alone, or the quota makes it miss
        ((85, 15), (99, 1), False),
        ((0, 5), (85, 15), False),
        ((98, 2), (0, 5), True),  # what is missed under a quota says nothing of none
    ],
)
def test_misses_without_quota_are_weighed(free, quota, holds):
    """Else an LC that misses a window now and then by itself takes BE down for it, and under a quota it misses more."""
    assert of_least_weight(free, quota) == holds


def test_misses_are_weighed_at_their_load():
    """Else BE is taken down at each peak of the load, where the LC misses no less under a quota."""
    assert of_least_weight((50, 50), (50, 50), calm=100)
    assert not of_least_weight((50, 50), (100, 0), calm=100)


def test_misses_beside_frozen_be_are_weighed_too():
    """Where a CPU that idles wakes up slowly, an LC may miss more with BE away than with it."""
    host = OneHost()
    for window in range(100):
        if window % 6:
            host.add_held(0.5, TOP)
        else:
            host.add_missed(0.5, TOP, apart=True)
    assert not host.free_holds(0.5)
    for window in range(100):
        host.add_alone(window % 6 > 0, window % 6 == 0)
    assert host.free_holds(0.5)
    assert kept(host).plain()["alone"] == host.plain()["alone"]
    assert kept(host).free_holds(0.5)


def test_lcs_own_misses_speak_against_no_quota():
    """Else a noisy neighbour of the machine leaves BE at the minimum, where the LC misses as much."""
    host = OneHost()
    for window in range(100):
        host.add_held(0.5, 12)
        if window % 8 == 0:
            host.add_missed(0.5, 12)
    assert host.look_up(0.5)[1] < 12
    for window in range(100):
        host.add_alone(window % 8 > 0, window % 8 == 0)
    assert host.look_up(0.5)[1] >= 12


def test_bad_miss_under_quota_counts_without_one_too():
    host = OneHost()
    for _ in range(3):
        host.add_held(0.5, TOP)
        host.add_missed(0.5, TOP - 3, badly=True, apart=True)
    assert not host.free_holds(0.5)


def test_quota_only_host_is_freed_once_an_hour():
    """It costs some windows in a row each time, half a percent of them every ten minutes."""

    def after(seconds, share):
        host = OneHost()
        host.add_missed(0.5, level_of(share), badly=True, apart=True)
        host.age(seconds)
        assert kept(host).free_holds(0.5) == host.free_holds(0.5)
        return host.free_holds(0.5)

    assert [after(seconds, 0.9) for seconds in (0.0, 1800.0, 3600.0)] == [False, False, True]
    assert after(600.0, 0.2), "with so little for BE it was the LC's own, as likely as not"
