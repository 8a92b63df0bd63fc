"""Four plain references: what happens without a manager, with weights alone, with no BE, and at one fixed quota."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Manager, require
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

__all__ = ["Frozen", "Static", "Unmanaged", "Weights"]


@dataclass(kw_only=True, eq=False)
class Unmanaged(Manager):
    """BE runs as containers are deployed: equal weight, no quota, all its CPUs."""

    name = "none"

    def begin(self) -> Allocation:
        """Nothing withheld."""
        return self.limits.full

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """Nothing withheld, whatever the sensors say."""
        return self.limits.full, "unmanaged"


@dataclass(kw_only=True, eq=False)
class Weights(Unmanaged):
    """Only the kernel's weights: BE at the minimum. What any manager must beat where weights are ours to set."""

    name = "weights"
    weight = Weight.MINIMUM

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """Nothing withheld; the scheduler does the rest."""
        return self.limits.full, "minimum weight, nothing else"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The one advantage it has."""
        return ("BE runs at the kernel's minimum weight here, whatever the scenario sets for the others",)


@dataclass(kw_only=True, eq=False)
class Frozen(Manager):
    """BE never runs: the LC alone, the best QoS that the host can give."""

    name = "frozen"

    def begin(self) -> Allocation:
        """BE suspended."""
        return self.limits.safe

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """BE suspended."""
        return self.limits.safe, "always frozen"


@dataclass(kw_only=True, eq=False)
class Static(Manager):
    """One quota for ever, as an operator would set it by hand.

    Args:
        quota_ratio: Quota as a share of the CPUs that BE may use.
    """

    name = "static"
    quota_ratio: float = 0.25

    def __post_init__(self) -> None:
        require(self, positive=("quota_ratio",), share=("quota_ratio",))

    def begin(self) -> Allocation:
        """The fixed quota on all CPUs."""
        return Allocation(self.quota_ratio * self.limits.cpus, self.limits.cpus)

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """The fixed quota on all CPUs."""
        return self.begin(), f"fixed quota of {self.quota_ratio:.0%} of the CPUs"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The constant."""
        return (f"quota fixed at {self.quota_ratio:.0%} of BE's CPUs",)
