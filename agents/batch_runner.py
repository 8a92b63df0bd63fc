"""Who decides on many hosts at once: the runner of a tick in arrays, for fleets, trials and the surfaces of a report.

One host's runner is `rlctl.agents.policy_runner.PolicyRunner`; host by host both come to the same allocations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Flags
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.profile import Profile


class BatchObservation(NamedTuple):
    """One tick of n hosts.

    Attributes:
        mask: Moves that the shield would let through; bool, shape (n, len(MOVES)). None without a shield.
        telemetry: Gives the same readings host by host.
    """

    readings: Readings
    current: Allocations
    mask: Flags | None
    telemetry: Callable[[], list[Telemetry]]


class BatchAnswer(NamedTuple):
    """What a policy asks for.

    Attributes:
        failed: Where it had no usable answer; what is proposed there is the safe allocation. Shape (n,).
        strange: Where the tick was unlike its training, as `rlctl.agents.served.learned` tells it. Shape (n,).
    """

    proposed: Allocations
    failed: Flags
    strange: Flags

    @classmethod
    def sound(cls, proposed: Allocations) -> BatchAnswer:
        """An answer in which nothing failed and nothing was strange."""
        none = np.zeros(len(proposed.quota_cpus), np.bool_)
        return cls(proposed, none, none)


class BatchPolicy(Protocol):
    """A `rlctl.agents.policy.Policy` of n hosts of any sizes."""

    shielded: bool
    masked: bool

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        ...

    def begin(self) -> Allocations:
        """Forget all about the hosts; where BE begins on each."""
        ...

    def act(self, seen: BatchObservation) -> BatchAnswer:
        """The next allocations. Called once per tick, in order, for all hosts."""
        ...


class Decisions(NamedTuple):
    """What was decided on n hosts in one tick.

    Attributes:
        overridden: Where the shield did not let the proposal through as it was; bool, shape (n,).
        failed: Where the policy had no usable answer and the safe allocation stands in; bool, shape (n,).
        strange: Where the tick was unlike the policy's training data; bool, shape (n,).
    """

    proposed: Allocations
    allocations: Allocations
    overridden: Flags
    failed: Flags
    strange: Flags


class BatchPolicyRunner:
    """A policy over n hosts, behind the shield where it is judged behind one.

    Args:
        shield: Constants of the shield; None where nothing is ruled on, as when a trial runs bare.
        limits: Of each host.
        always: Shield it too where it is judged bare, as a service does.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        shield: Profile | None,
        limits: VectorLimits,
        *,
        always: bool = False,
    ) -> None:
        self._policy, self._limits = policy, limits
        shielded = shield is not None and (always or policy.shielded)
        self._shield = BatchShield(shield, limits, len(limits.each)) if shield and shielded else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the policy's results must know."""
        return self._policy.remarks

    def begin(self) -> Allocations:
        """Where BE begins on each host; behind the shield that is the safe allocation, as on a live host."""
        start = self._policy.begin()
        return (self._limits.safe if self._shield else start).clip_to(self._limits)

    def decide(
        self, readings: Readings, current: Allocations, telemetry: Callable[[], list[Telemetry]] = list
    ) -> Decisions:
        """Observe, decide and rule on every host; called once per tick.

        Args:
            readings: This tick's, never written to afterwards.
            telemetry: The same readings host by host, for managers that have no version in arrays.
        """
        shield = self._shield
        mask = shield.mask(readings, current) if shield and self._policy.masked else None
        proposed, failed, strange = self._policy.act(BatchObservation(readings, current, mask, telemetry))
        proposed = proposed.clip_to(self._limits)
        allocations = shield.rule(readings, current, proposed) if shield else proposed
        return Decisions(proposed, allocations, proposed.differ(allocations), failed, strange)
