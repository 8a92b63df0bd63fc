"""Labels beside their points without overlap: each takes the nearest free place on rings around its point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
