"""A stop is a request: it is heard at any moment, ends a wait, and interrupts nothing else."""

import os
import signal
import threading

import pytest

from rlctl.loop.stopping import Request, stop_on_signals

LONG_SECONDS = 600.0
"""Longer than any test may take: only what ends a wait early lets it pass."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_request_and_old_handlers_come_back(number):
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.wait(LONG_SECONDS)
        assert stop.wait(LONG_SECONDS), "it stays requested"
    assert signal.getsignal(number) is before


def test_a_signal_ends_a_wait_that_has_begun():
    with stop_on_signals() as stop:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        assert stop.wait(LONG_SECONDS)
        timer.join()


def test_sighup_is_a_repeatable_request():
    reread = Request()
    with stop_on_signals(reread) as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            assert reread.is_set()
            reread.clear()
        assert not stop.is_set()
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.is_set(), "with nothing to read again it is a stop"


def test_without_a_request_a_wait_takes_its_time():
    assert not Request().wait(0.01)


def test_wait_over_before_it_has_begun_ends():
    """`SimpleQueue.get(timeout=...)` hung here within some thousand tries: a controller whose first tick was due."""
    for _ in range(4_000):
        assert not Request().wait(1e-9)


def test_signals_in_the_midst_of_everything_hang_nothing():
    """A second handler amid the first one, a handler amid a wait: `threading.Event` deadlocks here sooner or later."""
    reread = Request()
    with stop_on_signals(reread):
        before = signal.signal(signal.SIGALRM, lambda *_: reread.set())
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            for _ in range(300):
                os.kill(os.getpid(), signal.SIGHUP)
                assert reread.wait(LONG_SECONDS)
                reread.clear()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
