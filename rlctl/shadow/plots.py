"""Figures of a shadow report: the stream with what shadows would have given BE, agreement by load, the simulator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlctl.agents.catalogue import label
from rlctl.envs.arrays import Array
from rlctl.report.figures import COLOURS, FAINT, INK, error_bar, new_figure, png
from rlctl.shadow.columns import Columns
from rlctl.shadow.report import Report
from rlctl.shadow.twin import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 2000
"""Points along the stream; longer ones are drawn as means."""


def figures(report: Report, columns: Columns) -> dict[str, bytes]:
    """PNG files by name."""
    drawn = {"stream.png": _stream(report, columns), "agreement.png": _agreement(report)}
    if report.simulation is not None:
        drawn["simulator.png"] = _simulator(report.acting, report.simulation)
    return {name: png(figure) for name, figure in drawn.items()}


def _stream(report: Report, columns: Columns) -> Figure:
    figure = new_figure(9, 6)
    axes: Sequence[Axes] = figure.subplots(2, 1, sharex=True)
    hours = _thinned(np.arange(columns.ticks, dtype=float) * (columns.subject.tick_seconds / 3600.0))
    axes[0].plot(hours, _thinned(100.0 * columns.load_ratio), color=FAINT, lw=1)
    axes[0].set_ylabel("load, % of the maximum")
    axes[0].set_ylim(bottom=0)
    axes[1].plot(hours, _thinned(columns.applied_cpus), color=INK, lw=1.2, label=f"{label(report.acting)} (acts)")
    for (name, one), colour in zip(columns.shadows.items(), itertools.cycle(COLOURS), strict=False):
        axes[1].plot(hours, _thinned(one.got_cpus), color=colour, lw=1, label=label(name))
    axes[1].set_ylabel("CPUs that BE could use")
    axes[1].set_xlabel("hours watched, gaps left out")
    axes[1].set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize=8)
    axes[0].set_title("one step beyond what was in force at most: not what came of it", loc="left", fontsize=10)
    for axis in axes:
        axis.margins(x=0)
        axis.grid(alpha=0.3)
    return figure


def _agreement(report: Report) -> Figure:
    figure = new_figure(9, 4)
    axis: Axes = figure.subplots()
    bands = [band for band in report.load_bands if band.ticks]
    width = 0.8 / len(report.shadows)
    for number, (name, colour) in enumerate(zip(report.shadows, itertools.cycle(COLOURS), strict=False)):
        places = np.arange(len(bands)) + (number - (len(report.shadows) - 1) / 2) * width
        axis.bar(places, [band.same_percent[name] for band in bands], width, color=colour, label=label(name))
    ends = [
        f"{band.from_percent:g}-{band.to_percent:g}" if math.isfinite(band.to_percent) else f"> {band.from_percent:g}"
        for band in bands
    ]
    axis.set_xticks(range(len(bands)), [f"{end} %\n{band.ticks} ticks" for end, band in zip(ends, bands, strict=True)])
    axis.set_xlabel("load, % of the maximum")
    axis.set_ylabel("same as in force, % of ticks")
    axis.set_ylim(0, 100)
    figure.legend(loc="outside right upper", fontsize=8)
    axis.grid(alpha=0.3, axis="y")
    return figure


def _simulator(acting: str, simulation: Simulation) -> Figure:
    figure = new_figure(9, 5)
    axis: Axes = figure.subplots()
    runs = {f"{label(acting)} (acts)": simulation.acting}
    runs |= {label(name): run for name, run in simulation.shadows.items()}
    for (name, run), colour in zip(runs.items(), (INK, *COLOURS * len(runs)), strict=False):
        be, missed = run.be, run.violations
        bars: dict[str, Any] = {"xerr": error_bar(be.mean, be.ci95), "yerr": error_bar(missed.mean, missed.ci95)}
        axis.errorbar(be.mean, missed.mean, **bars, fmt="o", color=colour, capsize=2, label=name)
    axis.set_xlabel("BE's use, % of its CPUs")
    axis.set_ylabel("windows over the target, %")
    axis.set_ylim(bottom=0)
    axis.set_title(f"closed loop on {simulation.profile.name}, {simulation.seeds} seeds", loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    axis.grid(alpha=0.3)
    return figure


def _thinned(values: Array) -> Array:
    """Means of as many ticks each as make it `MOST_POINTS`; NaN where one of them is not known."""
    each = -(-len(values) // MOST_POINTS)
    whole = len(values) // each * each
    return np.asarray(values[:whole].reshape(-1, each).mean(axis=1))
