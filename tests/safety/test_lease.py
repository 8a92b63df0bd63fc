"""The controller's side: when BE must be at the safe allocation, and what becomes of a watchdog that dies or hangs."""

import os
import signal
from pathlib import Path

import pytest

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.emergency import EmergencyPlan, EmergencyWrite
from rlctl.safety.lease import Lease, Watchdog
from tests.doubles.clock import Clock
from tests.waiting import until


class Fake:
    """A watchdog process that does as it is told."""

    pid = 4711

    def __init__(self):
        self.said, self.end, self.silence, self.ready, self.deaf = [], "", 0.0, True, False
        self.answered = True
        self.killed = self.released = False

    def say(self, verb, now_seconds):
        self.said.append(verb)
        return not self.deaf

    def give(self, plan, now_seconds):
        if self.deaf:
            raise BlockingIOError("full")
        self.said.append(plan)

    def silent_seconds(self, now_seconds):
        return self.silence

    def obeys(self, seconds):
        return not self.deaf

    def exit_reason(self):
        return self.end

    def kill(self):
        self.killed = True

    def release(self):
        self.released = True


class Bench:
    """A lease of 1.7 s on fakes; `fails` makes starting impossible."""

    def __init__(self, tmp_path):
        self.clock, self.started, self.fails = Clock(1000.0), [], False
        self.lease = Lease(EmergencyPlan(()), tmp_path, 1.7, 30.0, start=self.start, clock=self.clock)

    def start(self, arguments):
        if self.fails:
            raise OSError(11, "Resource temporarily unavailable")
        self.started.append(Fake())
        return self.started[-1]

    def tick(self, seconds=1.0, hang=0.0):
        self.clock.now += seconds
        why = self.lease.check()
        self.clock.now += hang
        self.lease.renew()
        return why


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_ticks_in_time_have_no_reason_and_renew(bench):
    assert [bench.tick() for _ in range(5)] == [""] * 5
    assert bench.started[0].said == [b"", *["renew"] * 6]


def test_late_tick_is_safe_next_is_free(bench):
    assert bench.tick(seconds=2.0) == "no tick completed for 2.0 s"
    assert bench.tick() == ""


def test_hung_write_renews_nothing(bench):
    renewals = len(bench.started[0].said)
    assert bench.tick(hang=5.0) == ""
    assert len(bench.started[0].said) == renewals
    assert "no tick completed" in bench.tick()
    assert bench.tick() == ""


def test_dead_watchdog_is_replaced_tick_is_safe(bench):
    bench.started[0].end = "was killed by signal 9"
    assert "was killed by signal 9" in bench.tick()
    assert len(bench.started) == 2
    assert bench.tick() == ""


def test_a_watchdog_that_hangs_is_ended_and_replaced(bench):
    bench.started[0].silence = 1.8
    assert "has not answered" in bench.tick()
    assert bench.started[0].killed
    assert bench.tick() == ""


def test_until_new_watchdogs_plan_be_stays_safe(bench):
    bench.started[0].end = "was killed by signal 9"
    bench.tick()
    bench.started[1].ready = False
    assert "not confirmed" in bench.tick()
    bench.started[1].ready = True
    assert bench.tick() == ""


def test_slow_watchdog_is_waited_for_dumb_one_replaced(bench):
    bench.started[0].end = "was killed by signal 9"
    bench.tick()
    slow = bench.started[1]
    slow.ready = slow.answered = False
    slow.silence = 9.0
    assert "not confirmed" in bench.tick()
    assert not slow.killed
    slow.silence = 11.0
    assert "has not answered" in bench.tick()
    assert slow.killed


def test_dying_watchdogs_start_eight_times_a_minute(bench):
    for _ in range(600):
        for one in bench.started:
            one.end = "ended with exit code 1"
        assert bench.tick(seconds=0.1) != ""
    assert 4 <= len(bench.started) <= 8


def test_without_watchdog_be_is_safe_then_goes_on(bench):
    bench.started[0].end, bench.fails = "was killed by signal 9", True
    assert all(bench.tick() for _ in range(40))
    bench.fails = False
    assert any(bench.tick() == "" for _ in range(20))


def test_proven_watchdog_is_replaced_at_once(bench):
    for _ in range(3):
        for _ in range(61):
            assert bench.tick() == ""
        bench.started[-1].end = "was killed by signal 9"
        assert bench.tick() != ""
        assert bench.tick() == ""


def test_another_plan_also_reaches_a_later_watchdog(bench):
    plan = EmergencyPlan(((EmergencyWrite(Path("/none/a"), "1", (1, 2), "a", "1"),),))
    bench.lease.replan(plan)
    assert bench.started[0].said[-1] == plan.to_bytes()
    bench.started[0].end = "was killed by signal 9"
    bench.tick()
    assert bench.started[1].said[0] == plan.to_bytes()


def test_a_watchdog_that_takes_no_plan_is_ended(bench):
    bench.started[0].deaf = True
    bench.lease.replan(EmergencyPlan(()))
    assert bench.started[0].killed


def test_leaving_waits_for_the_watchdog_or_ends_it(bench, tmp_path):
    bench.lease.leave()
    assert bench.started[0].said[-1] == "leave"
    assert not bench.started[0].killed
    bench.lease.close()
    bench.lease.close()
    assert bench.started[0].released
    other = Bench(tmp_path)
    other.started[0].deaf = True
    other.lease.leave()
    other.lease.close()
    assert other.started[0].killed


def test_without_a_watchdog_nothing_begins(tmp_path):
    def refuse(arguments):
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(HostError, match="cannot be started: No such file"):
        Lease(EmergencyPlan(()), tmp_path, 1.7, 30.0, start=refuse)


def test_a_program_that_is_no_watchdog_is_refused(tmp_path):
    with pytest.raises(HostError, match=r"^the watchdog "):
        Lease(EmergencyPlan(()), tmp_path, 1.7, 30.0, start=lambda arguments: Watchdog(["nonsense"]))


def test_originals_put_back_behind_its_back_end_claim(bench, tmp_path):
    journal = tmp_path / "journal.jsonl"
    journal.write_text("")
    assert bench.lease.why_lost() == ""
    journal.rename(tmp_path / "journal.jsonl.restored")  # as `rlctl restore` does
    assert "somebody put the originals back" in bench.lease.why_lost()


def test_removed_journal_is_no_reason_to_stop(bench, tmp_path):
    """It once ended the controller with BE left at .33 CPU, unwatched: the originals were in memory all the time."""
    journal = tmp_path / "journal.jsonl"
    journal.with_name("journal.jsonl.restored").write_text("of an earlier run")
    journal.write_text("")
    assert bench.lease.why_lost() == ""
    journal.unlink()
    assert bench.lease.why_lost() == ""


def a_step(folder):
    folder.mkdir()
    (folder / "freeze").write_text("0")
    status = folder.stat()
    return EmergencyWrite(folder / "freeze", "1", (status.st_dev, status.st_ino), "freeze", "1")


@pytest.fixture
def real(tmp_path):
    lease = Lease(EmergencyPlan(((a_step(tmp_path / "be"),),)), tmp_path, 60.0, 600.0)
    yield lease
    lease.leave()
    lease.close()


def checks(lease):
    lease.renew()
    return lease.check()


def test_a_real_watchdog_that_is_killed_is_replaced(real, tmp_path):
    assert checks(real) == ""
    first = real.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: "was killed by signal 9" in checks(real))
    until(lambda: checks(real) == "")
    assert real.pid != first
    assert (tmp_path / "be" / "freeze").read_text() == "0"


def test_a_plan_of_any_length_is_taken(real, tmp_path):
    (tmp_path / "many").mkdir()
    steps = tuple(a_step(tmp_path / "many" / f"be{number:04}") for number in range(2000))
    real.replan(EmergencyPlan((steps,)))
    until(lambda: checks(real) == "")


def test_orderly_end_leaves_be_alone(tmp_path):
    lease = Lease(EmergencyPlan(((a_step(tmp_path / "be"),),)), tmp_path, 0.3, 600.0)
    pid = lease.pid
    lease.leave()
    lease.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (tmp_path / "be" / "freeze").read_text() == "0"
