"""What happens to the groups under control, told once to the log and kept for the record of the tick."""

from __future__ import annotations

import logging
from collections import deque

__all__ = ["KINDS", "Events"]

_log = logging.getLogger(__name__)

KINDS = (
    "foreign-write", "group-vanished", "group-appeared", "group-replaced", "group-reduced", "group-refused",
    "tighter-parent", "lc-vanished", "lc-appeared",
    "application-came", "application-left", "application-moved", "application-refused",
)  # fmt: skip

MOST_KEPT = 1000  # a caller that never drains must not fill the memory


class Events:
    """Takes events from whoever sees them; hands them to whoever records the tick.

    An event is one line that begins with its kind, one of KINDS, and a colon.
    """

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=MOST_KEPT)

    def tell(self, kind: str, text: str, level: int | None = logging.WARNING) -> None:
        """Keep an event, and log it.

        Args:
            kind: As above.
            text: The rest of the line.
            level: Of the log line; None for an event that has been said often enough.
        """
        self._kept.append(f"{kind}: {text}")
        if level is not None:
            _log.log(level, "%s", text)

    def drain(self) -> tuple[str, ...]:
        """Events since the last call, the oldest first."""
        events = tuple(self._kept)
        self._kept.clear()
        return events
