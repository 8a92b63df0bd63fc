"""What a policy of many hosts sees in a tick, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocations import Allocations
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Telemetry

Flags = NDArray[np.bool_]


class Seen(NamedTuple):
    """One tick of n hosts.

    Attributes:
        readings: What the sensors say, with the time.
        mask: Moves that the shield would let through; bool, shape (n, len(MOVES)). None without a shield.
        telemetry: Gives the same readings host by host.
    """

    readings: Readings
    current: Allocations
    mask: Flags | None
    telemetry: Callable[[], list[Telemetry]]


class Answer(NamedTuple):
    """What a policy asks for.

    Attributes:
        proposed: The allocations that it wants from now on.
        failed: Where it had no usable answer; what is proposed there is the safe allocation. Shape (n,).
        strange: Where the tick was unlike its training, as `rlctl.agents.served.drift` tells it. Shape (n,).
    """

    proposed: Allocations
    failed: Flags
    strange: Flags

    @classmethod
    def sound(cls, proposed: Allocations) -> Answer:
        """An answer in which nothing failed and nothing was strange."""
        none = np.zeros(len(proposed.quota_cpus), np.bool_)
        return cls(proposed, none, none)

    def where(self, which: Flags, other: Answer) -> Answer:
        """This answer on the hosts in `which`, the other one elsewhere."""
        failed, strange = np.where(which, self.failed, other.failed), np.where(which, self.strange, other.strange)
        return Answer(self.proposed.where(which, other.proposed), failed, strange)


class BatchPolicy(Protocol):
    """A `rlctl.agents.policy.Policy` of n hosts of any sizes.

    Attributes:
        shielded: True when it is judged behind the shield.
        masked: True when it wants the shield's mask.
    """

    shielded: bool
    masked: bool

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        ...

    def begin(self, which: Flags) -> Allocations:
        """Forget everything about the hosts in `which`, shape (n,); where BE begins on each."""
        ...

    def act(self, seen: Seen) -> Answer:
        """The next allocations. Called once per tick, in order, for all hosts."""
        ...
