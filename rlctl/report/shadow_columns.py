"""Watched ticks as columns: one array for each quantity that a report counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rlctl.envs.allocation import Limits
from rlctl.envs.arrays import Array, Flags
from rlctl.log.header import limits_in, profile_in
from rlctl.log.replay import alike, period_in, usable_cpus
from rlctl.report.shadow_watch import Answer, Watched
from rlctl.safety.profile import Profile


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


@dataclass(frozen=True, slots=True)
class ShadowColumns:
    """One shadow; arrays of shape (ticks,).

    Attributes:
        same: The shield would have let through what was in force.
        near: The same to one quota level, and frozen alike.
        first_failure: Why it had no answer for the first time; empty when it always had one.
    """

    got_cpus: Array
    same: Flags
    near: Flags
    overridden: Flags
    refused: Flags
    failed: Flags
    late: Flags
    strange: Flags
    guards: Mapping[str, int]
    first_failure: str


@dataclass(frozen=True, slots=True)
class Columns:
    """Ticks in order; arrays of shape (ticks,).

    Attributes:
        follows: The tick comes right after the one before it in the array.
        load_ratio, be_cpus: Load, and CPUs that BE used, in the period before each tick; NaN where they are not known.
        met: That period held the target: 1, did not: 0, was not measured: NaN.
        overridden: The shield did not let the acting policy's proposal through as it was.
        left_out: Number of ticks with another acting policy, shield, host or set of shadows.
    """

    subject: Subject
    follows: Flags
    wall_seconds: Array
    load_ratio: Array
    be_cpus: Array
    met: Array
    applied_cpus: Array
    overridden: Flags
    shadows: Mapping[str, ShadowColumns]
    left_out: int

    @property
    def ticks(self) -> int:
        """Number of ticks in each column."""
        return len(self.follows)

    @property
    def hours(self) -> float:
        """Length of all ticks together, gaps left out."""
        return self.ticks * self.subject.tick_seconds / 3600.0


@dataclass(slots=True)
class _Shadow:
    """Answers of one shadow; rows in the order of the arrays of `ShadowColumns`."""

    rows: list[tuple[float, bool, bool, bool, bool, bool, bool, bool]] = field(default_factory=list)
    guards: Counter[str] = field(default_factory=Counter)
    first_failure: str = ""

    def add(self, answer: Answer, watched: Watched, limits: Limits) -> None:
        then, now = usable_cpus(watched.applied, limits), usable_cpus(answer.allowed, limits)
        level = limits.cpus / limits.levels
        near = answer.allowed.frozen == watched.applied.frozen and abs(now - then) <= level * (1.0 + 1e-9)
        failed, late, strange = bool(answer.failed), answer.late, bool(answer.drift)
        same = alike(answer.allowed, watched.applied, limits)
        self.rows.append((float(now), same, near, answer.overridden, answer.refused, failed, late, strange))
        self.guards.update(answer.guards)
        self.first_failure = self.first_failure or answer.failed

    def columns(self) -> ShadowColumns:
        arrays = _arrays(ShadowColumns, self.rows)
        return ShadowColumns(**arrays, guards=dict(self.guards), first_failure=self.first_failure)


class _Gathering:
    """Ticks with one subject; rows in the order of the arrays of `Columns`."""

    def __init__(self, subject: Subject, left_out: int) -> None:
        self.subject, self.left_out = subject, left_out
        self.acting: list[tuple[bool, float, float, float, float, float, bool]] = []
        self.shadows = {name: _Shadow() for name in subject.shadows}
        self._last: tuple[str, int] = ("", -1)

    def add(self, watched: Watched) -> None:
        run, index = self._last
        if watched.run == run and watched.index <= index:
            return  # recorded twice, by a watcher that was started again
        if not self.shadows.keys() <= watched.answers.keys():
            return  # no line of this log, though its checksum fits
        if watched.acting != self.subject.acting:
            self.left_out += 1  # a heuristic in its place, or the safe allocation
            return
        follows = self._last == (watched.run, watched.index - 1)
        self._last = watched.run, watched.index
        limits = self.subject.limits
        self.acting.append(
            (
                follows,
                watched.wall_seconds,
                _or_nan(watched.load_ratio),
                _or_nan(watched.be_cpus),
                _or_nan(watched.met),
                float(usable_cpus(watched.applied, limits)),
                watched.overridden,
            )
        )
        for name, shadow in self.shadows.items():
            shadow.add(watched.answers[name], watched, limits)

    def columns(self) -> Columns:
        shadows = {name: shadow.columns() for name, shadow in self.shadows.items()}
        arrays = _arrays(Columns, self.acting)
        return Columns(subject=self.subject, **arrays, shadows=shadows, left_out=self.left_out)


def columns(stream: Iterable[Watched]) -> Columns | None:
    """The ticks of a stream with the subject of its end; None when there is none."""
    # A log in which the acting policy, the shield or the shadows were changed holds several experiments; the last one
    # is what a promotion would build on.
    now: _Gathering | None = None
    header: object = None
    subject: Subject | None = None
    for watched in stream:
        if watched.header is not header:
            header, subject = watched.header, _subject(watched.header)
            if subject is not None and (now is None or subject != now.subject):
                now = _Gathering(subject, now.left_out + len(now.acting) if now else 0)
        if now is not None and subject is not None:
            now.add(watched)
    return now.columns() if now and now.acting else None


def _arrays(kind: type[Columns] | type[ShadowColumns], rows: Sequence[tuple[object, ...]]) -> dict[str, Any]:
    """Rows as the arrays of a class, by the names of its fields."""
    names = [field.name for field in fields(kind) if field.type in ("Array", "Flags")]
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


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


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
