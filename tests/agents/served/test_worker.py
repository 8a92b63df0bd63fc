"""Calls in another thread: an answer in time or none, one call at a time, whatever is called."""

import os
import subprocess
import sys
import threading

import pytest

from rlctl.agents.served.worker import SWITCH_SECONDS, AnswerThread, CallFailed
from rlctl.envs.errors import MOST_CHARACTERS
from tests.waiting import PATIENCE_SECONDS

PATIENT = 30.0


@pytest.fixture
def worker():
    made = AnswerThread("test")
    yield made
    made.close()


@pytest.fixture
def hanging(worker):
    """A worker whose call hangs until the event is set."""
    release = threading.Event()
    with pytest.raises(CallFailed, match="no answer within 10 ms"):
        worker.call(lambda: release.wait(PATIENT), 0.01)
    yield worker, release
    release.set()


def settle(worker):
    """Until the call has come back."""
    ready = threading.Event()
    while worker.busy:
        ready.wait(0.001)


def test_one_thread_not_ours_answers_calls(worker):
    threads = {worker.call(threading.get_ident, PATIENT) for _ in range(20)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


class Mute(Exception):
    def __str__(self):
        raise ValueError("cannot even say it")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Mute(), "Mute"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * (MOST_CHARACTERS - 12)),
    ],
)
def test_whatever_is_raised_is_one_short_line(worker, error, said):
    def work():
        raise error

    with pytest.raises(CallFailed) as failure:
        worker.call(work, PATIENT)
    assert str(failure.value) == said
    assert worker.call(lambda: "well", PATIENT) == "well"


def test_hanging_call_is_alone_its_answer_unused(hanging):
    worker, release = hanging
    called = []
    with pytest.raises(CallFailed, match="earlier call still hangs"):
        worker.call(lambda: called.append(1), PATIENT)
    assert worker.busy
    assert not called
    release.set()
    settle(worker)
    assert worker.call(lambda: "new", PATIENT) == "new"


def test_interpreter_switches_faster_while_call_is_overdue(hanging):
    worker, release = hanging
    assert sys.getswitchinterval() < SWITCH_SECONDS
    release.set()
    settle(worker)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)


def test_endless_loop_in_python_does_not_keep_caller(worker):
    going = [True]

    def loop():
        while going:
            pass

    with pytest.raises(CallFailed, match="no answer"):
        worker.call(loop, 0.01)
    going.clear()
    settle(worker)
    assert worker.call(lambda: 5, PATIENT) == 5


def test_close_ends_the_thread_and_bears_repetition(worker):
    thread = worker.call(threading.current_thread, PATIENT)
    worker.close()
    worker.close()
    assert not thread.is_alive()


def test_thread_of_hanging_call_ends_when_call_does(hanging):
    worker, release = hanging
    (thread,) = [one for one in threading.enumerate() if one.name == "test"]
    worker.close()
    release.set()
    thread.join(PATIENT)
    assert not thread.is_alive()


def test_when_no_thread_can_be_had_call_fails(worker, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(CallFailed, match="can't start new thread"):
        worker.call(lambda: 1, PATIENT)
    monkeypatch.undo()
    assert worker.call(lambda: 1, PATIENT) == 1


@pytest.mark.parametrize("hung", [False, True])
def test_forked_process_calls_in_thread_of_its_own(worker, hung):
    release = threading.Event()
    if hung:
        with pytest.raises(CallFailed):
            worker.call(lambda: release.wait(PATIENT), 0.01)
    else:
        worker.call(lambda: 1, PATIENT)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = worker.call(lambda: 42, PATIENT)
        finally:
            os._exit(code)
    release.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    settle(worker)
    assert worker.call(lambda: 2, PATIENT) == 2


LEAVING = """
import time
from rlctl.agents.served.worker import CallFailed, AnswerThread
def loop():
    while True: {body}
try:
    AnswerThread("hung").call(loop, 0.01)
except CallFailed as failure:
    print(failure)
"""


@pytest.mark.parametrize("body", ["pass", "time.sleep(3600)"])
def test_hanging_call_does_not_keep_process_from_leaving(body):
    done = subprocess.run(
        [sys.executable, "-c", LEAVING.format(body=body)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "no answer within 10 ms\n", "")
