"""The reins of a live host: whatever is ruled, changed or refused, BE is never freer than the verdict."""

import contextlib
import logging
import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, HostError
from rlctl.envs.host.network.shaper import Sent
from rlctl.envs.host.reins import opening
from rlctl.envs.host.reins.carried_rate import LEAST_BYTES
from rlctl.envs.host.reins.link import FIND_SECONDS, LinkRein
from rlctl.envs.host.reins.link_share import LinkShare
from rlctl.envs.host.reins.opening import LinkPlace
from rlctl.envs.host.reins.reins import FAILURES_IN_A_ROW, Reins
from rlctl.envs.reins import CARRIED_RATIO, FELL, LINK_CARRIED, LINK_SENT, OTHERS, USE, Rein, level_ratio
from rlctl.envs.telemetry import Quantile, Telemetry, Value

LIMITS = Limits(cpus=4)
SOME = Allocation(1.0, 4)


class Host:
    """A kernel's settings: of the CPUs and of two more reins, with whoever looks at each write."""

    def __init__(self, look=lambda: None):
        self.limits, self.groups = LIMITS, ()
        self.cpus = LIMITS.full
        self.holds = {Rein.LINK: 1.0, Rein.DISK: 1.0}
        self.refused, self.lacking = set(), set()
        self.look = look
        self.reins = Reins(self, {rein: Held(self, rein) for rein in self.holds})
        self.reins.moves = lambda: True

    def read(self):
        return self.cpus

    def apply(self, allocation, *, new_tick=True):
        if Rein.CPU in self.refused:
            raise CgroupError("refused")
        self.cpus = allocation
        self.look()
        return allocation

    def take(self, rein):
        """As if the law had chosen it, which never chooses a lost one."""
        if rein not in self.reins._lost:
            self.reins._law.in_hand = rein


class Held:
    most, is_known = None, True

    def __init__(self, host, rein):
        self.host, self.rein, self.judged = host, rein, []

    def prepare(self):
        if self.rein in self.host.lacking:
            raise HostError("no such thing here")

    def judge(self, *, missed, calm, ran_ratio):
        self.judged.append((missed, calm, ran_ratio))

    def hold(self, ratio):
        if self.rein in self.host.refused:
            raise HostError("refused")
        self.host.holds[self.rein] = 1.0 if ratio is None else ratio
        self.host.look()

    def read_use(self, now_seconds):
        return {USE[self.rein]: 0.5}

    def follow(self, groups):
        self.groups = groups

    def close(self):
        self.host.holds[self.rein] = 1.0


def holds(host, verdict, rein):
    """Whether the kernel's settings are no freer than a verdict on a rein."""
    if verdict.frozen:
        return host.cpus.frozen
    if rein is Rein.CPU:
        return host.cpus.at_most(verdict)
    # A frozen BE uses nothing, whatever it has beneath.
    return host.cpus.frozen or host.holds[rein] <= level_ratio(verdict, LIMITS.cpus)


VERDICTS = st.builds(Allocation, st.floats(0.01, 4.0) | st.just(float("inf")), st.integers(1, 4), st.booleans())
STEPS = st.tuples(
    VERDICTS, st.sampled_from(list(Rein)), st.frozensets(st.sampled_from(list(Rein)), max_size=2), st.booleans()
)


@given(st.lists(STEPS, min_size=1, max_size=12))
@settings(deadline=None, max_examples=300)
def test_kernel_is_never_freer_than_the_verdict(steps):
    logging.disable(logging.CRITICAL)
    wrong, bounds = [], []

    def look():
        # While a verdict is written the one before may still be in force, and nothing freer than both.
        wrong.extend([0] if not any(holds(host, *bound) for bound in bounds) else ())

    host = Host(look)
    bounds = [(LIMITS.full, Rein.CPU)]
    for verdict, rein, refused, between in steps:
        host.take(rein)
        host.refused = set(refused)
        then = host.reins.in_hand if between else host.reins._law.in_hand
        verdict = LIMITS.clip(verdict)
        bounds = [*bounds[-1:], (verdict, then)]
        try:
            applied = host.reins.apply(verdict, new_tick=not between)
        except HostError:
            # As the loop does: the safe allocation over whatever a write that failed has left.
            host.refused -= {Rein.CPU}
            with contextlib.suppress(HostError):
                host.reins.apply(LIMITS.safe, new_tick=False)
            assert host.cpus == LIMITS.safe
            assert host.reins.read_level().frozen
            bounds = [(LIMITS.safe, host.reins.in_hand)]
        else:
            assert holds(host, verdict, host.reins.in_hand)
            assert applied == verdict
            assert host.cpus.frozen == verdict.frozen
            bounds = [(verdict, host.reins.in_hand)]
    assert not wrong
    logging.disable(logging.NOTSET)


def test_cpus_are_free_under_another_rein():
    host = Host()
    host.take(Rein.LINK)
    assert host.reins.apply(SOME) == SOME
    assert (host.cpus, host.holds) == (LIMITS.full, {Rein.LINK: 0.25, Rein.DISK: 1.0})
    host.take(Rein.CPU)
    assert host.reins.apply(SOME) == SOME
    assert (host.cpus, host.holds[Rein.LINK]) == (SOME, 1.0)


def test_least_level_holds_on_all():
    host = Host()
    host.take(Rein.DISK)
    for least in (LIMITS.safe, LIMITS.minimum):
        host.reins.apply(least)
        assert host.cpus == least
        assert host.holds[Rein.DISK] == pytest.approx(0.0025)


def test_foreign_limit_shows_in_the_level():
    host = Host()
    host.take(Rein.DISK)
    host.reins.apply(SOME)
    host.cpus = Allocation(0.5, 2)
    assert host.reins.read_level() == Allocation(0.5, 2)


def test_policy_of_cpus_moves_no_rein():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    host.reins.moves = lambda: False
    host.reins.apply(SOME)
    assert (host.cpus, host.holds[Rein.LINK], host.reins.in_hand) == (SOME, 1.0, Rein.CPU)


def test_between_two_ticks_no_rein_is_taken():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME, new_tick=False)
    assert host.reins.in_hand is Rein.CPU


def test_lost_rein_leaves_the_cpus():
    host = Host()
    host.take(Rein.LINK)
    host.refused = {Rein.LINK}
    for _ in range(FAILURES_IN_A_ROW):
        with pytest.raises(HostError):
            host.reins.apply(SOME)
    assert host.cpus == LIMITS.full, "nothing was freed before the rein held"
    assert host.reins.apply(SOME) == SOME
    assert (host.cpus, host.reins.in_hand) == (SOME, Rein.CPU)
    assert any("link" in event for event in host.reins._events.drain())


def test_three_failures_in_a_row_cost_a_rein():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    for refused in (True, True, False, True, True, True):
        assert host.reins.in_hand is Rein.LINK
        host.refused = {Rein.LINK} if refused else set()
        with contextlib.suppress(HostError):
            host.reins.apply(SOME)
    host.refused = set()
    host.reins.apply(SOME)
    assert host.reins.in_hand is Rein.CPU
    assert host.holds[Rein.LINK] == 1.0, "a rein that is lost lets go of BE once it can"


def test_lost_rein_is_freed_later():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    host.take(Rein.DISK)
    host.refused = {Rein.LINK}
    for _ in range(FAILURES_IN_A_ROW):
        host.reins.apply(SOME)
        assert host.holds[Rein.LINK] == 0.25
    host.refused = set()
    host.reins.apply(SOME)
    assert host.holds == {Rein.LINK: 1.0, Rein.DISK: 0.25}


def test_lost_rein_is_freed_without_its_groups():
    """A group came whose packets cannot be told: BE kept a tenth of the link for as long as the service ran."""
    host, tells = Host(), True

    def follow(groups):
        if not tells:
            raise HostError("no group of its own")

    host.reins._others[Rein.LINK].follow = follow
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    tells, host.groups = False, ("new",)
    for _ in range(FAILURES_IN_A_ROW):
        with pytest.raises(HostError):
            host.reins.apply(SOME)
    host.reins.apply(LIMITS.full)
    assert (host.reins.in_hand, host.holds[Rein.LINK]) == (Rein.CPU, 1.0)


def test_people_limit_cpus_under_any_rein():
    """`rlctl limit 0.5` said half a CPU, and BE had all of them and an eighth of the link."""
    host = Host()
    host.take(Rein.LINK)
    host.reins.most_cpus = Allocation(0.5, 4)
    host.reins.apply(Allocation(0.5, 4))
    assert (host.cpus, host.holds[Rein.LINK]) == (Allocation(0.5, 4), 0.125)


def test_windows_that_were_seen_choose_the_rein():
    host = Host()
    waits = {"lc_io_pressure_ratio": Value(0.6), USE[Rein.DISK]: Value(0.5), USE[Rein.LINK]: Value(0.0)}
    for second in range(2):
        late = Telemetry(float(second), 0.01, tail_latency_seconds=Quantile(0.05, samples=50), counters=waits)
        host.reins.look(late, SOME)
    host.reins.apply(SOME)
    assert host.reins.in_hand is Rein.DISK


def test_freeze_comes_before_a_rein_that_fails():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(LIMITS.minimum)
    host.refused = {Rein.LINK}
    with pytest.raises(HostError):
        host.reins.apply(SOME.but(frozen=True))
    assert host.cpus.frozen


def test_a_second_close_touches_nothing():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    host.reins.close()
    assert host.holds[Rein.LINK] == 1.0
    host.holds[Rein.LINK] = 0.5
    host.reins.close()
    assert host.holds[Rein.LINK] == 0.5


def test_rein_that_is_not_freed_is_tried_again():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    host.take(Rein.DISK)
    host.refused = {Rein.LINK}
    assert host.reins.apply(SOME) == SOME
    assert host.holds == {Rein.LINK: 0.25, Rein.DISK: 0.25}
    host.refused = set()
    host.reins.apply(SOME)
    assert host.holds == {Rein.LINK: 1.0, Rein.DISK: 0.25}


def test_rein_that_cannot_be_had_frees_nobody():
    host = Host()
    host.lacking = {Rein.LINK}
    host.take(Rein.LINK)
    assert host.reins.apply(SOME) == SOME
    assert (host.cpus, host.reins.in_hand) == (SOME, Rein.CPU)
    host.reins.apply(SOME)
    assert host.reins.in_hand is Rein.CPU


def test_groups_that_come_are_followed():
    host = Host()
    host.groups = ("another",)
    host.take(Rein.DISK)
    host.reins.apply(SOME)
    assert host.reins._others[Rein.DISK].groups == ("another",)
    host.reins._others[Rein.DISK].groups = ()
    host.reins.apply(SOME)
    assert host.reins._others[Rein.DISK].groups == (), "the same ones are followed once"


class Interface:
    def __init__(self):
        self.sent, self.held = (0, 0), None

    def sent_bytes(self):
        return self.sent

    def hold(self, bytes_per_second):
        self.held = bytes_per_second

    def follow(self, groups):
        self.groups = groups

    def close(self):
        self.groups = None


def test_flushed_rules_are_back_at_once(caplog):
    """After a second `nft flush ruleset` within ten seconds BE was free, and nothing failed."""
    rules, refused = [], []

    def replace(senders):
        if refused:
            raise HostError("refused")
        rules.extend(senders)

    kernel = SimpleNamespace(
        name="eth0",
        refusing=lambda doing: contextlib.nullcontext(),
        shaper=SimpleNamespace(read_counts=lambda: Sent(0, 0, 0), set_rate=lambda rate: None),
        rules=SimpleNamespace(count=lambda: len(rules), replace=replace),
    )
    rein = LinkRein(kernel, None)
    rein._senders, rein._found_seconds = ("be",), math.inf
    for _ in range(3):
        rules.clear()
        rein.sent_bytes()
        assert rules == ["be"]
        rein.hold(1e6)
    assert len(caplog.messages) == 2, "at the first and second time in a row"
    rules.clear()
    refused.append(True)
    for refuses in (rein.sent_bytes, lambda: rein.hold(1e6)):
        with pytest.raises(HostError):
            refuses()


def test_link_without_class_is_not_touched():
    share = LinkShare(Interface, lambda: (0, 0))
    share.follow(["be"])
    share.hold(0.5)
    share.close()
    assert share._link is None


def test_open_link_is_held_followed_and_closed():
    link = Interface()
    share = LinkShare.of(link)
    share.hold(0.5)
    assert link.held == 0.5 * CARRIED_RATIO * LEAST_BYTES
    share.follow(["be"])
    assert link.groups == ["be"]
    share.close()
    assert link.groups is None


def test_use_of_link_is_by_the_second():
    link = Interface()
    share = LinkShare.of(link)
    assert share.read_use(0.0) == {}
    link.sent = 500_000, 0
    readings = share.read_use(2.0)
    assert (readings[LINK_SENT], readings[OTHERS]) == (2.0, 1.0), "two seconds, and no more than all of it"
    assert share.read_use(2.0) == {}, "no time has passed"


def test_link_is_shared_by_what_it_carries():
    link = Interface()
    share = LinkShare(lambda: link, lambda: (link.sent[0], 0))
    seen = iterate(link, share)
    assert next(seen) == {}
    first = seen.send((250_000, 0))
    assert first == {LINK_CARRIED: 125_000.0, FELL[Rein.LINK]: 0.0, LINK_SENT: 2.0}, (
        "nobody counts BE's part before it is told apart"
    )
    share.hold(0.5)
    assert link.held is None
    share.prepare()
    share.hold(0.5)
    assert link.held == 0.5 * CARRIED_RATIO * LEAST_BYTES, "BE's own bytes were among the others' until now"
    share.hold(None)
    assert seen.send((0, 0)) == {}
    seen.send((19_750_000, 0))
    assert share.most == 10_000_000, "one window alone fills a queue"
    seen.send((0, 0))
    known = {LINK_CARRIED: 10e6, FELL[Rein.LINK]: 0.0}
    used = seen.send((10_000_000, 6_000_000))
    assert used == {**known, LINK_SENT: 1.0, USE[Rein.LINK]: 1.0, OTHERS: 0.4}
    used = seen.send((5_000_000, 2_000_000))
    assert used == {**known, LINK_SENT: 0.5, USE[Rein.LINK]: pytest.approx(2 / 7), OTHERS: 0.3}
    share.hold(0.5)
    assert link.held == pytest.approx(5.9e6), "half of what the others leave"
    assert seen.send((5_000_000, 2_000_000))[USE[Rein.LINK]] == pytest.approx(0.5 * 0.2 / 0.29)
    assert seen.send((8_000_000, 4_000_000))[USE[Rein.LINK]] == pytest.approx(0.5), "all that the others left of it"
    assert seen.send((8_000_000, 0))[USE[Rein.LINK]] == 0.5, "and where that was nothing"
    share.hold(1.0)
    assert link.held == pytest.approx(8.8e6), "everything is what the link carries without a queue"
    share.hold(None)
    assert link.held is None
    assert seen.send((10_000_000, 0))[USE[Rein.LINK]] == 0.0, "the LC fills it by itself"


def test_cut_window_shows_what_be_used_until_then():
    """By the level of the cut BE had used next to nothing of the link, and the CPUs were to hold it."""
    link = Interface()
    share = LinkShare.of(link)
    seen = iterate(link, share)
    next(seen)
    for _ in range(2):
        seen.send((10_000_000, 6_000_000))
    share.hold(1.0)
    share.hold(0.01)
    assert link.held < 0.5 * CARRIED_RATIO * share.most
    assert seen.send((5_000_000, 1_000_000))[USE[Rein.LINK]] == pytest.approx(0.1 / 0.48)
    share.hold(0.5)
    assert seen.send((5_000_000, 1_000_000))[USE[Rein.LINK]] < 0.5, "the level of a window is that of its own tick"


def test_late_answers_lower_what_the_link_carries():
    link = Interface()
    share = LinkShare.of(link)
    seen = iterate(link, share)
    next(seen)
    seen.send((10_000_000, 6_000_000))
    seen.send((10_000_000, 6_000_000))
    seen.send((6_000_000, 0))
    share.judge(missed=True, calm=False, ran_ratio=1.0)
    share.hold(1.0)
    assert link.held == pytest.approx(8.8e6), "BE sent nothing"
    seen.send((6_000_000, 3_000_000))
    share.judge(missed=True, calm=False, ran_ratio=1.0)
    share.hold(1.0)
    assert link.held == pytest.approx(0.75 * 5.28e6), "of what was sent the link dropped a part"
    assert seen.send((0, 0))[FELL[Rein.LINK]] == pytest.approx(0.55)
    assert seen.send((0, 0))[FELL[Rein.LINK]] == 0.0
    assert share.most == 10e6, "which a later run begins with"


def iterate(link, share):
    """What a share says of windows, each given by the bytes that everybody and BE sent in a second of it."""
    second, sent = 0.0, (0, 0)
    while True:
        more = yield share.read_use(second)
        sent = sent[0] + more[0], sent[1] + more[1]
        second, link.sent = second + 1.0, sent


def test_what_was_known_of_reins_comes_back():
    link = Interface()
    reins, again = (Reins(Host(), {Rein.LINK: LinkShare(lambda: link, lambda: (link.sent[0], 0))}) for _ in range(2))
    assert reins.state_dict() == {}, "a link that nobody has used"
    for second in range(3):
        link.sent = 10_000_000 * second, 0
        readings = reins.read(float(second))
    assert (readings[LINK_CARRIED], readings[LINK_SENT]) == (Value(10e6), Value(1.0))
    again.restore_state({**reins.state_dict(), "in_hand": "link"})
    again.moves = lambda: True
    again.apply(SOME)
    assert link.held == pytest.approx(CARRIED_RATIO * 2.5e6)  # SOME is a quarter
    assert Reins(Host()).state_dict() == {}
    for damaged in ({"in_hand": "tape", "most": {}}, {"in_hand": "cpu", "most": {"link": -1.0}}):
        with pytest.raises(ValueError, match="is not a"):
            again.restore_state(damaged)


def test_link_is_found_with_first_caller(monkeypatch):
    """At boot nobody calls it yet."""
    found, clock, asked = [], [0.0], []

    def find(name, pids, namespace_pid):
        asked.append(pids)
        if not found:
            raise HostError("the LC is called from nowhere yet")
        return found[0]

    monkeypatch.setattr(opening, "find_interface", find)
    monkeypatch.setattr(opening, "read_sent_bytes", lambda name, namespace_pid: 10_000_000 * len(asked))
    monkeypatch.setattr(opening, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    reins = opening.open_reins(Host(), None, {Rein.LINK}, LinkPlace(None, lambda: (7,)))
    assert (reins.all, reins.absent) == ((Rein.CPU,), {})
    reins.restore_state({"in_hand": "link", "most": {"link": 5e6}})
    reins.moves = lambda: True
    reins.apply(SOME)
    assert reins.in_hand is Rein.CPU, "what was in hand before is not there yet"
    assert reins.read(1.0) == {}
    assert reins.state_dict()["most"] == {"link": 5e6}
    found.append("eth0")
    assert reins.all == (Rein.CPU,), "it is not looked for in each tick"
    clock[0] = FIND_SECONDS
    assert reins.all == (Rein.CPU, Rein.LINK)
    reins.read(1.0)
    assert LINK_SENT in reins.read(2.0)
    assert asked == [(7,), (7,)]


def test_only_what_speaks_of_a_rein_teaches_it():
    host = Host()
    host.take(Rein.LINK)
    host.reins.apply(SOME)
    judged = host.reins._others[Rein.LINK].judged
    sends = {USE[Rein.LINK]: Value(0.5)}
    well, late = (Quantile(tail, samples=100, window_seconds=1.0) for tail in (0.002, 0.02))
    host.reins.look(Telemetry(0.0, 0.01, well, counters=sends), SOME)
    host.reins.look(Telemetry(1.0, 0.01, late, counters=sends), SOME, 0.5)
    host.reins.look(Telemetry(2.0, 0.01, late, counters=sends), LIMITS.minimum)
    waits = {"be_cpus": Value(1.0), "lc_cpus": Value(0.9), "lc_run_delay_ratio": Value(0.9)}
    host.reins.look(Telemetry(3.0, 0.01, late, counters=sends, **waits), SOME)
    assert judged == [(False, True, 1.0), (True, False, 0.5)]


def test_window_with_a_fault_has_its_reason():
    host = Host()

    def read_use(now_seconds):
        raise HostError("gone")

    host.reins._others[Rein.DISK].read_use = read_use
    host.groups = ("another",)
    assert USE[Rein.DISK] not in host.reins.read(0.0), "a frozen BE was suspect for ever: nobody holds it there"
    host.take(Rein.DISK)
    host.reins.apply(SOME)
    readings = host.reins.read(0.0)
    assert host.reins._others[Rein.LINK].groups == ("another",), "what is read is of the groups of now"
    assert readings[USE[Rein.LINK]] == Value(0.5)
    assert "gone" in readings[USE[Rein.DISK]].detail
    host.reins._drop(Rein.DISK, "gone")
    assert USE[Rein.DISK] not in host.reins.read(0.0)
