"""What is booked of each window, what is told of it, and what is kept."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.experience import CALM, CALM_LOW, MEMORY, TOLD, SafeLevelMemory, allocation_at
from rlctl.envs.level_counts import LADDER, TOP, free_holds
from tests.doubles.levels import level_of

LIMITS = Limits(cpus=2)
HOLDS, MISSES = 0.5, 1.5


def lived(*windows, experience=None):
    """One host's windows, a second each: load, latency by the target, level, and what BE used if not all."""
    experience = experience or SafeLevelMemory(LIMITS)
    for second, (load, ratio, level, *used) in enumerate(windows):
        current = LIMITS.safe if level < 0 else allocation_at(level, LIMITS)
        be_cpus = used[0] if used else current.usable_cpus
        experience.observe(float(second), load, ratio, be_cpus, current)
    return experience


def free_holds_at(experience, load):
    return free_holds(experience.rows[0], load)


def cells(*windows):
    return [(round(share, 3), held, missed) for _, share, held, missed, _ in lived(*windows).plain()["cells"]]


def test_a_window_that_held_counts_for_its_level():
    assert cells((0.5, HOLDS, 12)) == [(LADDER[12], 1.0, 0.0)]


def test_miss_is_booked_a_window_later():
    assert cells((0.5, HOLDS, 12), (0.5, MISSES, 4)) == [(LADDER[12], 1.0, 0.0)]
    assert cells((0.5, HOLDS, 12), (0.5, MISSES, 4), (0.5, HOLDS, 4))[-1] == (LADDER[12], 0.5, 1.0)


def test_miss_that_blinds_next_window_is_booked():
    """The worst overloads stall the LC until its source says nothing, and the shield freezes BE."""
    for blind in ((np.nan, np.nan, -1), (0.5, np.nan, 12), (np.nan, HOLDS, 12)):
        assert cells((0.5, HOLDS, 12), (0.5, MISSES, 12), blind)[-1] == (LADDER[12], 0.5, 1.0)


def test_backlog_is_one_miss_lasting_is_another():
    assert sum(missed for *_, missed in cells((0.5, HOLDS, 4), *[(0.5, MISSES, 4)] * 5, (0.5, HOLDS, 4))) == 1.0
    lasting = cells((0.5, HOLDS, 4), *[(0.5, MISSES, 0)] * 8)
    assert [share for share, _, missed in lasting if missed] == [0.0, LADDER[4]]


@pytest.mark.parametrize("cpus", [1, 2])
def test_what_lc_misses_beside_minimum_is_its_own(cpus):
    """On one CPU the minimum is the second level of the ladder, not the first."""
    limits, experience = Limits(cpus=cpus), SafeLevelMemory(Limits(cpus=cpus))
    for second in range(80):
        current = limits.minimum if second < 30 else allocation_at(12, limits)
        ratio = 3.0 if second in (10, 20, 50) else HOLDS
        experience.observe(float(second), 0.5, ratio, current.usable_cpus, current)
    least = level_of(limits.minimum, limits)
    assert least == (1 if cpus == 1 else 0)
    badly = {share: badly for _, share, _, _, badly in experience.plain()["cells"]}
    assert badly == {LADDER[least]: 0.0, LADDER[12]: 1.0, 1.0: 0.0}
    assert experience.look_up(0.5).bearable == 12, "so many are missed anyway"


def test_bad_miss_under_quota_speaks_against_everything():
    """One slice of BE's may be the quota's doing; a queue would be longer without it."""

    def free(*ratios):
        missed = lived((0.5, HOLDS, 12), *[(0.5, ratio, 12) for ratio in ratios], (0.5, HOLDS, 12))
        return free_holds_at(missed, 0.5), missed

    assert free(MISSES)[0]
    assert not free(3.0)[0]
    assert not free(MISSES, 3.0)[0], "a queue grows"
    kept = SafeLevelMemory(LIMITS)
    kept.restore_state(json.loads(json.dumps(free(3.0)[1].state_dict())))
    assert not free_holds_at(kept, 0.5), "nor after a restart"


def test_what_the_lc_misses_alone_is_counted_apart():
    """Of the levels it says nothing. A backlog that BE has left is none of it, and a miss that lasts is another one."""

    def alone(*windows):
        return lived(*windows).plain()["alone"]

    backlog = (0.5, MISSES, 12), (0.5, MISSES, -1), (0.5, HOLDS, -1), (0.5, HOLDS, -1), (0.5, MISSES, -1)
    assert alone(*backlog) == [0.5, 1.0]
    assert alone(*[(0.5, HOLDS, -1)] * 4, (0.5, HOLDS, 12), (0.5, HOLDS, -1)) == [3.0, 0.0]
    assert alone((0.5, HOLDS, -1), (0.5, HOLDS, -1), *[(0.5, MISSES, -1)] * 6) == [0.25, 1.5]
    assert alone((0.5, HOLDS, TOP), (np.nan, np.nan, TOP), (0.5, 3.0, -1)) == [0.0, 0.0]
    assert lived(*[(0.5, HOLDS, -1)] * 3).state_dict()["alone"] == [2.0, 0.0]


def test_free_be_stays_until_a_miss():
    """A quota would be no relief: it costs the LC a slice in each period."""
    limits = replace(LIMITS, least_weight=True)
    for ratio, stays in ((0.79, True), (0.95, True), (1.01, False)):
        experience = SafeLevelMemory(limits)
        left = experience.filter_moves(np.ones(len(MOVES), np.bool_), limits.full, 0.5, ratio)
        assert bool(left[[move.name for move in MOVES].index("freeze")]) != stays


@pytest.mark.parametrize(("before", "comes_back"), [(0.6, True), (0.4, False)])
def test_falling_load_brings_be_back(before, comes_back):
    """Where it rises a level has to have held at more, for it may rise further before the next look."""
    experience = lived(*[(0.6, HOLDS, 14)] * 3, (before, HOLDS, 14), (0.5, HOLDS, 14))
    left = experience.filter_moves(np.ones(len(MOVES), np.bool_), allocation_at(14, LIMITS), 0.5, HOLDS)
    assert bool(left[[move.name for move in MOVES].index("minimum")]) != comes_back


def test_frozen_idle_and_blind_windows_teach_no_level():
    assert cells((0.5, HOLDS, -1), (0.5, HOLDS, 12, 0.0), (0.5, np.nan, 12), (np.nan, HOLDS, 12)) == []
    assert cells((0.5, HOLDS, -1), (0.5, MISSES, -1), (0.5, HOLDS, -1)) == []
    assert cells((0.5, HOLDS, 12, np.nan)), "nobody says that it was idle"


def test_told_is_the_most_that_held():
    told = lived(*[(0.5, HOLDS, 14)] * 3, (0.5, MISSES, 18), (0.5, HOLDS, 14)).features(0.5, HOLDS)
    assert len(told) == TOLD
    held, held_ahead, bearable, bearable_ahead, flag, flag_ahead, *_ = told
    assert ((held + 1.0) / 2.0) ** 2 == pytest.approx(LADDER[14])
    assert ((bearable + 1.0) / 2.0) ** 2 == pytest.approx(LADDER[17])
    assert bearable_ahead == bearable
    assert (held_ahead, flag, flag_ahead) == (0.0, 1.0, -1.0)
    assert len(MEMORY) == 4


def test_without_a_load_nothing_is_told():
    told = lived(*[(0.5, HOLDS, 14)] * 3).features(np.nan, HOLDS)
    assert told == [0.0] * 4 + [-1.0] * 2 + [0.0] * 2 + [-1.0]


def test_latency_is_told_against_this_loads_best():
    """A host whose latency is high by itself is not near its knee."""
    busy = lived(*[(0.5, 0.3, 4)] * 5)
    calm, above, known = busy.features(0.5, 0.3)[-len(CALM) - 1 :]
    assert (calm, above, known) == (pytest.approx(2 * np.log10(0.3 / CALM_LOW) / 4 - 1), -1.0, 1.0)
    assert busy.features(0.5, 3.0)[-2] == pytest.approx(0.0), "ten times of it, and a hundred times are 1"
    assert busy.features(0.7, 0.3)[-3:] == [0.0, 0.0, -1.0], "that load was not seen yet"


def test_best_of_load_falls_fast_and_rises_slowly():
    def calm(*ratios):
        return lived(*[(0.5, ratio, 4) for ratio in ratios]).features(0.5, 1.0)[-3]

    low, high = calm(0.1), calm(0.4)
    assert low <= calm(0.4, 0.1) <= low + 0.5 * (high - low)
    assert low < calm(0.1, 0.4) <= low + 0.1 * (high - low)


def test_hosts_of_different_sizes_learn_apart():
    limits = VectorLimits([Limits(2), Limits(36, lc_cpus=18.0)])
    experience = SafeLevelMemory(limits)
    for second in range(3):
        for host, cpus in enumerate((2, 36)):
            experience.observe(float(second), 0.5, HOLDS, 1.0, Allocation(1.0, cpus), host=host)
    assert [experience.plain(host)["cells"][0][1] for host in (0, 1)] == [0.5, 0.02]
    experience.forget(np.array([True, False]))
    assert [len(experience.plain(host)["cells"]) for host in (0, 1)] == [0, 1]


def test_remembered_is_recalled_nothing_is_empty():
    assert lived().state_dict() == {}
    memory = json.loads(json.dumps(lived(*[(0.5, HOLDS, 14)] * 3).state_dict()))
    again = SafeLevelMemory(LIMITS)
    again.restore_state(memory)
    assert again.state_dict() == memory
    assert memory["calm"] == [[pytest.approx(0.5, rel=0.06), HOLDS]]
    assert len(json.dumps(memory)) < 1000


@pytest.mark.parametrize("calm", [None, [1.0], [[0.5]], [[0.5, 0.0]], [[0.5, "1"]], [[-1.0, 0.5]], [[0.5, 1e9]]])
def test_no_memory_of_a_host_is_refused_whole(calm):
    memory = dict(lived(*[(0.5, HOLDS, 14)] * 3).state_dict()) | {"calm": calm}
    again = SafeLevelMemory(LIMITS)
    with pytest.raises(ValueError, match="no list of latencies"):
        again.restore_state(memory)
    assert again.state_dict() == {}


@pytest.mark.parametrize(
    ("allocation", "level"),
    [(LIMITS.safe, -1), (LIMITS.minimum, 0), (Allocation(0.39, 2), 8), (Allocation(0.4, 2), 9),
     (Allocation(UNLIMITED, 1), 15), (LIMITS.full, TOP)],
)  # fmt: skip
def test_the_level_that_an_allocation_has_reached(allocation, level):
    assert level_of(allocation, LIMITS) == level
    if allocation.cpuset_cpus == 2:
        assert allocation_at(level, LIMITS).at_most(allocation)


def test_known_goes_along_with_another_maximum_load():
    """What held at half of a first estimate of 140 requests a second is a twentieth of 1400."""
    experience = SafeLevelMemory(LIMITS)
    experience.rescale_load(140.0)
    lived(*[(0.5, HOLDS, 12)] * 3, (0.9, MISSES, 20), (0.9, HOLDS, 0), experience=experience)
    experience.rescale_load(140.0 * 1.03)
    assert experience.look_up(0.5).level == 12, "within a bin nothing moves"
    experience.rescale_load(1400.0)
    known = [experience.look_up(load) for load in (0.05, 0.5, 0.09)]
    assert [one.level for one in known] == [12, -1, -1]
    assert known[2].bearable < 20
    assert experience.features(0.05, HOLDS)[-1] == 1.0, "its latency at its best goes along"
    memory = json.loads(json.dumps(experience.state_dict()))
    again = SafeLevelMemory(LIMITS)
    again.restore_state(memory)
    again.rescale_load(140.0)
    assert again.look_up(0.5).level == 12


def test_what_leaves_bins_errs_on_side_of_lc():
    """A miss at less than the least load is one at the least; what held at it says nothing of it."""
    experience = SafeLevelMemory(LIMITS)
    experience.rescale_load(100.0)
    lived(*[(0.06, HOLDS, 12)] * 3, (0.06, MISSES, 20), (0.06, HOLDS, 0), experience=experience)
    experience.rescale_load(10_000.0)
    assert experience.counts()[0].sum() == 0.0
    assert experience.counts()[1, 0].sum() > 0.0
    experience.rescale_load(1.0)
    assert experience.counts()[1, 0].sum() > 0.0, "what was at next to nothing says nothing of more"


def test_misses_beyond_highest_load_are_not_forgotten():
    """After a restart the maximum may begin at a third of what it was."""
    experience = SafeLevelMemory(LIMITS)
    experience.rescale_load(100.0)
    lived(
        *[(0.01, HOLDS, TOP)] * 3, *[(0.9, HOLDS, 4)] * 3, (0.95, MISSES, 20), (0.95, HOLDS, 0), experience=experience
    )
    experience.rescale_load(30.0)
    assert [experience.look_up(load).level for load in (2.5, 0.5)] == [4, 4], "and near idle everything held"
    assert experience.look_up(2.5).bearable < 20
    experience.rescale_load(30.0 * 1.08)
    experience.rescale_load(30.0 * 1.04)
    assert [experience.look_up(load).level for load in (2.5, 0.5)] == [4, 4], "no going to and fro"


@pytest.mark.parametrize("rated", ["much", -1.0, math.inf, 10**400, True, None])
def test_a_maximum_that_is_none_is_refused(rated):
    memory = lived((0.5, HOLDS, 12)).state_dict() | {"max_load_rps": rated}
    with pytest.raises(ValueError, match="no maximum load"):
        SafeLevelMemory(LIMITS).restore_state(memory)
