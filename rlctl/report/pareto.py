"""QoS against BE throughput: which managers nobody beats in both, drawn with intervals on an axis of nines."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.catalogue import BOUNDS
from rlctl.bench.intervals import Estimate
from rlctl.bench.sim_outcome import SimOutcome
from rlctl.report.figures import FAINT, INK, error_bar, new_figure, plain_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        for (x, y), (label, at) in zip(tuple(taken), places.items(), strict=True):
            wide = LABEL_PIXELS * (len(label) + 1) / 2.0
            moves = [(gap * (wide + 9.0) * across, gap * 16.0 * up) for gap in (1, 2, 3, 4) for across, up in WAYS]
            near = [
                sum(abs(x + dx - one) < wide + 9.0 and abs(y + dy - two) < 13.0 for one, two in taken)
                for dx, dy in moves
            ]
            dx, dy = moves[near.index(min(near))]
            taken += [(x + dx + shift, y + dy) for shift in (-wide / 2.0, wide / 2.0)]
            axis.annotate(
                label, at, (72.0 * dx / figure.dpi, 72.0 * dy / figure.dpi), textcoords="offset points", ha="center",
                va="center", color=INK, fontsize=9, zorder=5,
            )  # fmt: skip
