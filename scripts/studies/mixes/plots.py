"""Figures of a measurement, in the manner of BarbequeRTRM's: benefit and loss by metric (5), bursts (3 and 4)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlctl.bench.intervals import mean_interval
from rlctl.envs.telemetry import Missing
from rlctl.report.figures import FAINT, INK, new_figure, png
from scripts.studies.mixes.metrics import METRICS
from scripts.studies.mixes.table import CellMetrics, Sides, speed_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BENEFIT, LOSS = "#2b7a4b", "#b3261e"
UNMANAGED, MANAGED = "#d9822b", "#1f5f99"
MOST_PERCENT = 100.0
"""Height of the tallest bar; a loss may be larger, and its number says so."""

_TOP_PERCENT = 1.1 * MOST_PERCENT

PANELS = (
    ("ctime", "completion time, s"),
    ("ghz", "processor speed, GHz"),
    ("ctx", "context switches"),
    ("power", "power, W"),
    ("mig", "migrations"),
)
"""Of the burst's figures: (a) to (d) of the papers' Figures 3 and 4, and (e) migrations."""


def benefit_png(cells: Mapping[str, CellMetrics]) -> bytes:
    """A bar for each metric and cell: how much better (up) or worse (down) managed is, with its 95 % interval."""
    shown = [m for m in METRICS if any(not isinstance(sides[m.name], Missing) for sides in cells.values())]
    figure = new_figure(max(6.0, 0.75 * len(shown) + 2.0), 1.9 * len(cells) + 0.6)
    axes = figure.subplots(len(cells), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (cell, sides) in zip(axes, cells.items(), strict=True):
        for place, metric in enumerate(shown):
            one = sides[metric.name]
            gain = None if isinstance(one, Missing) else speed_up(metric, one)
            if gain is not None:
                _bar(axis, place, gain.mean, gain.half95)
        axis.axhline(0.0, color=INK, lw=0.8)
        axis.set_ylim(-_TOP_PERCENT, _TOP_PERCENT)
        axis.set_ylabel("better, %", fontsize=8)
        axis.set_title(cell, loc="left", fontsize=9, pad=14)
        axis.grid(axis="y", alpha=0.3)
    axes[-1].set_xticks(range(len(shown)), [metric.name for metric in shown], rotation=30, ha="right", fontsize=8)
    figure.suptitle("managed against unmanaged; bars up are benefits, down losses", fontsize=10)
    return png(figure)


def burst_png(cells: Mapping[int, CellMetrics], title: str) -> bytes:
    """Small multiples over the number of instances, unmanaged against managed with 95 % intervals."""
    figure = new_figure(9.6, 5.6)
    *axes, beside = figure.subplots(2, 3).flat
    beside.set_axis_off()
    for axis, letter, (name, label) in zip(axes, "abcde", PANELS, strict=True):
        axis.set_title(f"({letter}) {label}", fontsize=9, loc="left")
        axis.set_xlabel("instances", fontsize=8)
        axis.tick_params(labelsize=8)
        lacking = next((one for sides in cells.values() if isinstance(one := sides[name], Missing)), None)
        if lacking is not None:
            axis.set_axis_off()
            reason = textwrap.fill(f"not measured: {lacking.detail or lacking.why.value}", 32)
            axis.text(0.5, 0.5, reason, ha="center", va="center", fontsize=8, color=FAINT, transform=axis.transAxes)
            continue
        sides = {number: one for number, metrics in sorted(cells.items()) if isinstance(one := metrics[name], Sides)}
        _curve(axis, {n: s.unmanaged for n, s in sides.items()}, UNMANAGED, "o", "unmanaged")
        _curve(axis, {n: s.managed for n, s in sides.items()}, MANAGED, "s", "managed")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    beside.legend(*axes[0].get_legend_handles_labels(), loc="center", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return png(figure)


def _curve(axis: Axes, samples: Mapping[int, Sequence[float]], colour: str, marker: str, label: str) -> None:
    estimates = [mean_interval(values) for values in samples.values()]
    halves = [one.half95 if math.isfinite(one.half95) else 0.0 for one in estimates]
    style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4, "lw": 1.2, "capsize": 2, "label": label}
    axis.errorbar(list(samples), [one.mean for one in estimates], yerr=halves, **style)


def _bar(axis: Axes, place: int, percent: float, half95: float) -> None:
    height = min(max(percent, -MOST_PERCENT), MOST_PERCENT)
    error = half95 if height == percent and math.isfinite(half95) else 0.0
    axis.bar(place, height, 0.7, color=BENEFIT if percent > 0.0 else LOSS, yerr=error, ecolor=FAINT, capsize=2)
    axis.text(place, 1.04 * _TOP_PERCENT, f"{percent:.0f} %", ha="center", fontsize=7, color=INK)
