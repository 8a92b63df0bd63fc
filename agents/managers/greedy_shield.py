"""Asks for everything, every tick: what comes out is the shield's own doing, the bar for every learned policy."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Manager
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry

__all__ = ["GreedyShield"]


@dataclass(kw_only=True, eq=False)
class GreedyShield(Manager):
    """No control law at all; the shield's guards limit level, growth and suspension."""

    name = "greedy-shield"
    shielded = True

    def begin(self) -> Allocation:
        """Everything."""
        return self.limits.full

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """Everything."""
        return self.limits.full, "asks for everything"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Whose result it is."""
        return ("decides nothing itself: its row shows what the shield alone achieves",)
