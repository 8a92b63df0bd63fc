"""Figures as PNG for a README and as SVG for a page that is light or dark."""

from __future__ import annotations

import io
import math
import re
from html import escape
from typing import TYPE_CHECKING, Literal

from rlctl.envs.errors import require_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1c1f25", "#8d949f"
"""Used for nothing else, so that `svg` can replace them by the page's colours for light and dark."""

LC, BE, TARGET, SUSPENDED = "#2a78c8", "#c85a11", "#c23b4e", "#7a64cf"
"""As the page of a report has them."""


def new_figure(
    width_inches: float, height_inches: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """A figure of its own: no pyplot, so no global state and no display; ConfigError: matplotlib is not installed."""
    require_installed("a figure", "cli", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout=layout)


def png(figure: Figure) -> bytes:
    """The figure for a README: dark ink on white."""
    return _saved(figure, "png", facecolor="white")


def svg(figure: Figure, title: str) -> str:
    """The figure for an HTML page: text as text, ink as the page's `currentColor`, ids of its own.

    The title is read aloud in place of the figure, and makes ids differ between the figures of a page.
    """
    text = _saved(figure, "svg", facecolor="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r"(\d\.\d)\d+", r"\1", text)  # a tenth of a point is enough, and half the page
    own = re.sub(r"\W", "-", title)
    text = re.sub(r' id="', f' id="{own}-', text)
    text = re.sub(r'href="#', f'href="#{own}-', text)
    text = re.sub(r"url\(#", f"url(#{own}-", text)
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    text = re.sub(
        r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img"><title>{escape(title)}</title>', text, count=1
    )
    return text.strip()


def plain_axis(axis: Axes) -> None:
    """Ink and lines that `svg` can replace."""
    axis.tick_params(colors=INK, labelsize=9)
    axis.set_facecolor("none")
    for text in (axis.xaxis.label, axis.yaxis.label):
        text.set_color(INK)
    for spine in axis.spines.values():
        spine.set_color(FAINT)


def error_bar(mean: float, interval: tuple[float, float]) -> list[list[float]]:
    """Distances from a mean to both ends of its interval; none for a single sample, whose interval is endless."""
    low, high = interval
    if not math.isfinite(high - low):
        return [[0.0], [0.0]]
    return [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]  # the last bit may be on the wrong side


def _saved(figure: Figure, kind: str, facecolor: str) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlctl"}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=110, facecolor=facecolor, metadata=metadata)
    return buffer.getvalue()
