"""One thing that a host may offer, as `rlctl doctor` lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing that a host may offer.

    Attributes:
        name: For the first column of the table, such as "cgroup cpu" or "perf cycles".
        reason: How that shows, or what the kernel answered.
        disables: What rlctl cannot do without it; empty for a mere fact.
    """

    name: str
    present: bool
    reason: str
    disables: str
