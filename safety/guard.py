"""What a guard is: one pure object in two halves, and the little arithmetic of time that guards share.

`advance` learns from telemetry, `bound` says the most that BE may have. Neither ever sees a proposal, so a verdict
cannot depend on who proposed or on what was proposed before, and one memory serves any number of shadow policies.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.law import law
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.verdict import Bound

M = TypeVar("M")

POLL_TOLERANCE = 0.02
"""Share of the poll period by which a tick may wake early and still be a poll; polling earlier is more cautious."""


class Guard(Protocol[M]):
    """One rule that no allocation may break. To add one, write a frozen dataclass with these members.

    Attributes:
        name: Stable name, shown with each of its bounds.
    """

    @property
    def name(self) -> str:
        """Stable name, shown with each of its bounds."""
        ...

    def start(self) -> M:
        """The memory before any telemetry; immutable, and as cautious as the guard can be without any."""
        ...

    def advance(self, memory: M, telemetry: Telemetry) -> M:
        """The memory after this tick. The shield calls it once per telemetry, and only with a finite time."""
        ...

    def bound(self, memory: M, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The most that BE may have this tick, or None for no objection.

        Args:
            memory: The memory after `advance` with this telemetry.
            telemetry: This tick's readings; any of them may be missing or absurd.
        """
        ...


class Memoryless:
    """What a guard derives from that judges by the present tick alone."""

    def start(self) -> None:
        """There is no memory to begin with."""

    def advance(self, memory: None, telemetry: Telemetry) -> None:
        """There is no memory to advance."""


@law
def elapsed_seconds(last_seconds: float, now_seconds: float, gap_seconds: float) -> float:
    """Time that is believed to have passed: none when the clock went back, `gap_seconds` at most when it jumped.

    Args:
        last_seconds: NaN before the first reading.
    """
    since = now_seconds - last_seconds
    return min(since, gap_seconds) if since > 0.0 else 0.0


@law
def poll_due(polled_seconds: float, now_seconds: float, poll_seconds: float) -> bool:
    """True when a poll is due: the first one, a period after the last one, or when the clock went back.

    Args:
        polled_seconds: NaN for never.
    """
    # A clock that went back makes the poll due at once: to judge too often costs nothing, too seldom costs the LC.
    return not 0.0 <= now_seconds - polled_seconds < poll_seconds * (1.0 - POLL_TOLERANCE)
