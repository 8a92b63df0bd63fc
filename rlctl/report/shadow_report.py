"""What a shadow log says of each shadow beside the policy that acted: figures, JSON, and lines for people.

Ticks are autocorrelated: what held in one tick mostly holds in the next. So no interval here counts ticks. The log is
cut into blocks, longer than what guards and managers remember. Intervals come from the spread between blocks: Student's
t over blocks for means, Wilson's interval at the effective number of ticks for shares. Beyond that, ticks within
`APART_SECONDS` never count as more than one, so that a share of 0 or 100 % has an honest interval too. All of it holds
for loads that the log has seen, and says nothing of others.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.catalogue import label
from rlctl.bench.intervals import Estimate, clustered_share, span, student_t
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.arrays import Array
from rlctl.envs.errors import printable
from rlctl.log.reader import limits_in, profile_in
from rlctl.log.replay import period_in
from rlctl.report.page import render
from rlctl.report.shadow_watch import Watched
from rlctl.safety.profile import Profile

BLOCK_SECONDS = 300.0
"""The longest cool-down that ships (Heracles, Hybrid PRM as published)."""

APART_SECONDS = 10.0

BOUND_RATIO = 0.9
"""BE that uses more of what it may is taken to have been held by the quota: it would have used more."""

BANDS = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0, math.inf)
"""Ends of the load bands, percent of the LC's maximum; the lower one belongs to a band."""

HEADER = (
    "policy", "same %", "refused %", "95 %", "failed", "late", "drift %", "BE gain", "95 %", "assumed %",
)  # fmt: skip

LEGEND = (
    "same: it would have got what was in force, to 1 % of BE's CPUs. refused: overridden by guards that go by\n"
    "readings alone; the others count from what was in force, which was not the shadow's. BE gain: points of BE's\n"
    "CPUs, link or disk that BE would have used more, each tick by itself: of a quota that held it in proportion,\n"
    "else what it used; assumed: ticks in which BE was held and would have had more. The shield let a shadow go one\n"
    "step beyond what was in force: a gain is counted low, a loss in full. Intervals are over blocks of 5 min."
)


Blocks = NDArray[np.intp]
"""Number of each tick's block, shape (ticks,)."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What all ticks of a report have in common.

    Attributes:
        targets: Targets of the tail latency of the first LC and of all by name, as the log has them.
        shadows: For each shadow by name its digest, and whether it is learned.
    """

    acting: str
    acting_hash: str
    profile: Profile
    limits: Limits
    tick_seconds: float
    shadows: Mapping[str, tuple[str, bool]]
    targets: tuple[object, object]


@dataclass(slots=True)
class WatchedTicks:
    """Ticks with one subject, in order; a row each, of the acting policy and of each shadow by name.

    Attributes:
        rows: Comes right after the row before; Unix time; load as a share of the maximum, CPUs that BE used, and
            whether the target was met, all in the period before (NaN where not known); CPUs that BE could use from
            then on; whether the shield overrode the acting policy.
        answers: CPUs that the shield would have let BE use; whether that is what was in force; refused, failed, late,
            unlike the policy's training.
        first_failures: Why a shadow had no answer for the first time.
        left_out: Number of ticks with another acting policy, shield, host or set of shadows.
    """

    subject: Subject
    left_out: int = 0
    rows: list[tuple[float, ...]] = field(default_factory=list)
    answers: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    first_failures: dict[str, str] = field(default_factory=dict)
    _last: tuple[str, int] = ("", -1)

    def add(self, watched: Watched) -> None:
        """Take one more tick, unless it is of another subject or was recorded twice."""
        run, index = self._last
        if (watched.run == run and watched.index <= index) or not self.subject.shadows.keys() <= watched.answers.keys():
            return
        if watched.acting != self.subject.acting:
            self.left_out += 1  # a heuristic in its place, or the safe allocation
            return
        follows, limits = self._last == (watched.run, watched.index - 1), self.subject.limits
        self._last = watched.run, watched.index
        known = (math.nan if one is None else one for one in (watched.load_ratio, watched.be_cpus, watched.met))
        applied = usable_cpus(watched.applied, limits)
        self.rows.append((follows, watched.wall_seconds, *known, applied, watched.overridden))
        for name in self.subject.shadows:
            answer = watched.answers[name]
            same = alike(answer.allowed, watched.applied, limits)
            flags = same, answer.refused, bool(answer.failed), answer.late, bool(answer.drift)
            self.answers.setdefault(name, []).append((usable_cpus(answer.allowed, limits), *flags))
            if answer.failed:
                self.first_failures.setdefault(name, answer.failed)


def alike(one: Allocation, other: Allocation, limits: Limits) -> bool:
    """Two allocations come to the same: frozen alike, as many CPUs, the quota within 1 % of BE's CPUs."""
    if one.frozen or other.frozen:
        return one.frozen == other.frozen
    near = abs(usable_cpus(one, limits) - usable_cpus(other, limits)) <= 0.01 * limits.cpus
    return near and one.cpuset_cpus == other.cpuset_cpus


def usable_cpus(allocation: Allocation, limits: Limits) -> float:
    """CPUs that BE could use under an allocation."""
    return min(allocation.usable_cpus, float(limits.cpus))


def gather_ticks(stream: Iterable[Watched]) -> WatchedTicks | None:
    """The ticks of a stream with the subject of its end; None when there is none."""
    # A log in which the acting policy, the shield or the shadows were changed holds several experiments; the last one
    # is what a promotion would build on.
    now: WatchedTicks | None = None
    header: object = None
    subject: Subject | None = None
    for watched in stream:
        if watched.header is not header:
            header, subject = watched.header, _subject(watched.header)
            if subject is not None and (now is None or subject != now.subject):
                now = WatchedTicks(subject, now.left_out + len(now.rows) if now else 0)
        if now is not None and subject is not None:
            now.add(watched)
    return now if now and now.rows else None


def _subject(header: Mapping[str, Any]) -> Subject | None:
    """What a shadow log's header says; None when it does not say it all."""
    limits, profile, period = limits_in(header), profile_in(header), period_in(header)
    try:
        shadows = {str(name): (str(one["hash"]), one["learned"] is True) for name, one in header["shadows"].items()}
        acting, its_hash = str(header["policy"]["name"]), str(header["policy"]["hash"])
    except (KeyError, TypeError, AttributeError):
        return None
    if limits is None or profile is None or period is None or not shadows:
        return None
    targets = header.get("target_seconds"), header.get("targets_seconds")
    return Subject(acting, its_hash, profile, limits, period, shadows, targets)


@dataclass(frozen=True, slots=True)
class Gain:
    """CPU time that BE would have used more under a shadow.

    Attributes:
        points: Mean use under the shadow less that under the acting policy, in points of BE's CPUs.
        assumed_percent: Share of the ticks in which it rests on an assumption about BE's demand.
    """

    points: Estimate
    assumed_percent: float


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """One shadow by the log.

    Attributes:
        same_percent: Share of ticks in which it would have got what was in force.
        refused_percent: Share in which guards that go by readings alone would have overridden it.
        failed, late: Number of ticks without a usable answer, and of those in which it took too long.
        error_percent: Share of ticks without a usable answer.
        first_failure: Why it had no answer for the first time; empty when it always had one.
        drift_percent: Share of ticks unlike its training; None for a policy that was not trained.
        be_gain: What BE would have gained; None when BE's use was never measured.
    """

    same_percent: Estimate
    refused_percent: Estimate
    failed: int
    late: int
    error_percent: float
    first_failure: str
    drift_percent: Estimate | None
    be_gain: Gain | None


@dataclass(frozen=True, slots=True)
class Band:
    """A range of loads, in percent of the LC's maximum.

    Attributes:
        minutes: Time after windows of which it is known whether they missed the target.
        violation_percent: Share of these that missed it; NaN where there are none.
    """

    from_percent: float
    to_percent: float
    minutes: float
    violation_percent: float


@dataclass(frozen=True, slots=True)
class Report:
    """What was found out about each shadow.

    Attributes:
        hours: Length of all ticks together, gaps left out.
        violation_percent: Share of the measured windows that missed the target; None when none was measured.
        override_percent: Share of ticks in which the shield overrode the acting policy.
    """

    source: str
    acting: str
    ticks: int
    hours: float
    left_out_ticks: int
    span_seconds: tuple[float, float]
    violation_percent: Estimate | None
    override_percent: Estimate
    load_bands: tuple[Band, ...]
    shadows: Mapping[str, ShadowFigures]

    def as_json(self) -> dict[str, object]:
        """Everything by the fields' names; what is not known is null."""
        return {"schema": 3, **{one.name: _plain(getattr(self, one.name)) for one in fields(self)}}


def _plain(value: Any) -> object:
    match value:
        case Estimate():
            return value.as_json()
        case float():
            return round(value, 4) if math.isfinite(value) else None
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case tuple():
            return [_plain(one) for one in value]
        case Gain() | ShadowFigures() | Band():
            return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
        case _:
            return value


def report_of(ticks: WatchedTicks, source: str) -> Report:
    """The report on watched ticks, at least one."""
    subject, columns = ticks.subject, np.array(ticks.rows, float).T
    _, wall_seconds, load, _, met, _, overridden = columns
    blocks = np.arange(len(met)) // max(round(BLOCK_SECONDS / subject.tick_seconds), 1)
    apart = APART_SECONDS / subject.tick_seconds

    def figures(name: str) -> ShadowFigures:
        got, same, refused, failed, late, strange = np.array(ticks.answers[name], float).T
        return ShadowFigures(
            same_percent=share_over_blocks(same, blocks, apart),
            refused_percent=share_over_blocks(refused, blocks, apart),
            failed=int(failed.sum()),
            late=int(late.sum()),
            error_percent=100.0 * float(failed.mean()),
            first_failure=ticks.first_failures.get(name, ""),
            drift_percent=share_over_blocks(strange, blocks, apart) if subject.shadows[name][1] else None,
            be_gain=be_gain(columns, got, subject.limits.cpus, blocks),
        )

    def band(low: float, high: float) -> Band:
        missed = (1.0 - met)[(100.0 * load >= low) & (100.0 * load < high) & np.isfinite(met)]
        percent = 100.0 * float(missed.mean()) if len(missed) else math.nan
        return Band(low, high, len(missed) * subject.tick_seconds / 60.0, percent)

    return Report(
        source=source,
        acting=subject.acting,
        ticks=len(met),
        hours=len(met) * subject.tick_seconds / 3600.0,
        left_out_ticks=ticks.left_out,
        span_seconds=(float(wall_seconds[0]), float(wall_seconds[-1])),
        violation_percent=share_over_blocks(1.0 - met, blocks, apart) if np.isfinite(met).any() else None,
        override_percent=share_over_blocks(overridden, blocks, apart),
        load_bands=tuple(band(low, high) for low, high in itertools.pairwise(BANDS)),
        shadows={name: figures(name) for name in subject.shadows},
    )


def be_gain(columns: Array, got: Array, be_cpus: int, blocks: Blocks) -> Gain | None:
    """What BE would have used more than it did, tick by tick, each taken by itself; None when nothing can be said.

    A tick's allocation holds for the period that the next tick describes. There BE used `used` of the `had` CPUs that
    it could use, and could have used `got` under the shadow:

    - It was not held by the quota (`used` below `BOUND_RATIO` of `had`): it would have used as much, up to `got`.
    - It was, and `got` is less: what it used of `had`, in proportion. Nothing is assumed in either case.
    - It was, and `got` is more; or it was frozen and would not have been. As much of `got` as it used of `had`, or
      as it mostly uses of what it has. That BE would have taken the rest is an assumption; its share is told.

    The shield allowed the shadow no more than one step beyond what was in force. So a shadow that would give BE ever
    more is credited with one step only, while one that would take it all away is charged with all of it: the
    estimate is a cautious one.

    Args:
        columns: As the rows of `WatchedTicks`, shape (7, ticks).
        got: CPUs that BE could have used under the shadow, shape (ticks,).
    """
    follows, _, _, in_use, _, applied, _ = columns
    after = np.flatnonzero((follows[1:] > 0.0) & np.isfinite(in_use[1:])) + 1
    if not len(after):
        return None
    used, had, got = in_use[after], applied[after - 1], got[after - 1]
    running = had > 0.0
    held = running & (used >= BOUND_RATIO * had)
    mostly = min(float(used[running].sum() / had[running].sum()), 1.0) if running.any() else 1.0
    taken = np.where(held, np.minimum(used / np.where(running, had, 1.0), 1.0), mostly)
    would = np.where(running & ~held, np.minimum(used, got), taken * got)
    now = np.where(held, taken * had, np.minimum(used, had))
    assumed = (held & (got > had)) | (~running & (got > 0.0))
    points = mean_over_blocks(100.0 * (would - now) / be_cpus, blocks[after])
    return Gain(points, 100.0 * float(assumed.mean()))


def mean_over_blocks(values: Array, blocks: Blocks) -> Estimate:
    """Mean of a column (NaN where a tick has no value) with Student's t over blocks; endless with fewer than two."""
    mean, error, number = _spread(values, blocks)
    ends = [student_t(confidence, number - 1) * error if number > 1 else math.inf for confidence in (0.95, 0.99)]
    ci95, ci99 = ((mean - end, mean + end) for end in ends)
    return Estimate(mean, ci95, ci99)


def share_over_blocks(values: Array, blocks: Blocks, apart: float) -> Estimate:
    """Share of a column of 0 and 1 in percent, with Wilson's interval at the effective number of ticks.

    Of `apart` ticks in a row at most one counts; NaN stands where a tick has no value.
    """
    share, error, number = _spread(values, blocks)
    most = max(float(np.isfinite(values).sum()) / max(apart, 1.0), 1.0)
    return clustered_share(share, error**2, number, most, least=1.0)


def _spread(values: Array, blocks: Blocks) -> tuple[float, float, int]:
    """Mean, its standard error by the spread between blocks, and the number of blocks that have values.

    The mean is a ratio of sums, for blocks may have different numbers of values; its variance is that of the sums'
    residuals (as for clusters in a survey).
    """
    known = np.isfinite(values)
    counts = np.bincount(blocks[known])
    mean, number = float(values[known].mean()), int((counts > 0).sum())
    if number < 2:
        return mean, math.inf, number
    residuals = np.bincount(blocks[known], weights=values[known]) - mean * counts
    variance = number / (number - 1) * float((residuals**2).sum()) / float(known.sum()) ** 2
    return mean, math.sqrt(variance), number


def report_lines(report: Report) -> Iterator[str]:
    """The report for people, section by section; a log may be anybody's, so nothing of it steers a terminal."""
    begin, end = map(_when, report.span_seconds)
    acting, missed = printable(report.acting), report.violation_percent
    yield f"{report.source}: {report.ticks} ticks ({report.hours:.2f} h), {begin} to {end}, acting {acting}"
    violations = f"violations {_percent(missed)}" if missed else "no window measured"
    yield f"acting, by the log: {violations}; overridden {_percent(report.override_percent)}"
    if report.left_out_ticks:
        changed = "with another acting policy, shield, host or set of shadows"
        yield f"left out: {report.left_out_ticks} ticks {changed}"
    yield f"\n{render([HEADER, *(_row(name, one) for name, one in report.shadows.items())])}\n{LEGEND}"
    for name, one in report.shadows.items():
        if one.first_failure:
            yield f"{printable(label(name))} failed first with: {printable(one.first_failure)}"
    rows: list[Sequence[str]] = [("load %", "minutes measured", "acting missed %")]
    for band in report.load_bands:
        ends = f"{band.from_percent:g} " + (f"to {band.to_percent:g}" if band.to_percent < math.inf else "and more")
        missed_percent = f"{band.violation_percent:.2f}" if band.minutes else "-"
        rows.append((ends, f"{band.minutes:.1f}", missed_percent))
    yield f"\n{render(rows)}"


def _row(name: str, one: ShadowFigures) -> tuple[str, ...]:
    gain = one.be_gain
    return (
        printable(label(name)),
        f"{one.same_percent.mean:.1f}",
        f"{one.refused_percent.mean:.1f}",
        _range(one.refused_percent, 1),
        str(one.failed),
        str(one.late),
        "-" if one.drift_percent is None else f"{one.drift_percent.mean:.2f}",
        *(("-", "-", "-") if gain is None else (f"{gain.points.mean:+.2f}", _range(gain.points, 2))),
        *(() if gain is None else (f"{gain.assumed_percent:.0f}",)),
    )


def _when(wall_seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(wall_seconds))
    except (OverflowError, ValueError, OSError):
        return "a time that cannot be"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f} [{_range(estimate, 2)}] %"


def _range(estimate: Estimate, digits: int) -> str:
    return span(estimate.ci95, f".{digits}f", "too short to tell")
