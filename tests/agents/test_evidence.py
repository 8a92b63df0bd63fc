"""What a policy remembers of a host: pooled, given up when it is wrong, kept as plain data."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlctl.agents.evidence import (
    BINS,
    DISCOUNT,
    HELD_HALF_LIFE_SECONDS,
    MISSED_HALF_LIFE_SECONDS,
    MOST_COUNT,
    Evidence,
    bin_of,
    load_of,
)

LEVELS = 10


def made(held=(), missed=()):
    evidence = Evidence(LEVELS, budget_ratio=0.03)
    for add, windows in ((evidence.add_held, held), (evidence.add_missed, missed)):
        for load, level in windows:
            add(load, level)
    return evidence


def test_nothing_is_known_at_first_and_everything_may_be_tried():
    assert made().known(0.5) == (-1, True)


def test_what_held_at_more_load_holds_at_less():
    evidence = made(held=[(0.6, 4)] * 2)
    assert evidence.known(0.3) == (4, True)
    assert evidence.known(0.6) == (4, True)
    assert evidence.known(0.9) == (-1, True), "says nothing of more load"


def test_one_window_is_not_enough():
    assert made(held=[(0.6, 4)]).known(0.6).level == -1


def test_what_missed_at_less_load_is_not_tried_at_more():
    evidence = made(held=[(0.6, 4)] * 2, missed=[(0.4, 5)])
    assert evidence.known(0.6) == (4, False)
    assert evidence.known(0.2) == (4, True), "says nothing of less load"


def test_a_miss_is_tried_again_after_a_while_and_what_held_is_still_known():
    evidence = made(held=[(0.6, 4)] * 2, missed=[(0.6, 5)])
    evidence.age(0.0)
    evidence.age(0.9 * MISSED_HALF_LIFE_SECONDS)
    assert evidence.known(0.6) == (4, False)
    evidence.age(1.1 * MISSED_HALF_LIFE_SECONDS)
    assert evidence.known(0.6) == (4, True)
    evidence.age(MISSED_HALF_LIFE_SECONDS)  # a clock that was set back
    assert evidence.known(0.6) == (4, True)
    evidence.age(HELD_HALF_LIFE_SECONDS)
    assert evidence.known(0.6).level == -1


def test_a_host_that_has_changed_is_found_out_within_some_misses_however_long_it_was_known():
    evidence = made(held=[(0.6, 4)] * 100_000)
    assert evidence.held.max() == MOST_COUNT
    misses = 0
    while evidence.known(0.6).level == 4:
        evidence.add_missed(0.6, 4)
        misses += 1
    assert misses <= 4


def test_a_miss_in_a_hundred_windows_changes_nothing():
    evidence = made()
    for _ in range(20):
        for _ in range(100):
            evidence.add_held(0.6, 4)
        evidence.add_missed(0.6, 4)
        assert evidence.known(0.6).level == 4


windows = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, LEVELS)), max_size=40)


@given(windows, windows, st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_more_load_is_never_known_to_bear_more(held, missed, one, other):
    evidence = made(held, missed)
    less, more = sorted((one, other))
    assert evidence.known(more).level <= evidence.known(less).level


@given(windows, windows)
@example(held=[(0.6, 4)] * 3, missed=[(0.1, 0)] * 8)  # 3 / 2^8: so little is as good as nothing
def test_what_is_kept_is_recalled(held, missed):
    evidence, again = made(held, missed), made()
    plain = json.loads(json.dumps(evidence.plain(), allow_nan=False))
    again.recall(plain)
    assert again.plain() == plain
    assert again.held == pytest.approx(evidence.held, abs=0.011)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"schema": 2, "levels": LEVELS, "cells": []},
        {"schema": 1, "levels": 20, "cells": []},
        {"schema": 1, "levels": LEVELS, "cells": {}},
        {"schema": 1, "levels": LEVELS, "cells": [[0.5, 1, 2.0]]},
        {"schema": 1, "levels": LEVELS, "cells": [[0.5, 1, 2.0, "many"]]},
        {"schema": 1, "levels": LEVELS, "cells": [[0.5, 1.5, 2.0, 1.0]]},
        {"schema": 1, "levels": LEVELS, "cells": [[0.5, 11, 2.0, 1.0]]},
        {"schema": 1, "levels": LEVELS, "cells": [[0.5, 1, float("nan"), 1.0]]},
        {"schema": 1, "levels": LEVELS, "cells": [[0.5, 1, 1e300, 1.0]]},
        {"schema": 1, "levels": LEVELS, "cells": [[True, 1, 1.0, 1.0]]},
    ],
)
def test_what_is_no_memory_is_refused_and_changes_nothing(plain):
    evidence = made(held=[(0.6, 4)] * 2)
    with pytest.raises(ValueError, match=r"."):
        evidence.recall(plain)
    assert evidence.known(0.6).level == 4


@given(st.floats(allow_nan=False))
def test_every_load_has_a_bin(load):
    assert 0 <= bin_of(load) < BINS


def test_a_bin_is_that_of_its_middle():
    assert [bin_of(load_of(place)) for place in range(BINS)] == list(range(BINS))
    assert DISCOUNT < 1.0
