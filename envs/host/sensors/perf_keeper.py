"""Keeps a perf child running: tries the command shapes that this perf takes, restarts with back-off, or gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rlctl.envs.telemetry import Missing, Why

__all__ = ["Child", "PerfKeeper", "Shape"]

_log = logging.getLogger(__name__)

RAPID_SECONDS = 10.0  # a child that lived shorter has not worked at all
MOST_RAPID_DEATHS = 5
FIRST_WAIT_SECONDS = 1.0
MOST_WAIT_SECONDS = 60.0


class Child(Protocol):
    """A running perf, see `PerfChild`."""

    def read(self) -> bytes:
        """All that it wrote since the last call."""
        ...

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        ...

    def last_words(self) -> str:
        """What it wrote to stderr."""
        ...

    def stop(self) -> None:
        """End and reap it."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """How perf is asked.

    Attributes:
        json: `-j`; perf 5.15 only knows `-x`.
        grouped: Cycles and instructions as one `{...}` group, scheduled together. Where there is no PMU such a group
            makes perf exit, while single events merely print `<not supported>` (measured, perf 6.1).
    """

    json: bool = True
    grouped: bool = True

    def after(self, words: str) -> Shape | None:
        """The shape to try instead, given perf's last words; None when the shape was not the trouble."""
        if self.json and "unknown switch `j'" in words:
            return replace(self, json=False)
        if self.grouped and "not supported" in words:
            return replace(self, grouped=False)
        return None


class PerfKeeper:
    """Starts perf, and starts it again when it dies.

    Args:
        start: Starts a child of a given shape; may raise OSError.
        shape: The shape to begin with.

    Attributes:
        shape: The shape in use.
        starts: How many children there have been; a change means that perf's clock began anew.
        trouble: Why there is no running child; None while there is one.
        gave_up: True after five children in a row died within ten seconds each; `trouble` then stays.
    """

    def __init__(self, start: Callable[[Shape], Child], shape: Shape | None = None) -> None:
        self._start = start
        self.shape = shape or Shape()
        self.starts = 0
        self.trouble: Missing | None = None
        self.gave_up = False
        self._child: Child | None = None
        self._born_seconds = 0.0
        self._rapid_deaths = 0
        self._retry_seconds = float("-inf")

    def read(self, now_seconds: float) -> bytes:
        """What perf wrote since the last call. A dead child is replaced once its back-off is over."""
        if self._child is None:
            if not self.gave_up and now_seconds >= self._retry_seconds:
                self._launch(now_seconds)
            return b""
        data = self._child.read()
        if self._child.poll() is not None:
            data += self._child.read()  # what it wrote between the two looks
            self._bury(self._child, now_seconds)
        return data

    def stop(self, trouble: Missing | None = None) -> None:
        """End the child, if any; the next `read` starts another."""
        child, self._child = self._child, None
        self.trouble = trouble
        self._retry_seconds = float("-inf")
        if child is not None:
            child.stop()

    def _launch(self, now_seconds: float) -> None:
        self.starts += 1
        self._born_seconds = now_seconds
        try:
            self._child = self._start(self.shape)
        except OSError as error:
            self._mourn(f"cannot be started: {error.strerror}", now_seconds)
        else:
            self.trouble = None

    def _bury(self, child: Child, now_seconds: float) -> None:
        words = child.last_words()
        child.stop()
        self._child = None
        other = self.shape.after(words)
        if other is None:
            self._mourn(words, now_seconds)
        else:
            self.shape = other
            self._launch(now_seconds)

    def _mourn(self, words: str, now_seconds: float) -> None:
        rapid = now_seconds - self._born_seconds < RAPID_SECONDS
        self._rapid_deaths = self._rapid_deaths + 1 if rapid else 1
        self.gave_up = self._rapid_deaths >= MOST_RAPID_DEATHS
        wait_seconds = min(FIRST_WAIT_SECONDS * 2.0 ** (self._rapid_deaths - 1), MOST_WAIT_SECONDS)
        self._retry_seconds = now_seconds + wait_seconds
        self.trouble = Missing(_why(words, self.gave_up), f"perf: {_gist(words)}")
        then = "no further try" if self.gave_up else f"next try in {wait_seconds:g} s"
        _log.warning("perf stat ended (%s); %s", _gist(words), then)


_REFUSALS = ("permission", "not permitted", "paranoid", "access to performance monitoring")


def _why(words: str, gave_up: bool) -> Why:
    if any(refusal in words.lower() for refusal in _REFUSALS):
        return Why.NO_PERMISSION
    return Why.NOT_SUPPORTED if gave_up else Why.NO_DATA


def _gist(words: Sequence[str] | str) -> str:
    """The first line that says something; perf puts a bare "Error:" above it."""
    lines = [line.strip() for line in str(words).splitlines()]
    return next((line for line in lines if line and line != "Error:"), "it said nothing")[:200]
