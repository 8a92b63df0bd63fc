"""The loop: whatever goes wrong in a tick, BE ends up with less, and the next tick comes."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.control import WRITE_FAILURES_IN_A_ROW, Controller
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, HostError, PolicyError
from rlctl.envs.fake import FakePlant
from rlctl.envs.telemetry import Missing, Why
from rlctl.record import MemoryRecorder
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

LIMITS = Limits(cpus=2)


def controller(plant, policy, shielded=True):
    shield = Shield(load_profile("responsive"), plant.limits) if shielded else None
    return Controller(plant, policy, shield, MemoryRecorder())


def ticks(one):
    return one.recorder.ticks


def test_the_readings_decision_and_writing_of_a_tick_are_recorded_together(always):
    plant = FakePlant(LIMITS, loads=(0.3,))
    loop = controller(plant, always(lambda o: Allocation(0.5, 1)), shielded=False)
    loop.run(ticks=3)
    assert [tick.index for tick in ticks(loop)] == [0, 1, 2]
    last = ticks(loop)[-1]
    assert (last.before, last.proposed, last.applied) == (Allocation(0.5, 1),) * 3
    assert last.note == "as ever"
    assert last.tick_seconds >= last.decision_seconds >= 0.0
    assert loop.totals.ticks == 3


@pytest.mark.parametrize(("shielded", "begin"), [(True, LIMITS.safe), (False, LIMITS.minimum)])
def test_under_a_shield_be_begins_frozen_and_without_one_where_the_policy_says(always, shielded, begin):
    plant = FakePlant(LIMITS)
    controller(plant, always(lambda o: o.current), shielded).begin()
    assert plant.current == begin


@given(st.lists(st.integers(-3, len(MOVES) + 2), min_size=1, max_size=20), st.floats(0.0, 1.5))
def test_nothing_is_ever_applied_beyond_the_verdict(always, moves, load):
    plant = FakePlant(LIMITS, loads=(load,))
    script = iter(moves)
    loop = controller(plant, always(lambda o: next(script)))
    loop.run(ticks=len(moves))
    for tick in ticks(loop):
        assert tick.applied.at_most(tick.verdict.allocation)
        assert tick.verdict.allocation.at_most(tick.proposed)


@pytest.mark.parametrize("error", [PolicyError("no such move"), ValueError("nan"), ZeroDivisionError(), KeyError("x")])
def test_a_policy_that_fails_costs_be_this_tick_and_the_next_goes_on(always, error):
    answers = [error, Allocation(0.1, 1)]

    def decide(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop = controller(FakePlant(LIMITS), always(decide), shielded=False)
    loop.run(ticks=2)
    assert [tick.applied for tick in ticks(loop)] == [LIMITS.safe, Allocation(0.1, 1)]
    assert "policy failed" in ticks(loop)[0].note
    assert loop.totals.policy_errors == 1


@pytest.mark.parametrize("nonsense", [99, -1, (1, 2), "full", None, 3.5])
def test_an_action_that_is_none_is_a_policy_failure(always, nonsense):
    loop = controller(FakePlant(LIMITS), always(lambda o: nonsense), shielded=False)
    loop.run(ticks=1)
    assert ticks(loop)[0].applied == LIMITS.safe
    assert loop.totals.policy_errors == 1


class Stubborn(FakePlant):
    """Refuses the writes that it is told to refuse."""

    def __init__(self, refuses, **options):
        super().__init__(LIMITS, **options)
        self.refuses = refuses
        self.tried = []

    def apply(self, allocation):
        self.tried.append(allocation)
        if self.refuses(allocation, len(self.tried)):
            raise CgroupError("batch/cpu.cfs_quota_us: Invalid argument")
        return super().apply(allocation)


def test_a_refused_write_falls_back_to_the_safe_allocation_and_is_recorded(always):
    plant = Stubborn(lambda a, n: a == Allocation(1.0, 2))
    loop = controller(plant, always(lambda o: Allocation(1.0, 2)), shielded=False)
    loop.run(ticks=2)
    assert [tick.applied for tick in ticks(loop)] == [LIMITS.safe] * 2
    assert "Invalid argument" in ticks(loop)[0].error
    assert loop.totals.write_errors == 2


def test_when_not_even_the_safe_allocation_can_be_written_the_loop_goes_on_for_a_while_then_leaves(always):
    plant = Stubborn(lambda a, n: n > 1)
    loop = controller(plant, always(lambda o: Allocation(1.0, 2)), shielded=False)
    with pytest.raises(HostError, match=f"{WRITE_FAILURES_IN_A_ROW} ticks in a row"):
        loop.run(ticks=1000)
    assert loop.totals.ticks == WRITE_FAILURES_IN_A_ROW - 1
    assert ticks(loop)[0].applied == LIMITS.minimum, "what is really in force is recorded"


def test_one_good_write_forgives_the_failures_before_it(always):
    numbers = iter(range(1000))
    plant = Stubborn(lambda a, n: a == Allocation(1.0, 2) and next(numbers) % 7 != 6)
    loop = controller(plant, always(lambda o: Allocation(1.0, 2)), shielded=False)
    loop.run(ticks=5 * WRITE_FAILURES_IN_A_ROW)
    assert loop.totals.write_errors > 3 * WRITE_FAILURES_IN_A_ROW


class Blind(FakePlant):
    def read(self):
        return super().read().but(tail_latency_seconds=Missing(Why.GONE), oldest_request_seconds=Missing(Why.GONE))


def test_a_blind_shield_keeps_be_frozen_whatever_is_asked_for(always):
    loop = controller(Blind(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    assert all(tick.applied.frozen for tick in ticks(loop))
    assert loop.totals.overrides == 5


def test_a_policy_that_wants_the_shields_mask_sees_it_when_there_is_a_shield(always):
    masks = []
    policy = always(lambda o: masks.append(o.mask) or o.current)
    policy.masked = True
    controller(FakePlant(LIMITS), policy).run(ticks=1)
    controller(FakePlant(LIMITS), policy, shielded=False).run(ticks=1)
    assert masks[0].shape == (len(MOVES),)
    assert masks[1] is None


def test_stop_ends_the_loop_after_the_tick_it_came_in(always):
    stop = threading.Event()
    loop = controller(FakePlant(LIMITS), always(lambda o: stop.set() or o.current))
    loop.run(stop=stop)
    assert loop.totals.ticks == 1


def test_missed_deadlines_are_counted(always):
    class Slow(FakePlant):
        def wait(self):
            super().wait()
            return 2

    loop = controller(Slow(LIMITS), always(lambda o: o.current))
    loop.run(ticks=3)
    assert loop.totals.missed_deadlines == 6
