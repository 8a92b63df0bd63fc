"""The isolation matrix as figures: a histogram for each cell, and mean, tail and maximum of all cells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.report.figures import FAINT, INK, new_figure, png
from scripts.studies.realtime.isolation import Cell, CellResult, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LATENCY, _MAXIMUM = "#1f5f99", "#b3261e"
_MARKS = {"average_us": ("mean", "o", _LATENCY), "p999_us": ("p99.9", "D", "#d9822b"), "max_us": ("max", "^", _MAXIMUM)}
_TITLES = {"none": "no load", "cpu": "CPU load", "sched": "scheduling load", "io": "I/O load"}
_CONDITIONS = {"none": "no cgroups"}
_PLAIN = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def plot_histograms(outcome: Outcome, path: Path) -> None:
    """Small multiples: loads downwards, conditions across, both axes logarithmic and the same everywhere.

    Raises:
        RlctlError: matplotlib is not installed.
    """
    plan, results = outcome.plan, outcome.results
    rows, columns = len(plan.loads), len(plan.conditions)
    figure = new_figure(1.2 + 2.4 * columns, 0.9 + 1.7 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for row, load in enumerate(plan.loads):
        for column, condition in enumerate(plan.conditions):
            axis: Axes = grid[row][column]
            if row == 0:
                axis.set_title(_CONDITIONS.get(condition, condition), fontsize=10)
            if column == 0:
                axis.set_ylabel(_TITLES[load], fontsize=9)
            _histogram(axis, results.get(Cell(condition, load)))
    most = max((result.figures()["max_us"] for result in results.values()), default=100.0)
    grid[0][0].set(xscale="log", yscale="log", xlim=(0.8, 2.0 * most), ylim=(0.7, None))
    grid[0][0].xaxis.set_major_formatter("{x:g}")
    figure.supxlabel("wake-up latency, us", fontsize=10)
    figure.supylabel("wake-ups in each us", fontsize=10)
    path.write_bytes(png(figure))


def plot_maxima(outcome: Outcome, path: Path) -> None:
    """Each cell's mean, p99.9, maximum, its runs' maxima, and the work of its load; RlctlError: no matplotlib."""
    plan, results = outcome.plan, outcome.results
    figure = new_figure(1.5 + 2.2 * len(plan.loads), 5.5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    places = {  # conditions side by side, a gap between loads
        Cell(condition, load): number * (len(plan.conditions) + 1.0) + column
        for number, load in enumerate(plan.loads)
        for column, condition in enumerate(plan.conditions)
    }
    for name, (label, marker, color) in _MARKS.items():
        heights = [result.figures()[name] for result in results.values()]
        upper.scatter([places[cell] for cell in results], heights, marker=marker, color=color, label=label)
    runs = [(places[cell], CellResult((run,)).figures()["max_us"]) for cell, one in results.items() for run in one.runs]
    hollow = {"marker": "^", "s": 14, "facecolor": "none", "edgecolor": _MAXIMUM}
    upper.scatter(*zip(*runs, strict=True), **hollow, label="max of a run")
    upper.set_yscale("log")
    upper.yaxis.set_major_formatter("{x:g}")
    upper.set_ylabel("wake-up latency, us")
    upper.grid(axis="y", alpha=0.3)
    work = {cell: outcome.work_percent(cell) for cell in results}
    lower.bar([places[cell] for cell in work], [percent or 0.0 for percent in work.values()], 0.7, color=FAINT)
    lower.set_ylabel("work, %")
    lower.set_xticks(list(places.values()), [_CONDITIONS.get(c.condition, c.condition) for c in places], rotation=60)
    lower.tick_params(axis="x", labelsize=8)
    for load in plan.loads:
        middle = (places[Cell(plan.conditions[0], load)] + places[Cell(plan.conditions[-1], load)]) / 2.0
        upper.annotate(
            _TITLES[load], (middle, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 5),
            textcoords="offset points", ha="center", color=INK,
        )  # fmt: skip
    figure.legend(*upper.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    path.write_bytes(png(figure))


def _histogram(axis: Axes, result: CellResult | None) -> None:
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.2)
    if result is None:
        axis.text(0.5, 0.5, "missing", transform=axis.transAxes, ha="center", color=FAINT)
        return
    counts, figures = result.histogram_us, result.figures()
    middles = [latency + 0.5 for latency in counts]
    axis.vlines(middles, 0.5, list(counts.values()), color=_LATENCY, lw=1.0)
    axis.axvline(figures["max_us"], color=_MAXIMUM, lw=0.8, ls="--")
    text = f"mean {figures['average_us']:.1f}\np99.9 {figures['p999_us']:.0f}\nmax {figures['max_us']:.0f}"
    axis.text(0.97, 0.95, text, transform=axis.transAxes, ha="right", va="top", fontsize=7, color=INK, bbox=_PLAIN)
