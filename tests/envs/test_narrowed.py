"""A learned policy on a host that teaches it better: what it may still ask for."""

from dataclasses import replace

import numpy as np
import pytest

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.experience import SafeLevelMemory, allocation_at
from rlctl.envs.level_counts import TOP, add_held, add_missed, bin_of
from tests.doubles.levels import level_of

LIMITS = Limits(cpus=4)
ALL = np.ones(len(MOVES), np.bool_)
LOAD, WELL, BADLY = 0.5, 0.3, 1.3


def taught(held=(), missed=()):
    """An experience of two windows at each (load, level) that held, and one at each that missed."""
    experience = SafeLevelMemory(LIMITS)
    for load, level in held:
        for _ in range(2):
            add_held(experience.rows[0], bin_of(load), level)
    for load, level in missed:
        add_missed(experience.rows[0], bin_of(load), level, False, False)
    return experience


def levels(current, experience, load=LOAD, ratio=WELL, mask=ALL, price=1.0):
    """Levels that the moves which are left lead to."""
    left = experience.filter_moves(mask, current, load, ratio, price)
    return sorted({level_of(MOVES[place].of(current, LIMITS), LIMITS) for place in np.flatnonzero(left)})


def test_a_host_that_taught_nothing_leaves_every_move():
    assert taught().filter_moves(ALL, LIMITS.full, LOAD, WELL).all()


def test_missed_at_this_load_is_not_asked():
    left = levels(allocation_at(12, LIMITS), taught(held=[(0.6, 8)], missed=[(0.5, 11)]))
    assert max(left) == 10
    assert max(levels(allocation_at(12, LIMITS), taught(missed=[(0.5, 11)]), load=0.2)) > 11


def test_held_at_higher_load_is_the_least():
    experience = taught(held=[(0.7, 12)])
    now = allocation_at(14, LIMITS)
    assert min(levels(now, experience)) == 12
    assert min(levels(now, experience, ratio=BADLY)) == -1
    assert min(levels(now, experience, load=0.65)) == -1, "nobody knows of 1.4 times this load"


def test_nobody_is_stuck_below_what_would_hold():
    """Latency is next to nothing, and this level has held for long: the next one is the least that is asked for."""

    def stuck(windows, missed=(), ratio=0.05, price=1.0):
        experience = taught(missed=missed)
        for _ in range(windows):
            add_held(experience.rows[0], bin_of(LOAD), 10)
        return min(levels(allocation_at(10, LIMITS), experience, LOAD, ratio, price=price))

    assert stuck(20) == 11
    assert stuck(19) == -1, "not yet"
    assert stuck(20, ratio=WELL) == -1, "it may be near its knee"
    assert stuck(20, missed=[(0.6, 11)]) == 10, "that missed a little above this load"
    assert stuck(20, price=4.0) == -1
    assert stuck(5, price=0.25) == 11


def test_at_least_weight_be_rises_until_misses():
    """The kernel's weights are enough for most hosts, and there a quota costs the LC more than none."""
    limits, top = replace(LIMITS, least_weight=True), TOP
    now = allocation_at(10, LIMITS)
    rises = max(levels(now, SafeLevelMemory(LIMITS)))

    def lowest(missed=(), held=0, load=LOAD, ratio=WELL, badly=False):
        experience = SafeLevelMemory(limits)
        for _ in range(held):
            add_held(experience.rows[0], bin_of(0.9), top)
        for at, level in missed:
            add_missed(experience.rows[0], bin_of(at), level, badly, True)
        return min(levels(now, experience, load, ratio))

    assert lowest() == rises, "as fast as a tick allows"
    assert lowest(ratio=BADLY) == -1
    assert lowest(load=np.nan) == -1
    assert lowest(missed=[(0.8, 12)]) == rises, "that may be the quota's doing"
    assert lowest(missed=[(0.8, 12)], badly=True) == -1, "what queues here would queue without a quota"
    assert lowest(missed=[(0.8, top)]) == -1, "weights are not enough here, not at this load either"
    assert lowest(missed=[(0.8, top)], held=60) == rises, "one of sixty is chance"
    assert lowest(missed=[(0.04 * 1.2**place, 12) for place in reversed(range(13))]) == rises, "and so may all of these"
    assert min(levels(now, SafeLevelMemory(LIMITS))) == -1, "where BE weighs more, not every quota may do"


def test_rise_asks_for_one_ticks_most():
    left = levels(allocation_at(0, LIMITS), taught(held=[(0.7, 20)]))
    assert len(left) == 1
    assert 0 < left[0] < 20
    left = levels(allocation_at(0, LIMITS), taught(held=[(0.7, 9)]))
    assert 0 < left[0] < 9 < left[-1], "a leap beyond what held is left, and not the only move"


def test_the_minimum_may_run_whatever_missed():
    left = levels(allocation_at(10, LIMITS), taught(missed=[(0.4, 0)] * 3))
    assert left == [-1, 0]


def test_mask_above_bearable_leaves_lowest_moves():
    high = np.array([move.quota_ratio is not None and move.quota_ratio >= 0.5 for move in MOVES])
    left = levels(allocation_at(20, LIMITS), taught(missed=[(0.5, 5)]), mask=high)
    assert len(left) == 1


@pytest.mark.parametrize(("load", "ratio"), [(np.nan, 0.3), (0.5, np.nan)])
def test_without_load_or_latency_the_mask_stays(load, ratio):
    experience = taught(held=[(0.7, 12)], missed=[(0.5, 14)])
    assert experience.filter_moves(ALL, LIMITS.full, load, ratio).all()


def test_hosts_are_held_to_their_own_sizes():
    limits, highest = VectorLimits([Limits(2), Limits(36, lc_cpus=18.0)]), []
    experience = SafeLevelMemory(limits)
    for place, (host, level) in enumerate(zip(limits.each, (10, 20), strict=True)):
        add_missed(experience.rows[place], bin_of(0.5), level, False, False)
        left = experience.filter_moves(ALL, host.full, 0.5, 0.3, host=place)
        highest.append(max(level_of(MOVES[move].of(host.full, host), host) for move in np.flatnonzero(left)))
    assert highest == [9, 19]
