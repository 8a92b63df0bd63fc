"""A tick log run again through the shield, and through policies that were not there.

Open loop: every tick has the readings and the allocation in force that were recorded, whatever a policy asks for. So a
replay tells what it would have done with what was seen, not what would have come of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.agents.policy import Policy
from rlctl.agents.seat import Seat
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.replay import ReplayPlant
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict
from rlctl.ticklog.header import limits_in, profile_in, run_in
from rlctl.ticklog.logged import LoggedTick

__all__ = [
    "Answer",
    "Contender",
    "Difference",
    "Recheck",
    "alike",
    "begins_anew",
    "differing",
    "digest_in",
    "period_in",
    "replay",
    "usable_cpus",
]

TOLERANCE_CPUS = 1e-6
"""Logs from before all digits were kept have six of a quota."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A verdict that is not the recorded one.

    Attributes:
        decision: The tick as recorded.
        verdict: What the shield says now.
    """

    decision: LoggedTick
    verdict: Verdict


@dataclass(slots=True)
class Recheck:
    """The recorded verdicts against the shield's of now.

    Attributes:
        runs, ticks: How much was replayed.
        same_shield: In every run the shield is the one that ruled then: by rights there is no difference.
        unknown: Ticks not judged, because what the guards remembered is not known: after damage, and where the log's
            beginning is missing.
        differences: In order.
    """

    runs: int = 0
    ticks: int = 0
    same_shield: bool = True
    unknown: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy would have asked for at a tick, and got; `failed` says why it had no answer."""

    decision: LoggedTick
    verdict: Verdict
    limits: Limits
    failed: str = ""

    @property
    def agrees(self) -> bool:
        """It would have got what was got then."""
        return alike(self.verdict.allocation, self.decision.tick.verdict.allocation, self.limits)

    def cpus(self, allocation: Allocation) -> float:
        """CPUs that BE could use under an allocation."""
        return usable_cpus(allocation, self.limits)


class Contender:
    """A policy that is asked at every tick; `answers` has what it would have asked for and got.

    Args:
        policy: Started anew with each run of the log.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.answers: list[Answer] = []

    def start(self, shield: Shield, tick_seconds: float) -> None:
        """A run of the log begins; the shield is one for all contenders."""
        self._seat = Seat(self.policy, shield, shield.limits, tick_seconds)
        self._seat.start()

    def answer(self, decision: LoggedTick, telemetry: Telemetry, before: Allocation) -> None:
        """Ask it, as the control loop does."""
        asked = self._seat.decide(telemetry, before)
        failed = repr(asked.error) if asked.error else ""
        self.answers.append(Answer(decision, asked.verdict, self._seat.limits, failed))


def replay(decisions: Iterable[LoggedTick], profile: Profile | None, contenders: Sequence[Contender] = ()) -> Recheck:
    """Run a log again.

    Args:
        decisions: In the order in which they were recorded.
        profile: The shield; None takes the one under which each run was recorded.
        contenders: Policies to ask at every tick.

    Raises:
        ConfigError: The log does not say under which shield it was recorded.
    """
    found = Recheck()
    for run in _runs(decisions):
        header = run[0].header
        shield = profile or profile_in(header)
        if shield is None:
            raise ConfigError(
                "does not say under which shield it was recorded; name one with --shield", run[0].path, run[0].number
            )
        plant = ReplayPlant([decision.tick for decision in run], limits_in(header), period_in(header))
        _replay_run(run, plant, Shield(shield, plant.limits), contenders, found)
    return found


def _replay_run(
    run: Sequence[LoggedTick], plant: ReplayPlant, shield: Shield, contenders: Sequence[Contender], found: Recheck
) -> None:
    same = digest_in(run[0].header) == shield.digest
    found.runs += 1
    found.same_shield &= same
    for contender in contenders:
        contender.start(shield, plant.tick_seconds)
    known, expected = True, 0
    for decision in run:
        plant.wait()
        tick, telemetry, before = decision.tick, plant.read(), plant.recorded.before
        known = known and decision.unbroken and tick.index == expected
        expected = tick.index + 1
        if same and decision.first and shield.resume(decision.header.get("guards", {}), telemetry):
            known = True
        for contender in contenders:
            contender.answer(decision, telemetry, before)
        verdict = shield.rule(telemetry, before, tick.proposed)
        found.ticks += 1
        if same and not known:
            found.unknown += 1
        elif differing(verdict, tick.verdict):
            found.differences.append(Difference(decision, verdict))


def alike(one: Allocation, other: Allocation, limits: Limits) -> bool:
    """Two allocations come to the same: frozen alike, as many CPUs, the quota within 1 % of BE's CPUs."""
    if one.frozen or other.frozen:
        return one.frozen == other.frozen
    near = abs(usable_cpus(one, limits) - usable_cpus(other, limits)) <= 0.01 * limits.cpus
    return near and one.cpuset_cpus == other.cpuset_cpus


def usable_cpus(allocation: Allocation, limits: Limits) -> float:
    """CPUs that BE could use under an allocation."""
    return 0.0 if allocation.frozen else min(allocation.quota_cpus, allocation.cpuset_cpus, limits.cpus)


def differing(now: Verdict, then: Verdict) -> bool:
    """Two verdicts on the same proposal give BE something else, or for other reasons."""
    one, other = now.allocation, then.allocation
    same_quota = math.isclose(one.quota_cpus, other.quota_cpus, rel_tol=0.0, abs_tol=TOLERANCE_CPUS)
    return (
        not (same_quota and one.cpuset_cpus == other.cpuset_cpus and one.frozen == other.frozen)
        or _reasons(now) != _reasons(then)
    )  # fmt: skip


def _reasons(verdict: Verdict) -> set[tuple[str, str]]:
    return {(bound.guard, bound.reason) for bound in verdict.decisive}


def _runs(decisions: Iterable[LoggedTick]) -> Iterator[list[LoggedTick]]:
    """The runs of the service that a log holds, one after the other."""
    run: list[LoggedTick] = []
    for decision in decisions:
        if run and begins_anew(run[-1], decision):
            yield run
            run = []
        run.append(decision)
    if run:
        yield run


def begins_anew(last: LoggedTick, decision: LoggedTick) -> bool:
    """A tick is of another run of the service than the one before it."""
    return decision.tick.index <= last.tick.index or (
        decision.header is not last.header and run_in(decision.header) != run_in(last.header)
    )


def digest_in(header: Mapping[str, Any]) -> object:
    """The digest of the shield that a header names."""
    shield = header.get("shield")
    return shield.get("digest") if isinstance(shield, Mapping) else None


def period_in(header: Mapping[str, Any]) -> float | None:
    """The control period in seconds that a header names; None when it names none that can be."""
    period = header.get("tick_seconds")
    return float(period) if isinstance(period, (int, float)) and 0.0 < period < 1e6 else None
