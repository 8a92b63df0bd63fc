"""A live benchmark by the LC's load: where a manager misses the target, what BE gets there, and how long tails are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlctl.agents.catalogue import label
from rlctl.bench.score import LiveRun, windows_of
from rlctl.envs.arrays import Array
from rlctl.envs.telemetry import number_or_nan
from rlctl.report.figures import new_figure
from rlctl.report.pareto import styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
