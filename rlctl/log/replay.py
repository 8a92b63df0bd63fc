"""A tick log run again through the shield: does it still rule as it did?

Open loop: every tick has the readings and the allocation in force that were recorded, whatever the shield says now.
Policies are asked about a log by `rlctl.report.shadow_watch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import Observer
from rlctl.log.reader import LoggedTick, limits_in, profile_in, run_in
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import OF_SERVICE, Verdict

TOLERANCE_CPUS = 1e-6
"""Logs from before all digits were kept have six of a quota."""


@dataclass(frozen=True, slots=True)
class VerdictDifference:
    """A verdict of the shield on a recorded proposal that is not the recorded one.

    Attributes:
        same_shield: The shield is the one that ruled in this run: there should be no difference.
    """

    logged: LoggedTick
    verdict: Verdict
    same_shield: bool


@dataclass(slots=True)
class Recheck:
    """The recorded verdicts against those of a shield now.

    Attributes:
        runs, ticks: Number of runs of the service and of ticks that were replayed.
        other_runs: Number of the runs in which another shield ruled.
        unknown: Ticks not judged, because what the guards remembered is not known: after damage, and where the log's
            beginning is missing.
    """

    runs: int = 0
    ticks: int = 0
    other_runs: int = 0
    unknown: int = 0
    differences: list[VerdictDifference] = field(default_factory=list)


def replay(ticks: Iterable[LoggedTick], profile: Profile | None) -> Recheck:
    """Run a log again, oldest tick first, through the shield.

    Args:
        profile: Constants of the shield; None takes those under which each run was recorded, ConfigError if none are.
    """
    recheck = Recheck()
    for run in _runs(ticks):
        header = run[0].header
        constants = profile or profile_in(header)
        if constants is None:
            raise ConfigError(
                "does not say under which shield it was recorded; name one with --shield", run[0].path, run[0].number
            )
        shown = (one for logged in run for one in (logged.tick.before, logged.tick.applied))
        _replay_run(run, Shield(constants, limits_in(header) or limits_of(shown)), recheck)
    return recheck


def limits_of(allocations: Iterable[Allocation]) -> Limits:
    """What a log without a header shows of its host: the largest cpuset is taken for all CPUs."""
    return Limits(cpus=max(one.cpuset_cpus for one in allocations))


def _replay_run(run: Sequence[LoggedTick], shield: Shield, recheck: Recheck) -> None:
    same = digest_in(run[0].header) == shield.digest
    recheck.runs += 1
    recheck.other_runs += not same
    # Guards remember: a verdict can be judged where all ticks since the run's beginning are here, or since a header
    # that says what they remembered.
    known, expected = True, 0
    for logged in run:
        tick = logged.tick
        known = known and logged.unbroken and tick.index == expected
        expected = tick.index + 1
        known |= take_conditions(logged, shield)
        verdict = shield.rule(tick.telemetry, tick.before, tick.proposed)
        recheck.ticks += 1
        if same and not known:
            recheck.unknown += 1
        elif differing(verdict, tick.verdict):
            recheck.differences.append(VerdictDifference(logged, verdict, same))


def take_conditions(logged: LoggedTick, shield: Shield, *observers: Observer) -> bool:
    """Before a tick is decided anew: what the service held BE to, as pause and schedule do, BE's weight, the price.

    Returns:
        What the guards remember is known from here on: a header says it, and is of this shield.
    """
    tick, header = logged.tick, logged.header
    shield.hold(tuple(bound for bound in tick.verdict.bounds if bound.reason in OF_SERVICE))
    if tick.least_weight is not None:
        shield.follow_weight(least=tick.least_weight)
    for observer in observers:
        observer.price = tick.price
        observer.follow_weight(least=shield.limits.least_weight)
    return (
        logged.first and digest_in(header) == shield.digest and shield.resume(header.get("guards", {}), tick.telemetry)
    )


def same(one: Allocation, other: Allocation) -> bool:
    """Two allocations are one, but for digits that a log may have lost."""
    near = math.isclose(one.quota_cpus, other.quota_cpus, rel_tol=0.0, abs_tol=TOLERANCE_CPUS)
    return near and (one.cpuset_cpus, one.frozen) == (other.cpuset_cpus, other.frozen)


def differing(now: Verdict, then: Verdict) -> bool:
    """Two verdicts on the same proposal give BE something else, or for other reasons."""
    return not same(now.allocation, then.allocation) or _reasons(now) != _reasons(then)


def _reasons(verdict: Verdict) -> set[tuple[str, str]]:
    return {(bound.guard, bound.reason) for bound in verdict.decisive}


def _runs(ticks: Iterable[LoggedTick]) -> Iterator[list[LoggedTick]]:
    """The runs of the service that a log holds, one after the other."""
    run: list[LoggedTick] = []
    for logged in ticks:
        if run and begins_anew(run[-1], logged):
            yield run
            run = []
        run.append(logged)
    if run:
        yield run


def begins_anew(last: LoggedTick, logged: LoggedTick) -> bool:
    """A tick is of another run of the service than the one before it."""
    return logged.tick.index <= last.tick.index or (
        logged.header is not last.header and run_in(logged.header) != run_in(last.header)
    )


def digest_in(header: Mapping[str, Any]) -> object:
    """The digest of the shield that a header names."""
    shield = header.get("shield")
    return shield.get("digest") if isinstance(shield, Mapping) else None


def period_in(header: Mapping[str, Any]) -> float | None:
    """The control period in seconds that a header names; None when it names none that can be."""
    period = header.get("tick_seconds")
    return float(period) if isinstance(period, (int, float)) and 0.0 < period < 1e6 else None
