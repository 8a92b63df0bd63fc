"""Requests that come as signals, which the loop looks at between two ticks."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from rlctl.work.progress import say


class Request:
    """A `threading.Event` for signal handlers.

    A handler runs in the main thread, amid whatever that does. Amid `Event.wait`, or amid the `Event.set` of another
    handler, `Event.set` could wait for ever for the lock that its own thread holds. `SimpleQueue.put` is made for that.
    """

    def __init__(self) -> None:
        self._made = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Make the request; a thread that waits for it wakes up."""
        self._made = True
        self._news.put(None)

    def clear(self) -> None:
        """Forget the request, for it is answered."""
        self._made = False

    def is_set(self) -> bool:
        """Whether the request was made and not yet answered."""
        return self._made

    def wait(self, seconds: float) -> bool:
        """Sleep until the request is made, or for so many seconds; whether it was made."""
        if not self._made and seconds > 0.0:
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=seconds)
        return self._made


@contextlib.contextmanager
def stop_on_signals(reread: Request | None = None) -> Iterator[Request]:
    """SIGTERM and SIGINT make the request, SIGHUP too unless it makes `reread`: none interrupts the restoring."""
    stop = Request()

    def ask(number: int, _frame: FrameType | None) -> None:
        (reread if reread and number == signal.SIGHUP else stop).set()

    with handled(ask, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        yield stop


@contextlib.contextmanager
def signals_noted(message: str) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM is noted in the list, with a message on stderr; a second does what it always does."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        caught.append(number)
        restore()
        say(message)

    with handled(note, signal.SIGINT, signal.SIGTERM) as restore:
        yield caught


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[Callable[[], None]]:
    """These signals go to a handler meanwhile, in the main thread; yields what gives them back early."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}

    def restore() -> None:
        for number, earlier in before.items():
            signal.signal(number, earlier)

    try:
        yield restore
    finally:
        restore()
