"""Tables of a measurement, in the manner of BarbequeRTRM's: Tables V and VI (metrics) and VII and IX (speed-ups)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rlctl.bench.intervals import Estimate, mean_interval
from rlctl.envs.telemetry import Missing, Reading
from scripts.studies.mixes.metrics import METRICS, Metric

METRIC_HEADER = ("metric", "mean U", "mean M", "95 % U", "95 % M", "99 % U", "99 % M")
SPEED_UPS = ("ctime", "power", "energy")
"""What the paper's tables of speed-ups have."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Sides:
    """One metric of one cell in pairs: values by repeat, managed ones in the same order."""

    unmanaged: tuple[float, ...]
    managed: tuple[float, ...]


CellMetrics = Mapping[str, Sides | Missing]
"""By the names of `METRICS`."""


def sides_of(pairs: Sequence[tuple[Mapping[str, Reading], Mapping[str, Reading]]]) -> CellMetrics:
    """Every metric over all pairs of an unmanaged and a managed run; one that a single run lacks is missing."""
    return {metric.name: _sides_of_metric([(u[metric.name], m[metric.name]) for u, m in pairs]) for metric in METRICS}


def _sides_of_metric(pairs: Sequence[tuple[Reading, Reading]]) -> Sides | Missing:
    unmanaged, managed = [], []
    for before, after in pairs:
        if isinstance(before, Missing):
            return before
        if isinstance(after, Missing):
            return after
        unmanaged.append(before.value)
        managed.append(after.value)
    return Sides(tuple(unmanaged), tuple(managed))


def metric_rows(estimates: Mapping[str, tuple[Estimate, Estimate]]) -> list[tuple[str, ...]]:
    """Header and one row per metric that is there: means and half-widths of unmanaged (U) and managed (M)."""
    return [METRIC_HEADER, *(_row(one, *estimates[one.name]) for one in METRICS if one.name in estimates)]


def estimates_of(sides: CellMetrics) -> dict[str, tuple[Estimate, Estimate]]:
    """Means with Student's t intervals of those metrics that are not missing."""
    return {
        name: (mean_interval(one.unmanaged), mean_interval(one.managed))
        for name, one in sides.items()
        if not isinstance(one, Missing)
    }


def missing_lines(sides: CellMetrics) -> list[str]:
    """One line for each reason why metrics are missing."""
    names: dict[str, list[str]] = {}
    for name, one in sides.items():
        if isinstance(one, Missing):
            names.setdefault(one.detail or one.why.value, []).append(name)
    return [f"missing {', '.join(some)}: {reason}" for reason, some in names.items()]


def speed_up(metric: Metric, sides: Sides) -> Estimate | None:
    """How much better managed is, by its pairs, in percent of unmanaged; negative is a loss. None where that is 0."""
    before = fmean(sides.unmanaged)
    if before == 0.0:
        return None
    percent = (-100.0 if metric.more_is_better else 100.0) / before
    return mean_interval([percent * (u - m) for u, m in zip(sides.unmanaged, sides.managed, strict=True)])


def speed_up_rows(cells: Mapping[str, CellMetrics], more: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """Header and one row per cell: the paper's three metrics, and `more` of them."""
    by_name = {metric.name: metric for metric in METRICS}
    names = (*SPEED_UPS, *more)
    header = ("scenario", *(f"{name} %" for name in names))
    return [header, *((cell, *(_gain(by_name[n], sides[n]) for n in names)) for cell, sides in cells.items())]


def csv_lines(cells: Mapping[str, CellMetrics]) -> list[str]:
    """Header, and a line per cell, metric and side: mean and half-widths; empty where there is none."""
    lines = ["cell,metric,side,runs,mean,half95,half99,missing"]
    for cell, sides in cells.items():
        estimates = estimates_of(sides)
        for metric in METRICS:
            one = sides[metric.name]
            if isinstance(one, Missing):
                lines.append(f"{cell},{metric.name},,0,,,,{one.why.value}")
                continue
            for side, estimate in zip(("unmanaged", "managed"), estimates[metric.name], strict=True):
                halves = (estimate.half95, half99(estimate))
                shown = ",".join(f"{half:.6g}" if math.isfinite(half) else "" for half in halves)
                lines.append(f"{cell},{metric.name},{side},{len(one.managed)},{estimate.mean:.8g},{shown},")
    return lines


def half99(estimate: Estimate) -> float:
    """Half-width of the 99 % interval; infinite for a single sample."""
    return estimate.ci99[1] - estimate.mean


def _gain(metric: Metric, sides: Sides | Missing) -> str:
    gain = None if isinstance(sides, Missing) else speed_up(metric, sides)
    if gain is None:
        return _NONE
    half = f" ±{gain.half95:.1f}" if math.isfinite(gain.half95) else ""
    return f"{gain.mean:.1f}{half}"


def _row(metric: Metric, unmanaged: Estimate, managed: Estimate) -> tuple[str, ...]:
    """As the paper prints them: three decimals, in the unit that suits the unmanaged mean."""
    mean = abs(unmanaged.mean or managed.mean) if metric.scaled else 0.0
    unit, letter = next(((unit, letter) for unit, letter in _PREFIXES if mean >= unit), (1.0, ""))
    halves = (unmanaged.half95, managed.half95, half99(unmanaged), half99(managed))
    cells = (unmanaged.mean, managed.mean, *halves)
    shown = tuple(f"{cell / unit:.3f}" if math.isfinite(cell) else _NONE for cell in cells)
    return (f"{metric.name} [{letter}]" if letter else metric.name, *shown)
