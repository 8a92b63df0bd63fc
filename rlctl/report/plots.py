"""Figures of a benchmark: QoS against BE on an axis of nines, one run over its seconds, many by the LC's load."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.catalogue import BOUNDS, label
from rlctl.bench.intervals import Estimate
from rlctl.bench.score import LiveRun, SimOutcome, windows_of
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.run_metrics import Windows
from rlctl.envs.telemetry import Reading, number_or_nan
from rlctl.report.figures import BE, FAINT, INK, LC, SUSPENDED, TARGET, error_bar, new_figure, plain_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLUMNS = 160
"""Points of a curve; more ticks are drawn as the band from their least to their most."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One axis: curves by name, the first in the LC's colour where there are several or it is of the LC.

    Attributes:
        target: Makes the axis logarithmic, with a dashed line there; None for a linear axis from 0.
        top: The least that the axis shows.
    """

    label: str
    curves: Mapping[str, tuple[str, Array]]
    target: float | None = None
    top: float = 0.1


def draw_windows(title: str, run: Windows, tick_seconds: float) -> Figure:
    """Load, tail by the target and BE's work of the first host of a simulated run; arrays of shape (ticks, hosts)."""
    load, latency, work = (column[:, 0] for column in (run.load_ratio, run.latency_ratio, run.be_work_ratio))
    panels = (
        Panel("load, %", {"LC": (LC, 100.0 * load)}, top=100.0),
        Panel("tail / target", {"LC": (LC, latency)}, target=1.0),
        Panel("BE work, %", {"BE": (BE, 100.0 * work)}, top=10.0),
    )
    return draw_panels(title, tick_seconds * np.arange(len(load), dtype=float), run.frozen[:, 0], panels, 4.0)


def draw_live_run(run: LiveRun, cpus: int) -> Figure:
    """Load, latency, CPU use and allocation of a live run; BE could have `cpus`."""
    telemetry = [tick.telemetry for tick in run.ticks]
    applied = [tick.applied for tick in run.ticks]
    target = 1e3 * telemetry[0].target_seconds
    quota = np.array([0.0 if one.frozen else min(one.quota_cpus, cpus) for one in applied])
    cpusets = {"cpuset": ("grey", np.array([float(one.cpuset_cpus) for one in applied]))} if cpus > 1 else {}
    tails = 1e3 * _numbers([one.latency_seconds for one in telemetry])
    panels = (
        Panel("load, %", {"LC": (LC, 100.0 * _numbers([one.load_ratio for one in telemetry]))}, top=100.0),
        Panel("tail latency, ms", {"LC": (LC, tails)}, target=target),
        Panel(
            "CPUs used",
            {
                "LC": (LC, _numbers([one.lc_cpus for one in telemetry])),
                "BE": (BE, _numbers([one.be_cpus for one in telemetry])),
            },
        ),
        Panel("BE's level, CPUs", {"quota": (BE, quota), **cpusets}, top=float(cpus)),
    )
    seconds = np.array([one.time_seconds for one in telemetry]) - telemetry[0].time_seconds
    title = f"{run.manager}: BE {100 * run.be_work_ratio:.1f} % of running alone"
    return draw_panels(title, seconds, np.array([one.frozen for one in applied]), panels, 9.0)


def draw_panels(title: str, seconds: Array, frozen: Flags, panels: Sequence[Panel], width_inches: float) -> Figure:
    """Panels over the seconds of a run."""
    edges = np.linspace(0, len(seconds), min(COLUMNS, len(seconds)) + 1).astype(int)[:-1]
    bounds = np.append(seconds[edges], seconds[-1])
    # Frozen columns side by side are one patch: a page of many runs is half as large.
    shaded = np.logical_or.reduceat(frozen, edges).astype(np.int8)
    turns = np.flatnonzero(np.diff(shaded, prepend=0, append=0)).reshape(-1, 2)
    spans = [(bounds[first], bounds[end] - bounds[first]) for first, end in turns]
    height_inches = (0.2 * width_inches + 0.2) * len(panels)
    figure = new_figure(width_inches, height_inches, None)  # a layout costs more than all the rest
    figure.subplots_adjust(0.8 / width_inches, 0.5 / height_inches, 0.98, 1.0 - 0.3 / height_inches, hspace=0.15)
    axes: Sequence[Axes] = figure.subplots(len(panels), 1, sharex=True)
    for axis, panel in zip(axes, panels, strict=True):
        across: Any = {"transform": axis.get_xaxis_transform(), "color": SUSPENDED, "alpha": 0.25, "lw": 0.0}
        axis.broken_barh(spans, (0.0, 1.0), **across)
        for name, (colour, values) in panel.curves.items():
            if len(edges) < len(seconds):
                least, most = np.fmin.reduceat(values, edges), np.fmax.reduceat(values, edges)
                both = np.column_stack([least, most]).ravel()
                axis.plot(np.repeat(seconds[edges], 2), both, color=colour, label=name, lw=0.8)
            else:
                axis.plot(seconds, values, color=colour, label=name, lw=1.2, drawstyle="steps-post")
        axis.set_ylabel(panel.label)
        if panel.target is None:
            axis.set_ylim(0.0, 1.05 * max([panel.top, *(np.nanmax(v, initial=0.0) for _, v in panel.curves.values())]))
        else:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
            most = np.nanmax([10.0 * panel.target, *(np.nanmax(v, initial=0.0) for _, v in panel.curves.values())])
            axis.set_ylim(0.1 * panel.target, 1.2 * most)
            axis.axhline(panel.target, color=TARGET, lw=1.0, ls="--", label=f"target {panel.target:g}")
        if len(panel.curves) > 1:
            axis.legend(loc="upper right", fontsize=8)
        axis.margins(x=0)
        plain_axis(axis)
    axes[0].set_title(title, loc="left", fontsize=10, color=INK)
    axes[-1].set_xlabel("seconds")
    return figure


def _numbers(readings: Sequence[Reading]) -> Array:
    return np.array([number_or_nan(one) for one in readings])


BINS = 6
"""Ranges of equal width that the loads of all windows are divided into."""

FEWEST = 5
"""Windows; a range with fewer of a manager's is left out of its line."""


def draw_by_load(runs: Sequence[LiveRun], title: str) -> Figure:
    """QoS and BE's CPUs over the LC's load, and the distribution of the windows' tails; a line for each manager.

    A window without a tail counts as missed, as in the scores; one without a load, or without BE's CPU time, has no
    place in a line.
    """
    figure = new_figure(13.0, 4.8)
    qos_axis, be_axis, tail_axis = figure.subplots(1, 3)
    style = styles(label(run.manager) for run in runs)
    target = 1e3 * runs[0].ticks[0].telemetry.target_seconds
    columns = {name: _columns([run for run in runs if label(run.manager) == name]) for name in style}
    loads = np.concatenate([load for load, _, _ in columns.values()])
    known = loads[np.isfinite(loads)] if np.isfinite(loads).any() else np.array([0.0, 1.0])
    edges = np.linspace(known.min(), known.max(), BINS + 1)
    middles = 100.0 * (edges[:-1] + edges[1:]) / 2.0
    for name, (_, colour, marker) in style.items():
        load, latency, be = columns[name]
        place = np.clip(np.searchsorted(edges, load, side="right") - 1, 0, BINS - 1)
        inside = [np.flatnonzero((place == at) & np.isfinite(load)) for at in range(BINS)]
        enough = [at for at in range(BINS) if len(inside[at]) >= FEWEST]
        look = {"color": colour, "marker": marker, "ms": 5, "lw": 1.2, "label": name}
        qos_axis.plot(middles[enough], [100.0 * np.mean(latency[inside[at]] <= 1.0) for at in enough], **look)
        be_axis.plot(middles[enough], [np.mean(be[inside[at]]) for at in enough], **look)
        tails = np.sort(target * latency[np.isfinite(latency)])
        tail_axis.step(tails, 100.0 * np.arange(1, len(tails) + 1) / len(latency), color=colour, lw=1.2, where="post")
    qos_axis.set_ylabel("windows within the target, %")
    be_axis.set_ylabel("CPUs that BE used")
    tail_axis.set_ylabel("windows with at most this tail, %")
    tail_axis.set_xscale("log")
    tail_axis.axvline(target, color="black", lw=0.8, ls="--", label=f"target {target:g} ms")
    tail_axis.set_xlabel("tail latency of a window, ms (dashed: the target)")
    for axis in (qos_axis, be_axis):
        axis.set_xlabel("load, % of the LC's maximum")
        axis.set_ylim(bottom=0.0)
    for axis in (qos_axis, be_axis, tail_axis):
        axis.grid(alpha=0.3)
    figure.legend(*qos_axis.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _columns(runs: Sequence[LiveRun]) -> tuple[Array, Array, Array]:
    """Load (NaN where it, or BE's CPU time, is not known), latency by the target, and BE's CPUs, each (windows,)."""
    windows = [windows_of(run) for run in runs]
    load = np.concatenate([each.load_ratio[:, 0] for each in windows])
    latency = np.concatenate([each.latency_ratio[:, 0] for each in windows])
    be = np.array([number_or_nan(tick.telemetry.be_cpus) for run in runs for tick in run.ticks])
    return np.where(np.isnan(be), np.nan, load), latency, be


COLOURS = ("#2a78c8", "#c85a11", "#0f8a66", "#b4529b", "#937000", "#7a64cf", "#c23b4e")
"""Told apart by the colour-blind (after Okabe and Ito), each of contrast 3 or more on white and on near-black."""

MARKERS = "osD^vPX<>h"
"""Ten markers against seven colours: seventy managers before a pair repeats."""

FEWEST_MISSES = 1e-4
"""Share of missed windows that is drawn as one more step: 100 % lies a finite way above 99.9 %."""

TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 100.0)

WAYS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Where a label may be from its marker; what is earlier is preferred."""

LABEL_PIXELS = 8.0
"""Width of a character of a label."""

RING_POINTS = 190.0
"""Area of the ring around a marker on the front, square points."""

NAMED = 8
"""Managers that are labelled by name; more are labelled by number, with a legend."""


def nines(percent: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Height on the axis of nines: one step up is ten times fewer misses; 0 % at 0, 100 % at 4."""
    misses = 1.0 - np.clip(np.asarray(percent, float), 0.0, 100.0) / 100.0
    return np.asarray(-np.log10((misses + FEWEST_MISSES) / (1.0 + FEWEST_MISSES)))


def front(be: Sequence[float], qos: Sequence[float]) -> NDArray[np.bool_]:
    """Which points nobody beats: no other has at least as much of both and more of one; shape (points,)."""
    x, y = np.asarray(be, float), np.asarray(qos, float)
    as_good = (x[None, :] >= x[:, None]) & (y[None, :] >= y[:, None])
    better = (x[None, :] > x[:, None]) | (y[None, :] > y[:, None])
    return np.asarray(~np.any(as_good & better, axis=1))


Estimates = Mapping[str, tuple[Estimate, Estimate]]
"""BE throughput and QoS guarantee by manager, both in percent."""

Styles = Mapping[str, tuple[int, str, str]]
"""Number, colour and marker by manager."""


def styles(managers: Iterable[str]) -> Styles:
    """A look for every manager, to be the same in all figures of a report; a name may come again."""
    return {
        name: (index + 1, COLOURS[index % len(COLOURS)], "*" if name in BOUNDS else MARKERS[index % len(MARKERS)])
        for index, name in enumerate(dict.fromkeys(managers))
    }


def estimates_of(result: SimOutcome) -> Estimates:
    """What a figure of a simulator's result shows."""
    metrics = ("be_throughput_percent", "qos_guarantee_percent")
    return {name: (result.estimate(name, metrics[0]), result.estimate(name, metrics[1])) for name in result.managers}


def draw_pareto(panels: Mapping[str, Estimates], style: Styles) -> Figure:
    """Scenarios by their titles, on the same axis of nines, with a legend that tells every manager's number."""
    alone, shown = len(panels) == 1, dict.fromkeys(name for estimates in panels.values() for name in estimates)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = (
        new_figure(9.0, max(5.2, 1.2 + 0.25 * len(shown))) if alone
        else new_figure(3.6 * columns + 2.2, 3.5 * rows + 0.6)
    )  # fmt: skip
    axes = [axis for row in figure.subplots(rows, columns, squeeze=False) for axis in row]
    labels = {}
    for axis, (title, estimates) in zip(axes, panels.items(), strict=False):
        labels[axis] = _scatter(axis, estimates, style, named=alone and len(shown) <= NAMED)
        axis.set_title(title, loc="left", color=INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.supxlabel("BE throughput, % of BE running alone", color=INK, fontsize=11)
    figure.supylabel("QoS guarantee, % (a step up: ten times fewer misses)", color=INK, fontsize=10)
    _legend(figure, style, shown)
    _label(figure, labels)
    return figure


def _scatter(axis: Axes, estimates: Estimates, style: Styles, named: bool) -> dict[str, tuple[float, float]]:
    """Draw all managers; their labels and where these belong."""
    labels = {}
    _front_line(axis, {name: both for name, both in estimates.items() if name not in BOUNDS})
    for name, (be, qos) in estimates.items():
        number, colour, marker = style[name]
        at = (be.mean, float(nines(qos.mean)))
        bars: dict[str, Any] = {
            "xerr": error_bar(be.mean, be.ci95),
            "yerr": error_bar(at[1], (float(nines(qos.ci95[0])), float(nines(qos.ci95[1])))),
        }
        fill = "none" if name in BOUNDS else colour
        axis.errorbar(at[0], at[1], fmt=marker, color=colour, mfc=fill, ms=8, lw=1.0, capsize=2, zorder=3, **bars)
        labels[name if named else str(number)] = at
    if "frozen" in estimates:
        axis.axhline(float(nines(estimates["frozen"][1].mean)), color=FAINT, lw=1.2, ls="--", zorder=1)
    _axes(axis, estimates)
    return labels


def _front_line(axis: Axes, estimates: Estimates) -> None:
    """A staircase through the managers that nobody beats."""
    if not estimates:
        return
    be, qos = ([both[index].mean for both in estimates.values()] for index in (0, 1))
    unbeaten = sorted((x, float(nines(y))) for x, y, best in zip(be, qos, front(be, qos), strict=True) if best)
    xs, ys = zip(*unbeaten, strict=True)
    axis.step(xs, ys, where="pre", color=INK, lw=1.0, alpha=0.55, zorder=2)
    axis.scatter(xs, ys, s=RING_POINTS, facecolors="none", edgecolors=INK, linewidths=1.0, zorder=2)


def _axes(axis: Axes, estimates: Estimates) -> None:
    lowest = min(float(nines(qos.ci95[0])) for _, qos in estimates.values())
    most = max(max(be.mean, be.ci95[1] if math.isfinite(be.ci95[1]) else 0.0) for be, _ in estimates.values())
    axis.set_ylim(max(min(lowest, 2.0) - 0.25, -0.2), 4.3)
    axis.set_xlim(-0.07 * max(most, 5.0), 1.12 * max(most, 5.0))
    axis.set_yticks([float(nines(tick)) for tick in TICKS], [f"{tick:g}" for tick in TICKS])
    axis.set_ylim(max(min(lowest, 2.0) - 0.25, -0.2), 4.3)  # ticks widen the limits
    axis.grid(color=FAINT, alpha=0.35, lw=0.6)
    plain_axis(axis)


def _legend(figure: Figure, style: Styles, names: Collection[str]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for name in names:
        number, colour, marker = style[name]
        label = f"{number} {name}" + (" (bound)" if name in BOUNDS else "")
        fill = "none" if name in BOUNDS else colour
        handles.append(Line2D([], [], color=colour, marker=marker, ls="", ms=7, mfc=fill, label=label))
    ring: dict[str, Any] = {"marker": "o", "mfc": "none", "ms": 11, "alpha": 0.8}
    handles.append(Line2D([], [], color=INK, lw=1.0, label="Pareto front", **ring))
    if "frozen" in names:
        handles.append(Line2D([], [], color=FAINT, lw=1.2, ls="--", label="QoS of frozen"))
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, labelcolor=INK, frameon=False)


def _label(figure: Figure, labels: Mapping[Axes, Mapping[str, tuple[float, float]]]) -> None:
    """Put every label beside its marker, where the fewest markers and labels are; it comes by axis with that place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")
    for axis, places in labels.items():
        taken = axis.transData.transform(list(places.values())).tolist()
        for (x, y), (text, at) in zip(tuple(taken), places.items(), strict=True):
            wide = LABEL_PIXELS * (len(text) + 1) / 2.0
            moves = [(gap * (wide + 9.0) * across, gap * 16.0 * up) for gap in (1, 2, 3, 4) for across, up in WAYS]
            near = [
                sum(abs(x + dx - one) < wide + 9.0 and abs(y + dy - two) < 13.0 for one, two in taken)
                for dx, dy in moves
            ]
            dx, dy = moves[near.index(min(near))]
            taken += [(x + dx + shift, y + dy) for shift in (-wide / 2.0, wide / 2.0)]
            axis.annotate(
                text, at, (72.0 * dx / figure.dpi, 72.0 * dy / figure.dpi), textcoords="offset points", ha="center",
                va="center", color=INK, fontsize=9, zorder=5,
            )  # fmt: skip
