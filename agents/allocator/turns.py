"""Turns among applications of one priority, so that none is deferred for ever.

BarbequeRTRM has none: a deferred application competes again at each run with those in place, whose reconfiguration
contribution and equal terms speak for them, and so it can wait as long as they run. Here who has waited for a turn
goes before those that have had theirs, the longest waiting first; who has not had a whole turn yet stays before them.
As long as nobody has waited so long, the metric alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.envs.applications import Application

TURN_SECONDS = 60.0
"""Long against what a change of mode costs, short against a batch job."""

Turn = tuple[int, float]
"""Sorts applications of a level: who is in its turn, who has waited for one (the longest first), all others."""

IN_TURN, DUE, OTHER = 0, 1, 2


def turns(level: Sequence[Application]) -> dict[str, Turn]:
    """The turn of each application of a priority level, by name."""
    anyone_due = any(_has_waited(application) for application in level)
    return {application.name: _turn(application, anyone_due) for application in level}


def is_due(turn: Turn) -> bool:
    """Whether the application has waited for a turn."""
    return turn[0] == DUE


def _turn(application: Application, anyone_due: bool) -> Turn:
    if _has_waited(application):
        return DUE, -application.since_seconds
    is_running = application.current is not None
    return (IN_TURN if anyone_due and is_running and application.since_seconds < TURN_SECONDS else OTHER), 0.0


def _has_waited(application: Application) -> bool:
    return application.current is None and application.since_seconds >= TURN_SECONDS
