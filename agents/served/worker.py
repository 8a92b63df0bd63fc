"""Calls that hold nobody up: one thread, one call at a time, an answer in time or none.

Python cannot stop a thread. A call that hangs is left to itself. Until it returns there is no other one, so what is
called need not bear two at a time. Its answer, when it comes after all, is thrown away.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import Generic, TypeVar

from rlctl.envs.errors import in_one_line

T = TypeVar("T")

SWITCH_SECONDS = sys.getswitchinterval()
OVERDUE_SWITCH_SECONDS = 1e-4
"""How long an endless loop in Python keeps the interpreter each time that the caller lets go of it, as every read and
write may. At the usual 5 ms a tick of a hundred system calls could last half a second."""


class CallFailed(Exception):
    """A call raised, did not answer in time, or could not begin; the text is one line."""


class AnswerThread(Generic[T]):
    """Runs calls in a thread of its own, which begins with the first call and ends with `close`.

    One caller at a time. A process that is forked starts a thread of its own. The thread is a daemon: one that hangs
    does not keep the process from leaving.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._out = False

    @property
    def busy(self) -> bool:
        """A call that was given up is still running."""
        if self._out and self._alive():
            try:
                self._answers.get_nowait()  # too late: nobody is to use it
            except Empty:
                return True
            sys.setswitchinterval(SWITCH_SECONDS)
        self._out = False
        return False

    def call(self, work: Callable[[], T], seconds: float) -> T:
        """What the call answers within so many seconds; CallFailed: it raised, took longer, or one is still running."""
        if self.busy:
            raise CallFailed("an earlier call still hangs")
        self._begin()
        self._questions.put(work)
        self._out = True
        try:
            answer, failure = self._answers.get(timeout=seconds)
        except Empty:
            sys.setswitchinterval(OVERDUE_SWITCH_SECONDS)
            raise CallFailed(f"no answer within {seconds * 1e3:.3g} ms") from None
        self._out = False
        if failure:
            raise CallFailed(failure)
        return answer[0]

    def close(self) -> None:
        """Let the thread end, now or when its call returns; there are no more calls then. Idempotent."""
        if self._thread is not None:
            self._questions.put(None)
            if self.busy:
                sys.setswitchinterval(SWITCH_SECONDS)  # nobody waits for it any more
            else:
                self._thread.join()
        self._thread, self._out = None, False

    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self) -> None:
        if self._alive():
            return
        self._questions: Queue[Callable[[], T] | None] = Queue()
        self._answers: Queue[tuple[tuple[T, ...], str]] = Queue()
        self._thread = threading.Thread(
            target=_answer, args=(self._questions, self._answers), name=self._name, daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # no more processes in this cgroup
            self._thread = None
            raise CallFailed(in_one_line(error)) from error


def _answer(questions: Queue[Callable[[], T] | None], answers: Queue[tuple[tuple[T, ...], str]]) -> None:
    while (work := questions.get()) is not None:
        try:
            answers.put(((work(),), ""))
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` in a policy is a failure like any other
            answers.put(((), in_one_line(error)))
        del work  # what it holds is not kept until the next tick
