"""Plain references: without a manager, with weights alone, with no BE, at one fixed quota, and the shield alone."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Manager
from rlctl.agents.managers.options import PositiveShare
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight


@dataclass(kw_only=True, eq=False)
class Fixed(Manager):
    """Asks for the same allocation in every tick, whatever the sensors say."""

    why = ""

    def begin(self) -> Allocation:
        """All its CPUs, without a quota."""
        return self.limits.full

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:  # noqa: ARG002
        """The same as at the begin."""
        return self.begin(), self.why


class Unmanaged(Fixed):
    """BE runs as containers are deployed: equal weight, no quota, all its CPUs."""

    name, why = "none", "unmanaged"


class Weights(Fixed):
    """Only the kernel's weights: BE at the minimum. What any manager must beat where weights are ours to set."""

    name, why = "weights", "minimum weight, nothing else"
    weight = Weight.MINIMUM
    remarks = ("BE runs at the kernel's minimum weight here, whatever the scenario sets for the others",)


class CpuIdle(Fixed):
    """Only the kernel's idle class: BE runs when nobody else wants a CPU, and is preempted when somebody does."""

    name, why = "cpu-idle", "cpu.idle, nothing else"
    weight = Weight.IDLE
    remarks = ("BE runs in the kernel's idle class here, whatever the scenario sets for the others",)


class KernelAnswer(Weights):
    """Nothing is decided: the kernel was told once what it needs to know. Its row is what such knowledge is worth.

    Args:
        name: Name of the answer in `rlctl.agents.catalogue.ANSWERS`.
        law: What the kernel was told.
    """

    def __init__(self, name: str, law: str) -> None:
        self.name = name
        self.why = law
        self.remarks = (f"{law}; BE at the kernel's minimum weight",)


class Frozen(Fixed):
    """BE never runs: the LC alone, the best QoS that the host can give."""

    name, why = "frozen", "always frozen"

    def begin(self) -> Allocation:
        """BE is suspended by the freezer."""
        return self.limits.safe


@dataclass(kw_only=True, eq=False)
class Static(Fixed):
    """One quota for ever, as an operator would set it by hand.

    Args:
        quota_ratio: Quota as a share of the CPUs that BE may use.
    """

    name = "static"
    quota_ratio: PositiveShare = 0.25

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


class GreedyShield(Fixed):
    """Asks for everything in every tick: its row shows what the shield alone achieves, the bar for learned policies."""

    name, why = "greedy-shield", "asks for everything"
    moves_reins = True
    shielded = True
    remarks = ("decides nothing itself: its row shows what the shield alone achieves",)
