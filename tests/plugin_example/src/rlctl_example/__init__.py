"""A manager and a guard in a package of their own; rlctl finds them by their entry points."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rlctl.agents.managers.manager import Manager
from rlctl.agents.managers.options import Share
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry, Value, number
from rlctl.safety.guard import Memoryless
from rlctl.safety.verdict import Bound, Reason


@dataclass(kw_only=True, eq=False)
class Half(Manager):
    """Half of the CPUs while the load is below a gate, else the minimum.

    Args:
        most_load_ratio: The gate.
    """

    name = "example-half"
    needs = ("load_ratio",)
    most_load_ratio: Share = 0.60

    def begin(self) -> Allocation:
        """BE starts at the minimum."""
        return self.limits.minimum

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """Half of the CPUs below the gate; a load that is missing or absurd is no reason to give more."""
        load = number(telemetry.load_ratio)
        if load is None or load >= self.most_load_ratio:
            return self.limits.minimum, f"load {load}: minimum"
        return self.limits.full.but(quota_cpus=max(0.5 * self.limits.cpus, self.limits.min_quota_cpus)), f"load {load}"


@dataclass(frozen=True, slots=True)
class Pressure(Memoryless):
    """While the LC's threads wait for a CPU for more than a share of the time, BE gets the minimum."""

    most_ratio: float = 0.2
    name: ClassVar[str] = "example-pressure"

    def bound(self, memory: Any, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The minimum, also when nobody knows how long the LC waits."""
        pressure = telemetry.lc_pressure_ratio
        if isinstance(pressure, Value) and pressure.value <= self.most_ratio:
            return None
        return Bound(self.name, Reason.OWN, limits.minimum, f"LC waits: {pressure}")
