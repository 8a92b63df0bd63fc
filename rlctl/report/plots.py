"""Figures of runs: of one in the manner of the thesis' 5.3 to 5.7, suspensions shaded, and of many by the LC's load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlctl.agents.catalogue import label
from rlctl.bench.score import LiveRun, windows_of
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.run_metrics import Windows
from rlctl.envs.telemetry import Reading, number_or_nan
from rlctl.report.figures import BE, INK, LC, SUSPENDED, TARGET, new_figure, plain_axis
from rlctl.report.pareto import styles

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
        Panel("BE may use, CPUs", {"quota": (BE, quota), **cpusets}, top=float(cpus)),
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
