"""The loop: whatever goes wrong in a tick, BE ends up with less, and the next tick comes."""

import logging
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.catalogue import build
from rlctl.agents.served.circuit_breaker import FailureBudget
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, CgroupGone, HostError, PolicyError
from rlctl.envs.telemetry import Missing, Value, Why, worst_of
from rlctl.log.kept import MemoryRecorder
from rlctl.loop.control import Controller
from rlctl.loop.failsafe import FAILURES_IN_A_ROW
from rlctl.safety.memory_guards import MemoryPressureGuard
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.trust import NEVER_THERE
from tests.doubles.plant import FakePlant

LIMITS = Limits(cpus=2)


def controller(plant, policy, shielded=True):
    shield = Shield(load_profile("responsive"), plant.limits) if shielded else None
    return Controller(plant, policy, shield, MemoryRecorder())


def ticks(one):
    return one.recorder.ticks


def test_readings_decision_and_writing_are_recorded_together(always):
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
def test_be_begins_frozen_or_where_the_policy_says(always, shielded, begin):
    plant = FakePlant(LIMITS)
    controller(plant, always(lambda o: o.current), shielded).begin()
    assert plant.current == begin


def test_shield_follows_what_the_weight_is_worth(always):
    plant = FakePlant(LIMITS, loads=(0.3,))
    loop = controller(plant, always(lambda o: LIMITS.full))
    for least in (True, False):
        plant.limits = replace(plant.limits, least_weight=least)
        loop.tick()
        assert loop.runner.shield.limits.least_weight is least


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_what_host_taught_goes_on_with_another_policy(always, same, fails):
    loop = controller(FakePlant(LIMITS, loads=(0.1,)), always(lambda o: LIMITS.full))
    loop.run(ticks=30)
    taught, shield = loop.runner.observer.experience, loop.runner.shield
    assert taught.counts()[0].any()
    another = always(lambda o: o.current)
    if fails:
        another.start = lambda limits: 1 / 0
    loop.exchange(another, shield if same else Shield(load_profile("heracles"), LIMITS))
    assert loop.runner.observer.experience is taught
    assert fails or loop.plant.current.frozen == (not same)


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
def test_failing_policy_costs_be_this_tick_only(always, error):
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
def test_action_that_is_none_is_policy_failure(always, nonsense):
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


def test_refused_write_falls_back_to_the_safe_allocation(always):
    plant = Stubborn(lambda a, n: a == Allocation(1.0, 2))
    loop = controller(plant, always(lambda o: Allocation(1.0, 2)), shielded=False)
    loop.run(ticks=2)
    assert [tick.applied for tick in ticks(loop)] == [LIMITS.safe] * 2
    assert "Invalid argument" in ticks(loop)[0].error
    assert loop.totals.write_errors == 2


def test_loop_leaves_when_nothing_safe_can_be_written(always):
    plant = Stubborn(lambda a, n: n > 1)
    loop = controller(plant, always(lambda o: Allocation(1.0, 2)), shielded=False)
    with pytest.raises(HostError, match=f"{FAILURES_IN_A_ROW} ticks in a row"):
        loop.run(ticks=1000)
    assert loop.totals.ticks == FAILURES_IN_A_ROW - 1
    assert ticks(loop)[0].applied == LIMITS.minimum, "what is really in force is recorded"


def test_ten_ticks_a_second_never_fill_the_log(always, caplog):
    plant = Stubborn(lambda a, n: n > 1)
    plant.tick_seconds = 0.1
    loop = controller(plant, always(lambda o: 1 / 0), shielded=False)
    with pytest.raises(HostError, match="100 ticks in a row could not be written"):
        loop.run(ticks=1000)
    for what in ("write failed: ", "policy always failed: "):
        told = [message for message in caplog.messages if message.startswith(what)]
        assert len(told) == 7, "1st, 2nd, 4th ... 64th"
        assert told[-1].endswith("(64 times in a row)")


def test_one_good_write_forgives_the_failures_before_it(always):
    numbers = iter(range(1000))
    plant = Stubborn(lambda a, n: a == Allocation(1.0, 2) and next(numbers) % 7 != 6)
    loop = controller(plant, always(lambda o: Allocation(1.0, 2)), shielded=False)
    loop.run(ticks=5 * FAILURES_IN_A_ROW)
    assert loop.totals.write_errors > 3 * FAILURES_IN_A_ROW


class Blind(FakePlant):
    def read(self):
        return super().read().but(tail_latency_seconds=Missing(Why.GONE), oldest_request_seconds=Missing(Why.GONE))


def test_blind_shield_keeps_be_frozen(always):
    loop = controller(Blind(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    assert all(tick.applied.frozen for tick in ticks(loop))
    assert loop.totals.overrides == 5


def test_policy_that_wants_the_mask_sees_it(always):
    masks = []
    policy = always(lambda o: masks.append(o.mask) or o.current)
    policy.masked = True
    controller(FakePlant(LIMITS), policy).run(ticks=1)
    controller(FakePlant(LIMITS), policy, shielded=False).run(ticks=1)
    assert masks[0].shape == (len(MOVES),)
    assert masks[1] is None


def test_stop_ends_loop_after_tick_it_came_in(always):
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


def test_unreadable_tick_keeps_be_safe_loop_goes_on(always):
    class Moody(FakePlant):
        def read(self):
            if self.ticks in (3, 4):
                raise OSError(5, "Input/output error")
            return super().read()

    loop = controller(Moody(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=8)
    assert [tick.applied == LIMITS.safe for tick in ticks(loop)[2:4]] == [True, True]
    assert not ticks(loop)[-1].applied.frozen, "the next reading frees BE again"
    blind = ticks(loop)[2]
    assert (blind.acting, blind.fallback) == ("safe", "reading failed: OSError: [Errno 5] Input/output error")
    assert blind.telemetry.time_seconds == 3.0, "one period after the last reading"
    assert (loop.totals.tick_errors, loop.totals.write_errors, loop.totals.policy_errors) == (2, 0, 0)


def test_unreadable_host_keeps_be_safe_without_shield_too(always):
    class Unreadable(FakePlant):
        def read(self):
            raise HostError("the host is gone")

    plant, begun = Unreadable(LIMITS), time.monotonic()
    loop = controller(plant, always(lambda o: LIMITS.full), shielded=False)
    with pytest.raises(HostError, match=f"{FAILURES_IN_A_ROW} ticks in a row went wrong: .*the host is gone"):
        loop.run(ticks=1000)
    assert plant.current == LIMITS.safe
    assert loop.totals.ticks == len(ticks(loop)) == FAILURES_IN_A_ROW
    times = [tick.telemetry.time_seconds for tick in ticks(loop)]
    assert np.diff(times) == pytest.approx(1.0), "the log stays readable"
    assert begun <= times[0] <= time.monotonic() + 1.0, "as of a host that can be read"


def test_failed_read_leaves_each_lc_its_own_target(always):
    """Once `rlctl advise` took the ticks before it for those of another host."""

    class Several(FakePlant):
        def read(self):
            if self.ticks == 3:
                raise OSError(5, "Input/output error")
            own = super().read()
            return worst_of({"web": own, "cache": own.but(target_seconds=0.020)})

    loop = controller(Several(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=4)
    assert [tick.telemetry.targets_seconds for tick in ticks(loop)] == [{"web": 0.010, "cache": 0.020}] * 4
    blind = ticks(loop)[2]
    assert (blind.acting, blind.applied, blind.telemetry.time_seconds) == ("safe", LIMITS.safe, 3.0)


def test_failed_read_is_lost_reading_for_counter_guards(always):
    """Once one failed read ended what the guard of the LC's memory held, and its time of calm."""
    stalled = {"lc_memory_pressure_ratio": Value(0.9)}

    class Moody(FakePlant):
        def read(self):
            if self.ticks == 2:
                raise OSError(5, "Input/output error")
            return super().read().but(counters=stalled)

    loop = controller(Moody(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=3)
    seen = [MemoryPressureGuard.reading(tick.telemetry) for tick in ticks(loop)]
    assert [isinstance(reading, Missing) for reading in seen] == [False, True, False]
    assert seen[1].why not in NEVER_THERE


def test_last_frozen_group_that_went_ends_the_loop(always):
    class Gone(FakePlant):
        def apply(self, allocation):
            if self.ticks > 3:
                raise CgroupGone("batch: no longer exists")
            return super().apply(allocation)

    with pytest.raises(HostError, match=f"{FAILURES_IN_A_ROW} ticks in a row could not be written"):
        controller(Gone(LIMITS), always(lambda o: LIMITS.safe)).run(ticks=1000)


def test_shield_that_breaks_takes_be_to_safe_allocation(always, monkeypatch):
    loop = controller(FakePlant(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    monkeypatch.setattr(loop.runner.shield, "rule", lambda *_: 1 / 0)
    assert loop.tick().applied == LIMITS.safe
    assert ticks(loop)[-1].note == "deciding failed: ZeroDivisionError: division by zero"


def test_unknown_failure_of_a_write_is_failed_write(always):
    class Odd(FakePlant):
        def apply(self, allocation):
            if allocation == LIMITS.full:
                raise ValueError("nobody foresaw this")
            return super().apply(allocation)

    loop = controller(Odd(LIMITS), always(lambda o: LIMITS.full), shielded=False)
    loop.run(ticks=3)
    assert [tick.applied for tick in ticks(loop)] == [LIMITS.safe] * 3
    assert loop.totals.write_errors == 3


def test_a_recorder_that_breaks_costs_the_record_only(always):
    class Broken:
        def write(self, tick):
            raise ValueError("out of range float values are not JSON compliant")

    plant = FakePlant(LIMITS)
    loop = Controller(plant, always(lambda o: Allocation(0.5, 1)), None, Broken())
    loop.run(ticks=2 * FAILURES_IN_A_ROW)
    assert plant.current == Allocation(0.5, 1)
    assert loop.totals.tick_errors == loop.totals.ticks


@pytest.mark.parametrize("knob", [{"cpuset_cpus": 1.5}, {"quota_cpus": "1"}, {"quota_cpus": 10**400}])
def test_allocation_of_odd_types_is_the_policys_failure(always, knob):
    odd = object.__new__(Allocation)
    for name, value in ({"quota_cpus": 0.5, "cpuset_cpus": 1, "frozen": False} | knob).items():
        object.__setattr__(odd, name, value)
    loop = controller(FakePlant(LIMITS), always(lambda o: odd), shielded=False)
    loop.run(ticks=1)
    tick = ticks(loop)[0]
    if loop.totals.policy_errors:
        assert tick.applied == LIMITS.safe
    assert {type(tick.proposed.quota_cpus), type(tick.proposed.cpuset_cpus)} == {float, int}
    assert loop.totals.write_errors == 0


class FakeLease:
    """Says what it is told to say, and counts."""

    def __init__(self):
        self.reason = self.gone = ""
        self.renewed = self.checked = 0

    def check(self):
        self.checked += 1
        return self.reason

    def renew(self, *, safe=False):
        self.renewed += 1
        self.safe = safe

    def why_lost(self):
        return self.gone


BEGINNING = 2
"""Renewals of a beginning: the safe allocation is written, and the first readings are taken."""


def leased(plant, policy, shielded=True):
    loop = controller(plant, policy, shielded)
    loop.lease = FakeLease()
    return loop


def test_the_lease_is_renewed_after_each_shielded_tick(always):
    loop = leased(FakePlant(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    assert loop.lease.renewed == BEGINNING + 5
    bare = leased(FakePlant(LIMITS), always(lambda o: LIMITS.full), shielded=False)
    bare.run(ticks=5)
    assert bare.lease.renewed == 0


def test_wrong_tick_that_left_be_safe_renews_lease(always):
    loop = leased(FakePlant(LIMITS), always(lambda o: LIMITS.full))
    loop.begin()
    loop.plant.read = lambda: 1 / 0
    loop.tick()
    assert (loop.lease.checked, loop.lease.renewed) == (1, BEGINNING + 1), "the loop lives, BE is where it should be"


def test_lease_is_renewed_only_while_be_is_safe(always):
    loop = leased(Stubborn(lambda a, n: False), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    assert not loop.plant.current.frozen
    loop.plant.refuses = lambda a, n: True
    loop.tick()
    assert loop.lease.renewed == BEGINNING + 5
    safe = leased(Stubborn(lambda a, n: a != LIMITS.safe), always(lambda o: LIMITS.full))
    safe.run(ticks=5)
    assert safe.lease.renewed == BEGINNING + 5


def test_without_watchdog_be_is_safe_tick_says_why(always, caplog):
    loop = leased(FakePlant(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    loop.lease.reason = "the watchdog died; it is started again"
    with caplog.at_level(logging.ERROR):
        for _ in range(7):
            tick = loop.tick()
    assert tick.applied == LIMITS.safe
    assert (tick.acting, tick.fallback, tick.note) == ("safe", loop.lease.reason, loop.lease.reason)
    assert tick.error == ""
    assert caplog.text.count("the watchdog died") == 3, "said ever more seldom"
    loop.lease.reason = ""
    assert not loop.tick().applied.frozen


def test_a_watchdog_that_cannot_be_asked_is_none(always):
    loop = leased(FakePlant(LIMITS), always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    loop.lease.check = lambda: 1 / 0
    assert loop.tick().applied == LIMITS.safe


def test_originals_restored_behind_its_back_end_the_loop(always):
    plant = FakePlant(LIMITS)
    loop = leased(plant, always(lambda o: LIMITS.full))
    loop.run(ticks=5)
    loop.lease.gone = "the watchdog restored the originals 3 s ago"
    plant.apply(LIMITS.minimum)
    with pytest.raises(HostError, match="restored the originals"):
        loop.tick()
    assert plant.current == LIMITS.minimum


HANG = object()
ANSWERS = st.one_of(
    st.integers(),
    st.floats(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 3), max_size=4),
    st.builds(np.array, st.lists(st.floats(), max_size=3)),
    st.builds(Allocation, st.floats(0.001, 1e300), st.integers(1, 10**30), st.booleans()),
    st.sampled_from([ValueError("nan"), SystemExit(3), RecursionError(), MemoryError(), KeyboardInterrupt()]),
    st.just(HANG),
)
WINDOW = FailureBudget(
    answer_milliseconds=2.0, failure_window_seconds=5, window_seconds=5, hold_seconds=2, most_hold_seconds=4
)


@given(st.lists(st.tuples(ANSWERS, st.booleans()), min_size=1, max_size=20), st.floats(0.0, 1.2))
def test_be_is_never_freer_than_verdict_whatever_policy(always, script, load):
    released = threading.Event()
    answers = iter(script)

    def decide(_):
        answer, noted = next(answers, (1, True))
        policy.note = "because" if noted else answer
        if answer is HANG:
            released.wait(10.0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    policy = always(decide)
    chain = FallbackPolicy(policy, build("prm-hybrid-tuned"), 1.0, WINDOW)
    loop = controller(FakePlant(LIMITS, loads=(load, 0.3)), chain)
    try:
        loop.run(ticks=len(script))
    finally:
        released.set()
        chain.close()
    assert loop.totals.ticks == len(script)
    assert loop.totals.tick_errors == 0
    for tick in ticks(loop):
        assert tick.applied.at_most(tick.verdict.allocation)
        assert tick.verdict.allocation.at_most(tick.proposed)
        assert tick.acting in ("always", "prm-hybrid-tuned")
        assert (tick.fallback == "") == (tick.acting == "always")


def test_tick_says_who_decided_and_why_not_policy(always):
    answers = [Allocation(0.1, 1), ValueError("no"), Allocation(0.1, 1)]
    policy = always(lambda o: answers[round(o.telemetry.time_seconds) - 1])
    patient = FailureBudget().model_copy(update={"answer_milliseconds": 30_000.0})
    chain = FallbackPolicy(always(lambda o: raised(policy.act(o))), build("frozen"), 1000.0, patient)
    loop = controller(FakePlant(LIMITS), chain)
    loop.run(ticks=3)
    chain.close()
    assert [tick.acting for tick in ticks(loop)] == ["always", "frozen", "always"]
    assert [tick.fallback for tick in ticks(loop)] == ["", "ValueError: no", ""]
    assert {tick.policy for tick in ticks(loop)} == {"always"}
    assert loop.totals.policy_errors == 1


def raised(answer):
    """The answer, or, if it is an error, that."""
    if isinstance(answer, Exception):
        raise answer
    return answer
