"""Time and the end of a run, as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rlctl.loop.stopping import Request


class Clock:
    """A clock that shows `now` until a test sets it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Countdown(Request):
    """Made after so many looks; at some of them something happens first."""

    def __init__(self, looks: int, then: Mapping[int, Iterable[Callable[[], object]]] | None = None) -> None:
        super().__init__()
        self.looks, self.most, self.then = 0, looks, then or {}

    def is_set(self) -> bool:
        """Whether there were so many looks."""
        self.looks += 1
        for happens in self.then.get(self.looks, ()):
            happens()
        return self.looks > self.most
