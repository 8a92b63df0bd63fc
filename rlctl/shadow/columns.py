"""Watched ticks as columns: what a report counts, out of what a log says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Limits
from rlctl.safety.profile import Profile
from rlctl.shadow.watching import Answer, Watched
from rlctl.ticklog.header import limits_in, profile_in
from rlctl.ticklog.replay import alike, period_in, usable_cpus

__all__ = ["Columns", "Flags", "Floats", "ShadowColumns", "Subject", "columns"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Subject:
    """What all ticks of a report have in common.

    Attributes:
        acting: Name of the acting policy.
        acting_hash: Its hash.
        profile: The shield.
        limits: Of the host.
        tick_seconds: Control period.
        target_seconds: The LC's target; None when the log does not say.
        shadows: Hash of each shadow, and whether it is learned, by name.
    """

    acting: str
    acting_hash: str
    profile: Profile
    limits: Limits
    tick_seconds: float
    target_seconds: float | None
    shadows: Mapping[str, tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class ShadowColumns:
    """One shadow; arrays of shape (ticks,).

    Attributes:
        got_cpus: CPUs that BE could have used.
        same: It would have got what was in force.
        near: The quota is within one level of that, frozen alike.
        overridden, refused, failed, late, strange: As in `rlctl.shadow.watching.Answer`.
        guards: How often each guard overrode it.
        first_failure: What its first failure was; empty when there was none.
    """

    got_cpus: Floats
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
        subject: What they have in common.
        follows: The tick comes right after the one before it in the array.
        wall_seconds: Unix time.
        load_ratio, be_cpus: Of the period before each tick; NaN where they are not known.
        met: That period held the target: 1, did not: 0, was not measured: NaN.
        applied_cpus: CPUs that BE could use from each tick on.
        overridden: The acting policy was.
        shadows: By name.
        left_out: Ticks with another acting policy, shield, host or set of shadows, which came before.
    """

    subject: Subject
    follows: Flags
    wall_seconds: Floats
    load_ratio: Floats
    be_cpus: Floats
    met: Floats
    applied_cpus: Floats
    overridden: Flags
    shadows: Mapping[str, ShadowColumns]
    left_out: int

    @property
    def ticks(self) -> int:
        """How many."""
        return len(self.follows)

    @property
    def hours(self) -> float:
        """How long they took, gaps left out."""
        return self.ticks * self.subject.tick_seconds / 3600.0


@dataclass(slots=True)
class _Shadow:
    rows: list[tuple[float, bool, bool, bool, bool, bool, bool, bool]] = field(default_factory=list)
    guards: Counter[str] = field(default_factory=Counter)
    first_failure: str = ""

    def add(self, answer: Answer, watched: Watched, limits: Limits) -> None:
        then, now = usable_cpus(watched.applied, limits), usable_cpus(answer.got, limits)
        level = limits.cpus / limits.levels
        near = answer.got.frozen == watched.applied.frozen and abs(now - then) <= level * (1.0 + 1e-9)
        failed, late, strange = bool(answer.failed), answer.late, bool(answer.drift)
        same = alike(answer.got, watched.applied, limits)
        self.rows.append((now, same, near, answer.overridden, answer.refused, failed, late, strange))
        self.guards.update(answer.guards)
        self.first_failure = self.first_failure or answer.failed

    def columns(self) -> ShadowColumns:
        got, same, near, overridden, refused, failed, late, strange = zip(*self.rows, strict=True)
        return ShadowColumns(
            got_cpus=np.array(got, float),
            same=_flags(same),
            near=_flags(near),
            overridden=_flags(overridden),
            refused=_flags(refused),
            failed=_flags(failed),
            late=_flags(late),
            strange=_flags(strange),
            guards=dict(self.guards),
            first_failure=self.first_failure,
        )


class _Gathering:
    """Ticks with one subject."""

    def __init__(self, subject: Subject, left_out: int) -> None:
        self.subject, self.left_out = subject, left_out
        self.acting: list[tuple[bool, float, float, float, float, float, bool]] = []
        self.shadows = {name: _Shadow() for name in subject.shadows}
        self._last: tuple[str, int] = ("", -1)

    def add(self, watched: Watched) -> None:
        run, index = self._last
        if watched.run == run and watched.index <= index:
            return  # said twice, by a watcher that was started again
        if not self.shadows.keys() <= watched.answers.keys():
            return  # no line of ours, though its checksum fits
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
                usable_cpus(watched.applied, limits),
                watched.overridden,
            )
        )
        for name, shadow in self.shadows.items():
            shadow.add(watched.answers[name], watched, limits)

    def columns(self) -> Columns:
        follows, wall, load, be, met, applied, overridden = zip(*self.acting, strict=True)
        return Columns(
            subject=self.subject,
            follows=_flags(follows),
            wall_seconds=np.array(wall, float),
            load_ratio=np.array(load, float),
            be_cpus=np.array(be, float),
            met=np.array(met, float),
            applied_cpus=np.array(applied, float),
            overridden=_flags(overridden),
            shadows={name: shadow.columns() for name, shadow in self.shadows.items()},
            left_out=self.left_out,
        )


def columns(stream: Iterable[Watched]) -> Columns | None:
    """The ticks of a stream with the subject of its end; None when there is none.

    A log in which the acting policy, the shield or the shadows were changed holds several experiments; the last one is
    what a promotion would build on.

    Args:
        stream: In the order in which they were watched.
    """
    now: _Gathering | None = None
    header: object = None
    for watched in stream:
        if watched.header is not header:
            header = watched.header
            subject = _subject(watched.header)
            if subject is None:
                continue
            if now is None or subject != now.subject:
                now = _Gathering(subject, now.left_out + len(now.acting) if now else 0)
        if now is not None:
            now.add(watched)
    return now.columns() if now and now.acting else None


def _subject(header: Mapping[str, Any]) -> Subject | None:
    """What a shadow log's header says; None when it does not say it all."""
    from rlctl.shadow.log import answers_from

    limits, profile, period = limits_in(header), profile_in(header), period_in(header)
    try:
        shadows = answers_from(header)
        acting, its_hash = str(header["policy"]["name"]), str(header["policy"]["hash"])
    except (KeyError, TypeError, ValueError):
        return None
    if limits is None or profile is None or period is None or not shadows:
        return None
    return Subject(acting, its_hash, profile, limits, period, _target(header), shadows)


def _target(header: Mapping[str, Any]) -> float | None:
    target = header.get("target_seconds")
    return float(target) if isinstance(target, (int, float)) and 0.0 < target < math.inf else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _flags(values: Iterable[bool]) -> Flags:
    return np.array(tuple(values), np.bool_)
