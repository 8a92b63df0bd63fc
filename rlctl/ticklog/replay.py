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
from rlctl.agents.served.fallback import propose
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import Observer
from rlctl.envs.replay import ReplayPlant
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.profile import Profile
from rlctl.safety.shield import EachLc, advance, allowed, bounds, judge
from rlctl.safety.verdict import Bound, Verdict
from rlctl.ticklog.decisions import Decision
from rlctl.ticklog.header import limits_in, profile_in, run_in

__all__ = [
    "Answer",
    "Contender",
    "Difference",
    "Guards",
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

    decision: Decision
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

    decision: Decision
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
    """A policy that is asked at every tick; `answers` has what it said.

    Args:
        policy: Started anew with each run of the log.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.answers: list[Answer] = []

    def start(self, limits: Limits, tick_seconds: float) -> None:
        """A run of the log begins."""
        self._limits = limits
        self._observer = Observer(limits, tick_seconds)
        self.policy.start(limits)

    def answer(self, decision: Decision, telemetry: Telemetry, before: Allocation, given: tuple[Bound, ...]) -> None:
        """Ask it, as the control loop does; one that fails gets the safe allocation."""
        failed = ""
        try:
            mask = allowed(given, before, self._limits) if self.policy.masked else None
            proposed, _ = propose(self.policy, self._observer.observe(telemetry, before, mask), self._limits)
        except Exception as error:  # noqa: BLE001 - a policy is not trusted to fail in a known way
            proposed, failed = self._limits.safe, repr(error)
        self.answers.append(Answer(decision, judge(given, proposed), self._limits, failed))


class Guards:
    """The shield's guards, with what they remember, in the hands of a log rather than of a host."""

    def __init__(self, profile: Profile, limits: Limits) -> None:
        self._guards = profile.guards()
        self._limits = limits
        self._memories = tuple(guard.start() for guard in self._guards)

    def resume(self, remembered: Mapping[str, Any]) -> bool:
        """Take over what a header says that they remembered; False when it does not fit."""
        try:
            self._memories = tuple(_resumed(guard.start(), remembered.get(guard.name)) for guard in self._guards)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return False
        return True

    def learn(self, telemetry: Telemetry) -> None:
        """A tick has passed."""
        self._memories = advance(self._guards, self._memories, telemetry)

    def bounds(self, telemetry: Telemetry, before: Allocation) -> tuple[Bound, ...]:
        """The most that each allows."""
        return bounds(self._guards, self._memories, telemetry, before, self._limits)


def replay(decisions: Iterable[Decision], profile: Profile | None, contenders: Sequence[Contender] = ()) -> Recheck:
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
        for contender in contenders:
            contender.start(plant.limits, plant.tick_seconds)
        _replay_run(run, plant, shield, contenders, found)
    return found


def _replay_run(
    run: Sequence[Decision], plant: ReplayPlant, shield: Profile, contenders: Sequence[Contender], found: Recheck
) -> None:
    same = digest_in(run[0].header) == shield.digest
    found.runs += 1
    found.same_shield &= same
    guards = Guards(shield, plant.limits)
    known, expected = True, 0
    for decision in run:
        plant.wait()
        tick, telemetry, before = decision.tick, plant.read(), plant.recorded.before
        known = known and decision.unbroken and tick.index == expected
        expected = tick.index + 1
        if same and decision.first and guards.resume(decision.header.get("guards", {})):
            known = True
        else:
            guards.learn(telemetry)
        given = guards.bounds(telemetry, before)
        for contender in contenders:
            contender.answer(decision, telemetry, before, given)
        found.ticks += 1
        if same and not known:
            found.unknown += 1
        elif differing(verdict := judge(given, tick.proposed), tick.verdict):
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


def _runs(decisions: Iterable[Decision]) -> Iterator[list[Decision]]:
    """The runs of the service that a log holds, one after the other."""
    run: list[Decision] = []
    for decision in decisions:
        if run and begins_anew(run[-1], decision):
            yield run
            run = []
        run.append(decision)
    if run:
        yield run


def begins_anew(last: Decision, decision: Decision) -> bool:
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


def _resumed(fresh: Any, remembered: Any) -> Any:
    """A guard's memory; one for each LC where there were several."""
    if isinstance(remembered, Mapping) and remembered.keys() == {"lcs"}:
        return EachLc({str(name): _memory(fresh, one) for name, one in remembered["lcs"].items()})
    return _memory(fresh, remembered)


def _memory(start: Any, said: Mapping[str, Any] | None) -> Any:
    """A guard's memory as a header has it; numbers that JSON does not have stand there as text.

    Args:
        start: The guard's memory before any telemetry.
        said: What the header says.

    Raises:
        KeyError, OverflowError, TypeError, ValueError: It is no memory of this guard.
    """
    if start is None:
        return None
    if not isinstance(said, Mapping):
        raise TypeError(f"{said!r} is no memory")
    remembered = {name: float(value) if isinstance(value, str) else value for name, value in said.items()}
    for name in start.__slots__:
        one, usual = remembered[name], getattr(start, name)
        if not isinstance(one, (int, float, type(None))) or isinstance(one, bool) != isinstance(usual, bool):
            raise TypeError(f"{name} cannot be {one!r}")
        if one is None and usual is not None:
            raise TypeError(f"{name} cannot be missing")
        if one is not None and math.isnan(float(one)):
            raise ValueError(f"{name} cannot be {one!r}")
    return type(start)(**remembered)
