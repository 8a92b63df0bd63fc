"""Stands in for a policy whose bundle was refused, so that the heuristic behind it decides."""

from __future__ import annotations

from typing import NoReturn

from rlctl.agents.policy import Policy
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight


class Refused(Policy):
    """A policy that never answers. In the log, in metrics, `why` and `top` it is the policy that it stands for.

    Args:
        name: Name of the policy that was configured.
        why: What is wrong with its bundle.
    """

    shielded, masked = True, False
    weight: Weight = Weight.EQUAL
    needs: tuple[str, ...] = ()
    learned: bool = True
    note = ""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why

    def start(self, limits: Limits) -> Allocation:
        """BE begins at the safe allocation."""
        return limits.safe

    def act(self, observation: Observation) -> NoReturn:  # noqa: ARG002 - it looks at nothing
        """Fail in every tick.

        Raises:
            PolicyError: Always.
        """
        raise PolicyError(f"refused: {self.why}")

    @property
    def remarks(self) -> tuple[str, ...]:
        """That it was refused."""
        return (f"refused: {self.why}",)
