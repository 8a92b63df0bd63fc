"""Processes that share out work, of which none is ever left behind or waited for in vain."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

from rlctl.work.interrupts import kept_at_signals

Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextlib.contextmanager
def pool_of(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that any exception ends at once, with what its processes do.

    SIGTERM and SIGHUP end this process in order, too: the pool's semaphores would be left to a warning otherwise.
    """
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a progress bar's thread may hold a lock at the moment of a fork.
    context = multiprocessing.get_context("spawn")
    with kept_at_signals(), _Pool(count, context, initializer=begin, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # a piece of work may have minutes to go
            raise


class _Pool(ProcessPoolExecutor):
    """Its processes are deaf to Ctrl-C and SIGTERM from birth: before `begin` each would end with a traceback."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Starts a process where none is free; it inherits what is blocked.

        SIGTERM between the birth of a process and the message that tells it what to do would leave it without one.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it, whatever ends it: a pool's processes wait for more work forever.

    Args:
        parent: Its pid. The kernel looks at the thread that started us, which is the one that uses the pool.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the whole process group; the parent ends us, quietly
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # one that has come meanwhile ends us here
