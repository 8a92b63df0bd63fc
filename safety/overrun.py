"""The guard against BE that uses more CPU time than it may: a task left its groups, or the kernel does not obey."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import BE_ALLOWED, Telemetry, Value
from rlctl.safety.guard import elapsed_seconds
from rlctl.safety.verdict import Bound, Reason

TOLERANCE_RATIO, TOLERANCE_CPUS = 0.1, 0.05
"""More than allowed that is none: a quota's last slice of each period, and the error of reading two counters."""

MOST_CPU_SECONDS = 1.0
"""Of too much, as a leaky bucket holds it, before the guard objects; it does until the bucket is empty again."""


class Excess(NamedTuple):
    """Memory of the guard.

    Attributes:
        cpu_seconds: What BE used too much lately, from 0 to twice MOST_CPU_SECONDS.
        objects: It was too much, and the bucket has not been empty since.
        used_cpus, allowed_cpus: Of the last window with both readings; 0 before the first.
    """

    cpu_seconds: float = 0.0
    objects: bool = False
    used_cpus: float = 0.0
    allowed_cpus: float = 0.0
    seen_seconds: float = math.nan


@dataclass(frozen=True, slots=True)
class Overrun:
    """BE gets the safe allocation while it takes CPU time beyond what is in force.

    A freeze reaches what a quota does not, such as real-time tasks and kernels whose scheduler ignores quotas. It does
    not reach a task that left its groups: the reason says that one did, to whoever reads logs and alerts.

    Attributes:
        gap_seconds: Most time that counts as passed between two readings.
    """

    gap_seconds: float
    name: ClassVar[str] = "overrun"

    def start(self) -> Excess:
        """Nothing was used too much."""
        return Excess()

    def advance(self, memory: Excess, telemetry: Telemetry) -> Excess:
        """Fill the bucket by what was too much in this window, or let it leak; without a reading it stays as it is."""
        now, readings = telemetry.time_seconds, (telemetry.be_cpus, telemetry.counters.get(BE_ALLOWED))
        used, allowed = (one.value if isinstance(one, Value) else math.nan for one in readings)
        if not (math.isfinite(used) and math.isfinite(allowed)):
            return memory._replace(seen_seconds=now)
        # bucket <- clip(bucket + (used - (1 + r) allowed - c) dt, 0, 2 MOST): use within the tolerance lets it leak.
        passed = elapsed_seconds(memory.seen_seconds, now, self.gap_seconds)
        beyond = used - (1.0 + TOLERANCE_RATIO) * allowed - TOLERANCE_CPUS
        filled = min(max(memory.cpu_seconds + beyond * passed, 0.0), 2.0 * MOST_CPU_SECONDS)
        objects = filled >= MOST_CPU_SECONDS or (memory.objects and filled > 0.0)
        return Excess(filled, objects, used, allowed, now)

    def bound(self, memory: Excess, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """The safe allocation while it objects."""
        # Hysteresis: it objects from a full bucket until an empty one, or BE would be frozen and thawed in turns.
        if not memory.objects:
            return None
        detail = f"BE used {memory.used_cpus:.2f} CPUs of {memory.allowed_cpus:.2f} that it may"
        return Bound(
            self.name, Reason.BE_OVERRUN, limits.safe, f"{detail}, {memory.cpu_seconds:.1f} CPU-seconds to pay"
        )
