"""The wait for a tick, with looks and without: what is seen, by whom, and that nothing keeps the tick from coming."""

import itertools
import os
from types import SimpleNamespace

import pytest

from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.poller import LOOK_SECONDS, LcSample, LcSources, Poller
from rlctl.envs.workload import SLO

GOAL = SLO(0.010, 0.95, 1000.0)


class Source:
    """A latency source that has one new thing for each look."""

    name, provides = "source", ()

    def __init__(self, *news):
        self.news = list(news)

    def read(self, now_seconds):
        return {}

    def newest(self):
        return self.news.pop(0) if self.news else NOTHING

    def close(self):
        pass


class Sleep:
    """Wakes at once, and keeps what it was asked for."""

    def __init__(self, stopped=False):
        self.asked, self.stopped = [], stopped

    def __call__(self, seconds):
        self.asked.append(seconds)
        return self.stopped


def looked(watch, number):
    """So many looks of one wait."""

    def look(sample):
        looks.append(sample)
        if len(looks) == number:
            watch.look = None

    looks, watch.look = [], look
    watch.sleep(3600.0)
    return looks


def test_unwatched_wait_is_one_sleep():
    sleep = Sleep()
    Poller({"web": LcSources(GOAL, [Source()])}, None, sleep).sleep(0.7)
    assert len(sleep.asked) == 1


def test_every_look_has_each_lcs_news():
    web, cache = Source(Newest((0.1,)), Newest((0.2,))), Source(Newest(oldest_seconds=0.3))
    watch = Poller({"web": LcSources(GOAL, [web]), "cache": LcSources(GOAL, [cache])}, None, Sleep())
    looks = looked(watch, 3)
    assert looks[0].lcs == {"web": LcSample(Newest((0.1,))), "cache": LcSample(Newest(oldest_seconds=0.3))}
    assert looks[1].lcs["web"] == LcSample(Newest((0.2,)))
    assert not looks[0].foreign
    assert [look.now_seconds for look in looks] == sorted(look.now_seconds for look in looks)


def test_look_near_a_sign_brings_a_close_one():
    def look(sample):
        looks.append(sample.now_seconds)
        if len(looks) == 20:
            watch.look = None
        return True

    watch, looks = Poller({"web": LcSources(GOAL, [Source()])}, None, Sleep()), []
    watch.look = look
    watch.sleep(60.0)
    apart = [after - before for before, after in itertools.pairwise(looks)]
    assert min(apart) < LOOK_SECONDS, "the usual looks are at least so far apart"


def test_stop_ends_looks_and_wait():
    sleep, looks = Sleep(stopped=True), []
    watch = Poller({"web": LcSources(GOAL, [Source()])}, None, sleep)
    watch.look = looks.append
    watch.sleep(60.0)
    assert looks == []
    assert sleep.asked[-1] > 50.0


def test_failing_answer_ends_looks_until_next_period(caplog):
    def fail(_):
        calls.append(1)
        raise RuntimeError("boom")

    calls, sleep = [], Sleep()
    watch = Poller({"web": LcSources(GOAL, [Source()])}, None, sleep)
    watch.look = fail
    for _ in range(3):
        watch.sleep(60.0)
    assert len(calls) == 3
    trouble = "looking between the ticks failed: RuntimeError: boom"
    assert caplog.messages == [trouble, f"{trouble} (2 times in a row)"]


@pytest.fixture
def written():
    """A witness whose descriptor is a pipe: each byte is a write of somebody else's."""
    read, write = os.pipe()
    os.set_blocking(read, False)

    def anybody(*, readable):
        try:
            return bool(os.read(read, 100))
        except BlockingIOError:
            return False

    yield SimpleNamespace(file=read, watches=True, anybody=anybody), lambda: os.write(write, b"x")
    os.close(read)
    os.close(write)


def test_endless_foreign_writes_are_seen_seldom(written):
    witness, write = written
    sleep, looks = Sleep(), []
    watch = Poller({}, witness, sleep)

    def look(sample):
        looks.append(sample.foreign)
        if len(looks) < 4:
            write()
        else:
            watch.look = None

    watch.look = look
    write()
    watch.sleep(60.0)
    assert looks == [True] * 4
    assert sleep.asked.count(LOOK_SECONDS) == 4, "a pause after each"


def test_it_says_what_it_looks_at(tmp_path, written):
    assert str(Poller({"web": LcSources(GOAL, [Source()])}, None)) == (
        "web: source, no pressure, for it has no cgroup2 group; no foreign writes"
    )
    assert str(Poller({"web": LcSources(GOAL, [])}, written[0])) == (
        "web: no latency source, no pressure, for it has no cgroup2 group; foreign writes"
    )


def test_lost_groups_word_is_heard_no_more(tmp_path):
    """A trigger of a removed group is ready for ever: without an end to it the wait would never sleep again."""
    read, write = os.pipe()
    waits = SimpleNamespace(trigger=SimpleNamespace(file=read, why="", close=lambda: closed.append(read)), high=high)
    closed = []
    lc = LcSources(GOAL, [Source()])
    lc.waits = waits
    watch = Poller({"web": lc}, None, Sleep())
    os.close(write)  # POLLHUP, as POLLERR of a group
    looked(watch, 1)
    os.close(read)
    assert closed == [read]


def high(now_seconds, *, told):
    return told


@pytest.mark.parametrize("news", [Newest(latencies=(0.1,)), Newest(oldest_seconds=0.9 * GOAL.target_seconds)])
def test_a_calm_lc_is_looked_at_less(news):
    def looks_of(source):
        watch, looks = Poller({"web": LcSources(GOAL, [source])}, None, Sleep()), []

        def look(sample):
            looks.append(sample.now_seconds)
            if len(looks) == 4:
                watch.look = None
            return False

        watch.look = look
        watch.sleep(60.0)
        return looks[-1] - looks[0]

    assert looks_of(Source(news, news, news, news)) < looks_of(Source()) < 60.0
