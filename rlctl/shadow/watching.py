"""Shadows: policies that watch the live stream and say what they would have done, while another one acts.

The tick log is the stream. So shadows run in a process of their own, which can neither delay nor hurt the loop that
acts; whatever they do, BE is as that one left it.

What a shadow sees is another's work. Readings and the history in its observations belong to the allocations that were
in force, never to those that it asked for itself. A learned policy is asked what a fresh look at this host would make
it do next, one step at a time; a manager with settings of its own goes on from these, though they were never in force.
Its answers are ruled by the same guards, and the growth rate counts from what is in force: a shadow can ask for more,
but get only a step more than BE has. So what came of it is not in here; see `rlctl.shadow.estimates` for what can be
told anyway, and `rlctl.shadow.sim` for the loop closed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.agents.managers.readings import number, slack_of
from rlctl.agents.policy import Policy
from rlctl.agents.seat import Decision, Seat, propose
from rlctl.agents.served.standing import Budgets
from rlctl.agents.served.worker import CallFailed, Worker
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight
from rlctl.safety.growth import GrowthRate, SlackHold
from rlctl.safety.shield import Shield
from rlctl.ticklog.header import limits_in, profile_in, run_in
from rlctl.ticklog.logged import LoggedTick
from rlctl.ticklog.replay import begins_anew, digest_in, period_in

__all__ = ["Answer", "Shadow", "Shadows", "Watched"]

HANG_SECONDS = 2.0
"""Wall clock after which a call is given up. Not the policy's budget: that is in CPU time, for a shadow runs when
nobody else wants to, and would be late through no fault of its own."""


FROM_WHAT_IS_IN_FORCE = frozenset({GrowthRate.name, SlackHold.name})
"""Guards whose bound is what is in force, or a step more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shadow would have asked for at a tick, and got.

    Attributes:
        asked: What it proposed; the safe allocation when it had no usable answer.
        got: What the shield would have let through.
        guards: The guards whose bounds the proposal exceeded.
        failed: Why there was no usable answer; empty when there was one.
        late: It failed by taking too long.
        cpu_seconds: CPU time of the answer.
        drift: What of the tick the policy's training never had; empty when nothing, or nothing is known of it.
    """

    asked: Allocation
    got: Allocation
    guards: tuple[str, ...] = ()
    failed: str = ""
    late: bool = False
    cpu_seconds: float = 0.0
    drift: str = ""

    @property
    def overridden(self) -> bool:
        """The shield would not have let it through as it was."""
        return self.asked != self.got

    @property
    def refused(self) -> bool:
        """The same, by a guard that goes by readings alone.

        The others count from what is in force, which is another's work: a shadow that would give BE twice as much is
        overridden by them in every tick, and would be in the first few if it acted.
        """
        return any(guard not in FROM_WHAT_IS_IN_FORCE for guard in self.guards)


@dataclass(frozen=True, slots=True)
class Watched:
    """One tick of the stream, and every shadow's answer to it.

    Attributes:
        run: Tells runs of the service apart.
        index: Number of the tick in its run.
        wall_seconds: Wall clock, Unix time.
        acting: Who decided.
        load_ratio: Load of the period before; None when it is not known.
        met: The window before held the target; None when nothing was measured.
        be_cpus: CPUs that BE used in the period before, None when it is not known.
        applied: What was in force from this tick on.
        overridden: The shield did not let the acting policy's proposal through as it was.
        answers: By the shadow's name.
        header: That of the log.
    """

    run: str
    index: int
    wall_seconds: float
    acting: str
    load_ratio: float | None
    met: bool | None
    be_cpus: float | None
    applied: Allocation
    overridden: bool
    answers: Mapping[str, Answer]
    header: Mapping[str, Any] = field(default_factory=dict)


class Shadow(Policy):
    """One policy that watches, in a Seat that nobody obeys.

    It answers from a thread of its own: it may raise, hang or leave, and the others go on.

    Args:
        policy: Started anew with each run of the log.
    """

    shielded, weight, note, remarks = True, Weight.EQUAL, "", ()

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name, self.masked, self.needs, self.learned = policy.name, policy.masked, policy.needs, policy.learned
        self.hash = policy.digest
        self._worker: Worker[tuple[Allocation, float]] = Worker(f"shadow {policy.name}")

    def start(self, limits: Limits) -> Allocation:
        """The policy itself starts with its next answer, in its thread."""
        self._limits, self._started = limits, False
        return limits.safe

    def act(self, observation: Observation) -> Allocation:
        """What the policy asks for, as the control loop would ask it.

        Raises:
            CallFailed: It has no usable answer, or took too long for it.
        """
        self._unlike = self.policy.strange(observation)
        self._late, self._cpu_seconds = False, 0.0
        try:
            asked, self._cpu_seconds = self._worker.call(lambda: self._ask(observation), HANG_SECONDS)
        except CallFailed:
            self._late = self._worker.busy
            raise
        within_seconds = Budgets().answer_within(observation.tick_seconds)
        self._late = self._cpu_seconds > within_seconds
        if self._late:
            taken, most = 1e3 * self._cpu_seconds, 1e3 * within_seconds
            raise CallFailed(f"took {taken:.3g} ms of CPU time, {most:.3g} are allowed")
        return asked

    def answer(self, decision: Decision) -> Answer:
        """Its last answer, and what the guards made of it."""
        verdict, failed = decision.verdict, str(decision.error or "")
        guards = tuple(dict.fromkeys(bound.guard for bound in verdict.decisive))
        got = verdict.allocation
        return Answer(decision.proposed, got, guards, failed, self._late, self._cpu_seconds, self._unlike)

    def close(self) -> None:
        """Let go of the thread. Idempotent."""
        self._worker.close()

    def _ask(self, observation: Observation) -> tuple[Allocation, float]:
        """In the policy's thread."""
        if not self._started:
            self.policy.start(self._limits)
            self._started = True
        begun = time.thread_time()
        asked, _ = propose(self.policy, observation, self._limits)
        return asked, time.thread_time() - begun


class Shadows:
    """Any number of shadows over one stream.

    They share one shield, made from the log's header and apart from the acting loop's: what guards remember depends on
    readings only, so one memory serves any number of them.

    Args:
        policies: Of different names.

    Attributes:
        ticks: Seen so far.
        unruled: Of these, passed over because no header said under which shield and on what host.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.shadows = tuple(Shadow(policy) for policy in policies)
        self.ticks = self.unruled = 0
        self._last: LoggedTick | None = None
        self._shield: Shield | None = None
        self._seats: tuple[Seat, ...] = ()
        self._told: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})

    def see(self, decision: LoggedTick) -> Watched | None:
        """Ask all about a tick; None where nothing can be said of it.

        Args:
            decision: The next one of the log.
        """
        if self._last is None or begins_anew(self._last, decision):
            self._begin(decision.header)
        self._last = decision
        self.ticks += 1
        if self._shield is None:
            self.unruled += 1
            return None
        tick, telemetry, before = decision.tick, decision.tick.telemetry, decision.tick.before
        if decision.first and digest_in(decision.header) == self._shield.digest:
            self._shield.resume(decision.header.get("guards", {}), telemetry)
        seated = zip(self.shadows, self._seats, strict=True)
        answers = {shadow.name: shadow.answer(seat.decide(telemetry, before)) for shadow, seat in seated}
        slack = slack_of(telemetry)
        return Watched(
            run=_short(decision.header),
            index=tick.index,
            wall_seconds=tick.wall_seconds,
            acting=tick.acting or tick.policy,
            load_ratio=number(telemetry.load_ratio),
            met=None if slack is None else slack >= 0.0,
            be_cpus=number(telemetry.be_cpus),
            applied=tick.applied,
            overridden=tick.verdict.overridden,
            answers=answers,
            header=self._header_from(decision.header),
        )

    def close(self) -> None:
        """Let go of all threads. Idempotent."""
        for shadow in self.shadows:
            shadow.close()

    def _begin(self, header: Mapping[str, Any]) -> None:
        limits, profile, period = limits_in(header), profile_in(header), period_in(header)
        if limits is None or profile is None or period is None:
            self._shield = None
            return
        self._shield = Shield(profile, limits)
        self._seats = tuple(Seat(shadow, self._shield, limits, period) for shadow in self.shadows)
        for seat in self._seats:
            seat.start()

    def _header_from(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The log's header with the shadows in it, one object for as long as it is the same."""
        if self._told[0] is not header:
            shadows = {one.name: {"hash": one.hash, "learned": one.learned} for one in self.shadows}
            kept = {name: value for name, value in header.items() if name != "guards"}
            self._told = header, {**kept, "shadows": shadows}
        return self._told[1]


def _short(header: Mapping[str, Any]) -> str:
    """A few letters that tell a run from others."""
    return hashlib.sha256(repr(run_in(header)).encode()).hexdigest()[:8]
