"""Requests that come as signals, which the loop looks at between two ticks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Request:
    """A `threading.Event` for signal handlers.

    A handler runs in the main thread, amid whatever that does. Amid `Event.wait`, or amid the `Event.set` of another
    handler, `Event.set` could wait for ever for the lock that its own thread holds. A plain lock can be let go of at
    any time by anybody. `SimpleQueue`, which is made for handlers as well, does not help. Before Python 3.13 its `get`
    with a timeout waits for ever where the time is up before the wait begins (Modules/_queuemodule.c).
    """

    def __init__(self) -> None:
        self._made = False
        # The lock is held except from a request until the wait that it ends.
        self._news = threading.Lock()
        self._news.acquire()

    def set(self) -> None:
        """Make the request; a thread that waits for it wakes up."""
        self._made = True
        # Another handler may have released it in the midst of this one.
        with contextlib.suppress(RuntimeError):
            self._news.release()

    def clear(self) -> None:
        """Forget the request, for it is answered."""
        self._made = False

    def is_set(self) -> bool:
        """Whether the request was made and not yet answered."""
        return self._made

    def wait(self, seconds: float) -> bool:
        """Sleep until the request is made, or for so many seconds; whether it was made.

        May be back early, once, after a request that was answered before anybody waited for it.
        """
        # A plain lock, which a handler can release at any time, also in the midst of this wait.
        if not self._made and seconds > 0.0:
            self._news.acquire(timeout=seconds)
        return self._made


@contextlib.contextmanager
def stop_on_signals(reread: Request | None = None) -> Iterator[Request]:
    """SIGTERM and SIGINT make the request, SIGHUP too unless it makes `reread`: none interrupts the restoring."""
    stop = Request()

    def ask(number: int, _frame: FrameType | None) -> None:
        # systemd reloads with SIGHUP; without a configuration to read again it ends like the others.
        (reread if reread and number == signal.SIGHUP else stop).set()

    with handle_signals(ask, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        yield stop


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[Callable[[], None]]:
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
