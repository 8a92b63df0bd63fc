"""Policies of n simulated hosts at once, without a loop over hosts where that is simple.

For fleets, where a policy's `act` for each host and tick would take many minutes. Host by host each answers as the
policy of one host does; `tests/agents/test_batch_policies.py` holds the two together. Managers decide host by host.
"""

from __future__ import annotations

from rlctl.agents import catalogue
from rlctl.agents.batch_learned import BatchLearned
from rlctl.agents.batch_runner import BatchAnswer, BatchObservation, BatchPolicy
from rlctl.agents.managers.references import Fixed
from rlctl.agents.policy import Policy
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation
from rlctl.envs.allocations import Allocations, VectorLimits
from rlctl.envs.observation import Observer
from rlctl.safety.verdict import Verdict


def batch_policy(name: str, limits: VectorLimits, tick_seconds: float) -> BatchPolicy:
    """A new manager or learned policy for these hosts.

    Args:
        name: As `rlctl.agents.catalogue.build` takes it; the policy has its published constants.

    Raises:
        PolicyError: An unknown name, a bound, or a bundle that cannot be served.
    """
    policy = catalogue.build(name)
    match policy:
        case LearnedPolicy():
            card, logits = policy.bundle.card, policy.bundle.logits
            learned = BatchLearned(
                logits, card.lags, limits, tick_seconds, shielded=policy.shielded, masked=policy.masked,
                price=policy.price,
            )  # fmt: skip
            learned.remarks = policy.remarks
            return learned
        case Fixed():
            return Constant(policy, limits)
    return EachHost([catalogue.build(name) for _ in limits.each], limits, tick_seconds)


class Constant:
    """Those who ask for the same allocation whatever they see."""

    def __init__(self, policy: Policy, limits: VectorLimits) -> None:
        self.shielded, self.masked, self.remarks = policy.shielded, policy.masked, policy.remarks
        self._proposed = Allocations.of([policy.start(host) for host in limits.each])

    def begin(self) -> Allocations:
        """The allocations that it always asks for."""
        return self._proposed

    def act(self, seen: BatchObservation) -> BatchAnswer:  # noqa: ARG002
        """The allocations that it always asks for."""
        return BatchAnswer.sound(self._proposed)


class EachHost:
    """Policies of one host each, which decide host by host."""

    def __init__(self, policies: list[Policy], limits: VectorLimits, tick_seconds: float) -> None:
        self.shielded, self.masked = policies[0].shielded, policies[0].masked
        self._policies, self._limits = policies, limits
        self._asked: list[Allocation | None] = [None] * len(policies)
        self._observers = [Observer(host, tick_seconds, learns=policies[0].learns) for host in limits.each]
        self.begin()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the policy's results must know."""
        return self._policies[0].remarks

    def begin(self) -> Allocations:
        """Where BE begins on each host; policies and histories begin anew."""
        for observer in self._observers:
            observer.reset()
        self._asked = [None] * len(self._policies)
        starts = zip(self._policies, self._limits.each, strict=True)
        return Allocations.of([policy.start(limits) for policy, limits in starts])

    def act(self, seen: BatchObservation) -> BatchAnswer:
        """Each policy's answer to its own host's telemetry."""
        proposed: list[Allocation] = []
        for index, telemetry in enumerate(seen.telemetry()):
            current, limits = seen.current.host(index), self._limits.each[index]
            mask = None if seen.mask is None else seen.mask[index]
            policy, observation = self._policies[index], self._observers[index].observe(telemetry, current, mask)
            if (asked := self._asked[index]) is not None:
                policy.learn_ruling(Verdict(current, asked))
            proposed.append(decode(policy.act(observation), current, limits))
            self._asked[index] = limits.clip(proposed[-1])
        return BatchAnswer.sound(Allocations.of(proposed))
