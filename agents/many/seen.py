"""What a policy of many hosts sees in a tick, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocations import Allocations
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Telemetry

__all__ = ["Answer", "BatchPolicy", "Flags", "Seen"]

Flags = NDArray[np.bool_]


class Seen(NamedTuple):
    """One tick of n hosts under one clock.

    Attributes:
        time_seconds: Of that clock.
        readings: What the sensors say.
        current: The allocations in force.
        mask: bool, shape (n, len(MOVES)): moves that the shield would let through; None without a shield.
        telemetry: The same readings host by host, for those who want them so.
    """

    time_seconds: float
    readings: Readings
    current: Allocations
    mask: Flags | None
    telemetry: Callable[[], list[Telemetry]]


class Answer(NamedTuple):
    """What a policy asks for.

    Attributes:
        proposed: For each host.
        failed: Where it had no usable answer; what is proposed there is the safe allocation. Shape (n,).
        strange: Where the tick was unlike its training, as `rlctl.agents.served.drift` tells it. Shape (n,).
    """

    proposed: Allocations
    failed: Flags
    strange: Flags

    @classmethod
    def sound(cls, proposed: Allocations) -> Answer:
        """Nothing failed and nothing was strange."""
        none = np.zeros(len(proposed.quota_cpus), np.bool_)
        return cls(proposed, none, none)


class BatchPolicy(Protocol):
    """A `Policy` of n hosts of any sizes.

    Attributes:
        shielded, masked: As in `rlctl.agents.policy.Policy`.
    """

    shielded: bool
    masked: bool

    @property
    def remarks(self) -> tuple[str, ...]:
        """As there."""
        ...

    def begin(self, which: Flags) -> Allocations:
        """Forget everything about the hosts in `which`, shape (n,); where BE begins on each."""
        ...

    def act(self, seen: Seen) -> Answer:
        """The next allocations. Called once per tick, in order, for all hosts."""
        ...
