"""What is damaged in a tick log, told by each command that reads one."""

from __future__ import annotations

from types import TracebackType

from rlctl.envs.ticklog import Damage
from rlctl.log.progress import say

MOST_SHOWN = 5
"""Damaged places that are told one by one."""


class Damages:
    """Tells the first damaged places on stderr, and at the end how many more there are; the rest of the log is good.

    Attributes:
        count: Number of damaged places so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Damages:
        return self

    def __call__(self, damage: Damage) -> None:
        """Tell of one more."""
        self.count += 1
        if self.count <= MOST_SHOWN:
            say(f"rlctl: damaged: {damage}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.count > MOST_SHOWN:
            say(f"rlctl: damaged: {self.count - MOST_SHOWN} more")
