"""Run-time assurance (Simplex): a learned policy, behind it a heuristic, behind that the safe allocation.

Whatever the policy does, the tick goes on. It answers from a thread of its own within its budget. Else the heuristic's
answer of the same tick is taken, or if there is none either, the safe allocation. An answer is good for its own tick
only; a late one is never used. A policy that exceeds a budget of failures is demoted for a while; see
`rlctl.agents.served.circuit_breaker`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, Literal, NoReturn

from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import SAFE, propose
from rlctl.agents.served.circuit_breaker import CircuitBreaker, FailureBudget
from rlctl.agents.served.worker import AnswerThread, CallFailed
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError, in_one_line
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight
from rlctl.safety.verdict import Verdict

log = logging.getLogger(__name__)

REHEARSAL_SECONDS = 0.1
"""Time for the very first answer, which loads code and memory that the others find there."""

Role = Literal["policy", "heuristic", "safe"]


class FallbackPolicy(Policy):
    """A policy with a heuristic behind it, as one Policy.

    The heuristic decides in every tick, so that it is warm when it is needed; its time is not limited. The policy is
    started anew with its first call after a demotion.

    Args:
        policy: Decides while it may. It is only ever called from one thread, one call at a time.
    """

    heuristic: Policy
    note = ""

    def __init__(
        self,
        policy: Policy,
        heuristic: Policy,
        tick_seconds: float,
        budgets: FailureBudget | None = None,
    ) -> None:
        budgets = budgets or FailureBudget()
        self.policy, self.heuristic = policy, heuristic
        self.name, self.shielded, self.masked = policy.name, policy.shielded, policy.masked
        self.learned, self.trained_with = policy.learned, policy.trained_with
        self.learns, self.moves_reins = policy.learns or heuristic.learns, policy.moves_reins
        self.weight = policy.weight if policy.weight is heuristic.weight else Weight.MINIMUM
        self.needs = tuple(dict.fromkeys((*policy.needs, *heuristic.needs)))
        self._tick_seconds = tick_seconds
        self._answer_seconds = budgets.answer_within(tick_seconds)
        self._budgets = budgets
        self._worker: AnswerThread[Any] = AnswerThread(f"policy {policy.name}")
        self._ruling: Verdict | None = None
        self._started = False
        self._reset()

    def start(self, limits: Limits) -> Allocation:
        """Forget everything; BE begins at the safe allocation."""
        self._limits = limits
        self._reset()
        try:
            self.heuristic.start(limits)
        except Exception as error:  # noqa: BLE001 - it then fails at every tick, which is what the chain is for
            log.error("heuristic %s cannot start: %s", self.heuristic.name, in_one_line(error))
        return limits.safe

    def act(self, observation: Observation) -> Allocation:
        """This tick's proposal; never raises, and takes no longer than the budget and the heuristic do."""
        self.breaker.next(self.policy.unfamiliar(observation), self._worker.busy)
        spare, lack = self._of_heuristic(observation)
        self._spare: Allocation | None = spare[0] if spare else None
        answer, why = self._of_policy(observation)
        if answer:
            self._take("policy", "", answer)
        elif spare:
            self._take("heuristic", why, spare)
        else:
            self._take("safe", f"{why}; {self.heuristic.name}: {lack}", (self._limits.safe, lack))
        return self._proposed

    def rehearse(self, limits: Limits, observation: Observation) -> float:
        """Have the policy answer twice, in its thread, before the run: the very first answer is slower than all others.

        Returns:
            Seconds that the second one took. `start` forgets both.

        Raises:
            CallFailed: It gave no usable answer within its budget.
        """
        self.start(limits)
        self._worker.call(lambda: self._ask(observation), max(self._answer_seconds, REHEARSAL_SECONDS))
        begun = time.perf_counter()
        self._worker.call(lambda: self._ask(observation), self._answer_seconds)
        return time.perf_counter() - begun

    def learn_ruling(self, verdict: Verdict) -> None:
        """Count it against the policy when the shield overrode it; the heuristic hears what acted in its place."""
        if self._role == "policy":
            self._ruling = verdict
            # A heuristic may ask for more than it gets, and leave the rest to the shield.
            if verdict.overridden_by_guard and self.policy.learned:
                self.breaker.record_override()
        if self._spare is not None:  # what it would have done is what the heuristic goes on from
            self.heuristic.learn_ruling(Verdict(verdict.allocation, self._spare, verdict.bounds))

    def close(self) -> None:
        """Let go of the policy and its thread. Idempotent."""
        if self._started:  # whatever it does to close, it holds nobody up
            with contextlib.suppress(CallFailed):
                self._worker.call(self.policy.close, self._answer_seconds)
            self._started = False
        self._worker.close()

    @property
    def acting(self) -> str:
        """Name of whoever decided the last tick; SAFE when nobody could."""
        return {"policy": self.policy.name, "heuristic": self.heuristic.name, "safe": SAFE}[self._role]

    @property
    def digest(self) -> str:
        """Digest of the policy, whoever decides in its place."""
        return self.policy.digest

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks of the policy, and how often it was demoted."""
        count = self.breaker.demotions
        demoted = (f"demoted {count} times, then {self.heuristic.name} decided",) if count else ()
        return (*self.policy.remarks, *demoted)

    def _reset(self) -> None:
        self.breaker = CircuitBreaker(self._budgets, self._tick_seconds)
        self._role: Role = "heuristic"
        self._reported = ("policy", False)
        self.note, self.fallback, self.failed = "start", "", False
        self._started = False
        self._spare = self._ruling = None

    def _of_heuristic(self, observation: Observation) -> tuple[tuple[Allocation, str] | None, str]:
        """Its proposal and note, or None and why."""
        try:
            return propose(self.heuristic, observation, self._limits), ""
        except Exception as error:  # noqa: BLE001 - nobody is trusted not to fail
            return None, in_one_line(error)

    def _of_policy(self, observation: Observation) -> tuple[tuple[Allocation, str] | None, str]:
        """Its proposal and note, or None and why."""
        self.failed = False
        if self.breaker.demoted:
            self._started = False
            return None, self.breaker.demoted
        try:
            return self._worker.call(lambda: self._ask(observation), self._answer_seconds), ""
        except CallFailed as failure:
            self.failed = True
            self.breaker.record_failure(str(failure))
            return None, self.breaker.demoted or str(failure)

    def _ask(self, observation: Observation) -> tuple[Allocation, str]:
        """In the policy's thread."""
        if not self._started:
            self.policy.start(self._limits)
            self._started = True
        elif self._ruling is not None:
            self.policy.learn_ruling(self._ruling)
        self._ruling = None
        return propose(self.policy, observation, self._limits)

    def _take(self, role: Role, reason: str, answer: tuple[Allocation, str]) -> None:
        self._proposed, self.note = answer
        self.fallback = reason
        self._role = role
        # A level is of the rein that its author reckons with.
        self.moves_reins = (self.policy if role == "policy" else self.heuristic).moves_reins
        report = role, bool(self.breaker.demoted)
        if report != self._reported:
            self._report()
        self._reported = report

    def _report(self) -> None:
        """Log one line for each change of who decides, none for each tick."""
        if self._role == "policy":
            log.info("policy %s decides again", self.name)
            return
        retry = self.breaker.ticks_to_retry * self._tick_seconds
        until = f", for {retry:g} s or more" if retry else ""
        who = "BE gets the safe allocation" if self._role == "safe" else f"{self.acting} decides"
        log.warning("%s instead of policy %s%s: %s", who, self.name, until, self.fallback)


class UnavailablePolicy(Policy):
    """A policy that never answers. In the log, in metrics, `why` and `top` it is the policy that it stands for."""

    shielded, masked = True, False
    weight: Weight = Weight.EQUAL
    needs: tuple[str, ...] = ()
    learned: bool = True
    note = ""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why

    def start(self, limits: Limits) -> Allocation:
        """BE begins at the safe allocation."""
        return limits.safe

    def act(self, observation: Observation) -> NoReturn:  # noqa: ARG002 - it looks at nothing
        """Fail in every tick; PolicyError: always."""
        raise PolicyError(f"refused: {self.why}")

    @property
    def remarks(self) -> tuple[str, ...]:
        """That it was refused."""
        return (f"refused: {self.why}",)
