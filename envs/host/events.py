"""What happens to the groups under control, for the log and for the record of the tick."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

_log = logging.getLogger(__name__)

BE_VANISHED = "be-vanished"

# Kinds of events, and what each means.
KINDS: Mapping[str, str] = {
    "foreign-write": "Another program wrote a knob of BE.",
    "group-vanished": "A group of BE is gone.",
    BE_VANISHED: "No group of BE is left, so what is applied holds nobody; in the record of each such tick.",
    "be-escaped": "A process is in some of a BE group's hierarchies and not in all: what it uses is not all held.",
    "be-starved": "BE has had less than `be.starved` says for so long: it should run elsewhere.",
    "be-fed": "BE has had twice of that again.",
    "group-appeared": "A group that the configuration means has come and is under control.",
    "be-churn": "Groups of BE come and go faster than they can be put under control.",
    "group-replaced": "A group is gone and another one has its place.",
    "group-reduced": "A group lacks a controller that it had; what is left of it is under control.",
    "group-refused": "A group that the configuration means cannot be put under control.",
    "freeze-late": "BE is freezing, and a task has not stopped yet; its quota holds it until then.",
    "rein-lost": "Writes to a rein of BE failed again and again: the CPUs hold BE from then on.",
    "tighter-parent": "A group above BE allows less than was written.",
    "lc-vanished": "The LC's group is gone.",
    "lc-appeared": "The LC's group is there again.",
    "application-came": "An application registered.",
    "application-left": "An application ended or was released.",
    "application-moved": "An application was moved to another cluster.",
    "application-refused": "An application cannot be controlled.",
}

MOST_KEPT = 1000  # a caller that never drains must not fill the memory


class Events:
    """Takes events from whoever sees them; hands them to whoever records the tick.

    An event is one line that begins with its kind, one of KINDS, and a colon.
    """

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=MOST_KEPT)

    def tell(self, kind: str, text: str, level: int | None = logging.WARNING) -> None:
        """Keep an event, and log it; at no level one that was logged often enough."""
        self._kept.append(f"{kind}: {text}")
        if level is not None:
            _log.log(level, "%s", text)

    def drain(self) -> tuple[str, ...]:
        """Events since the last call, the oldest first."""
        events = tuple(self._kept)
        self._kept.clear()
        return events


class Seldom:
    """Logs what goes wrong at its first time in a row and at the 2nd, 4th, 8th ...: ticks may be ten a second."""

    def __init__(self, level: int) -> None:
        self._level, self._text, self._times = level, "", 0

    def tell(self, text: str) -> None:
        """What went wrong this time; empty if nothing did."""
        # n & (n - 1) is 0 for powers of two: lines at the 1st, 2nd, 4th, 8th ... time.
        self._times = self._times + 1 if text == self._text else 1
        self._text = text
        if text and not self._times & (self._times - 1):
            often = f" ({self._times} times in a row)" if self._times > 1 else ""
            _log.log(self._level, "%s%s", text, often)
