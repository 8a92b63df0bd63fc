"""One protocol for whoever decides: heuristic managers and learned policies alike."""

from __future__ import annotations

from typing import Protocol

from rlctl.envs.actions import Action
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight

__all__ = ["Policy"]


class Policy(Protocol):
    """Decides once per tick what BE should get.

    Attributes:
        name: As in `rlctl managers`.
        shielded: True when a benchmark judges it behind the shield. Managers that were published with guards of
            their own, and the plain references, run bare there; `rlctl serve` shields every policy.
        weight: The CPU weight that it wants BE to have where weights are its to set.
        masked: True when it wants the shield's mask with each observation; managers do not, and a mask costs time.
        needs: Names of Telemetry fields that it cannot work without.
    """

    name: str
    shielded: bool
    weight: Weight
    masked: bool
    needs: tuple[str, ...]

    def start(self, limits: Limits) -> Allocation:
        """Forget everything and return the allocation to begin with on this host."""
        ...

    def act(self, observation: Observation) -> Action:
        """The next action. Called once per tick, in order; time is `observation.telemetry.time_seconds`."""
        ...

    @property
    def note(self) -> str:
        """Why the last action was taken, in a few words, for the tick log."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        ...
