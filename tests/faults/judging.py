"""What was seen of a fault against what the shield had ruled: when BE was where it had to be, and whether it stayed."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.errors import RlctlError
from tests.doubles.tick_logs import read_ticks
from tests.faults.onlooker import Sample

ROUNDING_CPUS = 1e-6

CPU_SLACK_SECONDS = 0.3
"""BE may use so much CPU time beyond what it is allowed: a period of its quota, and what it takes to stop."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What BE did.

    Attributes:
        seconds: Until it was where it had to be, and stayed if it had to; infinite if it never was.
        freer: How many times it became freer than it might be.
        first: The first of these, in words.
        excess_seconds: CPU time that its processes used beyond what the verdicts allow, at its most.
        excess_before_seconds: The same until it was where it had to be.
        gap_seconds: The longest time for which nobody looked.
        waited_seconds: How long the service waited for a CPU until BE was where it had to be.
    """

    seconds: float
    freer: int = 0
    first: str = ""
    excess_seconds: float = 0.0
    excess_before_seconds: float = 0.0
    gap_seconds: float = 0.0
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rulings:
    """The shield's verdicts in their order; from its tick's end until the next tick's begin one is in force alone.

    Attributes:
        begun_seconds, ended_seconds: Of the ticks, monotonic.
        verdicts: Theirs.
    """

    begun_seconds: Sequence[float]
    ended_seconds: Sequence[float]
    verdicts: Sequence[Allocation]

    def most(self, sample: Sample) -> Allocation | None:
        """The most that BE may have had when a sample was taken; None before the first verdict.

        While a tick writes, the verdict before it counts too: some knobs are still as that one left them.
        """
        first = max(bisect.bisect_left(self.ended_seconds, sample.begun_seconds) - 1, 0)
        last = bisect.bisect_right(self.begun_seconds, sample.ended_seconds)
        found = self.verdicts[first:last]
        if not found:
            return None
        quota, cpus = max(one.quota_cpus for one in found), max(one.cpuset_cpus for one in found)
        return Allocation(quota, cpus, all(one.frozen for one in found))


def rulings(logs: Iterable[Path]) -> tuple[Rulings, list[Mapping[str, Any]]]:
    """What tick logs tell: the verdicts, and the ticks themselves."""
    ticks: list[Mapping[str, Any]] = []
    for path in logs:
        try:
            ticks += read_ticks(path, lambda _: None)  # the last line may be half written
        except RlctlError:  # there is none
            continue
    ticks.sort(key=lambda tick: tick["time_seconds"])
    begun = [float(tick["time_seconds"]) for tick in ticks]
    ended = [start + float(tick["tick_seconds"]) for start, tick in zip(begun, ticks, strict=True)]
    return Rulings(begun, ended, [_allocation(tick["verdict"]) for tick in ticks]), ticks


def freer(sample: Sample, most: Allocation) -> bool:
    """BE could use more than it may. Where it is told to stand still, or there is no group, it uses nothing."""
    found = sample.found
    if found is None or found.frozen or sample.ordered:
        return False
    return not found.at_most(most.but(quota_cpus=most.quota_cpus + ROUNDING_CPUS))


def judge(
    samples: Sequence[Sample],
    ruled: Rulings,
    wanted: Allocation | None,
    counted_seconds: float,
    watched: tuple[float, float],
    excused: Sequence[tuple[float, float]] = (),
    *,
    stays: bool = True,
) -> Judged:
    """When BE was where it had to be, and how often it was freer than it might be: than the verdict at all times.

    Args:
        samples: What was seen.
        ruled: The verdicts.
        wanted: Where BE had to be: the safe allocation, or None for whatever verdict was in force.
        counted_seconds: From when on the time counts.
        watched: From when until when BE might never be freer than the verdict in force.
        excused: Spans in which it might be: a foreign write may last until the end of the tick after it, and writes
            that fail until the watchdog steps in.
        stays: The time counts until BE was there for good. It may be there before for another reason: a tick that began
            before the fault may hold it for a slow client, and the next one, which has not seen the fault, frees it.
    """
    reached, times, was_freer, first = math.inf, 0, False, ""
    begin, end = watched
    excess = most_excess = excess_before = gap = 0.0
    before, seen_seconds = None, begin
    waited_from = waited_to = 0.0
    for sample in samples:
        if sample.begun_seconds <= counted_seconds:
            waited_from = sample.waited_seconds
        most = ruled.most(sample)
        if most is None or sample.ended_seconds < begin or sample.begun_seconds > end:
            continue
        gap, seen_seconds = max(gap, sample.begun_seconds - seen_seconds), sample.ended_seconds
        bound = most if wanted is None else wanted
        is_counted = reached == math.inf and sample.begun_seconds >= counted_seconds
        waited_to = sample.waited_seconds if is_counted else waited_to
        if is_counted and _within(sample, bound):
            reached = sample.ended_seconds - counted_seconds
        elif stays and wanted is not None and freer(sample, wanted):
            reached = math.inf
        limit = wanted if stays and wanted is not None and reached < math.inf else most
        is_excused = any(a <= sample.ended_seconds <= b for a, b in excused)
        is_freer = freer(sample, limit) and not is_excused
        if before is not None:
            allowed = max(limit.usable_cpus, before[1]) * (sample.ended_seconds - before[0].begun_seconds)
            used = sample.used_seconds - before[0].used_seconds
            # What was not used before is no credit.
            excess = 0.0 if is_excused else max(excess + used - allowed, 0.0)
            most_excess = max(most_excess, excess)
            excess_before = most_excess if reached == math.inf else excess_before
        before = sample, limit.usable_cpus
        if is_freer and not was_freer:
            times += 1
            first = first or f"{sample.begun_seconds - begin:.2f} s after the fault: {sample.found}, allowed {limit}"
        was_freer = is_freer
    gap, waited = max(gap, end - seen_seconds), max(waited_to - waited_from, 0.0)
    return Judged(reached, times, first, most_excess, excess_before, gap, waited)


def _within(sample: Sample, most: Allocation) -> bool:
    """Knob by knob, also beneath a freeze.

    Tasks that were told to freeze stop when they next get a CPU, which on a busy machine takes long; that they use none
    until then is told by their CPU time.
    """
    found = sample.found
    if found is not None and sample.ordered:
        found = found.but(frozen=True)
    return found is None or found.at_most(most.but(quota_cpus=most.quota_cpus + ROUNDING_CPUS))


def _allocation(said: Mapping[str, Any]) -> Allocation:
    quota, cpus = said["quota_cpus"], int(said["cpuset_cpus"])
    # A quota of all its CPUs is written as none: the cpuset holds BE to them.
    none = quota is None or quota >= cpus
    return Allocation(UNLIMITED if none else float(quota), cpus, bool(said["frozen"]))
