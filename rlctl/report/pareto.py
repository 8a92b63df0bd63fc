"""QoS against BE throughput: which managers nobody beats in both, drawn with intervals on an axis of nines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.bench.sim_outcome import BOUNDS, SimOutcome
from rlctl.report.figures import FAINT, INK, error_bar, new_figure
from rlctl.statistics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MARKER_PIXELS = 9.0
"""Half the size of a marker with its ring."""

RINGS = 10
"""Distances that are tried, one marker's half size apart."""

ANGLES = tuple(math.radians(degrees) for degrees in (0, 180, 90, 270, 45, 315, 135, 225, 22, 338, 158, 202))


class Box(NamedTuple):
    """A rectangle in pixels, y upwards."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlap(self, other: Box) -> float:
        """Common area, square pixels."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return max(width, 0.0) * max(height, 0.0)


def place(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    frame: Box,
    obstacles: Sequence[Box] = (),
) -> list[tuple[float, float]]:
    """Centres of the labels of markers at these points, all in pixels; sizes are widths and heights.

    Greedy: points with many neighbours choose first; each takes the nearest place that covers no marker, no label and
    no obstacle and stays in the frame, or the one that covers least.
    """
    taken = [*obstacles, *(_around(point, (2 * MARKER_PIXELS, 2 * MARKER_PIXELS)) for point in points)]
    crowd = [sum(math.dist(point, other) < 60.0 for other in points) for point in points]
    centres: dict[int, tuple[float, float]] = {}
    for index in sorted(range(len(points)), key=lambda index: -crowd[index]):
        centres[index] = _best(points[index], sizes[index], taken, frame)
        taken.append(_around(centres[index], sizes[index]))
    return [centres[index] for index in range(len(points))]


def _best(
    point: tuple[float, float], size: tuple[float, float], taken: Sequence[Box], frame: Box
) -> tuple[float, float]:
    """The nearest free place, or the one that covers least."""
    least, best = math.inf, point
    for at in _places(point, size):
        cost = _cost(_around(at, size), taken, frame)
        if cost < least:
            least, best = cost, at
        if cost <= 0.0:
            break
    return best


def _places(point: tuple[float, float], size: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """From near to far."""
    for ring in range(RINGS):
        gap = MARKER_PIXELS * (1.15 + ring)
        for angle in ANGLES:
            reach_x, reach_y = gap + size[0] / 2, gap + size[1] / 2
            yield point[0] + reach_x * math.cos(angle), point[1] + reach_y * math.sin(angle)


def _cost(box: Box, taken: Sequence[Box], frame: Box) -> float:
    """Square pixels that the label covers, and twice those that are outside the frame."""
    return sum(box.overlap(other) for other in taken) + 2.0 * (box.overlap(box) - box.overlap(frame))


def _around(centre: tuple[float, float], size: tuple[float, float]) -> Box:
    return Box(centre[0] - size[0] / 2, centre[1] - size[1] / 2, centre[0] + size[0] / 2, centre[1] + size[1] / 2)


COLOURS = ("#2a78c8", "#c85a11", "#0f8a66", "#b4529b", "#937000", "#7a64cf", "#c23b4e")
"""Told apart by the colour-blind (after Okabe and Ito), each of contrast 3 or more on white and on near-black."""

MARKERS = "osD^vPX<>h"
"""Ten markers against seven colours: seventy managers before a pair repeats."""

FEWEST_MISSES = 1e-4
"""Share of missed windows that is drawn as one more step: 100 % lies a finite way above 99.9 %."""

TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 100.0)
LINE_PIXELS = 1.5
"""Half the height of what a line takes from labels."""

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


def styles(results: Sequence[SimOutcome]) -> dict[str, tuple[int, str, str]]:
    """Number, colour and marker of every manager, the same in all figures of a report."""
    names = list(dict.fromkeys(name for result in results for name in result.managers))
    return {
        name: (index + 1, COLOURS[index % len(COLOURS)], "*" if name in BOUNDS else MARKERS[index % len(MARKERS)])
        for index, name in enumerate(names)
    }


def draw_scenario(result: SimOutcome, style: Mapping[str, tuple[int, str, str]]) -> Figure:
    """One scenario, with a legend that tells every manager's numbers."""
    figure = new_figure(9.0, max(5.2, 1.2 + 0.25 * len(result.managers)))
    axis: Axes = figure.subplots()
    _scatter(axis, result, style, named=len(result.managers) <= NAMED)
    axis.set_xlabel("BE throughput, % of BE running alone")
    axis.set_ylabel("QoS guarantee, % of windows within target\n(each step up: ten times fewer misses)")
    axis.set_title(f"{result.scenario}: {result.seeds} seeds, 95 % intervals", loc="left", color=INK)
    _legend(figure, style, result.managers)
    _label(figure, [axis])
    return figure


def draw_suite(results: Sequence[SimOutcome], style: Mapping[str, tuple[int, str, str]]) -> Figure:
    """All scenarios as small multiples on the same axis of nines."""
    columns = min(3, len(results))
    rows = math.ceil(len(results) / columns)
    figure = new_figure(3.6 * columns + 2.2, 3.5 * rows + 0.6)
    axes = [axis for row in figure.subplots(rows, columns, squeeze=False) for axis in row]
    for axis, result in zip(axes, results, strict=False):
        _scatter(axis, result, style, named=False)
        axis.set_title(result.scenario, loc="left", color=INK)
    for axis in axes[len(results) :]:
        axis.set_visible(False)
    figure.supxlabel("BE throughput, % of BE running alone", color=INK, fontsize=11)
    figure.supylabel("QoS guarantee, % (a step up: ten times fewer misses)", color=INK, fontsize=10)
    _legend(figure, style, list(style))
    _label(figure, axes[: len(results)])
    return figure


def _scatter(axis: Axes, result: SimOutcome, style: Mapping[str, tuple[int, str, str]], named: bool) -> None:
    estimates = {
        name: (result.estimate(name, "be_throughput_percent"), result.estimate(name, "qos_guarantee_percent"))
        for name in result.managers
    }
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
        axis.text(*at, name if named else str(number), color=INK, fontsize=9, ha="center", va="center", zorder=5)
    if "frozen" in estimates:
        axis.axhline(float(nines(estimates["frozen"][1].mean)), color=FAINT, lw=1.2, ls="--", zorder=1)
    _axes(axis, estimates)


def _front_line(axis: Axes, estimates: Mapping[str, tuple[Estimate, Estimate]]) -> None:
    """A staircase through the managers that nobody beats."""
    if not estimates:
        return
    be, qos = ([both[index].mean for both in estimates.values()] for index in (0, 1))
    unbeaten = sorted((x, float(nines(y))) for x, y, best in zip(be, qos, front(be, qos), strict=True) if best)
    xs, ys = zip(*unbeaten, strict=True)
    axis.step(xs, ys, where="pre", color=INK, lw=1.0, alpha=0.55, zorder=2)
    axis.scatter(xs, ys, s=190, facecolors="none", edgecolors=INK, linewidths=1.0, zorder=2)


def _axes(axis: Axes, estimates: Mapping[str, tuple[Estimate, Estimate]]) -> None:
    lowest = min(float(nines(qos.ci95[0])) for _, qos in estimates.values())
    most = max(max(be.mean, be.ci95[1] if math.isfinite(be.ci95[1]) else 0.0) for be, _ in estimates.values())
    axis.set_ylim(max(min(lowest, 2.0) - 0.25, -0.2), 4.3)
    axis.set_xlim(-0.07 * max(most, 5.0), 1.12 * max(most, 5.0))
    axis.set_yticks([float(nines(tick)) for tick in TICKS], [f"{tick:g}" for tick in TICKS])
    axis.set_ylim(max(min(lowest, 2.0) - 0.25, -0.2), 4.3)  # ticks widen the limits
    axis.grid(color=FAINT, alpha=0.35, lw=0.6)
    axis.tick_params(colors=INK, labelsize=10)
    axis.set_facecolor("none")
    for text in (axis.xaxis.label, axis.yaxis.label):
        text.set_color(INK)
    for spine in axis.spines.values():
        spine.set_color(FAINT)


def _legend(figure: Figure, style: Mapping[str, tuple[int, str, str]], names: Any) -> None:
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


def _label(figure: Figure, axes: Sequence[Axes]) -> None:
    """Move every label to where it covers neither a marker nor another label."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")
    for axis in axes:
        texts = list(axis.texts)
        points = [(float(x), float(y)) for x, y in (axis.transData.transform(text.get_position()) for text in texts)]
        extents = [text.get_window_extent() for text in texts]
        frame = axis.get_window_extent()
        placed = place(
            points,
            [(extent.width, extent.height) for extent in extents],
            Box(frame.x0, frame.y0, frame.x1, frame.y1),
            [box for line in axis.lines for box in _boxes(line)],
        )
        for text, extent, point, centre in zip(texts, extents, points, placed, strict=True):
            _move(axis, text, (extent.width, extent.height), point, centre)


def _move(
    axis: Axes, text: Any, size: tuple[float, float], point: tuple[float, ...], centre: tuple[float, float]
) -> None:
    """Put the label there; one that is far from its marker gets a line to its edge."""
    back = axis.transData.inverted()
    x, y = back.transform(centre)
    text.set_position((float(x), float(y)))
    edge = [min(max(at, mid - half / 2), mid + half / 2) for at, mid, half in zip(point, centre, size, strict=True)]
    if math.dist(point, edge) > 2.0 * MARKER_PIXELS:
        (from_x, from_y), (to_x, to_y) = back.transform(point), back.transform(edge)
        axis.plot([from_x, to_x], [from_y, to_y], color=INK, lw=0.6, alpha=0.6, zorder=2)


def _boxes(line: Any) -> list[Box]:
    """Thin boxes along a line's level and upright stretches, which labels should not cover."""
    corners = line.get_path().vertices
    if line.get_drawstyle() == "steps-pre":
        turns = np.column_stack([corners[:-1, 0], corners[1:, 1]])
        corners = np.insert(corners, np.arange(1, len(corners)), turns, axis=0)
    pixels = line.get_transform().transform(corners)
    return [
        Box(*(np.minimum(a, b) - LINE_PIXELS), *(np.maximum(a, b) + LINE_PIXELS)) for a, b in itertools.pairwise(pixels)
    ]
