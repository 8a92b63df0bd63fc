"""One run as a small SVG in the manner of the thesis' figures 5.3 to 5.7: load, tail, BE work, suspensions shaded."""

from __future__ import annotations

import itertools
from html import escape

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.run_metrics import Windows

WIDTH, LEFT, RIGHT = 360.0, 38.0, 352.0
PANELS = ((14.0, 58.0), (78.0, 146.0), (166.0, 210.0))
"""Top and bottom of load, tail and BE work, in the SVG's units."""

BOTTOM, HEIGHT = 210.0, 236.0
COLUMNS = 320
"""Points of a curve; more ticks are drawn as the band from their least to their most."""

LOWEST, HIGHEST = 0.1, 100.0
"""Range of the tail's log axis, multiples of the target; what lies outside is drawn on its edge."""


def timeline_svg(name: str, run: Windows, tick_seconds: float) -> str:
    """Three panels over the same seconds of a manager's run, one alone; colours come from the page's classes."""
    load, latency, be_work = run.load_ratio[:, 0], run.latency_ratio[:, 0], run.be_work_ratio[:, 0]
    load_top = max(1.0, float(np.ceil(4.0 * load.max())) / 4.0)
    be_top = max(0.1, float(np.ceil(10.0 * be_work.max())) / 10.0)
    log = np.log10(np.clip(latency, LOWEST, HIGHEST))
    tail = (log - np.log10(LOWEST)) / np.log10(HIGHEST / LOWEST)
    seconds = tick_seconds * len(load)
    target = PANELS[1][1] - (PANELS[1][1] - PANELS[1][0]) / 3  # 1 is a third of the way from 0.1 to 100
    title = f"{name}: load, tail latency by the target, and BE work over {seconds:g} s"
    parts = [
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" class="timeline"><title>{escape(title)}</title>',
        f'<path class="frozen" d="{_spans(run.frozen[:, 0])}"/>',
        _panel(PANELS[0], load / load_top, "load", {0.0: "0", 1.0: f"{100 * load_top:g} %"}, "load"),
        _panel(PANELS[1], tail, "tail", {0.0: "0.1", 1 / 3: "1", 2 / 3: "10", 1.0: "100"}, "tail / target"),
        f'<path class="target" d="M{LEFT:g} {target:.1f}H{RIGHT:g}"/>',
        _panel(PANELS[2], be_work / be_top, "be", {0.0: "0", 1.0: f"{100 * be_top:g} %"}, "BE work"),
        *(_time(share, share * seconds) for share in (0.0, 0.5, 1.0)),
        "</svg>",
    ]
    return "".join(parts)


def _panel(
    panel: tuple[float, float], height: NDArray[np.float64], kind: str, ticks: dict[float, str], label: str
) -> str:
    top, bottom = panel
    marks = "".join(
        f'<path class="grid" d="M{LEFT:g} {bottom - share * (bottom - top):.1f}H{RIGHT:g}"/>'
        f'<text x="{LEFT - 4:g}" y="{bottom - share * (bottom - top) + 3:.1f}" class="tick">{text}</text>'
        for share, text in ticks.items()
    )
    curve = f'<path class="{kind}" d="{_band(height, top, bottom)}"/>'
    return f'{marks}{curve}<text x="{LEFT:g}" y="{top - 3:g}">{label}</text>'


def _band(height: NDArray[np.float64], top: float, bottom: float) -> str:
    """A line, or where several ticks share a column the band from their least to their most."""
    edges = np.linspace(0, len(height), min(COLUMNS, len(height)) + 1).astype(int)
    least, most = (reduce(height, edges[:-1]) for reduce in (np.minimum.reduceat, np.maximum.reduceat))
    x = LEFT + (RIGHT - LEFT) * (edges[:-1] + edges[1:]) / 2 / len(height)
    forward = [f"{a:.1f} {bottom - b * (bottom - top):.1f}" for a, b in zip(x, most, strict=True)]
    if np.array_equal(least, most):
        return "M" + "L".join(forward)
    back = [f"{a:.1f} {bottom - b * (bottom - top):.1f}" for a, b in zip(x[::-1], least[::-1], strict=True)]
    return "M" + "L".join(forward + back) + "Z"


def _spans(frozen: NDArray[np.bool_]) -> str:
    """Rectangles over all panels where BE was suspended."""
    parts, tick, width = [], 0, (RIGHT - LEFT) / len(frozen)
    for suspended, group in itertools.groupby(frozen.tolist()):
        length = len(list(group))
        if suspended:
            x, wide = LEFT + tick * width, length * width
            parts.append(f"M{x:.2f} {PANELS[0][0]:g}h{wide:.2f}V{BOTTOM:g}h-{wide:.2f}z")
        tick += length
    return "".join(parts)


def _time(share: float, seconds: float) -> str:
    anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
    x = LEFT + share * (RIGHT - LEFT)
    return f'<text x="{x:.1f}" y="{BOTTOM + 14:g}" style="text-anchor:{anchor}">{seconds:g} s</text>'
