"""The guard between two ticks: it can only tighten, hands back at the next, and is not believed when it is wrong."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.poller import HostSample, LcSample
from rlctl.envs.telemetry import Missing, Quantile, Value, Why, worst_of
from rlctl.envs.workload import SLO
from rlctl.log.kept import MemoryRecorder
from rlctl.log.record import Tee
from rlctl.loop.control import Controller
from rlctl.loop.fast_guard import HOUR_SECONDS, FastGuard
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.symptoms import Sign
from rlctl.serve.dry_run import DryRun
from tests.doubles.plant import FakePlant

LIMITS = Limits(cpus=2)
SLOS = {"web": SLO(0.010, 0.95, 1000.0)}
LATE = LcSample(Newest([0.030] * 20))
HALF = Allocation(0.5, 1)


def sample(seconds=0.1, web=LATE, *, foreign=False):
    return HostSample(seconds, {"web": web}, foreign)


class Watched(FakePlant):
    """Between two ticks it has looks for whoever wants them; `looks` by the number of the wait, from 1.

    Its readings do not depend on what BE has.
    """

    def __init__(self, looks=None, tail_seconds=None, **options):
        super().__init__(LIMITS, loads=(0.3,), **options)
        self.looks, self.tail_seconds = looks or {}, tail_seconds or {}
        self.answer, self.applied, self.refuses = None, [], False

    def wait(self):
        super().wait()
        for look in self.looks.get(self.ticks, ()):
            if self.answer:
                self.answer(look)
        return 0

    def read(self):
        telemetry = super().read().but(oldest_request_seconds=Value(0.0), be_cpus=Value(0.1), host_cpus=Value(0.5))
        tail = self.tail_seconds.get(self.ticks, 0.004)
        return telemetry.but(tail_latency_seconds=tail if isinstance(tail, Missing) else Quantile(tail, samples=500))

    def apply(self, allocation):
        if self.refuses:
            raise CgroupError("be/cpu.max: Invalid argument")
        self.applied.append(allocation)
        return super().apply(allocation)


def guarded(plant, policy, *, most=12, lease=None, guard=True, shielded=False, people=None, slos=SLOS):
    """A loop with the guard; without a shield the policy's word is the verdict."""
    shield = Shield(load_profile("responsive"), plant.limits) if shielded else None
    loop = Controller(plant, policy, shield, MemoryRecorder(), lease)
    if guard:
        loop.fast_guard = FastGuard(plant, slos, most, lease, people=people)
        plant.answer = loop.fast_guard.look
        loop.recorder = Tee(loop.fast_guard, ticks := loop.recorder)
        loop.ticks = ticks.ticks
    else:
        loop.ticks = loop.recorder.ticks
    return loop


@pytest.fixture
def half(always):
    return always(lambda o: HALF)


def test_sign_holds_be_until_the_next_tick(half):
    plant = Watched({2: [sample()]})
    loop = guarded(plant, half)
    loop.run(ticks=3)
    assert plant.applied[-3:] == [LIMITS.safe, HALF, HALF]
    before, held, after = loop.ticks
    assert (before.alarm, after.alarm) == (None, None)
    assert held.alarm.sign is Sign.LATE
    assert "20 of the last 20 above 10 ms" in held.alarm.detail
    assert held.before == HALF, "what was in force when the LC suffered: experience is booked on that"
    assert held.applied == HALF


class People:
    """Somebody who has just said that BE may have no more than so much, once."""

    def __init__(self, most):
        self.most, self.heard = most, []

    def urgent(self, limits):
        most, self.most = self.most, None
        return most

    def note_written(self, applied):
        self.heard.append(applied)


@pytest.mark.parametrize(
    ("most", "has"),
    [
        (LIMITS.safe, LIMITS.safe),
        (Allocation(0.3, 2), Allocation(0.3, 1)),
        (HALF, HALF),
        (LIMITS.full, HALF),
    ],
)
def test_operators_word_is_in_force_before_the_tick(half, most, has):
    """With a period of a minute a pause once took a minute."""
    plant, people = Watched({2: [sample(web=LcSample()), sample(web=LcSample(), foreign=True)]}), People(most)
    allowed = []
    loop = guarded(plant, half, people=people)
    loop.fast_guard._tighten_cpus = allowed.append
    loop.run(ticks=2)
    assert allowed == [most], "another rein may carry the level"
    first, *between, second = plant.applied[1:]
    assert between == [has] * 2, "what another program writes after that is answered with no more either"
    assert people.heard == [has]
    assert loop.ticks[-1].alarm is None
    assert loop.ticks[-1].before == has
    assert first == second == HALF, "whether the tick goes on with it is the shield's to say"


def test_after_an_alarm_a_limit_frees_nobody(half):
    plant, people = Watched({2: [sample()]}), People(None)
    loop = guarded(plant, half, people=people)
    loop.run(ticks=1)
    plant.wait()
    people.most = Allocation(0.3, 2)
    loop.fast_guard.look(sample(0.12))
    assert plant.current == LIMITS.safe
    assert people.heard == [LIMITS.safe]


def test_unwritten_pause_is_not_in_force(half):
    plant, people = Watched({2: [sample(web=LcSample())]}), People(LIMITS.safe)
    loop = guarded(plant, half, people=people)
    loop.run(ticks=1)
    plant.refuses = True
    plant.wait()
    assert people.heard == []


def test_of_a_period_there_is_one_alarm(half):
    plant = Watched({2: [sample(0.1), sample(0.12), sample(0.14)]})
    loop = guarded(plant, half)
    loop.run(ticks=2)
    assert plant.applied.count(LIMITS.safe) == 1


@pytest.mark.parametrize("held", [LIMITS.safe, LIMITS.minimum, LIMITS.minimum.but(0.011, 2)])
def test_be_that_is_held_already_raises_no_alarm(always, held):
    plant = Watched({2: [sample()]})
    loop = guarded(plant, always(lambda o: held))
    loop.run(ticks=2)
    assert [tick.alarm for tick in loop.ticks] == [None, None]


def test_foreign_write_is_answered_with_last_verdict(half):
    plant = Watched({2: [sample(web=LcSample(), foreign=True)] * 2})
    loop = guarded(plant, half)
    loop.run(ticks=2)
    assert plant.applied[-4:] == [HALF] * 4
    assert loop.ticks[-1].alarm is None


def test_after_alarm_foreign_write_meets_safe_allocation(half):
    plant = Watched({2: [sample(), sample(web=LcSample(), foreign=True)]})
    guarded(plant, half).run(ticks=2)
    assert plant.applied[-3:] == [LIMITS.safe, LIMITS.safe, HALF]


def a_lease(check="", lost=""):
    return SimpleNamespace(check=lambda: check, why_lost=lambda: lost, renew=lambda **_: None)


def test_verdict_that_watchdog_overruled_is_not_written_again(half):
    """The controller hung, the watchdog froze BE, and that write is what wakes the guard."""
    plant, people = Watched(), People(None)
    loop = guarded(plant, half, lease=a_lease(), people=people)
    loop.run(ticks=1)
    loop.fast_guard._lease = a_lease(check="no tick completed for 9.0 s")
    for people.most, foreign in ((None, True), (HALF, False)):
        loop.fast_guard.begin(HALF)
        plant.apply(HALF)
        loop.fast_guard.look(sample(web=LcSample(), foreign=foreign))
        assert plant.applied[-1] == LIMITS.safe


def test_nothing_is_written_where_originals_are_back(half):
    plant = Watched()
    loop = guarded(plant, half, lease=a_lease())
    loop.run(ticks=1)
    before = list(plant.applied)
    loop.fast_guard._lease = a_lease(lost="somebody put the originals back")
    loop.fast_guard.look(sample(foreign=True))
    assert plant.applied == before
    assert "put the originals back" in loop.fast_guard.end()[0].error


def test_failed_write_is_told_and_next_tick_writes(half):
    plant = Watched({2: [sample()]})
    loop = guarded(plant, half)
    loop.run(ticks=1)
    plant.refuses = True
    plant.wait()
    plant.refuses = False
    tick = loop.tick()
    assert "Invalid argument" in tick.alarm.error
    assert "not held" in str(tick.alarm)
    assert tick.applied == HALF


def test_unwritten_tick_leaves_only_safe_allocation_to_write(half):
    plant = Watched()
    loop = guarded(plant, half)
    loop.run(ticks=1)
    plant.refuses = True
    loop.tick()
    plant.refuses = False
    loop.fast_guard.look(sample(web=LcSample(), foreign=True))
    assert plant.applied[-1] == LIMITS.safe


def test_what_another_program_holds_is_no_growing_ground(half):
    """It writes `max` in a tight loop: the guard's answer fails, and what was read back is everything."""
    plant = Watched()
    loop = guarded(plant, half)
    loop.run(ticks=1)

    def overwritten(allocation):
        plant.current = LIMITS.full
        raise CgroupError("be/cpu.max reads max after 20000: another program writes it too")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plant, "apply", overwritten)
        loop.fast_guard.look(sample(web=LcSample(), foreign=True))
        loop.fast_guard.look(sample(0.2))  # a sign after that makes it no freer
    assert loop.fast_guard.end()[1] == LIMITS.safe


def test_sign_often_wrong_is_not_heeded_an_hour(half, caplog):
    minute, ticks = 60.0, 70
    plant = Watched({n: [sample(minute * n)] for n in range(1, ticks)}, tick_seconds=minute)
    loop = guarded(plant, half, most=3)
    loop.run(ticks=ticks - 1)
    alarms = [tick.index for tick in loop.ticks if tick.alarm]
    back = int(HOUR_SECONDS / minute)
    assert alarms == [1, 2, 3, back + 2, back + 3, back + 4], "three, and three more when those are over an hour ago"
    said = [text for text in caplog.messages if "is not heeded" in text]
    assert said == ["fast guard: 3 false alarms in an hour: late-requests of LC web is not heeded for now"] * 2


def test_alarm_in_missed_window_is_right(half):
    lost = Missing(Why.NO_DATA, "no request completed")
    plant = Watched({n: [sample(float(n))] for n in range(2, 5)}, tail_seconds={2: 0.02, 3: lost, 4: 0.004})
    loop = guarded(plant, half)
    loop.run(ticks=4)
    assert [tick.false_alarm for tick in loop.ticks if tick.alarm] == [False, False, True]


def test_sign_that_is_not_heeded_leaves_others(half):
    plant = Watched({2: [sample(2.0)], 3: [sample(3.0)], 4: [sample(4.0, LcSample(waits=True))]})
    loop = guarded(plant, half, most=1)
    loop.run(ticks=4)
    assert [tick.alarm and tick.alarm.sign for tick in loop.ticks] == [None, Sign.LATE, None, Sign.PRESSURE]


def test_false_alarms_of_an_lc_are_its_own(half):
    """One whose threads wait in turns once had the other's only early sign ignored."""

    class Several(Watched):
        def read(self):
            web = super().read()
            return worst_of({"web": web, "db": web.but(tail_latency_seconds=Quantile(0.02, samples=500))})

    waits = [HostSample(float(n), {"web": LcSample(waits=True), "db": LcSample()}) for n in (2, 3)]
    plant = Several({2: waits[:1], 3: waits[1:], 4: [HostSample(4.0, {"web": LcSample(), "db": LcSample(waits=True)})]})
    loop = guarded(plant, half, most=1, slos={"web": SLOS["web"], "db": SLOS["web"]})
    loop.run(ticks=4)
    assert [tick.alarm and tick.alarm.lc for tick in loop.ticks] == [None, "web", None, "db"]
    assert [tick.false_alarm for tick in loop.ticks if tick.alarm] == [True, False]
    assert loop.fast_guard.heeded == {*Sign} - {Sign.PRESSURE}


def test_dry_run_says_what_it_would_do(half, caplog):
    plant = Watched({2: [sample()]})
    plant.actuator = SimpleNamespace(controls={"cpu", "cpuset", "freezer"}, plan=lambda _: ())
    loop = guarded(DryRun(plant), half, guard=False)
    loop.fast_guard = FastGuard(loop.plant, SLOS, 12)
    plant.answer = loop.fast_guard.look
    with caplog.at_level("INFO"):
        loop.run(ticks=2)
    assert plant.applied == []
    assert loop.ticks[-1].alarm.sign is Sign.LATE
    assert any("would set BE from 0.50 CPU on 1 CPU to 0.01 CPU on 1 CPU, frozen" in text for text in caplog.messages)


one_look = st.builds(
    lambda late, waits, foreign: sample(0.0, LcSample(LATE.newest if late else NOTHING, waits), foreign=foreign),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(st.lists(one_look, max_size=4), min_size=1, max_size=12), st.floats(0.0, 1.2))
def test_whatever_it_sees_be_is_never_freer(always, periods, load):
    """And the verdicts are those of the loop without it, on the same readings."""

    def run(guard):
        plant = Watched(dict(enumerate(periods, start=1)))
        plant.loads = (load,)
        loop = guarded(plant, always(lambda o: LIMITS.full), guard=guard, shielded=True)
        loop.begin()
        verdict, freer = LIMITS.safe, []
        for _ in periods:
            start = len(plant.applied)
            plant.wait()
            freer += [one for one in plant.applied[start:] if not one.at_most(verdict)]
            verdict = loop.tick().verdict.allocation
        return freer, [tick.verdict.allocation for tick in loop.ticks]

    (freer, with_it), (_, without) = run(guard=True), run(guard=False)
    assert freer == []
    assert with_it == without
