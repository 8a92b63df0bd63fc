"""Who decides on many hosts at once: the runner of a tick in arrays, for fleets, trials and the surfaces of a report.

One host's runner is `rlctl.agents.policy_runner.PolicyRunner`; host by host both come to the same allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.arrays import Flags
from rlctl.envs.experience import SafeLevelMemory
from rlctl.envs.observations import book
from rlctl.envs.readings import Readings
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.profile import Profile


class BatchObservation(NamedTuple):
    """One tick of n hosts.

    Attributes:
        mask: Moves that the shield would let through; bool, shape (n, len(MOVES)). None without a shield.
        telemetry: Gives the same readings host by host.
        taught: What the hosts have taught before this tick, whoever decided; None where it is not kept.
    """

    readings: Readings
    current: Allocations
    mask: Flags | None
    telemetry: Callable[[], list[Telemetry]]
    taught: SafeLevelMemory | None = None


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

    def where(self, which: Flags, other: BatchAnswer) -> BatchAnswer:
        """This answer on the hosts in `which`, the other one elsewhere."""
        failed, strange = np.where(which, self.failed, other.failed), np.where(which, self.strange, other.strange)
        return BatchAnswer(self.proposed.where(which, other.proposed), failed, strange)


class BatchPolicy(Protocol):
    """A `rlctl.agents.policy.Policy` of n hosts of any sizes."""

    shielded: bool
    masked: bool

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        ...

    def begin(self, which: Flags) -> Allocations:
        """Forget all about the hosts in `which`, shape (n,), but what `taught` says; where BE begins on each."""
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
    """Some policies over n hosts, each host under one of them, behind the shield where the policy is judged behind one.

    Args:
        policies: All hosts begin under the first.
        shield: Constants of the shield; None where nothing is ruled on, as when a trial runs bare.
        limits: Of each host.
        tick_seconds: Length of the control period, which ages are held against.
        always: Shield those too that are judged bare, as a service does.
    """

    def __init__(
        self,
        policies: Sequence[BatchPolicy],
        shield: Profile | None,
        limits: VectorLimits,
        tick_seconds: float,
        *,
        always: bool = False,
    ) -> None:
        self._policies, self._limits, self._tick_seconds = tuple(policies), limits, tick_seconds
        self._shielded = np.array([shield is not None and (always or policy.shielded) for policy in policies])
        count = len(limits.each)
        self._shield = BatchShield(shield, limits, count) if shield is not None and self._shielded.any() else None
        self._policy_of = np.zeros(count, np.intp)
        # Booked whoever decides, as on a live host; of no use where nobody takes a host over from another one.
        self._taught = SafeLevelMemory(limits, fast=True) if len(self._policies) > 1 else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the first policy's results must know."""
        return self._policies[0].remarks

    def begin(self) -> Allocations:
        """Where BE begins on each host; behind the shield that is the safe allocation, as on a live host."""
        start = self._policies[0].begin(np.ones(len(self._policy_of), np.bool_))
        return (self._limits.safe if self._shielded[0] else start).clip_to(self._limits)

    def put_under(self, policy: int, which: Flags) -> None:
        """Give the hosts in `which` to another policy, which begins anew there, as after a reload of a live host.

        What the hosts have taught it goes on with, and the guards remember what they saw.
        """
        self._policies[policy].begin(which)
        self._policy_of = np.where(which, policy, self._policy_of)

    def decide(
        self, readings: Readings, current: Allocations, telemetry: Callable[[], list[Telemetry]] = list
    ) -> Decisions:
        """Observe, decide and rule on every host; called once per tick.

        Args:
            readings: This tick's, never written to afterwards.
            telemetry: The same readings host by host, for managers that have no version in arrays.
        """
        shield, mask = self._shield, None
        if shield and any(policy.masked for policy in self._policies):
            mask = shield.mask(readings, current)
        proposed, failed, strange = self._answers(BatchObservation(readings, current, mask, telemetry, self._taught))
        if self._taught is not None:
            book(self._taught, readings, current, self._tick_seconds)
        proposed = proposed.clip_to(self._limits)
        if shield is None:
            return Decisions(proposed, proposed, np.zeros_like(failed), failed, strange)
        ruled, shielded = shield.rule(readings, current, proposed), self._shielded[self._policy_of]
        allocations = ruled.where(shielded, proposed)
        return Decisions(proposed, allocations, proposed.differ(allocations), failed, strange)

    def _answers(self, seen: BatchObservation) -> BatchAnswer:
        """The answer of each host's own policy; a policy without a host has nothing to answer."""
        answers: BatchAnswer | None = None
        for number, policy in enumerate(self._policies):
            its_hosts = self._policy_of == number
            if its_hosts.any():
                answer = policy.act(seen if policy.masked else seen._replace(mask=None))
                answers = answer if answers is None else answer.where(its_hosts, answers)
        assert answers is not None
        return answers
