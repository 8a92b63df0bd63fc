"""The figures of a shadow report: each shadow against the acting policy, by the log."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from rlctl.bench.intervals import Estimate
from rlctl.envs.arrays import Array, Flags
from rlctl.report.shadow_columns import Columns, ShadowColumns
from rlctl.report.shadow_estimates import (
    APART_SECONDS,
    Gain,
    be_gain,
    blocks_of,
    mean_over_blocks,
    share_over_blocks,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BANDS = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0, math.inf)
"""Ends of the load bands, percent of the LC's maximum."""


@dataclass(frozen=True, slots=True)
class Band:
    """Ticks at a load between two ends, in percent of the LC's maximum.

    Attributes:
        from_percent, to_percent: The ends; the lower one belongs to it.
        measured: Ticks after a window of which it is known whether it missed the target.
        violation_percent: Share of their windows that missed the target; NaN when none was measured.
        same_percent: Share in which each shadow would have got what was in force; NaN without a tick.
    """

    from_percent: float
    to_percent: float
    ticks: int
    measured: int
    violation_percent: float
    same_percent: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """One shadow by the log.

    Attributes:
        same_percent: Share of ticks in which it would have got what was in force.
        near_percent: Share of ticks in which it would have got that to one quota level.
        override_percent: Share of ticks in which the shield would have overridden it.
        refused_percent: Share in which guards that go by readings alone would; see `rlctl.report.shadow_watch.Answer`.
        failed, late: Number of ticks without a usable answer, and of those in which it took too long.
        error_percent: Share of ticks without a usable answer.
        first_failure: Why it had no answer for the first time; empty when it always had one.
        drift_percent: Share of ticks unlike its training; None for a policy that was not trained.
        be_gain_points: What BE would have gained; None when BE's use was never measured.
        guards: How often each guard would have overridden it, by the guard's name.
    """

    same_percent: Estimate
    near_percent: Estimate
    override_percent: Estimate
    refused_percent: Estimate
    failed: int
    late: int
    error_percent: float
    first_failure: str
    drift_percent: Estimate | None
    be_gain_points: Gain | None
    guards: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found out about each shadow; the fields stand in the JSON by the same names.

    Attributes:
        left_out_ticks: Ticks with another acting policy, shield, host or set of shadows.
        violation_percent: Share of the measured windows that missed the target; None when none was measured.
        be_percent: BE's use in percent of its CPUs; None when it was never measured.
        override_percent: Share of ticks in which the shield overrode the acting policy.
    """

    source: str
    acting: str
    ticks: int
    hours: float
    tick_seconds: float
    left_out_ticks: int
    from_seconds: float
    to_seconds: float
    unmeasured_windows: int
    violation_percent: Estimate | None
    be_percent: Estimate | None
    override_percent: Estimate
    load_bands: tuple[Band, ...]
    shadows: Mapping[str, ShadowFigures]

    def as_json(self) -> dict[str, object]:
        """Everything as plain data; what is not known is null."""
        return {"schema": 2, **_fields(self)}


def report_of(columns: Columns, source: str) -> Report:
    """The report on watched ticks, at least one."""
    blocks, apart = blocks_of(columns), APART_SECONDS / columns.subject.tick_seconds

    def share(flags: Flags) -> Estimate:
        return share_over_blocks(flags.astype(float), blocks, apart)

    def figures(name: str, one: ShadowColumns) -> ShadowFigures:
        return ShadowFigures(
            same_percent=share(one.same),
            near_percent=share(one.near),
            override_percent=share(one.overridden),
            refused_percent=share(one.refused),
            failed=int(one.failed.sum()),
            late=int(one.late.sum()),
            error_percent=100.0 * float(one.failed.mean()),
            first_failure=one.first_failure,
            drift_percent=share(one.strange) if columns.subject.shadows[name][1] else None,
            be_gain_points=be_gain(columns, one),
            guards=one.guards,
        )

    measured, used = np.isfinite(columns.met), np.isfinite(columns.be_cpus)
    be_percent = 100.0 * columns.be_cpus / columns.subject.limits.cpus
    return Report(
        source=source,
        acting=columns.subject.acting,
        ticks=columns.ticks,
        hours=columns.hours,
        tick_seconds=columns.subject.tick_seconds,
        left_out_ticks=columns.left_out,
        from_seconds=float(columns.wall_seconds[0]),
        to_seconds=float(columns.wall_seconds[-1]),
        unmeasured_windows=int((~measured).sum()),
        violation_percent=share_over_blocks(1.0 - columns.met, blocks, apart) if measured.any() else None,
        be_percent=mean_over_blocks(be_percent, blocks, low=0.0) if used.any() else None,
        override_percent=share(columns.overridden),
        load_bands=tuple(_band(columns, low, high) for low, high in itertools.pairwise(BANDS)),
        shadows={name: figures(name, one) for name, one in columns.shadows.items()},
    )


def _band(columns: Columns, low: float, high: float) -> Band:
    load = 100.0 * columns.load_ratio
    inside = (load >= low) & (load < high)  # False for NaN
    met = columns.met[inside]
    known = np.isfinite(met)
    return Band(
        from_percent=low,
        to_percent=high,
        ticks=int(inside.sum()),
        measured=int(known.sum()),
        violation_percent=_percent(1.0 - met[known]),
        same_percent={name: _percent(one.same[inside].astype(float)) for name, one in columns.shadows.items()},
    )


def _percent(values: Array) -> float:
    return 100.0 * float(values.mean()) if len(values) else math.nan


def _fields(figures: DataclassInstance) -> dict[str, object]:
    """The fields of a dataclass as plain data, by their names."""
    return {field.name: _plain(getattr(figures, field.name)) for field in fields(figures)}


def _plain(value: object) -> object:
    """A figure as plain data: numbers rounded to four digits, null for what is not known."""
    match value:
        case Estimate():
            return value.as_json()
        case Gain():
            return value.points.as_json() | {"assumed_percent": _plain(value.assumed_percent)}
        case float():
            return round(value, 4) if math.isfinite(value) else None
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case tuple():
            return [_plain(one) for one in value]
        case Band() | ShadowFigures():
            return _fields(value)
        case _:
            return value
