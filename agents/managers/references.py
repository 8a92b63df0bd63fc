"""Plain references: without a manager, with weights alone, with no BE, at one fixed quota, and the shield alone."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Manager, require
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight


@dataclass(kw_only=True, eq=False)
class Unmanaged(Manager):
    """BE runs as containers are deployed: equal weight, no quota, all its CPUs."""

    name = "none"

    def begin(self) -> Allocation:
        """BE may use all its CPUs, without a quota."""
        return self.limits.full

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """The same, whatever the sensors say."""
        return self.limits.full, "unmanaged"


@dataclass(kw_only=True, eq=False)
class Weights(Unmanaged):
    """Only the kernel's weights: BE at the minimum. What any manager must beat where weights are ours to set."""

    name = "weights"
    weight = Weight.MINIMUM

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """All CPUs and no quota; the kernel's scheduler does the rest."""
        return self.limits.full, "minimum weight, nothing else"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The one advantage that it has over the others."""
        return ("BE runs at the kernel's minimum weight here, whatever the scenario sets for the others",)


@dataclass(kw_only=True, eq=False)
class Frozen(Manager):
    """BE never runs: the LC alone, the best QoS that the host can give."""

    name = "frozen"

    def begin(self) -> Allocation:
        """BE begins suspended by the freezer."""
        return self.limits.safe

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """BE stays suspended, whatever the sensors say."""
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
        """How large the fixed quota is."""
        return (f"quota fixed at {self.quota_ratio:.0%} of BE's CPUs",)


@dataclass(kw_only=True, eq=False)
class GreedyShield(Unmanaged):
    """Asks for everything in every tick: its row shows what the shield alone achieves, the bar for learned policies."""

    name = "greedy-shield"
    shielded = True

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """All CPUs and no quota; the shield's guards limit level, growth and suspension."""
        return self.limits.full, "asks for everything"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Whose achievement the results are."""
        return ("decides nothing itself: its row shows what the shield alone achieves",)
