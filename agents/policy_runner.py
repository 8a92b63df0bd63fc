"""The runner of a policy on one host: the way from the readings of a tick to the allocation that may be written.

The control loop, benchmarks, shadows, replays and recordings hold their policies in a PolicyRunner. So what a policy
observes, what is made of its answer, and what happens when it has none, is the same in all of them.
`rlctl.agents.batch_runner` is the same for many hosts in arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.agents.policy import Policy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import in_one_line
from rlctl.envs.observation import LAGS, Observation, Observer
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict

SAFE = "safe"
"""Stands for a policy's name where none had an answer and BE gets the safe allocation."""

MOST_NOTE = 200
"""Characters of a note that the tick log takes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was proposed in a tick, by which policy, and what may be written.

    Attributes:
        verdict: What the shield lets through of it; all of it where there is no shield.
        acting: Name of the policy that proposed it, or SAFE.
        note: Why it was proposed, in the words of that policy.
        fallback: Why that was not the runner's policy; empty when it was.
        failed: The runner's policy gave no usable answer.
        error: What it raised, where no heuristic stood behind it; None when it answered.
    """

    proposed: Allocation
    verdict: Verdict
    acting: str
    note: str = ""
    fallback: str = ""
    failed: bool = False
    error: Exception | None = None


def propose(policy: Policy, observation: Observation, limits: Limits) -> tuple[Allocation, str]:
    """What a policy asks for and why, in plain types of this host's range.

    Raises:
        PolicyError: It returned what is no action.
        Exception: Whatever else a policy may raise.
    """
    proposed = decode(policy.act(observation), observation.current, limits)
    # A policy's own Allocation may hold objects of any type, and would then break in the middle of a write.
    plain = Allocation(float(proposed.quota_cpus), int(operator.index(proposed.cpuset_cpus)), bool(proposed.frozen))
    return limits.clip(plain), str(policy.note)[:MOST_NOTE]


class PolicyRunner:
    """A policy on one host: observes for it, has its answer ruled on, and tells it of the ruling.

    Args:
        shield: Rules on every proposal; None where a policy is judged bare. Policies that see the same host's readings
            may share one: what its guards remember depends on no proposal.
        strict: What a policy raises is raised here, and its notes are not read: for benchmarks and recordings, where a
            failure is a mistake to be shown. Otherwise BE gets the safe allocation in that tick.
        lags: Ticks back that the observations' vector shows, oldest first.
        learns: Books what the host teaches even where this policy does not go by it.
    """

    __slots__ = ("limits", "observer", "policy", "shield", "strict")

    def __init__(
        self,
        policy: Policy,
        shield: Shield | None,
        limits: Limits,
        tick_seconds: float,
        *,
        strict: bool = False,
        lags: Sequence[int] = LAGS,
        learns: bool = False,
    ) -> None:
        self.policy, self.shield, self.limits, self.strict = policy, shield, limits, strict
        self.observer = Observer(limits, tick_seconds, lags, learns=learns or policy.learns)

    def start(self) -> Allocation:
        """Forget everything; where BE begins: under a shield at the safe allocation, else where the policy says."""
        self.observer.reset()
        start = self.policy.start(self.limits)
        if self.shield is None:
            return start
        self.shield.reset()
        return self.limits.safe

    def decide(self, telemetry: Telemetry, current: Allocation, *, cut: bool = False) -> Decision:
        """One tick. Whatever is wrong with the policy, there is a decision; unless `strict`.

        Args:
            telemetry: This tick's readings; a new object for each tick.
            cut: BE was taken down in the midst of the period before, by the fast guard.

        Raises:
            Exception: What a guard raised, or, where the runner is strict, the policy.
        """
        policy, shield = self.policy, self.shield
        mask = shield.mask(telemetry, current) if shield and policy.masked else None
        observation = self.observer.observe(telemetry, current, mask, cut=cut)
        if self.strict:
            proposed = decode(policy.act(observation), current, self.limits)
            decision = Decision(proposed, self._rule(telemetry, current, proposed), policy.name)
        else:
            decision = self._decide_catching_errors(observation)
        policy.learn_ruling(decision.verdict)
        return decision

    def _decide_catching_errors(self, observation: Observation) -> Decision:
        """The decision of a policy that is not trusted to be right, nor to fail in a known way."""
        policy, telemetry, current = self.policy, observation.telemetry, observation.current
        try:
            proposed, note = propose(policy, observation, self.limits)
        except Exception as error:  # noqa: BLE001
            safe, why = self.limits.safe, f"policy failed: {in_one_line(error)}"
            return Decision(safe, self._rule(telemetry, current, safe), SAFE, why, why, failed=True, error=error)
        verdict = self._rule(telemetry, current, proposed)
        return Decision(proposed, verdict, policy.acting, note, policy.fallback, policy.failed)

    def _rule(self, telemetry: Telemetry, current: Allocation, proposed: Allocation) -> Verdict:
        shield = self.shield
        return shield.rule(telemetry, current, proposed) if shield else Verdict(proposed, proposed)
